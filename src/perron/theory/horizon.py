"""What a budget of steps buys: the error after T steps, when linear speedup begins, and when more nodes stop helping.

Everything here rests on one inequality. A method whose x-hat follows SGD with the effective step eta <= 1/L on a function with
L-Lipschitz gradients, gap Delta = f(x_0) - f* and noise variance sigma^2 at each of n nodes satisfies

    (1/T) sum_t E |grad f(x-hat_t)|^2  <=  2 Delta / (eta T)  +  eta L sigma^2 / n

(the descent lemma). The first term is what is left of the start, the second the noise. Convexity is not assumed. What a network
does is to bound eta from above, by half of what is stable on it: that, and not n, is what limits a slow network. What a method
does besides (Push-Pull's residual eps, the delay of trees, a network that varies in time) is not in the inequality: at the cap
the noise may settle a few times higher than at half the last term, where that of SGD does; `perron.theory.stationary` knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt

from perron.errors import PerronError


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """A problem, a budget and the largest effective step that a network bears.

    Attributes:
        nodes: n.
        smoothness: L.
        noise_var: sigma^2, E |noise|^2 of one node's gradient.
        gap: Delta = f(x_0) - f*.
        most: the largest effective step to be taken; 1/L at most.
    """

    nodes: int
    smoothness: float
    noise_var: float
    gap: float
    most: float

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "most"):
            _check(name, getattr(self, name))
        if self.nodes < 1 or not (isfinite(self.noise_var) and self.noise_var >= 0):
            raise PerronError(f"Horizon needs nodes >= 1 and noise_var >= 0; got {self.nodes} and {self.noise_var}.")

    @property
    def cap(self) -> float:
        """The largest effective step for which the inequality holds and the network is stable."""
        return min(self.most, 1 / self.smoothness)

    def best_step(self, steps: float) -> float:
        """The effective step that minimises the bound after so many steps: sqrt(2 n Delta / (L sigma^2 T)), or the cap."""
        _check("steps", steps)
        if self.noise_var == 0:
            return self.cap
        return min(self.cap, sqrt(2 * self.nodes * self.gap / (self.smoothness * self.noise_var * steps)))

    def error(self, steps: float, step: float | None = None) -> float:
        """The bound on the mean of E |grad f|^2 over so many steps, with the best effective step unless one is given."""
        step = self.best_step(steps) if step is None else step
        _check("steps", steps)
        _check("step", step)
        return 2 * self.gap / (step * steps) + step * self.smoothness * self.noise_var / self.nodes

    @property
    def transient(self) -> float:
        """T*: after so many steps the network is no longer felt: T* = 2 n Delta / (cap^2 L sigma^2).

        Before, the step is capped and the error falls as 1/T, whatever n; after, it falls as 1/sqrt(n T): linear speedup.
        """
        return (
            inf if self.noise_var == 0 else 2 * self.nodes * self.gap / (self.cap**2 * self.smoothness * self.noise_var)
        )

    def saturation(self, steps: float) -> float:
        """n* = cap^2 L sigma^2 T / (2 Delta): with this budget and cap even infinitely many nodes no more than halve its error.

        Below n* the error falls as 1/sqrt(n); above it the first term, in which n does not appear, is the larger one. For a
        family of networks whose cap falls with n, see `crossover`.
        """
        return self.cap**2 * self.smoothness * self.noise_var * steps / (2 * self.gap)

    def saturation_at(self, step: float, steps: float) -> float:
        """n* at a given effective step: where eta L sigma^2 / n, the noise, falls below 2 Delta / (eta T)."""
        return step**2 * self.smoothness * self.noise_var * steps / (2 * self.gap)


def _check(name: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise PerronError(f"{name} must be positive; got {value}.")


def crossover(horizons: list[Horizon], steps: float) -> int | None:
    """The number of nodes, among those of a family of networks, from which on more of them do not help after so many steps.

    That is the one with the smallest error, if it is not the largest network looked at; None if it is.
    """
    if not horizons:
        raise PerronError("crossover needs at least one network.")
    ordered = sorted(horizons, key=lambda one: one.nodes)
    best = min(ordered, key=lambda one: one.error(steps))
    return None if best is ordered[-1] else best.nodes
