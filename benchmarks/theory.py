"""Holds theory against the simulator and writes docs/theory: stationary levels and largest stable steps.

    .venv/bin/python benchmarks/theory.py levels [--quick]       # every algorithm that claims linear speedup, six topologies
    .venv/bin/python benchmarks/theory.py limits [--quick]       # every algorithm, three networks
    .venv/bin/python benchmarks/theory.py pages                  # the pages again, from what was measured

Measurements go to docs/theory/*.json after each algorithm; what is there already is not measured again (delete it to do so).

levels: quadratics whose Hessians differ from node to node, at half the largest stable step of each algorithm, where the simple
formula is off. Measured over 20 correlation times after a warm-up of 12 (200 after a wild start), in 128 trials; predicted before
anything is run.

limits: the same kind of quadratics without noise, all minimised at zero, so that errors grow or shrink without a floor. Steps
from 0.8 to 1.2 times the predicted limit, half a percent apart, are run side by side: the measured limit lies between the largest
below which all shrink, and the next.
"""

import json
import sys
import warnings
from dataclasses import fields, replace
from math import ceil, isfinite, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from perron import ALGORITHMS, Mixing, Network, Simulation, simulate, theory
from perron._storage.atomic import write_bytes
from perron.algorithms.base import WILD, Algorithm
from perron.errors import MixingError
from perron.networks import topologies
from perron.networks.graph import Graph
from perron.problems import Quadratic
from perron.theory.matrix_node import dense

DOCS = Path(__file__).parents[1] / "docs" / "theory"
SIX = ("exponential", "grid", "ring", "random", "geometric", "nearest_neighbor")
NETWORKS: dict[str, tuple[Graph, Mixing]] = {
    "exponential, 16": (topologies.exponential(16), Mixing.random_integer(topologies.exponential(16), seed=281)),
    "random digraph, 12": (
        topologies.random_digraph(12, probability=0.25, seed=27),
        Mixing.random_integer(topologies.random_digraph(12, probability=0.25, seed=27), seed=1),
    ),
    "directed ring, 10": (
        topologies.ring(10),
        Mixing.random_integer(topologies.ring(10), seed=0),
    ),
}
TRIALS = 128


def network_for(algorithm: Algorithm, graph: Graph, mixing: Mixing, name: str) -> Mixing:
    """The kind of network that an algorithm asks for."""
    if algorithm.about.matrices.startswith("W"):
        made = Mixing.metropolis(graph.symmetric())
        if name == "d2" and Network(made).pull_spectrum.real.min() < -0.3:  # which D^2 does not bear
            lazy = (np.eye(graph.nodes) + dense(made.pull)) / 2
            made = Mixing(lazy, lazy, name=f"{made.name}, lazy")
        return made
    if algorithm.about.matrices == "R C":
        return Mixing.spanning_trees(topologies.tree(graph.nodes) if name == "btpp" else graph)
    return mixing


def accepted(algorithm: Algorithm, mixing: Mixing) -> Algorithm:
    """The algorithm with as much of its momentum, halved as often as it takes, as the network bears."""
    while True:
        try:
            algorithm.check(Network(mixing))
            return algorithm
        except MixingError:
            momenta = {"heavy", "nesterov", "momentum"} & {field.name for field in fields(algorithm)}
            if not momenta:
                raise
            algorithm = replace(algorithm, **{name: getattr(algorithm, name) / 2 for name in momenta})


