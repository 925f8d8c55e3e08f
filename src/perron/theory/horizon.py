"""The error after a budget of T steps, the step at which linear speedup begins, and the number of nodes that still helps.

Everything here follows from one inequality. A method whose x-hat follows SGD with the effective step eta <= 1/L on a function
with L-Lipschitz gradients, gap Delta = f(x_0) - f* and noise variance sigma^2 at each of n nodes satisfies

    (1/T) sum_t E |grad f(x-hat_t)|^2  <=  2 Delta / (eta T)  +  eta L sigma^2 / n

(the descent lemma). The first term is the remaining effect of the start, the second the noise. Convexity is not assumed. The
network bounds eta from above, by half of the largest stable step: that, and not n, limits a slow network. Other effects of a
method (Push-Pull's residual eps, the delay of trees, a time-varying network) are not in the inequality: at the cap the noise
may settle a few times higher than at half the last term, the level of SGD; `perron.theory.stationary` computes it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt

from perron.errors import PerronError


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """A problem and the largest effective step that is stable on a network.

    Attributes:
        nodes: n.
        smoothness: L.
        noise_var: sigma^2, E |noise|^2 of one node's gradient.
        gap: Delta = f(x_0) - f*.
        most: the largest effective step to use; `cap` limits it to 1/L.
    """

    nodes: int
    smoothness: float
    noise_var: float
    gap: float
    most: float

    def __post_init__(self) -> None:
        _check_positive(smoothness=self.smoothness, gap=self.gap, most=self.most)
        if self.nodes < 1 or not (isfinite(self.noise_var) and self.noise_var >= 0):
            raise PerronError(f"Horizon needs nodes >= 1 and noise_var >= 0; got {self.nodes} and {self.noise_var}.")

    @property
    def cap(self) -> float:
        """The largest effective step for which the inequality holds and the network is stable."""
        return min(self.most, 1 / self.smoothness)

    def best_step(self, steps: float) -> float:
        """Return the effective step that minimises the bound after T steps: sqrt(2 n Delta / (L sigma^2 T)), or the cap."""
        _check_positive(steps=steps)
        if self.noise_var == 0:
            return self.cap
        return min(self.cap, sqrt(2 * self.nodes * self.gap / (self.smoothness * self.noise_var * steps)))

    def error(self, steps: float, step: float | None = None) -> float:
        """Return the bound on the mean of E |grad f|^2 over T steps, with the best effective step unless one is given."""
        step = self.best_step(steps) if step is None else step
        _check_positive(steps=steps, step=step)
        return 2 * self.gap / (step * steps) + step * self.smoothness * self.noise_var / self.nodes

    @property
    def transient(self) -> float:
        """T* = 2 n Delta / (cap^2 L sigma^2), the number of steps after which the network no longer matters.

        Before, the step is capped and the error falls as 1/T, whatever n; after, it falls as 1/sqrt(n T): linear speedup.
        """
        noise = self.cap**2 * self.smoothness * self.noise_var
        return 2 * self.nodes * self.gap / noise if self.noise_var else inf

    def saturation(self, steps: float) -> float:
        """Return n* = cap^2 L sigma^2 T / (2 Delta): even infinitely many nodes at most halve the error of n* nodes.

        Below n* the error falls as 1/sqrt(n); above it the first term, which does not depend on n, dominates. For a family
        of networks whose cap falls with n, see `crossover`.
        """
        return self.saturation_at(self.cap, steps)

    def saturation_at(self, step: float, steps: float) -> float:
        """Return n* at a given effective step: where eta L sigma^2 / n, the noise, falls below 2 Delta / (eta T)."""
        return step**2 * self.smoothness * self.noise_var * steps / (2 * self.gap)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value > 0):
            raise PerronError(f"{name} must be positive; got {value}.")


def crossover(horizons: list[Horizon], steps: float) -> int | None:
    """Return the number of nodes, in a family of networks, beyond which more nodes do not help within T steps.

    That is the number with the smallest error; None if it is the largest of those given.
    """
    if not horizons:
        raise PerronError("crossover needs at least one network.")
    ordered = sorted(horizons, key=lambda horizon: horizon.nodes)
    best = min(ordered, key=lambda horizon: horizon.error(steps))
    return None if best is ordered[-1] else best.nodes
