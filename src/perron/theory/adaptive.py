"""The effective step of AdamW under noise: it divides directions by their deviation, which trackers change."""

from __future__ import annotations

import numpy as np

from perron.algorithms.base import Algorithm
from perron.algorithms.centralized import CentralizedSGD
from perron.algorithms.moves import AdamW, Moving
from perron.algorithms.push_pull import PushPull
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.stochastic import to_dense
from perron.problems.base import Problem
from perron.theory.levels import optimum_of

TINY = 1e-12  # of a sum of squares: terms below it are left out


def effective_step(algorithm: Algorithm, network: Network, problem: Problem) -> float:
    """Return the effective step near the optimum as a multiple of lr: `Algorithm.effective_step`, but for AdamW

        sum_i pi_A[i] / sd(u_i)

    AdamW divides the direction u_i of node i by sqrt(v), which tends to the deviation of a coordinate of u_i where noise exceeds
    the gradient. If noise has the same deviation s in all coordinates, on all nodes, this is descent with the step lr / sd(u_i).
    Centralized AdamW has sd(u) = s / sqrt(n). For Push-Pull u = y / w, where w tends to n pi_B and
    y = sum_k D_k g_(t-k) with independent g:

        Var(u_i) = (s / (n pi_B[i]))^2 sum_k sum_j D_k[i,j]^2,     D_0 = I, D_k = B^k - B^(k-1),     all times B in the order atc

    In the orders cta and pu this hardly depends on n: a tracker has about the noise of one node. Momentum (b1) changes
    nothing in the long run, and eps is neglected.

    Example: Push-Pull AdamW has about the same effective step on 4 nodes and on 16, centralized AdamW twice as large a one.
        >>> from perron import AdamW, CentralizedSGD, Mixing, PushPull, topologies
        >>> from perron.problems import Quadratic
        >>> for n in (4, 16):
        ...     network = Network(Mixing.uniform(topologies.exponential(n)))
        ...     problem = Quadratic.random(n, dim=4, noise_std=1.0)
        ...     steps = [effective_step(kind(move=AdamW()), network, problem) for kind in (PushPull, CentralizedSGD)]
        ...     print([round(step, 2) for step in steps])
        [1.51, 4.0]
        [1.45, 8.0]
    """
    if not isinstance(algorithm, Moving) or not isinstance(algorithm.move, AdamW):
        return algorithm.effective_step(network)
    deviation = _deviation(problem)
    if isinstance(algorithm, CentralizedSGD):
        return problem.nodes**0.5 / deviation
    if not isinstance(algorithm, PushPull) or network.mixing.varies:
        raise PerronError(
            f"The effective step of {algorithm.about.title} is not known here: only Push-Pull on one graph."
        )
    B = to_dense(network.mixing.push)
    D, power = np.eye(len(B)), np.eye(len(B))
    if algorithm.order == "atc":
        D = power = B
    squares = np.zeros(len(B))
    while (added := (D**2).sum(1)).max() > TINY:
        squares += added
        D, power = B @ power - power, B @ power
    gain = np.sqrt(squares) / (len(B) * network.push_perron)
    return float((network.pull_perron / gain).sum()) / deviation


def _deviation(problem: Problem) -> float:
    """Return the deviation of a coordinate of gradient noise, or refuse noise that is not the same in all of them."""
    covariances = problem.noise_covariances(optimum_of(problem))
    if covariances is None or not covariances.any():
        raise PerronError("The effective step of AdamW is that of its noise, which is zero or not known here.")
    each = covariances.numpy()
    variance = float(each[0, 0, 0])
    if not np.allclose(each, variance * np.eye(problem.dim), rtol=1e-9, atol=1e-9 * variance):
        raise PerronError(
            "The effective step of AdamW is known for noise of one deviation in all coordinates and nodes."
        )
    return variance**0.5
