"""Which graph and which algorithm take the fewest seconds, predicted and simulated?

    python benchmarks/time_to_target.py            # some minutes on two cores
    python benchmarks/time_to_target.py --quick    # one network, little search
    python benchmarks/time_to_target.py --write    # and write docs/time.md

On five networks `perron.design.fastest_graph` searches for a graph for each of six algorithms, with the same number of tries for
each. What it finds and graphs that one would take otherwise are compared: seconds of a step (`perron.Clock`, eager protocol)
times steps until |grad f|^2 is 1e-8 of its start. Steps are predicted by theory, for a range of curvatures that all nodes share,
and SIMULATED on a quadratic that theory does not know: d = 4, condition number about 50, curvatures differ by 30 % between nodes
and optima by O(1); each at the best of 12 steps.
"""

from __future__ import annotations

import argparse
import time
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import perron
from perron.clock import Clock, Machines, presets
from perron.clock.candidates import Candidate, candidates, tour
from perron.design import fastest_graph
from perron.networks.graph import Graph
from perron.problems import Quadratic
from perron.theory import steps_to_accuracy

SIZE, COMPUTE, TARGET, CONDITION = 5.62e6, 0.0254, 1e-8, 50.0
SEARCHED = ("push_pull", "push_pull_pu", "push_pull_atc", "exact_diffusion", "extra", "local_push_pull")
MOST = 1500  # simulated steps
SLOWER, SEED = 20.0, 0
FEW, STARTS = 20, 60  # nodes up to which all tries are made, and tries beyond
PLAIN = ("ring by number", "ring both ways by number", "exponential by number", "one-peer exponential")
PAGE = Path(__file__).parent.parent / "docs" / "time.md"


