"""Claims about the experiments: data, steps, weights, graphs, starts and metrics. Small reruns, not the originals.

"The code" is the authors' release; `perron.networks.released` and `Logistic.synthetic` reproduce its networks and data. Claims
about the neural-network experiments (BatchNorm statistics that are not mixed, scores in training mode) are not checked here.
"""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
import torch

from perron.algorithms import PushPull
from perron.errors import PerronError
from perron.networks import released as authors
from perron.networks import topologies
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.paper.claim import Claim, Evidence, conclude
from perron.paper.search import Generator
from perron.problems import Logistic, Quadratic
from perron.simulation.simulator import simulate

NODES = (4, 6, 8, 9, 12, 16, 18, 24, 25)
SAMPLES = 14_400  # of the reruns; divisible by all of NODES but 25


def data_size(rng: Generator, effort: int, *, total: int = 204_800) -> Evidence:  # noqa: ARG001
    """L_total = 204,800 is divisible by every n in {4, 6, 8, 9, 12, 16, 18, 24, 25}, as the partition requires."""
    bad = [n for n in NODES if total % n]
    right = lcm(*NODES) * 200 * 2
    text = f"{total:,} is divisible by all"
    if bad:
        text = (
            f"{total:,} is not divisible by {', '.join(map(str, bad))}; LCM * 200 * 2 = {right:,} is divisible by all"
        )
    figures, example = {"undivided": float(len(bad))}, {"L_total": total, "n": bad}
    return conclude(text, figures, example, printed=not bad, repaired=not any(right % n for n in NODES))


def small_step(rng: Generator, effort: int, *, step: float = 0.005, steps: int = 3000) -> Evidence:
    """At the step .005, 3,000 iterations reach the noise floors, which fall with n; with .05 they do.

    A run with full gradients shows the remaining effect of the start, without noise. The floor is measured at the step .05 with
    minibatches of 4 and extrapolated to the given step and to the paper's minibatches of 200; it is proportional to the step and
    to the variance of a minibatch, (M - B)/(B (M - 1)) for B of M samples.
    """
    seed, sizes, small = int(rng.integers(2**31)), (4, 16), 4
    floors: dict[int, float] = {}
    left: dict[int, float] = {}  # effect of the start at the end, at the given step
    curves: dict[int, Any] = {}  # the same at the step .05, every 50 iterations
    rates = torch.tensor([step, 0.05], dtype=torch.float64).view(2, 1, 1)  # one for each of two trials
    for n in sizes:
        network = authors.exponential(n)
        if effort >= 30 or not left:  # without noise, n hardly matters
            exact = Logistic.synthetic(n, samples=720, batch=None, compiled=False)
            run = simulate(
                exact, PushPull(), network, steps=steps, lr=rates, every=50, metrics=["grad_norm_sq"], trials=2
            )
            left[n], curves[n] = float(run["grad_norm_sq"][-1, 0]), np.asarray(run["grad_norm_sq"])[:, 1]
        else:
            left[n], curves[n] = left[sizes[0]], curves[sizes[0]]
        noisy = Logistic.synthetic(n, samples=SAMPLES, batch=small, compiled=False)
        run = simulate(
            noisy, PushPull(), network, steps=1500, lr=0.05, every=50, metrics=["grad_norm_sq"], seed=seed,
            trials=max(4, min(20, effort // 15)),
        )  # fmt: skip
        own = SAMPLES // n
        floors[n] = run.tail("grad_norm_sq", 0.35)[0] * (own - 200) / (own - small) * small / 200
    transient = {n: left[n] / (floors[n] * step / 0.05) for n in sizes}
    ends = {n: float(curves[n][-1]) for n in sizes}
    since = max(50 * (1 + int(np.flatnonzero(curves[n] >= floors[n]).max(initial=-1))) for n in sizes)
    speedup = floors[4] / floors[16]
    text = (
        f"exponential: at {step:g} the start leaves {left[4]:.1e}, {left[16]:.1e} for n = 4, 16, {transient[4]:.0f} and "
        f"{transient[16]:.0f} times the floor; at .05 {ends[4]:.0e}, {ends[16]:.0e}, below floors {floors[4]:.1e}, "
        f"{floors[16]:.1e}" + (f" from iteration {since:,} on" if since <= steps else "")
    )
    figures = {f"left, n = {n}": left[n] for n in sizes} | {f"floor at .05, n = {n}": floors[n] for n in sizes}
    figures |= {"below the floor from": float(since)} if since <= steps else {}
    example = {"network": "the authors' exponential", "n": 16, "step": step, "steps": steps, "left": left[16]}
    settled = all(ends[n] < floors[n] for n in sizes) and 2 < speedup < 8
    holds = max(transient.values()) < 1
    return conclude(text, figures | {"speedup": speedup}, example, printed=holds, repaired=settled)


def _largest_ratio(mixing: Mixing) -> float:
    """The largest ratio of two weights in a row of A."""
    return float(max(row[row > 0].max() / row[row > 0].min() for row in np.asarray(mixing.pull)))


def integer_weights(rng: Generator, effort: int, *, high: int = 9) -> Evidence:  # noqa: ARG001
    """Weights are random integers 1..9: in the code's networks no two weights of a row differ by more than a factor 2 or 3.

    A and B come from one integer matrix: A_ij/B_ij is a product of a factor for the row and one for the column.
    """
    largest, joint = {}, 0.0
    for name, build in authors.NAMES.items():
        mixing = build(16)
        A, B = np.asarray(mixing.pull), np.asarray(mixing.push)
        edges = A > 0
        largest[name] = _largest_ratio(mixing)
        ratio = np.log(np.where(edges, A, 1) / np.where(edges, B, 1))
        rows, columns = np.nonzero(edges)
        design = np.zeros((len(rows), 32))
        design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), 16 + columns] = 1
        joint = max(joint, float(np.abs(design @ np.linalg.pinv(design) @ ratio[edges] - ratio[edges]).max()))
    drawn = [
        Mixing.random_integer(topologies.random(16, seed=int(rng.integers(2**31))), high=high, seed=k) for k in range(5)
    ]
    expected = float(np.median([_largest_ratio(mixing) for mixing in drawn]))
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in largest.items())
    text = (
        f"largest ratio of weights in a row: {shown}; 1..{high} would give {expected:.0f}; A and B from one matrix "
        f"(to {joint:.0e})"
    )
    example = {"network": "the authors' exponential, n = 16", "A[0]": np.asarray(authors.exponential(16).pull)[0]}
    figures = largest | {"expected": expected, "joint": joint}
    return conclude(text, figures, example, printed=max(largest.values()) > 0.7 * expected)


