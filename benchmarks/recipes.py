"""Which recipe trains best: algorithms and moves on unequal data, each at the best learning rate of a grid.

    .venv/bin/python benchmarks/recipes.py exponential      # some minutes each; they write docs/recipes.json
    .venv/bin/python benchmarks/recipes.py ring
    .venv/bin/python benchmarks/recipes.py page             # writes docs/which_recipe.md from it

8 nodes, MNIST (the first 8,000 images) split by Dirichlet(0.1) labels, a network 784-32-10, 16 images per node and step, 200
steps with warm-up over 20 and a cosine, three seeds. Directed exponential graph and directed ring, random integer weights.
Measured is the training loss of the mean model over all nodes' data after the last step; the best lr of a x2 grid, for all alike.
"""

import json
import math
import re
import sys
import warnings
from pathlib import Path

from perron import SGP, AdamW, CentralizedSGD, Descent, Mixing, Momentum, PushPull, simulate
from perron._storage.atomic import write_bytes
from perron.networks import topologies
from perron.problems import Neural
from perron.schedules import cosine, warmup

NODES, STEPS, WARM, SEEDS = 8, 200, 20, 3
GRIDS = {"Descent": (0.025, 6), "Momentum": (0.01, 5), "AdamW": (0.008, 5)}  # the least lr, and the number of them
MOVES = (Descent(), Momentum(), AdamW(weight_decay=0.0))
DOCS = Path(__file__).parents[1] / "docs"
FILE = DOCS / "recipes.json"


def recipes(graph):
    """Names, algorithms, numbers of exchanges in a step."""
    if graph == "ring":
        for rounds in (1, 3, 6):
            for order in ("pu", "atc"):
                yield f"Push-Pull {order}, AdamW, rounds={rounds}", PushPull(order=order, move=MOVES[-1]), rounds
        yield "SGP, AdamW", SGP(move=MOVES[-1]), 1
        return
    for move in MOVES:
        kind = type(move).__name__
        yield f"centralized, {kind}", CentralizedSGD(move=move), 1
        for order in ("cta", "pu", "atc"):
            yield f"Push-Pull {order}, {kind}", PushPull(order=order, move=move), 1
        yield f"SGP, {kind}", SGP(move=move), 1


def trained(problem, algorithm, mixing, lr, rounds):
    """The loss of the mean model after training: mean and standard deviation over seeds; infinite if one diverged."""
    history = simulate(
        problem, algorithm, mixing, steps=STEPS, lr=warmup(cosine(lr, steps=STEPS), WARM), every=STEPS, metrics=["loss_mean"],
        trials=SEEDS, rounds=rounds, progress=False,
    )  # fmt: skip
    last = history["loss_mean"][-1]
    return (float(last.mean()), float(last.std(ddof=1))) if math.isfinite(float(last.sum())) else (math.inf, math.inf)


def measure(graph):
    """Train with every recipe on a graph, and keep the results in docs/recipes.json."""
    warnings.simplefilter("ignore")  # the ring mixes too slowly, and a too large lr diverges: both are measured here
    problem = Neural.images(
        NODES, data="mnist", samples=8000, model="mlp", width=32, depth=1, partition="dirichlet", concentration=0.1, batch=16
    )  # fmt: skip
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    found = {name: facts for name, facts in found.items() if not name.startswith(f"{graph}:")}
    mixing = Mixing.random_integer(getattr(topologies, graph)(NODES), seed=0)
    for name, algorithm, rounds in recipes(graph):
        least, count = GRIDS[type(algorithm.move).__name__]
        losses = {least * 2**k: trained(problem, algorithm, mixing, least * 2**k, rounds) for k in range(count)}
        best = min(losses, key=lambda lr: losses[lr][0])
        inside = best not in (least, least * 2 ** (count - 1))
        found[f"{graph}: {name}"] = {"loss": losses[best][0], "sd": losses[best][1], "lr": best, "inside": inside}
        print(f"{graph}: {name}", found[f"{graph}: {name}"], flush=True)
        write_bytes(FILE, json.dumps(found, indent=1).encode())


