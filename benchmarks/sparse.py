"""Sparse messages against int4: why perron sends few bits and all coordinates, not few coordinates and all bits.

    .venv/bin/python benchmarks/sparse.py                # both tables, ten minutes
    .venv/bin/python benchmarks/sparse.py quadratic      # error after 1200 steps, and bytes to 1e-10
    .venv/bin/python benchmarks/sparse.py mlp            # training loss of an MLP on MNIST with AdamW, unequal nodes

`SparsePushPull` sends the largest changes of models and of trackers, and remembers for both what its neighbors know, as C-GT
(Liao, Li, Huang & Pu 2022) and CPP (Song, Shi, Pu & Yan 2022) do with a sparse codec. An entry takes six bytes: a number of 32
bits, and its place among 65,536. Every share of coordinates has the best gamma and lr of a grid, int4 the best lr; int4 takes
what the codec of perron sends, with its scales.
"""

import argparse
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import perron
from perron.algorithms.moves import Moving
from perron.algorithms.states import extend

ENTRY = 6  # bytes
MIXING = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
SHARES = (0.17 / 2, 0.1, 0.03)  # the first takes as many bytes as int4
GAMMAS = (0.1, 0.2, 0.3, 0.5)


class SparseState(NamedTuple):
    """Model, tracker, last gradient; what neighbors know of model and tracker, and the mixture of what is known of theirs."""

    x: Tensor
    y: Tensor
    grad: Tensor
    x_sent: Tensor
    x_mixed: Tensor
    y_sent: Tensor
    y_mixed: Tensor


@dataclass(frozen=True, kw_only=True)
class SparsePushPull(Moving):
    """Push-Pull with the largest changes only, C.

    q = C(x - x_sent)     x_sent+ = x_sent + q     x_mixed+ = x_mixed + A q     A x is replaced by x + gamma (x_mixed+ - x_sent+)
    s = C(y - y_sent)     y_sent+ = y_sent + s     y_mixed+ = y_mixed + B s     B y is replaced by y + gamma (y_mixed+ - y_sent+)
    """

    share: float = 0.1
    gamma: float = 0.2

    @property
    def about(self) -> perron.About:
        return perron.About(
            title=self.titled(f"sparse {self.share:.3g}"),
            family="push-pull",
            matrices="A B",
            exact=True,
            reference="T8",
        )

    def init(self, x: Tensor, node: perron.Node) -> Any:  # noqa: ARG002
        return self.begin(SparseState(x, *(torch.zeros_like(x) for _ in range(6))))

    def largest(self, x: Tensor) -> Tensor:
        """Return a vector with the largest coordinates; the others are zero."""
        count = max(1, round(self.share * x.shape[-1]))
        return torch.zeros_like(x).scatter_(-1, (top := x.abs().topk(count, dim=-1).indices), x.gather(-1, top))

    def step(self, state: Any, node: perron.Node, lr: Any) -> Any:
        q, s = self.largest(state.x - state.x_sent), self.largest(state.y - state.y_sent)
        pulled, pushed = node.pull(q), node.push(s)
        weight = node.push(state.w) if self.move.scale_dependent else None
        grad = yield state.x
        x_sent, x_mixed = state.x_sent + q, state.x_mixed + pulled.wait()
        y_sent, y_mixed = state.y_sent + s, state.y_mixed + pushed.wait()
        y = state.y + self.gamma * (y_mixed - y_sent) + grad - state.grad
        mixed, weights, u = state.x + self.gamma * (x_mixed - x_sent), {}, y
        if weight is not None:
            w = state.w + self.gamma * (weight.wait() - state.w) + 1 - state.one
            weights, u = {"w": w, "one": torch.ones_like(w)}, y / w
        dx, memory = self.displace(state, u, lr)
        return extend(SparseState(mixed + dx, y, grad, x_sent, x_mixed, y_sent, y_mixed), weights | memory)


def sparse_bytes(share: float, dim: int, steps: int) -> float:
    """Return what all links carry."""
    links = len(MIXING.pull_graph.edges) + len(MIXING.push_graph.edges)
    return float(links * steps * ENTRY * max(1, round(share * dim)))


