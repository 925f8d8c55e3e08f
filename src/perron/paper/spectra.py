"""Claims about powers of mixing matrices: Proposition 2, the rolling-sum lemma and the bounds in the proof of Lemma 2.

Notation: a_i = |A^i - A_inf|, b_i = |B^i - B_inf|, delta_0 = I - B_inf, delta_j = B^j - B^(j-1).
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from perron._typing import FloatArray
from perron.networks import spectral
from perron.paper.claim import Claim, Evidence, conclude, within
from perron.paper.search import Generator, Pair, check_inequality, hub_weights, norms, worst
from perron.theory.theorem import mixing_sum_bound

LARGE = 10**6  # a power at which B^m is at its limit


# ---- Proposition 2


def proposition_two(rng: Generator, effort: int, *, tighten: float = 1.0) -> Evidence:
    """1 <= s <= M^2 (1 + ln(kappa)/2)/(1 - beta), and n max(min pi_A, min pi_B) <= c <= n min(max pi_A, max pi_B)."""

    def sums(pair: Pair) -> float:
        return max(s / mixing_sum_bound(m) for m, s in ((pair.A, pair.s_A), (pair.B, pair.s_B))) / tighten

    def others(pair: Pair) -> float:
        n, a, b = pair.nodes, pair.pi_A, pair.pi_B
        low, high = n * max(a.min(), b.min()), n * min(a.max(), b.max())
        return float(max(1 / pair.s_A, 1 / pair.s_B, low / pair.c, pair.c / high))

    found, rest = check_inequality(sums, rng, effort), worst(others, rng, effort // 2)
    single = spectral.mixing_sum([[1.0]]).value
    text = f"s/bound: {found.text}; the other four: {rest.ratio:.3g}; n >= 2 is needed (n = 1 has s = {single:g})"
    figures = dict(found.figures) | {"worst of the others": rest.ratio, "s of one node": single}
    holds = found.verdict == "holds" and within(rest.ratio)
    return conclude(text, figures, found.counterexample or rest.pair.data(), printed=holds)


def at_least_one(rng: Generator, effort: int, *, least: float = 1.0) -> Evidence:
    """|I - A_inf| = sqrt(n) |pi_A| >= 1, so that M is the same with and without max{1, .}, for n >= 2."""
    defect = 0.0

    def score(pair: Pair) -> float:
        nonlocal defect
        first = float(np.linalg.norm(pair.A_powers[0], 2))
        defect = max(defect, abs(first - sqrt(pair.nodes) * float(np.linalg.norm(pair.pi_A))))
        return least / spectral.peak_deviation(pair.A)

    found = check_inequality(score, rng, effort)
    text = f"least M {least / found.figures['worst']:.6f}; |I - A_inf| = sqrt(n) |pi_A| up to {defect:.0e}"
    figures = dict(found.figures) | {"defect": defect}
    return conclude(text, figures, found.counterexample, printed=found.verdict == "holds" and defect < 1e-9)


def peak(rng: Generator, effort: int, *, factor: float = 1.0) -> Evidence:
    """M_A <= sqrt(factor n): factor 1 as printed; each row of A^t - A_inf differs by at most sqrt(2), so 2 is enough."""

    def score(pair: Pair, factor: float) -> float:
        return max(pair.A_norms.max(), pair.B_norms.max()) / sqrt(factor * pair.nodes)

    known = Pair(hub_weights(10, 1e-3), hub_weights(10, 1e-3).T, "hub")
    found = check_inequality(
        score, rng, effort, version=(factor,), repaired=(2.0,), repair="sqrt(2n)", also=(known,)
    )  # fmt: skip
    value = score(known, 1.0) * sqrt(10)
    text = f"hub with 10 nodes: M = {value:.3f} > {sqrt(10):.3f}; {found.text}"
    return replace(found, text=text, figures=dict(found.figures) | {"hub 10": value})


def contraction_below_one(rng: Generator, effort: int, *, loops: str = "one") -> Evidence:
    """beta in [0, 1): under a positive trace (one self-loop) as printed; repaired, with all self-loops."""

    def drawn(loops: str) -> tuple[float, FloatArray]:
        n = int(rng.integers(3, 7))
        weights = np.roll(np.eye(n), 1, axis=0) * rng.uniform(0.5, 2, n)
        extra = rng.random((n, n)) < rng.choice([0.0, 0.2])
        weights += extra * rng.uniform(0.5, 2, (n, n)) * (1 - np.eye(n))
        weights += np.diag(rng.uniform(0.5, 2, n) * (np.arange(n) == 0 if loops == "one" else 1))
        rows = weights / weights.sum(axis=1, keepdims=True)
        return spectral.contraction(rows), rows

    printed = max((drawn(loops) for _ in range(effort)), key=lambda pair: pair[0])
    mended = max(drawn("all")[0] for _ in range(effort))
    known = np.array([[0.5, 0.5, 0], [0, 0, 1], [1, 0, 0]])
    beta, s = spectral.contraction(known), spectral.mixing_sum(known).value
    if loops == "one" and beta >= printed[0] - 1e-12:
        printed = (beta, known)
    text = f"3-ring, one self-loop: beta = {beta:.6f}, s = {s:.2f}; largest with all loops {mended:.4f}"
    figures = {"largest beta": printed[0], "largest with all self-loops": mended, "s of the 3-ring": s}
    example = {"A": printed[1].tolist(), "beta": printed[0]}
    return conclude(text, figures, example, printed=printed[0] < 1 - 1e-9, repaired=mended < 1 - 1e-9)


def power_sums(rng: Generator, effort: int, *, power: float = 2.0) -> Evidence:
    """s_{B^m} <= s_B for m >= 1, and s_{B^m} -> |I - B_inf|^2 (hence the power 2) as m -> infinity."""

    def score(pair: Pair) -> float:
        sums = [spectral.mixing_sum(pair.B, power=m).value for m in (2, 3, 7, 20, LARGE)]
        first = float(np.linalg.norm(pair.B_powers[0], 2)) ** power
        return max(max(sums) / pair.s_B, sums[-1] / first, first / sums[-1])

    return check_inequality(score, rng, max(10, effort // 3))


# ---- the rolling-sum lemma


def rolling_sum(rng: Generator, effort: int, *, tighten: float = 1.0) -> Evidence:
    """sum_k |sum_{i<=k} (A^(k-i) - A_inf) D_i|_F^2 <= s_A^2 sum_i |D_i|_F^2 for all D: the norm of a block Toeplitz matrix.

    The norm is the worst over all D, so that no search over D is needed.
    """

    def score(pair: Pair) -> float:
        n = pair.nodes
        blocks = min(80 // n + 2, len(pair.A_powers))
        toeplitz = np.zeros((blocks * n, blocks * n))
        for late in range(blocks):
            for early in range(late + 1):
                toeplitz[late * n : (late + 1) * n, early * n : (early + 1) * n] = pair.A_powers[late - early]
        return float(np.linalg.norm(toeplitz, 2)) ** 2 / (tighten * pair.s_A**2)

    return check_inequality(score, rng, effort)


# ---- constants in the proof of Lemma 2


def product_sums(pair: Pair) -> tuple[float, float]:
    """Return N_7 and N_8: sum_t |S_t|^2 and sum_t |S_t|, S_t = sum_j A^(t-j) delta_j = A S_{t-1} + delta_t."""
    current, products = np.zeros((pair.nodes, pair.nodes)), []
    steps = pair.steps_B()
    for t in range(4 * len(steps)):
        current = pair.A @ current + (steps[t] if t < len(steps) else 0)
        products.append(current)
        if t >= len(steps) and np.abs(current).max() < 1e-11:
            break
    sizes = norms(np.array(products))
    return float((sizes**2).sum()), float(sizes.sum())


def lemma_constants(rng: Generator, effort: int, *, tighten: float = 1.0) -> Evidence:
    """N_7 <= 8 s_A^2 s_B + 2 n |pi_A|^2 s_B and N_8 <= 2 s_A s_B + sqrt(n) |pi_A| s_B."""

    def score(pair: Pair) -> float:
        n7, n8 = product_sums(pair)
        a, b, first = pair.s_A, pair.s_B, sqrt(pair.nodes) * float(np.linalg.norm(pair.pi_A))
        return max(n7 / (8 * a**2 * b + 2 * first**2 * b), n8 / (2 * a * b + first * b)) / tighten

    return check_inequality(score, rng, effort)


def tracker_noise(rng: Generator, effort: int, *, constant: float = 2.0) -> Evidence:
    """q_B = sum_{j<m} |delta_j|^2 + |B^(m-1) - B_inf|^2 <= 2 s_B for all m; 4 s_B is enough, as |delta_j| <= b_j + b_{j-1}."""

    def score(pair: Pair, constant: float) -> float:
        left = np.cumsum(norms(pair.steps_B()) ** 2) + pair.B_norms**2  # for m = 1, 2, ...
        return float(left.max()) / (constant * pair.s_B)

    known = Pair(np.ones((2, 2)), np.array([[0.1, 0.6], [0.9, 0.4]]), "2 nodes")
    found = check_inequality(score, rng, effort, version=(constant,), repaired=(4.0,), repair="4 s_B", also=(known,))
    value = score(known, 2.0)
    figures = dict(found.figures) | {"known": value}
    return replace(found, text=f"[[.1,.6],[.9,.4]]: {value:.3f}; {found.text}", figures=figures)


def mixed_products(rng: Generator, effort: int, *, exponent: float = 1.0) -> Evidence:
    """sum_{i<m} |S_i|^2 <= 2 (s_A^2 s_B + m n s_B), S_i = sum_{j<i} A^(i-j-1) (B^j - B_inf); with m n s_B^2 it holds."""

    def score(pair: Pair, exponent: float) -> float:
        current, products = np.zeros((pair.nodes, pair.nodes)), []
        for power in pair.B_powers:
            current = pair.A @ current + power
            products.append(current)
        left = np.cumsum(norms(np.array(products)) ** 2)  # of i = 1 .. m-1, for m = 2, 3, ...
        m = np.arange(2, len(left) + 2)
        # Later terms are at their limit, so that the ratio tends to this.
        limit = norms(current[None])[0] ** 2 / (2 * pair.nodes * pair.s_B**exponent)
        right = 2 * (pair.s_A**2 * pair.s_B + m * pair.nodes * pair.s_B**exponent)
        return float(max((left / right).max(), limit))

    slow = Pair(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([[0.99, 0.01], [0.01, 0.99]]), "2 nodes, slow B")
    return check_inequality(
        score, rng, max(14, effort // 2), version=(exponent,), repaired=(2.0,), repair="m n s_B^2", also=(slow,)
    )


CLAIMS = (
    Claim("7a", "1 <= s_A <= M_A^2 (1 + ln(kappa_A)/2)/(1 - beta_A), the same for B; "
          "n max{min pi_A, min pi_B} <= c <= n min{max pi_A, max pi_B}",
          "Proposition 2", "holds", proposition_two),
    Claim("7b", "M_A with and without max{1, .} are the same", "Lemma A.1, proof", "holds", at_least_one),
    Claim("7c", "M_A = max_t |A^t - A_inf| <= sqrt(n)", "Proposition 2", "repaired", peak, "sqrt(2n)"),
    Claim("7d", "beta_A in [0, 1) under Assumption 2 (positive trace)", "Section 2, Metrics", "repaired",
          contraction_below_one, "a self-loop at every node"),
    Claim("7e", "s_{B^m} <= s_B, and s_{B^m} -> |I - B_inf|^2 as m grows", "Lemma 2", "holds", power_sums),
    Claim("7f", "sum_k |sum_{i<=k} (A^(k-i) - A_inf) D_i|^2 <= s_A^2 sum_i |D_i|^2", "Lemma A.1 (rolling sum)", "holds",
          rolling_sum),
    Claim("7g", "N_7 <= 8 s_A^2 s_B + 2n |pi_A|^2 s_B and N_8 <= 2 s_A s_B + sqrt(n) |pi_A| s_B", "Lemma 2, proof", "holds",
          lemma_constants),
    Claim("7h", "q_B = sum_{j<m} |delta_j|^2 + |B^(m-1) - B_inf|^2 <= 2 s_B", "Lemma 2, proof", "repaired", tracker_noise,
          "4 s_B"),
    Claim("7i", "sum_{i<m} |sum_{j<i} A^(i-j-1) (B^j - B_inf)|^2 <= 2 (s_A^2 s_B + m n s_B)", "Lemma 2, proof", "repaired",
          mixed_products, "m n s_B^2"),
)  # fmt: skip
