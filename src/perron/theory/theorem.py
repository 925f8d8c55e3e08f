"""The quantities of the paper's Theorem 1, as printed and as corrected: diagnostics, not advice.

Theorem 1 bounds min_t E |grad f(x-hat)|^2 of Push-Pull after T = m K steps, x-hat = pi_A^T x, for local losses with
L-Lipschitz gradients, f_i(x_0) - inf f_i <= Delta and independent gradient noise E |noise_i|^2 <= sigma^2. It divides the run
into blocks of m steps and requires m >= C-tilde and a step that shrinks with m, so that it applies to runs of at least C-tilde
steps. On 16 nodes of an exponential graph that is about six million, on a ring of 25 nodes 4e13, with steps far below practical
ones: compare `Algorithm.default_lr`. The theorem does show how the rate depends on n once T is large enough.

| symbol      | here                  | meaning                                                               |
|-------------|-----------------------|-----------------------------------------------------------------------|
| n, c        | `nodes`, `alignment`  | c = n pi_A^T pi_B                                                     |
| s_A, s_B    | `pull_sum`, `push_sum`| `perron.spectral.mixing_sum`                                          |
| s_Am, s_Bm  | `*_power_sum`         | the same of A^m and B^m; for large m |I - A_inf|^2 and |I - B_inf|^2   |

``corrected`` is the theorem with every step of its proof repaired, and the constants that follow: docs/theory/theorem.md has the
proof line by line, and `perron paper check --only 25` tests each line on many networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, log, sqrt

from perron.errors import SpectralError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.spectral import contraction, mixing_sum, peak_deviation, period_product, skewness

LARGEST_POWER = 10**15  # A^m is at its limit long before; larger m would only cost squarings


@dataclass(frozen=True)
class MixingConstants:
    """The constants of a network in the theorem; build them with ``MixingConstants.of(mixing)``."""

    nodes: int
    alignment: float
    pull_sum: float
    push_sum: float
    pull_power_sum: float
    push_power_sum: float

    @classmethod
    def of(cls, mixing: Mixing, *, block: int | None = None) -> MixingConstants:
        """Compute the constants of a network, with s_Am and s_Bm for blocks of m = ``block`` steps (C-tilde if None)."""
        network = Network(mixing)
        n, c, s_A, s_B = network.nodes, network.alignment, network.pull_sum, network.push_sum
        if not (isfinite(s_A) and isfinite(s_B)):
            raise SpectralError(
                f"Theorem 1 needs finite s_A and s_B; got {s_A:g} and {s_B:g}. Give every node a self-loop, as "
                "graph.with_self_loops() does."
            )
        m = ceil(block_bound(n, c, s_A, s_B)) if block is None else block
        if m < 1:
            raise SpectralError(f"A block has at least one step; got {m}. Pass block= a whole number >= 1, or None.")
        power = min(m, LARGEST_POWER)
        sums = (mixing_sum(period_product(mixing, side), power=power).value for side in ("pull", "push"))
        return cls(n, c, s_A, s_B, *sums)


def block_bound(n: int, c: float, s_A: float, s_B: float) -> float:
    """Return C-tilde, the least m that Theorem 1 allows, as printed.

    The last entry was the largest on every network tried. It does not imply all that the printed proof uses (claim 9).

    >>> round(block_bound(2, 1.0, 1.0, 1.0))
    160
    """
    return max(
        s_A**2 / n,
        20 * n * s_A**2 / c**2,
        n**2 * s_B**2 / c**2,
        30 * s_B**3 / c**2,
        n**2 * (8 * s_A**2 * s_B + 2 * n * s_B + 2 * s_A * s_B + sqrt(n) * s_B) / c**2,
        20 * n**3 * s_A**2 * s_B**2 / c**2,
    )


def product_bounds(constants: MixingConstants) -> tuple[float, float]:
    """Return bounds on N_7 = sum_t |P_t|^2 and N_8 = sum_t |P_t|, P_t = sum_{j<=t} A^(t-j) delta_j, delta_j = B^j - B^(j-1).

    They are 8 s_A^2 s_B + 2 n s_B and 2 s_A s_B + sqrt(n) s_B.
    """
    n, a, b = constants.nodes, constants.pull_sum, constants.push_sum
    return 8 * a**2 * b + 2 * n * b, 2 * a * b + sqrt(n) * b


def corrected_block_bound(constants: MixingConstants) -> float:
    """Return the least m of the corrected theorem:

    n^2/c^2 max{N_7 + N_8^2, 254 s_B^3 s_Bm^2, 428 s_A s_Am^2 s_B^2 s_Bm^2}, with the `product_bounds` for N_7 and N_8.
    """
    n, c, a, b = constants.nodes, constants.alignment, constants.pull_sum, constants.push_sum
    am, bm = constants.pull_power_sum, constants.push_power_sum
    n7, n8 = product_bounds(constants)
    return n**2 / c**2 * max(n7 + n8**2, 254 * b**3 * bm**2, 428 * a * am**2 * b**2 * bm**2)


def mixing_sum_bound(matrix: object) -> float:
    """Return the bound of Proposition 2, s <= M^2 (1 + ln(kappa)/2) / (1 - beta), M = max_t |A^t - A_inf|; inf if beta is 1.

    It needs n >= 2, and a self-loop at every node for beta < 1: the positive trace of Assumption 2 is not enough.
    """
    beta, kappa = contraction(matrix), skewness(matrix)
    if not (beta < 1 and isfinite(kappa)):
        return inf
    return peak_deviation(matrix) ** 2 * (1 + log(kappa) / 2) / (1 - beta)


def steps_limit(constants: MixingConstants, m: float, smoothness: float, *, constant: float = 10.0) -> float:
    """Return the branch of the step size that depends on the block: 1 / (10 c m sqrt(s_B) s_Bm L), corrected with 16 for 10."""
    return 1 / (constant * constants.alignment * m * sqrt(constants.push_sum) * constants.push_power_sum * smoothness)


def gap_bound(constants: MixingConstants, *, corrected: bool = False) -> float:
    """Return the bound on C_Delta,1, the coefficient of L Delta/(m T):

    printed    (10 s_A s_Am^2 n^2 + 312 s_B^2 s_Bm n)/c^2
    corrected  (36 s_A s_Am^2/s_Bm + 86 s_B^2 s_Bm) n/c^2
    """
    n, c, b, bm = constants.nodes, constants.alignment, constants.push_sum, constants.push_power_sum
    pull = constants.pull_sum * constants.pull_power_sum**2
    if corrected:
        return (36 * pull / bm + 86 * b**2 * bm) * n / c**2
    return (10 * pull * n**2 + 312 * b**2 * bm * n) / c**2


@dataclass(frozen=True)
class TheoremOne:
    """Theorem 1 for one network and one problem; build it with ``TheoremOne.of(mixing, ...)``.

    As printed, with m = ceil(max{4 s_B^2.5/c (n T sigma^2/(L Delta))^(1/4), C-tilde}) and the step
    a = min{ sqrt(n Delta) sigma/(10 c sqrt(L T)), 1/(10 c m sqrt(s_B) s_Bm L), 1/(6 L) }, the bound is

        44 sigma sqrt(L Delta/(n T)) + (C_Delta,1/m + 10 m sqrt(s_B) s_Bm + 1/c) L Delta/T.

    Corrected, with m = ceil(max{4 s_B^2.5/c (n^3 T sigma^2/(L Delta))^(1/4), `corrected_block_bound`}) and
    a = min{ sqrt(n Delta)/(4 c sigma sqrt(L T)), 1/(16 c m sqrt(s_B) s_Bm L) }, it is

        (30 + 22.5 (s_Bm/s_B)^2) sigma sqrt(L Delta/(n T)) + (C_Delta,1/m + 64 m sqrt(s_B) s_Bm) L Delta/T

    with the corrected `gap_bound` for C_Delta,1. Either holds for n >= 2 and T = m K, K = 1, 2, ...: it says nothing for T < m.

    Attributes:
        constants: those of the network, for blocks of `block` steps.
        smoothness, gap, noise, steps: L, Delta, sigma and T.
        corrected: which of the two versions.
    """

    constants: MixingConstants
    smoothness: float
    gap: float
    noise: float
    steps: float
    corrected: bool = False

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "noise", "steps"):
            if not (isfinite(value := getattr(self, name)) and value > 0):
                raise SpectralError(f"Theorem 1 needs a positive {name}; got {value}.")

    @classmethod
    def of(
        cls,
        mixing: Mixing,
        *,
        smoothness: float = 1.0,
        gap: float = 1.0,
        noise: float = 1.0,
        steps: float = 1e6,
        corrected: bool = False,
    ) -> TheoremOne:
        """Return the theorem for a network, with s_Am and s_Bm of the block that it requires."""
        first = cls(MixingConstants.of(mixing), smoothness, gap, noise, steps, corrected)
        return replace(first, constants=MixingConstants.of(mixing, block=first.block))

    @property
    def least_block(self) -> float:
        """C-tilde as printed, or `corrected_block_bound`."""
        known = self.constants
        if self.corrected:
            return corrected_block_bound(known)
        return block_bound(known.nodes, known.alignment, known.pull_sum, known.push_sum)

    @property
    def _growth(self) -> float:
        """q, where the block grows as q T^(1/4)."""
        n = self.constants.nodes ** (3 if self.corrected else 1)
        ratio = (n * self.noise**2 / (self.smoothness * self.gap)) ** 0.25
        return 4 / self.constants.alignment * self.constants.push_sum**2.5 * ratio

    @property
    def block(self) -> int:
        """The length of a block, m."""
        return ceil(max(self._growth * self.steps**0.25, self.least_block))

    @property
    def applies(self) -> bool:
        """Whether the theorem says anything: T must be at least one block."""
        return self.steps >= self.block

    @property
    def branches(self) -> tuple[float, ...]:
        """The upper limits on the step: the standard one, the one that depends on the block, and as printed 1/(6 L)."""
        c, ratio = self.constants.alignment, sqrt(self.constants.nodes * self.gap / (self.smoothness * self.steps))
        limit = steps_limit(self.constants, self.block, self.smoothness, constant=16 if self.corrected else 10)
        if self.corrected:
            return ratio / (4 * c * self.noise), limit
        return ratio * self.noise / (10 * c), limit, 1 / (6 * self.smoothness)

    @property
    def step(self) -> float:
        """The step size a, the least of `branches`."""
        return min(self.branches)

    @property
    def leading(self) -> float:
        """The factor of sigma sqrt(L Delta/(n T)): 44 as printed; 30 + 22.5 (s_Bm/s_B)^2, from 30 to 52.5, corrected."""
        known = self.constants
        return 30 + 22.5 * (known.push_power_sum / known.push_sum) ** 2 if self.corrected else 44.0

    @property
    def bound(self) -> float:
        """The final bound on min_t E |grad f(x-hat)|^2; infinite where the theorem says nothing."""
        if not self.applies:
            return inf
        known = self.constants
        inverse, last = (64, 0) if self.corrected else (10, 1)
        rest = gap_bound(known, corrected=self.corrected) / self.block + last / known.alignment
        rest += inverse * self.block * sqrt(known.push_sum) * known.push_power_sum
        speed = sqrt(self.smoothness * self.gap / (known.nodes * self.steps))
        return self.leading * self.noise * speed + rest * self.smoothness * self.gap / self.steps

    def first_bound(self, step: float | None = None) -> float:
        """Return the bound before m and a are chosen, at this block and the given step (its own if None):

            printed    4 Delta/(c a T) + 100 c a L sigma^2/n + 384   s_B^3 s_Bm^2 sigma^2/(m^2 c^2) + C_Delta,1 L Delta/(m T)
            corrected  4 Delta/(c a T) +  55 c a L sigma^2/n + 360 n s_B^3 s_Bm^2 sigma^2/(m^2 c^2) + C_Delta,1 L Delta/(m T)

        with C_Delta,1 by its bound.
        """
        known, a, m = self.constants, self.step if step is None else step, self.block
        n, c = known.nodes, known.alignment
        average, trackers = (55, 360 * n) if self.corrected else (100, 384)
        return (
            4 * self.gap / (c * a * self.steps)
            + average * c * a * self.smoothness * self.noise**2 / n
            + trackers * known.push_sum**3 * known.push_power_sum**2 * self.noise**2 / (m**2 * c**2)
            + gap_bound(known, corrected=self.corrected) * self.smoothness * self.gap / (m * self.steps)
        )

    @property
    def standard_from(self) -> float:
        """The T from which the standard branch of the step is the smallest, so that the rate is the leading term.

        It is where T = 16 n L Delta m^2 s_B s_Bm^2/sigma^2 (as printed without 16, and sigma^2 multiplies), with the m of that
        T: max{least block, q T^(1/4)}.
        """
        known = self.constants
        per_block = known.nodes * self.smoothness * self.gap * known.push_sum * known.push_power_sum**2
        per_block *= 16 / self.noise**2 if self.corrected else self.noise**2
        return max(per_block * self.least_block**2, (per_block * self._growth**2) ** 2)

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value, line by line, for a table."""
        known, (standard, limit, *_) = self.constants, self.branches
        nothing = f"none: T = {self.steps:.3g} is less than one block, m = {float(self.block):.2g}"
        return [
            ("n", str(known.nodes)),
            ("c", f"{known.alignment:.3g}"),
            ("s_A, s_B", f"{known.pull_sum:.3g}, {known.push_sum:.3g}"),
            ("s_A^m, s_B^m", f"{known.pull_power_sum:.3g}, {known.push_power_sum:.3g}"),
            ("least block" if self.corrected else "C-tilde", f"{self.least_block:.2g}"),
            ("block m", f"{float(self.block):.2g}"),
            ("step, standard branch, times L", f"{standard * self.smoothness:.2g}"),
            ("step, block branch, times L", f"{limit * self.smoothness:.2g}"),
            ("leading constant", f"{self.leading:.3g}"),
            ("bound on E |grad f|^2", f"{self.bound:.3g}" if self.applies else nothing),
            ("the standard branch is active from T =", f"{self.standard_from:.1g}"),
        ]
