"""Your own problem, twice: as a function, and as a small class.

    .venv/bin/python examples/own_problem.py

Eight hospitals fit one robust regression without sharing patients. Each has its own patients, drawn from its own population.
"""

import torch

import perron
from perron.problems import LocalLoss
from perron.random import Keyed

NODES, SAMPLES, DIM = 8, 400, 5
random = torch.Generator().manual_seed(0)
truth = torch.randn(DIM, generator=random, dtype=torch.float64)
features = (
    torch.randn(NODES, SAMPLES, DIM, generator=random, dtype=torch.float64)
    * torch.linspace(0.5, 2, NODES)[:, None, None]
)
targets = features @ truth + 0.3 * torch.randn(NODES, SAMPLES, generator=random, dtype=torch.float64)


# 1. A function: the loss of ONE node at ONE model; torch differentiates it, perron draws the minibatches.


def huber(x: torch.Tensor, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.huber_loss(features @ x, targets)


# 2. A class: where you know the gradient, or want it fast. All nodes and all trials at once, (trials, n, d).


class Huber(perron.Problem):
    nodes, dim = NODES, DIM

    def slopes(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.einsum("nsd,...nd->...ns", features, x) - targets).clamp(-1, 1)

    def local_grads(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...ns,nsd->...nd", self.slopes(x), features) / SAMPLES

    def grad(self, x: torch.Tensor, draw: int, random: Keyed) -> torch.Tensor:
        chosen = random.uniform(draw, SAMPLES) < 20 / SAMPLES  # about 20 samples of each node
        return torch.einsum("...ns,nsd->...nd", self.slopes(x) * chosen, features) / 20

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        apart = torch.einsum("nsd,...d->...ns", features, x) - targets
        return torch.nn.functional.huber_loss(apart, torch.zeros_like(apart), reduction="none").mean((-1, -2))


def main() -> None:
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(NODES), seed=0)
    for name, problem in (("function", LocalLoss(huber, [features, targets], dim=DIM, batch=20)), ("class", Huber())):
        history = perron.simulate(
            problem, perron.PushPull(), mixing, lr=0.05, steps=1500, trials=3, metrics=["loss", "grad_norm_sq"]
        )
        loss, error = history.tail("loss", 0.2)
        print(f"{name:>8}: loss {history['loss'][0].mean():.4f} -> {loss:.4f} +- {error:.4f}")


if __name__ == "__main__":
    main()
