"""What theory predicts of a run, to be held against the measurement."""

from __future__ import annotations

import torch

from perron.errors import PerronError
from perron.problem import Problem


def noise_floor(problem: Problem, step: float) -> float:
    """The level at which grad_norm_sq of a method that follows centralized SGD settles with a constant step:

        E |grad f(x-hat)|^2  ->  step tr(H Sigma) / (2 n)

    H is the Hessian at the optimum, Sigma the covariance of one node's stochastic gradient there, and ``step`` the effective
    step: c lr for Push-Pull (`Algorithm.effective_step` times lr). Near the optimum x-hat follows
    x-hat+ = x-hat - step (H (x-hat - x*) + noise), whose covariance P solves H P + P H - step H P H = step Sigma / n; the
    level is tr(H P H), and the formula its leading term for small steps (the next is larger by about step L / 2).

    Example:
        >>> from perron.problems import Quadratic
        >>> problem = Quadratic.random(16, dim=4, noise_std=0.5)
        >>> round(noise_floor(problem, step=0.1), 6)
        0.00043
    """
    if problem.optimum is None:
        raise PerronError("The optimum of this problem is not known, so neither is the noise there.")
    x = problem.optimum.to(torch.float64)
    covariance = problem.noise_covariance(x)
    if covariance is None:
        raise PerronError(
            "The covariance of this problem's gradient noise is not known: override Problem.noise_covariance."
        )
    return step * float((problem.hessian(x) * covariance).sum()) / (2 * problem.nodes)