def level(name: str, topology: str, nodes: int) -> dict[str, Any] | None:
    """Measured and predicted level of an algorithm on a topology; None if it has no stable step there."""
    algorithm = ALGORITHMS[name]
    graph = topologies.NAMES[topology](nodes)
    mixing = network_for(algorithm, graph, Mixing.random_integer(graph, seed=1), name)
    # Pull-only methods divide by diag(A^t), which is tiny at first where walks take long to come back: errors then grow so
    # much that rounding breaks what trackers conserve, and they never settle, in double precision, at any level. A method that
    # conserves nothing forgets its start, if it is given time.
    least = Network(mixing).least_return
    wild = algorithm.about.matrices == "A" and least is not None and least < WILD
    lazy = wild and theory.recursion(algorithm, mixing).conserved.numel() > 0
    if lazy:
        mixing = Mixing.lazy(graph, keep=0.8)
    algorithm = accepted(algorithm, mixing)
    problem = Quadratic.random(nodes, 4, strong_convexity=0.2, noise_std=0.5, seed=1)
    network = Network(mixing)
    if name == "focus_sampled":  # the limit of its mean square takes minutes
        stable: theory.StableRange | None = theory.StableRange(
            0.0, 2 * algorithm.default_lr(network, problem.smoothness)
        )
    else:
        stable = theory.stable_lr(algorithm, network, problem)
    if stable is None:
        return None
    lr = (stable.lower + stable.upper) / 2
    predicted = theory.stationary(problem, algorithm, network, lr)
    memory = 1 / -log(theory.rate(algorithm, network, lr, problem))
    warm, measured = ceil((200 if wild and not lazy else 12) * memory) + 20, ceil(20 * memory) + 200
    metrics = ("grad_norm_sq", "distance_sq_local")
    history = simulate(
        problem, algorithm, mixing, lr=lr, steps=warm + measured, every=max(1, int(memory / 4)), trials=TRIALS, seed=1,
        metrics=metrics, progress=False,
    )  # fmt: skip
    found: dict[str, Any] = {"lr": lr, "steps": warm + measured, "effective": lr * algorithm.effective_step(network)}
    if algorithm != ALGORITHMS[name]:
        found["with"] = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    if lazy:
        found["weights"] = "lazy, keep=0.8"
    found["simple"] = theory.noise_floor(problem, found["effective"])
    for metric in metrics:
        value, error = history.tail(metric, measured / (warm + measured))
        found[metric] = {"measured": value, "error": error, "predicted": getattr(predicted, metric)}
    return found


def limit(name: str, which: str, steps: int) -> dict[str, Any] | None:
    """Predicted and measured ends of the stable interval; None if theory says that there is none."""
    algorithm, (graph, mixing) = ALGORITHMS[name], NETWORKS[which]
    mixing = network_for(algorithm, graph, mixing, name)
    algorithm = accepted(algorithm, mixing)
    random = name == "focus_sampled"
    network, problem = Network(mixing), still(graph.nodes, 1 if random else 4)
    stable = theory.stable_lr(algorithm, network, problem)
    found: dict[str, Any] = {"effective": algorithm.effective_step(network)}
    if algorithm != ALGORITHMS[name]:
        found["with"] = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    ends = {"upper": stable.upper, "lower": stable.lower} if stable else {}
    for end, predicted in ends.items():
        if predicted == 0 or not isfinite(predicted):
            found[end] = {"predicted": predicted}
            continue
        factors = np.arange(0.8, 1.2001, 0.005)
        middle = (ends["lower"] + ends["upper"]) / (2 * predicted)  # a narrow interval is looked at to its middle only
        factors = factors[factors >= middle] if end == "upper" else factors[factors <= middle]
        growing = (spreads if random else grows)(problem, algorithm, mixing, predicted * factors, steps)
        # The outermost step on the stable side of which all are stable.
        wrong = np.flatnonzero(growing if end == "upper" else growing[::-1])
        at = len(factors) if not len(wrong) else int(wrong[0])
        ordered = factors if end == "upper" else factors[::-1]
        found[end] = {
            "predicted": predicted,
            "stable": float(ordered[at - 1] * predicted) if at else None,
            "unstable": float(ordered[at] * predicted) if at < len(factors) else None,
        }
    if not stable:  # nothing between 0.001 and 10 should be stable
        unit = 1 / (problem.smoothness * found["effective"])
        growing = grows(problem, algorithm, mixing, unit * np.geomspace(0.01, 3, 60), steps)
        found["stable somewhere"] = not bool(growing.all())
    return found


