"""Claims about noise and descent: the separation of noise in expectation, and the size of the residual.

Expectations are exact, not sampled. On quadratics the iterates are linear in the noises, so that second moments follow from the
response of each gradient to each noise (`responses`); sigma = 1 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perron._typing import FloatArray
from perron.networks import topologies
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.paper.claim import Claim, Evidence, conclude, within
from perron.paper.search import Generator, Pair, pairs, worst


@dataclass(frozen=True)
class Responses:
    """The gradients of a Push-Pull run as linear functions of the noises: ``(steps, n, 1 + steps n)``, the constant first.

    ``exact`` are the gradients of the losses at the iterates, ``noisy`` the same with their own noise, ``trackers`` the y and
    ``models`` the x.
    """

    models: FloatArray
    exact: FloatArray
    noisy: FloatArray
    trackers: FloatArray


def responses(
    A: FloatArray,
    B: FloatArray,
    curvature: FloatArray,
    start: float,
    step: float,
    steps: int,
    centers: FloatArray | float = 0.0,
) -> Responses:
    """Run Push-Pull on f_i(x) = curvature_i (x - center_i)^2/2, one-dimensional, from a common start, with unit noises."""
    n = len(A)
    x = np.zeros((n, 1 + steps * n))
    x[:, 0] = start
    y, before = np.zeros_like(x), np.zeros_like(x)
    models, exact, noisy, trackers = [], [], [], []
    for t in range(steps):
        models.append(x)
        exact.append(curvature[:, None] * x)
        exact[-1][:, 0] -= curvature * centers
        now = exact[-1].copy()
        now[:, 1 + t * n : 1 + (t + 1) * n] += np.eye(n)
        noisy.append(now)
        y, before = B @ y + now - before, now
        trackers.append(y)
        x = A @ x - step * y
    return Responses(np.array(models), np.array(exact), np.array(noisy), np.array(trackers))


# ---- the noise-separation lemma


def noise_separation(rng: Generator, effort: int, *, factor: float = 1.0) -> Evidence:
    """E |H|^2 <= n sigma^2 sum |M_i|^2 + E |sum_i M_i grad f(x_i)|^2 for H = sum_i M_i g_i: a noise moves all later gradients.

    One node, f = h x^2/2 with |h| <= 1: the largest ratio over all M_i is a generalised eigenvalue. More nodes: random M_i.
    Factor 2 on the right is enough, by |a + b|^2 <= 2 |a|^2 + 2 |b|^2, since the noises themselves are uncorrelated.
    """

    def of_one_node(h: float, step: float, start: float, steps: int) -> float:
        run = responses(np.eye(1), np.eye(1), np.array([h]), start, step, steps)
        noisy, exact = run.noisy[:, 0], run.exact[:, 0]
        values = np.linalg.eigvals(np.linalg.solve(np.eye(steps) + exact @ exact.T, noisy @ noisy.T))
        return float(values.real.max())

    def of_pair(pair: Pair) -> float:
        steps = int(rng.integers(2, 5))
        run = responses(pair.A, pair.B, rng.uniform(-1, 1, pair.nodes), rng.normal(), rng.uniform(0, 1), steps)
        weights = rng.standard_normal((steps, pair.nodes, pair.nodes))
        left, right = (float((np.einsum("tij,tjk->ik", weights, g) ** 2).sum()) for g in (run.noisy, run.exact))
        return left / (pair.nodes * float((np.linalg.norm(weights, 2, axis=(1, 2)) ** 2).sum()) + right)

    known = responses(np.eye(1), np.eye(1), np.ones(1), 1.0, 0.5, 2)
    left, right = (float(((g[0, 0] - g[1, 0]) ** 2).sum()) for g in (known.noisy, known.exact))
    ratios = [
        of_one_node(rng.uniform(-1, 1), rng.uniform(0, 1), rng.normal(), int(rng.integers(2, 9))) for _ in range(effort)
    ]
    ratios += [of_pair(pair) for pair in pairs(rng, effort // 3)]
    largest = max(*ratios, left / (2 + right))
    # The step of Lemma 1's proof: all M_i = 1. On a concave patch the noise drives the iterates away.
    m = 20
    patch = responses(np.eye(1), np.eye(1), -np.ones(1), 0.0, 1 / (6 * m), m)
    summed, separate = (float((g.sum(axis=0) ** 2).sum()) for g in (patch.noisy, patch.exact))
    text = (
        f"f = x^2/2, a = 1/2, x_0 = 1, H = g_0 - g_1: {left:.2f} > {2 + right:.2f}; concave, m = {m}: "
        f"{summed:.1f} > {m + separate:.1f}; largest of all lhs/rhs {largest:.3f} (< 2)"
    )
    example = {"n": 1, "f": "x^2/2", "x_0": 1.0, "step": 0.5, "H": "g_0 - g_1", "lhs": left, "rhs": 2 + right}
    figures = {
        "lhs": left,
        "rhs": 2 + right,
        "lhs of Lemma 1": summed,
        "rhs of Lemma 1": m + separate,
        "worst": largest,
    }
    return conclude(text, figures, example, printed=within(largest / factor), repaired=within(largest / 2))


# ---- smoothness, and the bound on Delta_1


def consensus_growth(rng: Generator, effort: int, *, restored: bool = False) -> Evidence:
    """Delta_1 = sum_{j<m} |x^(k+j) - 1 x-hat^(k)|_F^2 is at most

        40 m n |Dx|^2 + 40 a^2 m s_B |Dy|^2 + 20 c^2 a^2 m^2 sum_j |mean grad|^2.

    Checked without noise and with losses that are linear where the iterates pass (and convex beyond), so that all gradients
    are constant. With A = B = 11^T/n and equal gradients, the left side is n/60 times the right: 1 x-hat has n rows.
    Repaired: n in the last term, and n s_B^2 instead of s_B in the second (see 7i). Also checked: the smoothness step
    |mean_i grad f_i(x_i) - grad f(x-hat)|^2 <= L^2 |x - 1 x-hat|_F^2, which may be divided by n, as the authors' note has it.
    """

    def known(n: int) -> float:
        m = n**2 * 6  # the least m: n^2 (N_7 + N_8^2) with N_7 = N_8 = 2
        return n * (m - 1) * m * (2 * m - 1) / 6 / (20 * float(m) ** 3 * (n if restored else 1))

    def trackers() -> float:
        """The second term alone, with the mean of the gradients zero and m -> infinity: x converges to a sum S Dy."""
        slow = Pair(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([[0.998, 0.002], [0.002, 0.998]]), "2 nodes, slow B")
        drift = np.linalg.norm(np.outer(np.ones(2), slow.pi_A @ slow.B_powers.sum(axis=0)), 2)
        return float(drift) ** 2 / (40 * (2 * slow.s_B**2 if restored else slow.s_B))

    def repaired(pair: Pair) -> float:
        n, c = pair.nodes, pair.c
        m = int(min(3000, max(2 * n * pair.s_A / c, pair.s_A**2 / n, len(pair.B_powers), 20)))
        x, y = rng.normal(size=(n, 2)) * 10.0 ** rng.uniform(-2, 2), rng.normal(size=(n, 2))
        y += rng.choice([0, 1, 10]) * pair.pi_B[:, None]
        center, total = pair.pi_A @ x, y.sum(axis=0)
        apart, uneven = ((x - center) ** 2).sum(), ((y - pair.pi_B[:, None] * total) ** 2).sum()
        left = 0.0
        for _ in range(m):
            left += float(((x - center) ** 2).sum())
            x, y = pair.A @ x - y, pair.B @ y
        right = 40 * m * n * apart + 40 * m * n * pair.s_B**2 * uneven
        return float(left / (right + 20 * c**2 * n * float(m) ** 3 * ((total / n) ** 2).sum()))

    def smoothness() -> float:
        n, curvature = int(rng.integers(2, 20)), rng.choice([-1.0, 1.0])
        x = rng.normal(size=n) * rng.choice([0, 1]) + rng.normal()
        bends = np.where(rng.random(n) < 0.5, curvature, rng.uniform(-1, 1, n))
        return float((bends * x).mean() ** 2 / ((x**2).sum() / n))

    largest = max(smoothness() for _ in range(10 * effort))
    mended = max(repaired(pair) for pair in pairs(rng, max(14, effort // 4)))
    values = {n: known(n) for n in (32, 64, 128, 512)}
    slowly = trackers()
    text = (
        f"11^T/n, equal gradients: lhs/rhs {values[64]:.2f}, {values[128]:.2f}, {values[512]:.2f} for n = 64, 128, 512; Dy "
        f"alone, 2 nodes, slow B: {slowly:.2g}; repaired {mended:.2g}; smoothness step with L^2/n: {largest:.3f}"
    )
    figures = {f"n = {n}": value for n, value in values.items()}
    figures |= {"trackers": slowly, "repaired": mended, "smoothness step": largest}
    example = {
        "A = B": "11^T/n",
        "n": 128,
        "m": 6 * 128**2,
        "gradients": "all equal and constant",
        "lhs/rhs": values[128],
    }
    holds = within(max(*values.values(), slowly))
    return conclude(text, figures, example, printed=holds, repaired=within(mended) and within(largest))


# ---- the start of the trackers


def _largest_start(pi: FloatArray, rng: Generator) -> float:
    """The largest |(I - pi 1^T) G|_F^2 over n x 2 matrices G with rows of length one, by ascent.

    The form is convex, so that replacing every row by the direction of the gradient never lowers it.
    """
    n = len(pi)
    project = np.eye(n) - np.outer(pi, np.ones(n))
    gram = project.T @ project
    best = 0.0
    starts = [np.where(np.arange(n) < k, -1.0, 1.0)[np.argsort(np.argsort(-pi))] for k in range(n // 2 + 1)]
    for first in [*starts, rng.normal(size=n), rng.normal(size=n)]:
        rows = np.stack([first, 0.1 * rng.normal(size=n)], axis=1)
        for _ in range(60):
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            rows = gram @ rows
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        best = max(best, float((rows * (gram @ rows)).sum()))
    return best


def tracker_start(rng: Generator, effort: int, *, constant: float = 2.0) -> Evidence:
    """E |Delta_y^(0)|_F^2 <= 2 (n sigma^2 + 2 n L Delta), Delta_y^(0) = (I - B_inf) g^(0), |grad f_i|^2 <= 2 L Delta for each i.

    The noises of the nodes are independent, so that their part is (n - 2 + n |pi_B|^2) sigma^2 < 2 n sigma^2, always. The
    gradients may add up: two of 16 nodes with half of the weight, and gradients of opposite sign, make it n |pi_B|^2 times
    2 n L Delta, the maximum, so that n |pi_B|^2 in place of 2 is enough.
    """

    def gradients(pi: FloatArray) -> float:
        return _largest_start(pi, rng) / len(pi)

    def noise(pi: FloatArray) -> float:
        return 1 - 2 / len(pi) + float(pi @ pi)

    pi = np.array([1 / 4] * 2 + [1 / 28] * 14)
    drawn = [*(pair.pi_B for pair in pairs(rng, max(14, effort // 4))), pi]
    largest, mended = max(map(gradients, drawn)), max(gradients(v) / (len(v) * float(v @ v)) for v in drawn)
    loudest = max(map(noise, drawn))
    rings = _weightings(topologies.chordal_ring(16), rng, max(20, effort // 2))
    skewed = [ring.pi_B for ring in rings if 16 * float(ring.pi_B @ ring.pi_B) > 2]
    broken = sum(gradients(vector) > 2 for vector in skewed)
    text = (
        f"two of 16 nodes with half of pi_B: {gradients(pi):.3f} n > 2 n; noise part at most {loudest:.2f} n; of {len(rings)} "
        f"ring+chords16 {len(skewed)} have n|pi_B|^2 > 2, {broken} break it; with n |pi_B|^2: {mended:.3f}"
    )
    figures = {"largest / n": largest, "noise / n": loudest, "rings": float(len(rings)), "skewed": float(len(skewed)),
               "broken": float(broken), "repaired": mended}  # fmt: skip
    example = {"pi_B": pi.tolist(), "gradients": np.where(pi > 0.1, -1.0, 1.0).tolist(), "lhs/rhs": gradients(pi) / 2}
    holds = within(max(largest, loudest) / constant)
    return conclude(text, figures, example, printed=holds, repaired=within(mended))


def _weightings(graph: Graph, rng: Generator, count: int) -> list[Pair]:
    """Random integer weights on a graph."""
    return [Pair.of(Mixing.random_integer(graph, seed=int(rng.integers(2**31))), graph.name) for _ in range(count)]


# ---- descent in one step


def one_step_descent(rng: Generator, effort: int, *, constants: float = 1e3) -> Evidence:
    """|grad f|^2 <~ (f - E f+)/(c a) + c a L sigma^2/n + a L |pi_A^T Dy|^2, up to absolute constants, at t = 0.

    The cross term <grad f, eps> is missing. At t = 0 all nodes are at one point and y = g, so that gradients with
    pi_A^T y = 0 but mean not zero do not change x-hat and f; the right side is then a L c^2 |grad f|^2, which a small step makes
    arbitrarily small. Besides, the last term has to be divided by c, which has no lower limit. With both corrections,
    |grad f|^2 <= (f - f+)/(c a) - <grad f, pi_A^T Dy>/c + c a L |mean g|^2 + (a L/c) |pi_A^T Dy|^2 holds.
    """

    def sides(pair: Pair, gradients: FloatArray, step: float, bend: float) -> tuple[float, float, float]:
        """Left side, printed right side, repaired right side; all f_i have the second derivative ``bend``, L = 1."""
        c, mean, tracked = pair.c, float(gradients.mean()), float(pair.pi_A @ gradients)
        residual = tracked - c * mean
        fall = step * tracked * mean - bend * (step * tracked) ** 2 / 2  # f - f+
        right = fall / (c * step) + step * residual**2
        mended = fall / (c * step) - mean * residual / c + c * step * mean**2 + step / c * residual**2
        return mean**2, right, mended

    largest, mended, smallest = 0.0, 0.0, 1.0
    for pair in pairs(rng, effort):
        gradients, step, bend = rng.normal(size=pair.nodes), 10.0 ** rng.uniform(-4, 0), rng.uniform(-1, 1)
        left, _, right = sides(pair, gradients, step, bend)
        mended, smallest = max(mended, left / right), min(smallest, pair.c)
    pair = Pair(np.array([[1.0, 1], [1, 3]]), np.ones((2, 2)), "2 nodes")
    gradients = 1 / pair.pi_A * np.array([1.0, -1.0])
    for step in (1e-2, 1e-4, 1e-6):
        left, right, _ = sides(pair, gradients, step, 1.0)
        largest = max(largest, left / right)
    text = (
        f"2 nodes, pi_A^T y = 0: lhs/rhs = 1/(a L c^2), {largest:.0e} at a = 1e-6/L; with the cross term and 1/c "
        f"{mended:.3f}; least c met {smallest:.2g}"
    )
    example = pair.data() | {"gradients": gradients.tolist(), "step": 1e-6, "lhs/rhs": largest}
    figures = {"worst": largest, "worst repaired": mended, "least c": smallest}
    return conclude(text, figures, example, printed=largest <= constants, repaired=within(mended))


def known_at_the_time(rng: Generator, effort: int, *, lag: int = 0) -> Evidence:
    """Delta_y^(k - lag) has no variance given F_k, all gradients before step k. But y^(k) (lag 0) contains g^(k)."""
    largest, example, k = 0.0, None, 3
    for pair in pairs(rng, max(7, effort // 10)):
        run = responses(pair.A, pair.B, rng.uniform(0, 1, pair.nodes), 1.0, 0.1, k + 1)
        current = slice(1 + k * pair.nodes, 1 + (k + 1) * pair.nodes)  # the noises of step k
        variance = float(((pair.B_powers[0] @ run.trackers[k - lag][:, current]) ** 2).sum())
        if variance > largest:
            largest, example = variance, pair.data()
    text = f"given F_k, Delta_y^(k) still has a variance of {largest:.3g} sigma^2, |I - B_inf|_F^2 sigma^2"
    return conclude(text, {"variance": largest}, example, printed=largest == 0)


# ---- the residual


def block_variance(pair: Pair, lengths: FloatArray) -> FloatArray:
    """Return E |pi_A^T sum of m residuals Delta_y|^2 / sigma^2 of pure noise in the stationary state, for each m.

    The noise g^(t) of l steps before the end of the block has the factor pi_A^T (B^l - B_inf) if l < m, and
    pi_A^T (B^l - B^(l-m)) otherwise.
    """
    rows = pair.pi_A @ pair.B_powers  # (l, n)
    longest = int(lengths.max())
    rows = np.concatenate([rows, np.zeros((longest + 1, pair.nodes))])
    inside = np.cumsum((rows**2).sum(axis=1))
    before = [((rows[int(m) :] - rows[: -int(m)]) ** 2).sum() for m in lengths]
    return inside[lengths.astype(int) - 1] + np.array(before)


def residual_blocks(rng: Generator, effort: int, *, tighten: float = 1.0) -> Evidence:
    """The residual pi_A^T Delta_y of single steps persists; that of a block has a variance bounded in m: 4 |pi_A|^2 s_B sigma^2.

    So (1/m) E |block|^2 falls as 1/m. It is compared with c^2 sigma^2/n, the size that the single-step analysis needs. Where A is
    doubly stochastic the residual is zero: "regardless of topology" needs that exception.
    """
    lengths = np.array([1, 2, 5, 20, 100, 400], dtype=float)

    def score(pair: Pair) -> float:
        limit = 4 * float(pair.pi_A @ pair.pi_A) * pair.s_B
        return float(block_variance(pair, lengths).max()) / (tighten * limit)

    found = worst(score, rng, effort)
    shown, single = {}, {}
    for name, build in (("exponential", topologies.exponential), ("ring+chords", topologies.chordal_ring)):
        several = _weightings(build(16), rng, max(6, effort // 8))
        curves = [block_variance(pair, lengths) / lengths * pair.nodes / pair.c**2 for pair in several]
        shown[name], single[name] = np.median(curves, axis=0), [float(curve[0]) for curve in curves]
    persists = min(float(curve[0]) for curve in shown.values())
    largest = worst(
        lambda pair: float(block_variance(pair, lengths[:1])[0]) * pair.nodes / pair.c**2, rng, effort // 2
    ).ratio
    ring = ", ".join(f"{value:.2g}" for value in shown["ring+chords"][[0, 2, 3, 4, 5]])
    ends = {name: f"{min(values):.2g} to {max(values):.2g}" for name, values in single.items()}
    text = (
        f"block variance / bound {found.ratio:.2g} of {found.tried} pairs; over c^2 s^2/n, medians of {len(several)} weightings: "
        f"ring+chords16 {ring} for m = 1, 5, 20, 100, 400; exp16 {shown['exponential'][0]:.2g} for m = 1; of single ones "
        f"{ends['ring+chords']} and {ends['exponential']} for m = 1; largest of all pairs {largest:.1g}"
    )
    figures = {"worst": found.ratio, "largest single": largest} | {
        f"{name}16, m = {int(m)}": float(v)
        for name, curve in shown.items()
        for m, v in zip(lengths, curve, strict=True)
    }
    figures |= {f"{name}16, m = 1, {end.__name__}": end(v) for name, v in single.items() for end in (min, max)}
    return conclude(text, figures, found.pair.data(), printed=within(found.ratio) and persists > 1e-3)


CLAIMS = (
    Claim("6", "Delta_1 <= 40 m n |Dx|^2 + 40 a^2 m s_B |Dy|^2 + 20 c^2 a^2 m^2 (sigma^2/n + sum_j E |mean grad|^2)",
          "Lemma 2, proof", "repaired", consensus_growth, "n times the last term, n s_B^2 for s_B; the authors' note: L^2/n"),
    Claim("7l", "E |Delta_y^(0)|^2 <= 2 (n sigma^2 + 2 n L Delta)", "Lemma 2, proof", "repaired", tracker_start,
          "n |pi_B|^2 for 2"),
    Claim("8", "E |sum M_i g_i|^2 <= n sigma^2 sum |M_i|^2 + E |sum M_i grad f(x_i)|^2", "Lemma A.2, Lemma 1, proof", "repaired",
          noise_separation, "twice the right side"),
    Claim("12", "|grad f|^2 <~ (f - E f+)/(c a) + c a L sigma^2/n + a L |pi_A^T (I - B_inf) y|^2 + consensus error",
          "Section 4.1 (and 4.2)", "repaired", one_step_descent, "the cross term, and a L/c for a L"),
    Claim("15c", "Delta_y^(k) is known given F_k", "Lemma 1, proof", "false", known_at_the_time),
    Claim("16", "single residuals persist, but their sum over a block of m steps stays bounded", "Section 4.2", "holds",
          residual_blocks),
)  # fmt: skip
