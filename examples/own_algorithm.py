"""Your own algorithm in twenty lines: Push-Pull whose tracker is clipped, so that one outlier gradient does little harm.

    .venv/bin/python examples/own_algorithm.py

The text says what ONE node does; the simulator runs it for all nodes and trials at once.
"""

from dataclasses import dataclass

import torch

import perron
from perron.algorithms.push_pull import TrackerState
from perron.problems import Quadratic


@dataclass(frozen=True, kw_only=True)
class ClippedPushPull(perron.Algorithm):
    """y = B y + grad(x) - grad(x_prev)     x+ = A x - lr clip(y)"""

    most: float = 1.0

    @property
    def about(self):
        return perron.About(
            title=f"Clipped Push-Pull ({self.most:g})",
            family="push-pull",
            matrices="A B",
            exact=True,
            reference="this example",
        )

    def init(self, x, node):
        return TrackerState(x, y=torch.zeros_like(x), grad=torch.zeros_like(x))

    def step(self, state, node, lr):
        pulled, pushed = node.pull(state.x), node.push(state.y)
        grad = yield state.x  # both messages travel while the gradient is computed
        y = pushed.wait() + grad - state.grad
        step = y * (self.most / y.norm(dim=-1, keepdim=True)).clamp_max(1)
        return TrackerState(pulled.wait() - lr * step, y, grad)


def main():
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(16), seed=0)
    problem = Quadratic.random(16, 5, seed=0)
    for algorithm in (perron.PushPull(), ClippedPushPull(most=0.2)):
        history = perron.simulate(problem, algorithm, mixing, lr=0.1, steps=2000, metrics=["distance_max"])
        below = history.steps[history["distance_max"][:, 0] < 1e-6][0]
        print(f"{algorithm.about.title:24} reaches 1e-6 after {below} steps")


if __name__ == "__main__":
    main()