def still(nodes: int, dim: int) -> Quadratic:
    """Differing Hessians with curvatures from 0.2 to 1, all minimised at zero, no noise."""
    hessians = Quadratic.random(nodes, 4, strong_convexity=0.2, seed=1).hessians
    if dim == 1:
        hessians = torch.linspace(0.2, 1, nodes, dtype=torch.float64)[:, None, None]
    return Quadratic(hessians, torch.zeros(nodes, dim, dtype=torch.float64))


def spreads(problem: Quadratic, algorithm: Algorithm, mixing: Mixing, rates: np.ndarray, steps: int) -> np.ndarray:
    """Whether E |x|^2 grows, for each step size, where nodes take part at random: over 20,000 trials, from step 30 to 60.

    In mean square, that is: single runs may shrink while their mean square grows, as rare ones grow fast.
    """
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((problem.nodes, problem.dim)))
    trials = 2000 if steps <= 1000 else 20_000
    found = []
    for lr in rates:
        simulation = Simulation(
            problem=problem, algorithm=algorithm, mixing=mixing, lr=float(lr), trials=trials, start=start
        )
        mean = [float((now.state.x**2).sum((-1, -2)).mean()) for now in simulation.iterates(60)]
        found.append(mean[60] > mean[30])
    return np.array(found)


def grows(problem: Quadratic, algorithm: Algorithm, mixing: Mixing, rates: np.ndarray, steps: int) -> np.ndarray:
    """Whether errors grow, for each step size: the largest of the last tenth of the run against that of a tenth in its middle."""
    sizes = torch.as_tensor(rates)[:, None, None]
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((problem.nodes, problem.dim)))
    # Trials with the same number draw the same: where nodes take part at random, all step sizes see the same ones.
    simulation = Simulation(
        problem=problem, algorithm=algorithm, mixing=mixing, lr=sizes, trials=[0] * len(rates), start=start
    )
    middle = late = torch.zeros(len(rates), dtype=torch.float64)
    for now in simulation.iterates(steps):
        if not (0.4 <= now.step / steps <= 0.5 or now.step >= 0.9 * steps):
            continue
        size = now.state.x.norm(dim=-1).amax(-1).nan_to_num(torch.inf)
        if now.step <= 0.5 * steps:
            middle = torch.maximum(middle, size)
        else:
            late = torch.maximum(late, size)
    # What is conserved is so up to rounding in the first steps, which leaves an error of 1e-16 for ever: that is not growth.
    return (((late > middle) & (late > 1e-10)) | ~late.isfinite()).numpy()


def measure(kind: str, quick: bool) -> None:
    """All algorithms; each is written down when it is done."""
    path = DOCS / f"{kind}.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() and not quick else {}
    names = [name for name, one in ALGORITHMS.items() if one.about.family != "gossip"]
    if kind == "levels":
        names = [name for name in names if ALGORITHMS[name].about.speedup]
    if quick:
        names = ["centralized", "push_pull", "add_opt", "frost", "diging"]
    for name in track([name for name in names if name not in known], f"Measuring {kind}"):
        cells = {}
        for where in SIX if kind == "levels" else NETWORKS:
            if kind == "limits":
                cells[where] = limit(name, where, 1000 if quick else 6000)
                continue
            sizes = ((4, 9, 16) if where == "grid" else (4, 8, 16))[: 1 if quick else 3]
            cells[where] = {str(nodes): level(name, where, nodes) for nodes in sizes}
        known[name] = cells
        if not quick:
            DOCS.mkdir(exist_ok=True)
            write_bytes(path, lined(known).encode())
    show(kind, known)


