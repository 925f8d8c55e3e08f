"""The quantities of the paper's Theorem 1, as printed and as corrected: diagnostics, not advice.

Theorem 1 bounds min_t E |grad f(x-hat)|^2 of Push-Pull after T = m K steps, x-hat = pi_A^T x, for local losses with
L-Lipschitz gradients, f_i(x_0) - inf f_i <= Delta and independent gradient noise E |noise_i|^2 <= sigma^2. It cuts the run into
blocks of m steps, asks for m >= C-tilde and for a step that shrinks with m, and so speaks about runs of at least C-tilde steps.
On 16 nodes of an exponential graph that is about six million, on a ring of 25 nodes 4e13, with steps far below any that
one would use: compare `Algorithm.default_lr`. What it does say is how the rate depends on n once T is large enough.

| symbol      | here                  | meaning                                                               |
|-------------|-----------------------|-----------------------------------------------------------------------|
| n, c        | `nodes`, `alignment`  | c = n pi_A^T pi_B                                                     |
| s_A, s_B    | `pull_sum`, `push_sum`| `perron.spectral.mixing_sum`                                          |
| s_Am, s_Bm  | `*_power_sum`         | the same of A^m and B^m; for large m |I - A_inf|^2 and |I - B_inf|^2   |

The corrections are ours, at leading order: each mends one step of the printed derivation (see `perron paper check`), none is
a new proof of the theorem.
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
class Mixes:
    """What the theorem knows of a network; ``of(mixing)`` computes it."""

    nodes: int
    alignment: float
    pull_sum: float
    push_sum: float
    pull_power_sum: float
    push_power_sum: float

    @classmethod
    def of(cls, mixing: Mixing, *, block: int | None = None) -> Mixes:
        """The metrics of a network, with s_Am and s_Bm for blocks of m = ``block`` steps (C-tilde if None)."""
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


# ---- pieces of the theorem


def block_bound(n: int, c: float, s_A: float, s_B: float) -> float:
    """C-tilde, the least m that Theorem 1 asks for, as printed:

    max{ s_A^2/n, 20 n s_A^2/c^2, n^2 s_B^2/c^2, 30 s_B^3/c^2, n^2 (8 s_A^2 s_B + 2 n s_B + 2 s_A s_B + sqrt(n) s_B)/c^2,
    20 n^3 s_A^2 s_B^2/c^2 }.

    The last was the largest on every network tried. It does not imply all that the proof uses: `block_conditions`.

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


def block_conditions(mixes: Mixes) -> dict[str, float]:
    """Every lower limit on m that the proofs of Lemma 1, Lemma 2 and Theorem 1 use, by formula, for the bounds on N_7 and N_8.

    N_7 = 8 s_A^2 s_B + 2 n s_B and N_8 = 2 s_A s_B + sqrt(n) s_B bound sums over the products A^(t-j) (B^j - B^(j-1)).
    """
    n, c, a, b = mixes.nodes, mixes.alignment, mixes.pull_sum, mixes.push_sum
    am, bm = mixes.pull_power_sum, mixes.push_power_sum
    n7, n8 = lemma_sums(mixes)
    return {
        "6 s_B^2/c^2 (Lemma 1)": 6 * b**2 / c**2,
        "n^2 s_B^2/c^2 (Theorem 1)": n**2 * b**2 / c**2,
        "n^2 (N_7 + N_8^2)/c^2 (Delta_1, Delta_2)": n**2 * (n7 + n8**2) / c**2,
        "s_A^2/n (Delta_1, Delta_2)": a**2 / n,
        "s_A/n (Delta_1, Delta_2)": a / n,
        "n^2 s_A^2/c^2 (Delta_1, Delta_2)": n**2 * a**2 / c**2,
        "10 s_B s_Bm/c^2 (sum of Delta_y)": 10 * b * bm / c**2,
        "4 n^2 s_B^2 s_Bm^2/c^2 (sum of Delta_2)": 4 * n**2 * b**2 * bm**2 / c**2,
        "20 n s_A s_B s_Am^2/c^2 (sum of Delta_x)": 20 * n * a * b * am**2 / c**2,
        "10 n^2 s_A s_Am^2 s_B/c^2 (sum of Delta_y)": 10 * n**2 * a * am**2 * b / c**2,
        "20 n^3 s_A s_Am^2 s_B^2 s_Bm^2/c^2 (sum of Delta_2)": 20 * n**3 * a * am**2 * b**2 * bm**2 / c**2,
        "30 s_B^1.5/c^2 (coefficients)": 30 * b**1.5 / c**2,
    }


def lemma_sums(mixes: Mixes) -> tuple[float, float]:
    """The bounds on N_7 = sum_t |sum_j A^(t-j) delta_j|^2 and N_8, the same without squares; delta_j = B^j - B^(j-1)."""
    n, a, b = mixes.nodes, mixes.pull_sum, mixes.push_sum
    return 8 * a**2 * b + 2 * n * b, 2 * a * b + sqrt(n) * b