class Row(NamedTuple):
    """A candidate with its seconds of a step, and its steps as predicted and as simulated."""

    algorithm: str
    graph: str
    kind: str  # "found", "plain" or "other"
    step: float
    predicted: float
    simulated: float

    def cells(self) -> list[str]:
        steps = ["-" if not isfinite(v) else f"{v:,.0f}" for v in (self.predicted, self.simulated)]
        seconds = ["-" if not isfinite(v) else f"{v * self.step:.3g}" for v in (self.predicted, self.simulated)]
        if not isfinite(self.simulated):
            steps[1] = f"> {MOST:,}"
        return [self.algorithm, self.graph, f"{self.step * 1e3:.0f}", steps[0], steps[1], seconds[0], seconds[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one network, 40 tries")
    parser.add_argument("--tries", type=int, default=120, help="networks tried for each algorithm (default: 120)")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    tries = 40 if args.quick else args.tries
    networks = links()
    if args.quick:
        networks = dict(list(networks.items())[:1])
    parts = []
    for title, machines in networks.items():
        print(f"{title} ...", flush=True)
        parts.append(section(title, compare(machines, tries)))
        print(parts[-1], f"\n({time.process_time() - began:.0f} s of CPU time so far)\n", flush=True)
    if args.write:
        command = "python benchmarks/time_to_target.py" + (" --quick" if args.quick else "") + " --write"
        taken = time.process_time() - began
        PAGE.write_text(page(parts, command, tries, taken), encoding="utf-8")
        print(f"written to docs/{PAGE.name}")


def links() -> dict[str, Machines]:
    gaia = presets.load("gaia")
    n = gaia.graph.nodes
    rng = np.random.default_rng(SEED)
    slow = np.triu(rng.uniform(size=(n, n)) < 0.5, 1)
    slow |= np.tril(~slow.T, -1)  # one direction of each pair
    factor = np.where(slow, SLOWER, 1.0)
    asymmetric = gaia.changed(latency=gaia.latency_matrix * factor, rate=gaia.rate_matrix / factor)
    return {
        "Gaia, 11 data centers, access 10 Gbit/s": gaia,
        "Gaia, access 100 Mbit/s": presets.load("gaia", access=1.25e7),
        "Géant, 40 research networks, access 100 Mbit/s": presets.load("geant", access=1.25e7),
        "Ten AWS regions": presets.load("aws-10"),
        f"Gaia, one direction of each pair {SLOWER:g} times slower": asymmetric,
    }


def compare(machines: Machines, tries: int) -> list[Row]:
    """Return all candidates, fastest first by simulated seconds."""
    clock = Clock(machines, compute=COMPUTE, size=SIZE, protocol="eager")
    n = machines.graph.nodes
    problem = quadratic(n)
    known = {one.name: one for one in candidates(machines, SIZE)}
    tries = tries if n <= FEW else min(tries, STARTS)
    found = fastest_graph(
        clock, algorithms=SEARCHED, tries=tries, target=TARGET, condition=CONDITION, weights=False, progress=False
    )
    rows = []
    seen = set()
    for one in found.candidates:  # fastest first
        if one.algorithm not in seen:
            name = f"found: {one.name}" if one.mixing.varies else f"found ({one.row()[2]} links)"
            rows.append(row(problem, clock, one.algorithm, name, one.mixing, "found"))
            seen.add(one.algorithm)
    others = [
        ("exact_diffusion", "ring both ways"), ("extra", "minimum spanning tree"), ("push_pull", "ring"),
        ("push_pull_atc", "one-peer in ring order"), ("dsgd", "ring both ways"),
        ("exact_diffusion", "ring both ways by number"), ("push_pull_pu", "ring by number"),
        ("push_pull", "exponential by number"), ("push_pull_pu", "exponential by number"),
        ("push_pull", "one-peer exponential"), ("push_pull_pu", "one-peer exponential"),
        ("push_pull_atc", "one-peer exponential"),
    ]  # fmt: skip
    for name, graph in others:
        if graph in known:
            kind = "plain" if graph in PLAIN and name != "dsgd" else "other"
            rows.append(row(problem, clock, name, graph, weighted(name, known[graph]), kind))
    mixing = perron.Mixing.uniform(perron.topologies.ring(n))
    order = tour(machines, SIZE).tolist()
    for title, changes, kind in (
        ("parameter server, best hub", {"average": "server"}, "plain"),
        ("all-reduce, ring by number", {"average": "ring"}, "plain"),
        ("all-reduce, ring in short order", {"average": "ring", "order": order[::-1]}, "other"),
    ):
        rows.append(row(problem, clock.changed(**changes), "centralized", title, mixing, kind))
    return sorted(rows, key=lambda one: one.step * one.simulated if isfinite(one.simulated) else 1e9 * one.step)


def weighted(name: str, one: Candidate) -> perron.Mixing:
    symmetric = perron.ALGORITHMS[name].about.matrices.startswith("W")
    if symmetric and isinstance(one.graph, Graph):
        return perron.Mixing.metropolis(one.graph)
    return perron.Mixing.uniform(one.graph)


def row(problem: Quadratic, clock: Clock, name: str, graph: str, mixing: perron.Mixing, kind: str) -> Row:
    algorithm = perron.ALGORITHMS[name]
    step = clock.cycle_time(algorithm, mixing, trace=False).seconds
    predicted, lr = inf, 0.3
    if algorithm.about.exact and (found := steps_to_accuracy(algorithm, mixing, TARGET, condition=CONDITION)):
        predicted, lr = found.steps, found.lr
    hopeless = isfinite(predicted) and predicted > 5 * MOST
    simulated = (
        inf
        if hopeless
        else min(steps_of(problem, algorithm, mixing, lr * factor) for factor in np.geomspace(0.5, 1.15, 12))
    )
    print(
        f"  {name}, {graph}: {step * 1e3:.0f} ms, {predicted:.0f} steps predicted, {simulated:.0f} simulated",
        flush=True,
    )
    return Row(name, graph, kind, step, predicted, simulated)


def steps_of(problem: Quadratic, algorithm: perron.Algorithm, mixing: perron.Mixing, lr: float) -> float:
    """The first step with |grad f|^2 below the target; infinite if it is not reached."""
    start = float((problem.grad_norm_sq_start) * TARGET)  # type: ignore[attr-defined]
    history = perron.simulate(
        problem, algorithm, mixing, steps=MOST, lr=lr / problem.smoothness, every=1, metrics=["grad_norm_sq"],
        until={"grad_norm_sq": start}, progress=False,
    )  # fmt: skip
    errors = np.asarray(history["grad_norm_sq"]).mean(-1)
    below = np.flatnonzero(errors <= start)
    return float(history.steps[below[0]]) if len(below) else inf


def quadratic(n: int) -> Quadratic:
    rng = np.random.default_rng(1)
    mean = np.geomspace(1 / CONDITION, 1.0, 4)
    curvatures = mean * rng.uniform(0.7, 1.3, size=(n, 4))
    problem = Quadratic(curvatures, rng.standard_normal((n, 4)) + 2.0)
    average = torch.as_tensor(curvatures).mean(0)
    at_start = average * (problem.start().double() - problem.optimum)
    problem.grad_norm_sq_start = float((at_start**2).sum())  # type: ignore[attr-defined]
    problem.smoothness = float(average.max())
    return problem


# ---- text

COLUMNS = ["algorithm", "graph", "ms/step", "steps, predicted", "simulated", "seconds, predicted", "simulated"]


def section(title: str, rows: list[Row]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for one in rows:
        cells = [f"**{cell}**" if one.kind == "found" and k == 1 else cell for k, cell in enumerate(one.cells())]
        lines.append(f"| {' | '.join(cells)} |")
    designed = min((one for one in rows if one.kind == "found"), key=lambda one: one.step * one.predicted)
    plain = min((one for one in rows if one.kind == "plain"), key=lambda one: one.step * one.simulated)
    factor = plain.step * plain.simulated / (designed.step * designed.simulated)
    words = (
        f"The graph that theory and clock choose ({designed.algorithm}) takes {designed.step * designed.simulated:.3g} s in the "
        f"simulation, the best without knowing the links ({plain.algorithm}, {plain.graph}) {factor:.2g} times as long."
    )
    return f"## {title}\n\n" + "\n".join(lines) + f"\n\n{words}\n"


def page(parts: list[str], command: str, tries: int, taken: float) -> str:
    written = f"Written by `{command}` ({tries} tries for each algorithm, {taken:.0f} s of CPU time)."
    return INTRODUCTION + "\n".join(parts) + f"\n{READING}\n{written}\n"


INTRODUCTION = """# Which graph in seconds

A step on one graph takes longer than on another, and needs fewer of them. `perron advise --links` compares algorithms and known
graphs by the product, and `perron design --goal time` searches for a graph:

```console
$ perron advise exponential --links gaia --size 5.62e6 --compute 0.0254
...Fastest: ...
```

<!-- long: two minutes -->
```console
$ perron design --goal time --links gaia --size 5.62e6 --compute 0.0254 --out network.npz
...fastest: ...
```

```python
import perron
from perron.design import fastest_graph

clock = perron.Clock("gaia", compute=0.0254, size=5.62e6)
found = fastest_graph(clock, tries=20, weights=False)
print(found)  # a table of candidates and baselines, the winner, and what sets the time of a step
mixing = found.mixing
```

Seconds are those until |grad f|^2 is 1e-8 of its value at the start, without noise: seconds of a step in the long run (the
maximum cycle mean of the [clock](concepts/time.md), here with the eager protocol) times steps. Messages are 5.62 MB per vector, a
gradient takes 25.4 ms. Predicted steps are those of `perron.theory.steps_to_accuracy` at the best lr for condition number 50,
from a start that is equally far in all directions of curvature; simulated ones those of a quadratic with d = 4, condition number
about 50, whose curvatures differ by 30 % and optima by O(1) between nodes, at the best of 12 lr. **Found** graphs are those of
the search with equal effort for every algorithm; all others were taken as they are.

"""
READING = """## Reading

- Predicted steps are 1.3 times the simulated ones in the median: 1.0 to 1.3 times on graphs that mix well, and up to 2.4 times on
  rings and trees, since nodes that start at one point hardly excite slow modes of disagreement. Among graphs that mix alike the
  order is right; slow ones are better than predicted.
- **Local steps over digraphs win on four of five networks**, and are at par with an all-reduce in short order on Géant.
  `local_push_pull` computes four gradients for one exchange and needs a third of the steps: 36 x 4 gradients on Gaia, where the
  best undirected method takes 118. It is exact, and stays so here, where curvatures differ by 30 % between nodes. Predictions
  let all nodes have the same curvatures, so that they leave out the drift of local steps where losses differ much more: measure
  before you rely on them, or name other algorithms with `--algorithm`. Undirected methods with local steps are not among the
  candidates. With noise, the number of gradients counts, and four of them in a round gain less.
- The rest is about one exchange for each gradient. Where latency sets the step, and links are alike in both directions,
  undirected graphs with methods that send one vector (exact diffusion, EXTRA) are fastest: Push-Pull sends two, and in its
  order cta bears smaller steps.
- All-reduce is then the fastest where many nodes have narrow access and latencies are small (Géant): it sends two vectors
  whatever n is, and has the steps of gradient descent. `perron advise --links` and `perron design --goal time` compare with it
  and with a parameter server, and say so if one of them is faster than every graph.
- Where the access of nodes is narrow, bytes count: two vectors to one node are as many as one vector to two. Push-Pull (atc) on a
  graph of degree one that varies in time then has steps as short as a ring both ways and mixes better, if its shifts are chosen:
  those of the one-peer exponential graph are good for some numbers of nodes only.
- One problem and one seed: in another run the same ring both ways took 137 or 119 steps, by the order of its nodes, so that
  differences of less than about 15 % mean nothing. That holds for the lead of Push-Pull with narrow access here, and not for
  slow directions.
- Where one direction of links is much slower, digraphs of the fast directions are fastest.
- Fewest milliseconds per step do not make fewest seconds: a ring or a tree has short steps, and needs many.
"""

if __name__ == "__main__":
    main()