def lined(known: dict[str, Any]) -> str:
    """JSON with a line for each algorithm."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(cells)}" for name, cells in known.items()) + "\n}\n"


def show(kind: str, known: dict[str, Any]) -> None:
    """What was found, in a few lines."""
    console = Console()
    if kind == "levels":
        cells = [(n, t, s, c) for n, by in known.items() for t, sizes in by.items() for s, c in sizes.items() if c]
        off = [abs(c["grad_norm_sq"]["measured"] / c["grad_norm_sq"]["predicted"] - 1) for *_, c in cells]
        errors = [c["grad_norm_sq"]["error"] / c["grad_norm_sq"]["predicted"] for *_, c in cells]
        worst = int(np.argmax(off))
        console.print(
            f"{len(cells)} levels: measured within {100 * max(off):.1f} % of the exact prediction "
            f"(median {100 * np.median(off):.2f} %, standard error of a measurement {100 * np.median(errors):.2f} %); "
            f"farthest: {cells[worst][:3]}. "
            f"{sum(o > 3 * e for o, e in zip(off, errors, strict=True))} are more than three standard errors away."
        )
        simple = [c["grad_norm_sq"]["measured"] / c["simple"] for *_, c in cells]
        console.print(f"The simple formula is off by a factor of {min(simple):.2f} to {max(simple):.2f}.")
        return
    for name, by in known.items():
        for where, cell in by.items():
            for end in ("upper", "lower"):
                if end not in cell or "stable" not in cell.get(end, {}):
                    continue
                one = cell[end]
                ratio = [one[side] / one["predicted"] if one[side] else float("nan") for side in ("stable", "unstable")]
                if not abs(sum(ratio) / 2 - 1) < 0.03:
                    console.print(
                        f"{name} on {where}, {end}: measured between {ratio[0]:.3f} and {ratio[1]:.3f} of predicted"
                    )
    console.print(f"{sum(len(by) for by in known.values())} networks and algorithms looked at")


LEVELS = """# Stationary levels: predicted and measured

Written by `benchmarks/theory.py levels pages`. Every algorithm that claims linear speedup, on the paper's six
topologies with random integer weights, n = 4, 8 (grid: 9) and 16; quadratics whose Hessians and minima differ from
node to node; at half the largest stable step, where finite steps and the network are felt. A cell is the measured
level of E|grad f(x-hat)|^2 divided by the exact prediction (`theory.stationary`), with its standard error, and in
brackets divided by the simple formula, c lr tr(H Sigma) / (2n) (`theory.noise_floor`), which knows neither finite
steps nor networks nor bias.

**{count} levels. Largest deviation from the exact prediction {largest:.1f} %, median {median:.2f} %; standard error
of a measurement {error:.2f} % (median). {far} of them are more than three standard errors away (all share their
random numbers). The nodes' own distance to the optimum, mean_i E|x_i - x*|^2, is within {local:.1f} % of its
prediction.** The simple formula is off by a factor of {low:.2f} to {high:.0f}; the largest are those of biased
methods, at whose step the bias is all that is left.
"""
AFTER_LEVELS = """
\\* With lazy weights that keep 0.8. Pull-only methods divide gradients by diag(A^t), which on a directed ring of 16
nodes with the random weights falls to 9e-8 of its limit before it settles: errors grow by many orders of magnitude
first. Methods that track gradients, which are those marked, then lose what they conserve to rounding, and in double
precision stay far above their level for good: FROST and FROZEN by a factor of 1e28 and more, Pull-Diag-GT by 1e6 and
more. Gradient-Pull conserves nothing: it forgets its start, and was measured with the random weights after a warm-up of
200 correlation times instead of 12. perron warns of such networks, and `perron advise` has a remark ("wild start")."""
LIMITS = """# Largest stable steps: predicted and measured

Written by `benchmarks/theory.py limits pages`. Every algorithm that minimises, on three networks (for those that need
doubly stochastic weights: Metropolis on the undirected graph; for tree methods: spanning trees); quadratics with
curvatures from 0.2 to 1, whose Hessians differ from node to node. A cell is the predicted largest effective step
(factor times lr) for which the recursion contracts (`theory.stable_lr`), and in brackets between which multiples of
it the measured one lies: up to the first, errors shrink in a simulation of 6,000 steps; at the second they grow. Half
a percent apart is as fine as was looked.