def mixing_sum_bound(matrix: object) -> float:
    """Proposition 2: s <= M^2 (1 + ln(kappa)/2) / (1 - beta), M = max_t |A^t - A_inf|. Infinite where beta is 1.

    It needs n >= 2, and a self-loop at every node for beta < 1: the positive trace of Assumption 2 is not enough.
    """
    beta, kappa = contraction(matrix), skewness(matrix)
    if not (beta < 1 and isfinite(kappa)):
        return inf
    return peak_deviation(matrix) ** 2 * (1 + log(kappa) / 2) / (1 - beta)


def steps_limit(mixes: Mixes, m: float, smoothness: float, *, constant: float = 10.0) -> float:
    """The branch of the step size that depends on the block: 1 / (10 c m sqrt(s_B) s_Bm L).

    With constant 10, C_f,1 <= 1 fails where s_B s_Bm^2 < 1.52; with 13 it holds for n >= 2 (see `coefficients`).
    """
    return 1 / (constant * mixes.alignment * m * sqrt(mixes.push_sum) * mixes.push_power_sum * smoothness)


@dataclass(frozen=True)
class Coefficients:
    """C_sigma,1, C_f,1 and C_Delta,1 of Lemma 2's proof: what multiplies K sigma^2, the gradients and L Delta / m^2."""

    noise: float
    gradient: float
    gap: float


def coefficients(mixes: Mixes, m: float, step: float, smoothness: float, *, restored: bool = False) -> Coefficients:
    """The coefficients by their definitions; ``restored``: with the factor n that the noise term lost.

    C_sigma,1 = 724 c^2 m (aL)^2/n + 384 s_B^3 s_Bm^2 [n]/(m^2 c^2),  C_f,1 = 152 c^2 (aLm)^2 + 2040 m (aL)^2 s_B^3 s_Bm^2,
    C_Delta,1 = 85120 s_A s_B s_Am^2 s_Bm (aLm)^2 n^2 + 312 s_B^2 s_Bm n/c^2, for the step a.
    """
    n, c, a, b = mixes.nodes, mixes.alignment, mixes.pull_sum, mixes.push_sum
    am, bm, move = mixes.pull_power_sum, mixes.push_power_sum, (step * smoothness) ** 2
    lost = n if restored else 1
    return Coefficients(
        noise=724 * c**2 * m * move / n + 384 * b**3 * bm**2 * lost / (m**2 * c**2),
        gradient=152 * c**2 * move * m**2 + 2040 * m * move * b**3 * bm**2,
        gap=85120 * a * b * am**2 * bm * move * m**2 * n**2 + 312 * b**2 * bm * n / c**2,
    )


def gap_bound(mixes: Mixes, *, corrected: bool = False) -> float:
    """The bound on C_Delta,1: (10 s_A s_Am^2 n^2 + 312 s_B^2 s_Bm n)/c^2 as printed; corrected 852/s_Bm instead of 10.

    85120 (a L m)^2 <= 851.2/(c^2 s_B s_Bm^2) at the largest step, so that 10 would need s_Bm >= 85.
    """
    n, c = mixes.nodes, mixes.alignment
    first = 852 / mixes.push_power_sum if corrected else 10
    pull = first * mixes.pull_sum * mixes.pull_power_sum**2 * n**2
    return (pull + 312 * mixes.push_sum**2 * mixes.push_power_sum * n) / c**2


# ---- the theorem


