"""Gradients of a problem for a simulated algorithm, counted."""

from __future__ import annotations

import torch
from torch import Tensor

from perron.algorithms.base import Query
from perron.errors import PerronError, listed
from perron.problems.base import Problem
from perron.random import Keyed

LARGE = 2**20  # numbers


class Oracle:
    """Answers what the steps of an algorithm yield.

    Args:
        problem: whose gradients are asked for.
        random: the randomness of stochastic gradients.

    Attributes:
        grads: the stochastic gradients of the current step; of large ones the last only.
        draws: number of stochastic gradients so far.
        evaluated: number of gradients of single samples so far, over all nodes; 0 where the problem has no samples.
    """

    def __init__(self, problem: Problem, random: Keyed) -> None:
        self.problem, self.random = problem, random
        self.samples = 0 if problem.sample_counts is None else int(problem.sample_counts.sum())
        self.draws = self.evaluated = 0
        self.grads: list[Tensor] = []

    @property
    def gradients(self) -> float:
        """The number of gradients so far, as in `perron.simulation.metrics.Snapshot`."""
        return self.evaluated / self.problem.nodes if self.samples else float(self.draws)

    def gradient(self, point: Tensor) -> Tensor:
        """Return stochastic gradients at a point."""
        return self._received(self.problem.grad(point, self.draws, self.random))

    def gradient_into(self, point: Tensor, out: Tensor) -> Tensor:
        """Write stochastic gradients into ``out`` and return it."""
        return self._received(self.problem.grad_into(point, self.draws, self.random, out))

    def query(self, query: Query) -> Tensor:
        """Return the gradients that a query asks for."""
        answer = self.problem.answer(query)
        if not self.evaluated:
            _check_first(answer)
        self._count(None if query.samples is None else query.samples.shape[-1])
        return answer

    def _received(self, grads: Tensor) -> Tensor:
        if not self.draws:
            _check_first(grads)
        if grads.numel() > LARGE:  # a round of local steps would fill the memory
            self.grads.clear()
        self.grads.append(grads)
        self.draws += 1
        self._count(self.problem.batch)
        return grads

    def note(self, count: int, grads: list[Tensor]) -> None:
        """Count gradients that were computed elsewhere; ``grads`` are those of the last step."""
        if not self.draws and grads:
            _check_first(grads[0])
        self.grads = grads
        self.draws += count
        self._count(self.problem.batch, count)

    def _count(self, each: int | None, times: int = 1) -> None:
        """Count as many samples of each node, or all of them if None."""
        self.evaluated += times * (self.samples if each is None else min(each * self.problem.nodes, self.samples))


def _check_first(grads: Tensor) -> None:
    """Refuse gradients that are not finite where the run starts, ``(trials, n, ...)``: no learning rate is the reason."""
    wrong = (~torch.isfinite(grads)).transpose(0, 1).flatten(1).any(1).nonzero().flatten().tolist()
    if wrong:
        raise PerronError(
            f"The gradients of nodes {{{listed(wrong)}}} at their initial models are not finite. Look for NaN and huge "
            "numbers in their data, and in the start."
        )