**All measured limits lie within {widest:.1f} % of the predicted ones.**
"""
AFTER_LIMITS = """
focus_sampled, in which nodes take part at random, is held to its mean square: steps at which E|x|^2 grows in 20,000
trials (with one coordinate, and another curvature at each node). Momentum that a network does not bear at any step is
halved until it does."""


def pages() -> None:
    """The pages, from what was measured."""
    levels, limits = (json.loads((DOCS / f"{kind}.json").read_text()) for kind in ("levels", "limits"))
    levels, limits = ({name: known[name] for name in ALGORITHMS if name in known} for known in (levels, limits))
    write_bytes(DOCS / "levels.md", levels_page(levels).encode())
    write_bytes(DOCS / "limits.md", limits_page(limits).encode())


def levels_page(known: dict[str, Any]) -> str:
    """Measured over predicted, a row for each algorithm and topology."""
    cells = [c for by in known.values() for sizes in by.values() for c in sizes.values() if c]
    off = np.array([abs(c["grad_norm_sq"]["measured"] / c["grad_norm_sq"]["predicted"] - 1) for c in cells])
    errors = np.array([c["grad_norm_sq"]["error"] / c["grad_norm_sq"]["predicted"] for c in cells])
    local = np.array([abs(c["distance_sq_local"]["measured"] / c["distance_sq_local"]["predicted"] - 1) for c in cells])
    simple = np.array([c["grad_norm_sq"]["measured"] / c["simple"] for c in cells])
    lines = [
        LEVELS.format(
            count=len(cells), largest=100 * off.max(), median=100 * np.median(off), error=100 * np.median(errors),
            far=int((off > 3 * errors).sum()), local=100 * local.max(), low=simple.min(), high=simple.max(),
        ),
        "| algorithm | topology | n = 4 | n = 8 or 9 | n = 16 |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, by in known.items():
        for topology, sizes in by.items():
            shown = []
            for cell in sizes.values():
                if cell is None:
                    shown.append("no stable step")
                    continue
                one = cell["grad_norm_sq"]
                ratio, error = one["measured"] / one["predicted"], one["error"] / one["predicted"]
                lazy = "*" if "weights" in cell else ""
                shown.append(f"{ratio:.3f} ± {error:.3f} ({one['measured'] / cell['simple']:.3g}){lazy}")
            lines.append(f"| {name} | {topology} | {' | '.join(shown)} |")
    lines.append(AFTER_LEVELS)
    return "\n".join(lines) + "\n"


def limits_page(known: dict[str, Any]) -> str:
    """Predicted ends of the stable intervals, and between what they were measured."""
    lines = [LIMITS, f"| algorithm | {' | '.join(NETWORKS)} |", "|---|---|---|---|"]
    widest = 0.0
    for name, by in known.items():
        shown = []
        for cell in by.values():
            parts = []
            for end in ("lower", "upper"):
                one = cell.get(end)
                if one is None or one["predicted"] == 0:
                    continue
                if one["predicted"] is None or not isfinite(one["predicted"]):
                    parts.append("stable as far as looked")
                    continue
                text = f"{one['predicted'] * cell['effective']:.4g}"
                ends = [one[side] / one["predicted"] if one[side] else float("nan") for side in ("stable", "unstable")]
                widest = max(widest, *(abs(edge - 1) for edge in ends))
                parts.append(f"{'from ' if end == 'lower' else ''}{text} ({min(ends):.3f} .. {max(ends):.3f})")
            more = f" with {', '.join(f'{k}={v:g}' for k, v in cell['with'].items())}" if "with" in cell else ""
            if not parts:
                parts.append("none, and none found" if cell.get("stable somewhere") is False else "none, but one found")
            shown.append(", ".join(parts) + more)
        lines.append(f"| {name} | {' | '.join(shown)} |")
    lines[0] = LIMITS.format(widest=100 * widest)
    lines += [AFTER_LIMITS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    for kind in wanted:
        if kind == "pages":
            pages()
        elif kind in ("levels", "limits"):
            measure(kind, "--quick" in sys.argv)
        else:
            sys.exit(f"benchmarks/theory.py measures levels and limits, and writes pages; got {kind!r}.")