@dataclass(frozen=True)
class TheoremOne:
    """Theorem 1 for one network and one problem; build it with ``TheoremOne.of(mixing, ...)``.

    As printed, with m = ceil(max{4 s_B^2.5/c (n T sigma^2/(L Delta))^(1/4), C-tilde}) and the step
    a = min{ sqrt(n Delta) sigma/(10 c sqrt(L T)), 1/(10 c m sqrt(s_B) s_Bm L), 1/(6 L) }, the bound is

        44 sigma sqrt(L Delta/(n T)) + (C_Delta,1/m + 10 m sqrt(s_B) s_Bm + 1/c) L Delta/T.

    Corrected: sigma divides instead of multiplying in the first branch of a; n T becomes n^3 T in m, since the noise term
    384 s_B^3 s_Bm^2/(m^2 c^2) had lost a factor n; m satisfies all `block_conditions`; 13 instead of 10 in the second branch; and
    the bound is

        (50 + 24 (s_Bm/s_B)^2) sigma sqrt(L Delta/(n T)) + (C_Delta,1/m + 52 m sqrt(s_B) s_Bm + 24/c) L Delta/T

    with the corrected `gap_bound` for C_Delta,1: 4 Delta/(c a T) brings 4 times each branch's inverse.

    Attributes:
        mixes: the network's metrics, for blocks of `block` steps.
        smoothness, gap, noise, steps: L, Delta, sigma and T.
        corrected: which of the two.
    """

    mixes: Mixes
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
        """The theorem for a network; s_Am and s_Bm are those of the block that it asks for."""
        first = cls(Mixes.of(mixing), smoothness, gap, noise, steps, corrected)
        return replace(first, mixes=Mixes.of(mixing, block=first.block))

    @property
    def least_block(self) -> float:
        """C-tilde as printed; corrected, the largest of `block_conditions`."""
        if self.corrected:
            return max(block_conditions(self.mixes).values())
        return block_bound(self.mixes.nodes, self.mixes.alignment, self.mixes.pull_sum, self.mixes.push_sum)

    @property
    def _growth(self) -> float:
        """q, where the block grows as q T^(1/4)."""
        n = self.mixes.nodes ** (3 if self.corrected else 1)
        return (
            4
            / self.mixes.alignment
            * self.mixes.push_sum**2.5
            * (n * self.noise**2 / (self.smoothness * self.gap)) ** 0.25
        )

    @property
    def block(self) -> int:
        """m."""
        return ceil(max(self._growth * self.steps**0.25, self.least_block))

    @property
    def branches(self) -> tuple[float, float, float]:
        """The three upper limits on the step: the standard one, the one that depends on the block, 1/(6 L)."""
        c, ratio = self.mixes.alignment, sqrt(self.mixes.nodes * self.gap / (self.smoothness * self.steps))
        standard = ratio / (10 * c * self.noise) if self.corrected else ratio * self.noise / (10 * c)
        limit = steps_limit(self.mixes, self.block, self.smoothness, constant=13 if self.corrected else 10)
        return standard, limit, 1 / (6 * self.smoothness)

    @property
    def step(self) -> float:
        """The step size a, the least of `branches`."""
        return min(self.branches)

    @property
    def leading(self) -> float:
        """What multiplies sigma sqrt(L Delta/(n T)): 44 as printed; 50 + 24 (s_Bm/s_B)^2, from 50 to 74, corrected."""
        return 50 + 24 * (self.mixes.push_power_sum / self.mixes.push_sum) ** 2 if self.corrected else 44.0

    @property
    def bound(self) -> float:
        """The final bound on min_t E |grad f(x-hat)|^2."""
        one = self.mixes
        inverse, last = (52, 24) if self.corrected else (10, 1)
        rest = gap_bound(one, corrected=self.corrected) / self.block + last / one.alignment
        rest += inverse * self.block * sqrt(one.push_sum) * one.push_power_sum
        speed = sqrt(self.smoothness * self.gap / (one.nodes * self.steps))
        return self.leading * self.noise * speed + rest * self.smoothness * self.gap / self.steps

    def first_bound(self, step: float | None = None) -> float:
        """The bound before m and a are chosen, at this block and the given step (its own if None):

        4 Delta/(c a T) + 100 c a L sigma^2/n + 384 s_B^3 s_Bm^2 [n] sigma^2/(m^2 c^2) + C_Delta,1 L Delta/(m T)

        with the factor [n] if corrected, and C_Delta,1 by its bound.
        """
        one, a, m = self.mixes, self.step if step is None else step, self.block
        n, c = one.nodes, one.alignment
        lost = n if self.corrected else 1
        return (
            4 * self.gap / (c * a * self.steps)
            + 100 * c * a * self.smoothness * self.noise**2 / n
            + 384 * one.push_sum**3 * one.push_power_sum**2 * lost * self.noise**2 / (m**2 * c**2)
            + gap_bound(one, corrected=self.corrected) * self.smoothness * self.gap / (m * self.steps)
        )

    @property
    def standard_from(self) -> float:
        """The T from which the standard branch of the step is the smallest: the regime in which the rate is the leading term.

        It is where T = n L Delta m^2 s_B s_Bm^2/sigma^2 (1.69 times that if corrected; as printed sigma^2 multiplies), with the m
        of that T: max{least block, q T^(1/4)}.
        """
        one = self.mixes
        per_block = one.nodes * self.smoothness * self.gap * one.push_sum * one.push_power_sum**2
        per_block *= 1.69 / self.noise**2 if self.corrected else self.noise**2
        return max(per_block * self.least_block**2, (per_block * self._growth**2) ** 2)

    def rows(self) -> list[tuple[str, str]]:
        """Label and value, line by line, for a table."""
        one, (standard, limit, _) = self.mixes, self.branches
        return [
            ("n", str(one.nodes)),
            ("c", f"{one.alignment:.3g}"),
            ("s_A, s_B", f"{one.pull_sum:.3g}, {one.push_sum:.3g}"),
            ("s_A^m, s_B^m", f"{one.pull_power_sum:.3g}, {one.push_power_sum:.3g}"),
            ("least block" if self.corrected else "C-tilde", f"{self.least_block:.2g}"),
            ("block m", f"{float(self.block):.2g}"),
            ("step, standard branch, times L", f"{standard * self.smoothness:.2g}"),
            ("step, block branch, times L", f"{limit * self.smoothness:.2g}"),
            ("leading constant", f"{self.leading:.3g}"),
            ("bound on E |grad f|^2", f"{self.bound:.3g}"),
            ("the standard branch is active from T =", f"{self.standard_from:.1g}"),
        ]
