"""Claims of the proofs and the text with small counterexamples, which are exact: rational numbers, no rounding."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import log

import numpy as np

from perron.networks import spectral
from perron.paper.claim import Claim, Evidence, conclude, within
from perron.paper.noise import block_variance
from perron.paper.search import Generator, Pair, check_inequality, norms, worst

Vector = list[Fraction]
HALF = Fraction(1, 2)


def _squares(values: Vector, weights: Vector | None = None) -> Fraction:
    """Return sum_i w_i v_i^2, with weights of one by default."""
    return sum((w * v * v for w, v in zip(weights or [Fraction(1)] * len(values), values, strict=True)), Fraction(0))


# ---- the proof of Lemma A.1


def weighted_contraction(rng: Generator, effort: int, *, power: int = 1) -> Evidence:
    """|(A^i - A_inf) v| <= sqrt(min pi_A)^power beta^i |v|_pi, |v|_pi = |Pi_A^(1/2) v|: power 1 as printed, -1 is right.

    A = 11^T/2, i = 0, v = (1, -1), squared: 2 on the left, 1/2 on the right.
    """

    def score(pair: Pair, power: int) -> float:
        beta, root = spectral.contraction(pair.A), np.sqrt(pair.pi_A)
        sizes = norms(pair.A_powers[:20] / root)  # the largest left side for |v|_pi = 1
        rates = beta ** np.arange(len(sizes))
        return float((sizes[rates > 1e-6] / rates[rates > 1e-6]).max() / root.min() ** power)

    v = [Fraction(1), Fraction(-1)]
    left, right = _squares(v), HALF * _squares(v, [HALF, HALF])
    found = check_inequality(score, rng, effort, version=(power,), repaired=(-1,), repair="1/sqrt(min pi_A)")
    example = {"A": "11^T/2", "i": 0, "v": [1, -1], "lhs squared": str(left), "rhs squared": str(right)}
    text = f"11^T/2, i = 0, v = (1, -1), squared: {left} > {right}, exactly; {found.text}"
    return replace(found, text=text, counterexample=found.counterexample and example)


def weighted_norm(rng: Generator, effort: int, *, power: float = 1.0) -> Evidence:
    """|v|_pi <= (max pi_A)^power |v|: power 1 as printed, 1/2 is right. 11^T/2, v = (1, 0), squared: 1/2 > 1/4."""

    def score(pair: Pair, power: float) -> float:
        return float(pair.pi_A.max() ** (0.5 - power))

    v = [Fraction(1), Fraction(0)]
    left, right = _squares(v, [HALF, HALF]), HALF**2 * _squares(v)
    found = check_inequality(score, rng, effort, version=(power,), repaired=(0.5,), repair="sqrt(max pi_A)")
    example = {"pi_A": ["1/2", "1/2"], "v": [1, 0], "lhs squared": str(left), "rhs squared": str(right)}
    text = f"pi_A = (1/2, 1/2), v = (1, 0), squared: {left} > {right}, exactly; {found.text}"
    return replace(found, text=text, counterexample=found.counterexample and example)


def last_equality(rng: Generator, effort: int, *, equal: bool = True) -> Evidence:
    """M (p + 1/(1 - beta)) = M (1 + ln(kappa)/2)/(1 - beta), p = max{(ln sqrt(kappa) - ln M)/(-ln beta), 0}: it is <=.

    Equality would need p (1 - beta) = ln(kappa)/2, but 1 - beta < -ln(beta). Where kappa = 1 both sides are equal.
    """

    def sides(pair: Pair) -> tuple[float, float]:
        beta, kappa, M = spectral.contraction(pair.A), spectral.skewness(pair.A), spectral.peak_deviation(pair.A)
        if not 0 < beta < 1:
            return 1.0, 1.0
        p = max((log(kappa) / 2 - log(M)) / -log(beta), 0.0)
        return p + 1 / (1 - beta), (1 + log(kappa) / 2) / (1 - beta)

    above = worst(lambda pair: sides(pair)[0] / sides(pair)[1], rng, effort)
    below = worst(lambda pair: sides(pair)[1] / sides(pair)[0], rng, effort)
    text = f"left/right from {1 / below.ratio:.3g} ({below.place}) to {above.ratio:.6g}"
    figures = {"least": 1 / below.ratio, "largest": above.ratio}
    holds = within(above.ratio) and (not equal or within(below.ratio))
    return conclude(text, figures, below.pair.data() | figures, printed=holds, repaired=within(above.ratio))


# ---- other statements


def lemma_two_quarter(rng: Generator, effort: int, *, divisor: int = 4) -> Evidence:  # noqa: ARG001
    """The proof of Lemma 2 ends with C_Delta,1 L Delta/m^2; the lemma states C_Delta,1 L Delta/(4 m^2), which is less.

    By the proof 1/m^2 <= 1/(divisor m^2) would be needed. Theorem 1 uses the proof's.
    """
    ratio = Fraction(1) / Fraction(1, divisor)
    text = f"the proof's last term is exactly {ratio} times the lemma's, on every network"
    figures = {"ratio": float(ratio)}
    return conclude(text, figures, {"proof/lemma": str(ratio)}, printed=ratio <= 1, repaired=True)


def effective_batch(rng: Generator, effort: int, *, shared: bool = False) -> Evidence:  # noqa: ARG001
    """All curves have "the use same effective batch size": with B = 128 at each of n nodes, a step averages n B samples.

    The noise of a step has the variance of a batch of n B. ``shared``: B = 128 for all nodes together.
    """
    counts = (1, 4, 8, 12, 16)
    batches = {n: Fraction(128, n) * n if shared else Fraction(128 * n) for n in counts}
    told = ", ".join(f"{batch} (n = {n})" for n, batch in batches.items())
    text = f"samples in a step of all nodes together: {told}"
    figures = {f"n = {n}": float(batch) for n, batch in batches.items()}
    return conclude(text, figures, figures, printed=len(set(batches.values())) == 1, repaired=True)


def residual_variance(rng: Generator, effort: int, *, constant: float = 1.0) -> Evidence:
    """E |pi_A^T Delta_y|^2 "can be of order n sigma^2": as a limit, <= constant n sigma^2, it is false; there is none.

    Two nodes, B = [[e, 1-e], [1-e, e]] and pi_A = (p, 1-p): Delta_y = sum_j delta_j g^(k-j) has the variance
    4 (p - 1/2)^2/(2 e) sigma^2 under noise alone, which is unbounded as B comes near to periodic.
    """

    def score(pair: Pair) -> float:
        return float(block_variance(pair, np.ones(1))[0]) / (constant * pair.nodes)

    def partial_sum(stay: Fraction, p: Fraction, terms: int) -> Fraction:
        """The first terms of sum_j |pi_A^T delta_j|^2; all terms are positive, so that it is a lower bound."""
        rate = 2 * stay - 1
        weights = [Fraction(1), *((rate - 1) * rate ** (j - 1) for j in range(1, terms))]
        return 2 * (p - HALF) ** 2 * _squares(weights)

    exact = partial_sum(Fraction(1, 200), Fraction(9, 10), 100)
    near = Pair(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([[0.005, 0.995], [0.995, 0.005]]), "2 nodes")
    found = check_inequality(score, rng, effort, also=(near,))
    four = worst(score, rng, effort, families=[_four_nodes])
    text = (
        f"2 nodes, B near to periodic: more than {float(exact):.1f} sigma^2, by 100 terms of the sum, which are rational; over "
        f"n sigma^2: {found.text}; dense, n = 4: {four.ratio:.3g}"
    )
    example = {
        "pi_A": ["9/10", "1/10"],
        "B": [["1/200", "199/200"], ["199/200", "1/200"]],
        "variance/sigma^2 >": str(exact),
    }
    holds = found.verdict == "holds" and exact <= Fraction(constant) * 2
    figures = dict(found.figures) | {"exact": float(exact)}
    return conclude(text, figures, example, printed=holds)


def _four_nodes(rng: Generator) -> Pair:
    """All edges between four nodes, with very unequal weights."""
    pull, push = np.exp(2.5 * rng.standard_normal((2, 4, 4)))
    return Pair(pull, push, "dense")


def decay(rng: Generator, effort: int, *, strict: bool = True) -> Evidence:  # noqa: ARG001
    """|A^t - A_inf| <= p lambda^t for any lambda in (rho_2, 1): defective matrices need the open interval.

    A = 11^T/3 + (P + N)/4 with N^2 = 0 has a Jordan block: A^t - A_inf = 4^-t (P + t N), so that no p is enough for
    lambda = rho_2 = 1/4 (``strict`` False). The larger the block, the larger p for a lambda near rho_2.
    """
    u, w = np.array([1.0, -1, 0]), np.array([1.0, 1, -2])
    nilpotent = 0.3 * np.outer(u, w)
    project = np.eye(3) - 1 / 3
    lam, lengths = 0.25 * (1.05 if strict else 1.0), np.arange(1, 4000, 10)
    # The spectral norm of P + t N, which is 4^t (A^t - A_inf), over (4 lambda)^t.
    sizes = norms(np.array([project + t * nilpotent for t in lengths])) / (4 * lam) ** lengths
    A = 1 / 3 + (project + nilpotent) / 4
    defect = np.abs(np.linalg.matrix_power(A, 7) - 1 / 3 - 0.25**7 * (project + 7 * nilpotent)).max()
    bounded = bool(sizes[-1] <= sizes.max() / 2) and A.min() > 0 and defect < 1e-12
    text = f"defective A with 3 nodes: |A^t - A_inf|/lambda^t is at most {sizes.max():.3g} up to t = {lengths[-1]}" + (
        " for lambda = 1.05 rho_2; it grows as t for lambda = rho_2" if strict else ", and grows"
    )
    figures = {"largest": float(sizes.max()), "at the end": float(sizes[-1]), "defect": float(defect)}
    return conclude(text, figures, {"A": A.tolist(), "lambda": lam}, printed=bounded)


def sums_from_identity(rng: Generator, effort: int, *, tighten: float = 1.0) -> Evidence:
    """sum_{i=1}^m |A^i - I|^2 <= 2 s_A + 2 m n, as |I - A_inf|^2 = n |pi_A|^2 <= n."""

    def score(pair: Pair) -> float:
        n = pair.nodes
        sizes = norms(pair.A_powers[1:] - pair.A_powers[0]) ** 2
        m = np.arange(1, len(sizes) + 1)
        limit = float(norms(pair.A_powers[:1])[0]) ** 2 / (2 * n)  # of the ratio for m -> infinity
        return float(max((np.cumsum(sizes) / (2 * pair.s_A + 2 * m * n)).max(), limit)) / tighten

    return check_inequality(score, rng, effort)


CLAIMS = (
    Claim("17a", "|(A^i - A_inf) v| <= sqrt(min pi_A) beta_A^i |v|_pi", "Lemma A.1, proof", "repaired", weighted_contraction,
          "1/sqrt(min pi_A)"),
    Claim("17b", "|v|_pi <= max(pi_A) |v|", "Lemma A.1, proof", "repaired", weighted_norm, "sqrt(max pi_A)"),
    Claim("17c", "M_A (p + 1/(1 - beta_A)) = M_A (1 + ln(kappa_A)/2)/(1 - beta_A)", "Lemma A.1, proof", "repaired",
          last_equality, "<="),
    Claim("18", "the last term of Lemma 2 is C_Delta,1 L Delta/(4 m^2)", "Lemma 2", "repaired", lemma_two_quarter,
          "C_Delta,1 L Delta/m^2, as in the proof and in Theorem 1"),
    Claim("19", "on CIFAR-10 all curves have the same effective batch size (B = 128 for all n)", "Section 6.3, Appendix C.3",
          "repaired", effective_batch, "the same batch at each node, n times as large together"),
    Claim("20", "E |pi_A^T (I - B_inf) y|^2 is at most of order n sigma^2", "Section 4.1", "false", residual_variance),
    Claim("21", "|A^t - A_inf| <= p lambda^t for every lambda in (rho_2(A), 1)", "Proposition 1", "holds", decay),
    Claim("23", "sum_{i<=m} |A^i - I|^2 <= 2 s_A + 2 m n", "Lemma 2, proof", "holds", sums_from_identity),
)  # fmt: skip