PAGE = """# Which recipe

Two small tasks, measured: images, and [a GPT](#a-gpt).

8 nodes hold MNIST images (the first 8,000) split by Dirichlet(0.1) labels, so that each has
few digits, and train a network 784-32-10 with 16 images per node and step for 200 steps, with warm-up and cosine. The tables have
the training loss of the mean model over all nodes' data: mean and standard deviation over three seeds, at the best lr of
a grid (in brackets), which is chosen on the same loss, for all alike. *Centralized* averages all gradients exactly. Weights are
random integers, so the network is not doubly stochastic. Weight decay and clipping are not used.

## A graph that mixes well

The directed exponential graph; its second eigenvalue is 0.49.

{fast}

- **AdamW on a tracker**, in the order atc, is nearest to centralized AdamW. The orders pu and cta follow; in cta all messages
  overlap the gradient.
- **Momentum** makes the overlapped order usable, which plain descent does not.
- **SGP with AdamW** ends behind SGP with momentum: local AdamW is biased on unequal data.
- The best learning rate of AdamW on a tracker is that of centralized AdamW or twice it. Do not divide it by the number of nodes.

## A graph that mixes slowly

The directed ring; its second eigenvalue is 0.92. AdamW, with several exchanges in a step:

{slow}

`check` warns above 0.75. With `rounds=6` the ring is as good as the exponential graph, with six times as many messages as before.

## A GPT

A character GPT of 0.1 million parameters on tiny-shakespeare, 8 nodes with roles of their own, the directed exponential graph,
250 steps of 4 windows per node; the test loss is the mean over three trials ([the study](studies/gpt.md)).

{gpt}

- **Push-Pull AdamW in the order atc** ends 0.8 % above all-reduce AdamW, with the same learning rate (1.5 % with the seed of the
  tuning). A second exchange in each step (`rounds=2`) makes no difference that three trials resolve.
- **The overlapped orders pay here**: pu ends 4 % and cta 7 % above all-reduce. After 250 steps cta is also behind SGP AdamW; pu
  and SGP cannot be told apart.
- On a tracker, momentum and plain descent are far behind AdamW.

## Start here

| | |
|---|---|
| algorithm | `PushPull(order="atc")`; `PushPull()` where messages take long |
| move | `inner=lambda groups: torch.optim.AdamW(groups, lr=...)`, or `move=AdamW()` |
| graph | `"exponential"`, or `"one_peer_exponential"`, the default, with fewer messages (not measured here) |
| learning rate | the one that suits the batch of one node; warm-up and cosine |
| clipping | `clip=`, never the gradients before `step()` |

Measured by `benchmarks/recipes.py`. Differences below two standard deviations are not resolved. [Moves](concepts/moves.md)
explains how they work.
"""


def page():
    """The page with the results of both graphs."""
    found = json.loads(FILE.read_text())

    def cell(name):
        facts = found[name]
        edge = "" if facts["inside"] else ", end of the grid"
        return f"{facts['loss']:.3f} ± {facts['sd']:.3f} ({facts['lr']:g}{edge})"

    def table(rows):
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    kinds = [type(move).__name__ for move in MOVES]
    methods = ["centralized", *(f"Push-Pull {order}" for order in ("cta", "pu", "atc")), "SGP"]
    fast = [["", *kinds], ["---"] * (1 + len(kinds))]
    fast += [[name, *(cell(f"exponential: {name}, {kind}") for kind in kinds)] for name in methods]
    slow = [["", "loss"], ["---"] * 2]
    slow += [[name.removeprefix("ring: "), cell(name)] for name in found if name.startswith("ring:")]
    gpt = re.search(r"(?s)## After .*? steps\n\n(.*?)\n\n", (DOCS / "studies" / "gpt.md").read_text() + "\n\n")
    return PAGE.format(fast=table(fast), slow=table(slow), gpt=gpt[1])


if __name__ == "__main__":
    if sys.argv[1] == "page":
        write_bytes(DOCS / "which_recipe.md", page().encode())
    else:
        measure(sys.argv[1])