def quadratic(console: Console) -> None:
    """Print the error and the bytes to 1e-10 on quadratics that differ between nodes."""
    problem, steps = perron.problems.Quadratic.random(8, 300, seed=1), 1200
    table = Table(
        "", "bytes / number", "best gamma, lr", f"error after {steps} steps", "MB to 1e-10", title="Quadratics, d = 300"
    )

    def row(name: str, makers: dict[str, Any], number: float, sent: Any, wire: Any = None) -> None:
        best: tuple[float, str, float] = (np.inf, "", np.nan)
        for label, (algorithm, lr) in makers.items():
            history = perron.simulate(
                problem,
                algorithm,
                MIXING,
                lr=lr,
                steps=steps,
                every=10,
                wire=wire,
                metrics=["distance_max"],
                progress=False,
            )
            values = history["distance_max"][:, 0]
            below = np.flatnonzero(values < 1e-10)
            mb = sent(history, below[0]) / 1e6 if len(below) else np.nan
            if (mb, float(values[-1])) < (best[2] if np.isfinite(best[2]) else np.inf, best[0]) or not np.isfinite(
                best[0]
            ):
                best = (float(values[-1]), label, mb)
        table.add_row(
            name, f"{number:.2f}", best[1], f"{best[0]:.0e}", f"{best[2]:.2f}" if np.isfinite(best[2]) else "-"
        )

    rates = (0.03, 0.06, 0.12)
    for wire in (None, "int8", "int4"):
        full = {f"lr {lr}": (perron.PushPull(), lr) for lr in rates}
        number = 16.0 if wire is None else 2 * perron.algorithms.codecs.CODECS[wire].nbytes(300) / 300
        row(wire or "float64", full, number, lambda history, place: history.costs["bytes"][place], wire)
    for share in (*SHARES, 0.3):
        makers = {f"{g}, {lr}": (SparsePushPull(share=share, gamma=g), lr) for g in (*GAMMAS, 1.0) for lr in rates}
        row(
            f"largest {share:.1%}", makers, 2 * ENTRY * share,
            lambda history, place, share=share: sparse_bytes(share, 300, int(history.steps[place])),
        )  # fmt: skip
    console.print(table)


def mlp(console: Console) -> None:
    """Print the training loss of an MLP with AdamW after 400 steps, for several codecs."""
    problem = perron.problems.Neural.images(
        8,
        data="mnist",
        model="mlp",
        width=32,
        depth=1,
        partition="dirichlet",
        concentration=0.1,
        batch=16,
        evaluate=10_000,
    )
    steps, adamw = 400, perron.AdamW(weight_decay=0.0)
    table = Table(
        "",
        "bytes / number",
        "best gamma, lr",
        "training loss",
        "+-",
        title=f"MNIST, d = {problem.dim:,}, {steps} steps",
    )

    def row(name: str, makers: dict[str, Any], number: float, wire: Any = None) -> None:
        def losses(algorithm: Any, lr: float, seeds: list[int]) -> Any:
            rate = perron.schedules.warmup(perron.schedules.cosine(lr, steps=steps), 20)
            history = perron.simulate(
                problem, algorithm, MIXING, lr=rate, steps=steps, every=steps, wire=wire, metrics=["loss_mean"], trials=seeds,
                progress=False,
            )  # fmt: skip
            return np.nan_to_num(history["loss_mean"][-1], nan=np.inf)

        tuned = {label: float(losses(*maker, [9])[0]) for label, maker in makers.items()}
        best = min(tuned, key=lambda label: tuned[label])
        found = losses(*makers[best], [0, 1, 2])
        table.add_row(name, f"{number:.2f}", best, f"{found.mean():.3f}", f"{found.std(ddof=1) / np.sqrt(3):.3f}")
        console.print(f"{name}: {found.mean():.3f}", style="dim")

    rates = (0.002, 0.004, 0.008, 0.016)
    for wire in (None, "int8", "int4"):
        number = 8.0 if wire is None else 2 * perron.algorithms.codecs.CODECS[wire].nbytes(problem.dim) / problem.dim
        row(wire or "float32", {f"{lr}": (perron.PushPull(move=adamw), lr) for lr in rates}, number, wire)
    for share in SHARES:
        makers = {f"{g}, {lr}": (SparsePushPull(share=share, gamma=g, move=adamw), lr) for g in GAMMAS for lr in rates}
        row(f"largest {share:.1%}", makers, 2 * ENTRY * share)
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("quadratic", "mlp"))
    chosen, start = parser.parse_args().what, time.time()
    torch.set_num_threads(1)
    screen = Console(width=120)
    for part in (quadratic, mlp):
        if chosen in (None, part.__name__):
            part(screen)
    screen.print(f"{time.time() - start:.0f} s")