def edge_direction(rng: Generator, effort: int, *, transposed: bool = False) -> Evidence:
    """W_ij = 1 for an edge i -> j and A = Row(W) (Appendix C.1) against a_ij > 0 iff (j, i) is an edge (Section 2)."""

    def against(graph: Graph, transposed: bool) -> int:
        hears = graph.adjacency().toarray() > 0  # row i has the nodes that i hears; of W, those that hear i
        weights = (hears if transposed else hears.T) * rng.integers(1, 10, size=hears.shape)
        return int(((weights > 0) != hears).sum())  # A = Row(W) has the pattern of W

    graphs = [topologies.exponential(8), topologies.ring(8), topologies.grid(9)]
    graphs += [topologies.random_digraph(8, seed=int(rng.integers(2**31))) for _ in range(max(2, effort // 20))]
    wrong = [against(graph, transposed) for graph in graphs]
    mended = [against(graph, True) for graph in graphs]
    hears = np.flatnonzero(np.asarray(authors.ring(8).pull)[0]).tolist()
    text = (
        f"ring(8): {wrong[1]} entries of A differ from Section 2's rule, none with W^T; in the code node 0 of ring(8) hears "
        f"{hears}, those it should speak to"
    )
    example = {"edges": graphs[1].edges.tolist(), "entries": wrong[1], "code": {"ring(8), row 0": hears}}
    figures = {"entries": float(wrong[1])}
    return conclude(text, figures, example, printed=not any(wrong), repaired=not any(mended))


def stochastic_metric(rng: Generator, effort: int, *, noise: float = 1.0) -> Evidence:
    """|average of the nodes' minibatch gradients| measures convergence, and falls with n because of the algorithm.

    It contains the noise of its own minibatches, sigma^2/n (squared): far above |grad f(x-hat)|^2, and present even for a method
    that does nothing, which is run here as the step 1e-12 from the optimum. The other three points (pi_A^T x, the mean of x,
    the average of local gradients) differ by some percent, more on a ring.
    """
    names = ["grad_norm_sq", "grad_norm_sq_mean", "grad_norm_sq_local", "grad_norm_batch"]
    trials, seed = max(4, min(40, effort // 6)), int(rng.integers(2**31))

    def levels(graph: Graph, step: float) -> list[float]:
        n, dim = graph.nodes, 5
        problem = Quadratic.random(n, dim, noise_std=noise, seed=seed)
        best = torch.zeros(dim) if problem.optimum is None else problem.optimum
        run = simulate(
            problem, PushPull(), Mixing.random_integer(graph, seed=seed), steps=700, lr=step, every=10, metrics=names,
            trials=trials, seed=seed, start=best.expand(n, dim),
        )  # fmt: skip
        half = len(run.steps) // 2
        squares = [run[name][half:] for name in names[:3]] + [run["grad_norm_batch"][half:] ** 2 * dim]
        return [float(value.mean()) for value in squares]

    working = {"exp16": levels(topologies.exponential(16), 0.05), "ring16": levels(topologies.ring(16), 0.01)}
    idle = {n: levels(topologies.exponential(n), 1e-12)[3] for n in (4, 16)}
    above = {name: values[3] / values[0] if values[0] > 0 else 1.0 for name, values in working.items()}
    falls = idle[4] / idle[16] if idle[16] > 1e-12 else 1.0
    off = {name: [100 * (values[k] / values[0] - 1) for k in (1, 2)] for name, values in working.items()}
    text = "without noise it is as good as the others"
    if noise:
        text = (
            f"{above['exp16']:.0f} (exp16) and {above['ring16']:.0f} (ring16) times |grad f(x-hat)|^2; idle it falls "
            f"{falls:.1f}-fold from n = 4 to 16; mean x and local: {off['exp16'][0]:+.0f}%, {off['exp16'][1]:+.0f}% "
            f"(exp16), {off['ring16'][0]:+.0f}%, {off['ring16'][1]:+.0f}% (ring16)"
        )
    figures = {f"above, {name}": value for name, value in above.items()} | {"idle 4 over 16": falls}
    figures |= {f"{kind}, {name} (%)": off[name][k] for name in off for k, kind in enumerate(("mean x", "local"))}
    example = {"step": 1e-12, "n = 4": idle[4], "n = 16": idle[16], "sigma^2/n": [noise**2 / 4, noise**2 / 16]}
    return conclude(text, figures, example, printed=max(above.values()) < 2 and falls < 2)


def graphs_of_the_text(rng: Generator, effort: int, *, text_graphs: bool = False) -> Evidence:  # noqa: ARG001
    """The grid is directed, the ring is a ring, and all six topologies exist, connected, for n in {4, 8, 12, 16} (grid: 9).

    Checked of the code's networks at its seed 42.
    """
    found: list[str] = []

    def network(name: str, n: int) -> Mixing:
        family: Any = getattr(topologies, name) if text_graphs else authors.NAMES[name]
        built = family(n)
        return Mixing.random_integer(built) if text_graphs else built

    if network("grid", 9).pull_graph.is_symmetric:
        found.append("grid(9) is symmetric")
    chords = len(network("ring", 8).pull_graph.edges) - 8
    if chords:
        found.append(f"ring(8) has {chords} chords")
    for name in ("exponential", "ring", "random", "geometric", "nearest_neighbor"):
        for n in (4, 6, 8, 12, 16):
            try:
                network(name, n)
            except PerronError as error:
                reason = "not connected" if "connected" in str(error) else "refused"
                found.append(f"{name}({n}) {reason}")
    text = "; ".join(found) or "all as in the text"
    return conclude(text, {"differences": float(len(found))}, {"found": found}, printed=not found)


def common_start(rng: Generator, effort: int, *, start: str = "text") -> Evidence:  # noqa: ARG001
    """All nodes start at one point (algorithm, theorem: Dx^(0) = 0); Appendix C.2 has x_opt + 10 N(0, I) for each node.

    The code has .01 N(0, I). Besides, its data are homogeneous: local gradients differ by sampling alone, so that the variance
    between nodes times the samples of each does not depend on the number of samples.
    """

    def spread(start: str) -> float:
        first = Logistic.synthetic(8, samples=SAMPLES, start=start, compiled=False).start()  # type: ignore[arg-type]
        return float((first - first.mean(0)).square().mean().sqrt())

    def variance(samples: int) -> float:
        problem = Logistic.synthetic(8, samples=samples, batch=None, compiled=False)
        point = torch.zeros(8, problem.dim, dtype=problem.rows.dtype)
        gradients = problem.local_grads(point)
        return float((gradients - gradients.mean(0)).square().sum(-1).mean()) * samples / 8

    spreads = {name: spread(name) for name in ("text", "authors", "equal")}
    few, many = variance(1600), variance(25_600)
    text = (
        f"spread of the starts: Appendix C.2 {spreads['text']:.1f}, code {spreads['authors']:.4f}; variance between nodes times "
        f"samples {few:.2f} and {many:.2f} for 200 and 3,200 samples each: homogeneous"
    )
    figures = spreads | {"variance times samples, 200": few, "variance times samples, 3200": many}
    own = spread(start)
    return conclude(text, figures, {"spread": own}, printed=own == 0, repaired=spreads["equal"] == 0)


CLAIMS = (
    Claim("3a", "L_total = 204,800 is divisible by all n, and equals LCM * B * 2", "Appendix C.2", "repaired", data_size,
          "1,440,000"),
    Claim("3b", "all runs use the step .005, and the curves end at noise floors that fall with n", "Figure 2, Section 6.1",
          "repaired", small_step, "the step .05 (3,000 iterations)"),
    Claim("3c", "weights are random integers from 1 to 9", "Appendix C.1", "false", integer_weights),
    Claim("4", "A = Row(W) with W_ij = 1 for an edge i -> j has the graph of Section 2, a_ij > 0 iff (j, i) is an edge",
          "Section 2, Appendix C.1", "repaired", edge_direction, "W^T"),
    Claim("5", "the norm of the averaged minibatch gradients measures convergence", "Appendix C.3", "false",
          stochastic_metric),
    Claim("13", "directed grid, directed ring; n in {4, 8, 12, 16} for all graphs but the grid", "Figure 2, Section 6.1", "false",
          graphs_of_the_text),
    Claim("14", "all nodes start at a common x^(0), and from x_opt + 10 N(0, I)", "Section 2, Appendix C.2", "repaired",
          common_start, "a common start"),
)  # fmt: skip
