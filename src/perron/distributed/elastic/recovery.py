"""Recovery from changes of membership: the remaining nodes and those that join continue the training together.

The network is rebuilt, and the algorithm restarts from the present models at the largest step count of all nodes. A tracker
restarts from y = gradient, so that sum y = sum of gradients holds again.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.base import Algorithm
from perron.distributed.collective import assemble
from perron.distributed.consistency import DisagreementError, gather_texts
from perron.distributed.elastic.generation import Change, Generation
from perron.distributed.elastic.membership import Membership
from perron.distributed.elastic.protocol import sources as sources_of
from perron.distributed.inner import plain_groups, typed_groups
from perron.distributed.process_group import RESUME_HINT
from perron.errors import DivergenceError, NetworkError, PerronError
from perron.networks.builder import NetworkLike, build_network
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.restrict import avoid, restrict

if TYPE_CHECKING:
    from perron.distributed.optimizer import Decentralized

FALLBACKS = ("one_peer_exponential", "complete")

log = logging.getLogger("perron")


class Recovery:
    """The elastic membership of an optimizer."""

    def __init__(self, optimizer: Decentralized, membership: Membership) -> None:
        if optimizer._flat.device.type != "cpu":
            raise PerronError(f"Elastic membership works on gloo, for CPU tensors; got {optimizer._flat.device}.")
        if isinstance(counts := getattr(optimizer.algorithm, "local_steps", 1), tuple):
            raise PerronError(
                "With elastic membership the number of nodes changes: local_steps is one number for all of them, or a function "
                f"of the round that returns one. Got {len(counts)} numbers."
            )
        membership.claim(optimizer.timeout)
        self.optimizer, self.membership = optimizer, membership
        self.save: Callable[[], None] | None = None  # of a checkpoint, if the script has a manager
        self._has_model = False  # one that the other members know
        self._activities: set[tuple[str, int]] = (
            set()
        )  # of all members when the last generation ended, with their steps

    def start(self) -> None:
        """Join the training, or begin it with the others."""
        self._recover("start", NetworkError(f"node {self.membership.node} wants to join"))

    def fail(self, error: DivergenceError) -> None:
        """End the training for all members."""
        self.optimizer._failure = DivergenceError(str(error))
        self.membership.fail(error)

    def finish(self) -> None:
        """Leave for good. If an exception is being handled, this node has not finished its training."""
        exception = sys.exc_info()[0]
        if exception is None:
            self.membership.finish(self.optimizer.steps)
        else:
            self.membership.abandon(f"it ended with {exception.__name__}")
        closed = NetworkError("It was closed; start a new process for another training.")
        self.optimizer._failure = self.optimizer._failure or closed

    def repeat_step(self, grad: Tensor, step: int, error: NetworkError) -> None:
        """Recover from an error in a step, and give its gradient again unless the step has been done meanwhile.

        A gradient at another point would do harm: if the model was replaced, or the step has several gradients, zero is given.
        """
        optimizer = self.optimizer
        inside = optimizer.gradients_received > 0
        while True:
            replaced = self._recover("step", error)
            if optimizer.steps > step:  # it was done, or others are further: a new gradient is due
                return None
            grad = torch.zeros_like(grad) if replaced or inside else grad
            try:
                return optimizer._send(grad)
            except NetworkError as another:
                error = another

    def retry_collective(self, activity: str, action: Callable[[], None], error: NetworkError) -> bool:
        """Recover from an error in an action of all members, and repeat it; return whether it was done.

        It is repeated if all members were busy with it or will come to it: those that were a step behind, and before the first
        step those that are starting.
        """
        while True:
            step = self.optimizer.steps
            self._recover(activity, error)
            coming = {("start", 0)} if step == 0 else {("step", earlier) for earlier in range(step)}
            if not self._activities <= {(activity, step)} | coming:
                return False
            try:
                action()
                return True
            except NetworkError as another:
                error = another

    @torch.no_grad()
    def _recover(self, activity: str, error: NetworkError) -> bool:
        """Continue in a new generation; return whether this process's model was replaced."""
        try:
            return self._rejoin(activity, error)
        except PerronError as final:
            self.optimizer._failure = type(final)(str(final))  # without the frames of this one
            raise
        finally:
            gc.collect()  # an abandoned generation leaves large tensors behind, and holds connections open

    def _rejoin(self, activity: str, error: NetworkError) -> bool:
        optimizer, began = self.optimizer, time.monotonic()
        if activity != "start":
            optimizer.node.ahead.clear()  # these receives keep connections open
        step = 0 if activity == "start" else optimizer.steps
        while True:
            generation = self.membership.rendezvous(activity, step, error, fresh=not self._has_model)
            rank, members = generation.rank, generation.members
            self._activities = {(member.phase, member.step) for member in members}
            sources, furthest = sources_of(members)
            x = optimizer.algorithm_state.x.clone() if self._has_model else optimizer._flat.point()
            self._has_model = self._has_model and rank in sources
            try:
                self._assemble(generation, x, sources, furthest)
                break
            except NetworkError as another:
                error = another
        if generation.stops:
            self._stop(generation)
        if not sources:
            if generation.number:
                log.warning("No node has a model to continue with: training restarts, unless a checkpoint is loaded.")
            return False
        optimizer.joined = optimizer.joined or (activity == "start" and (furthest > 0 or generation.in_progress))
        came = tuple(member.node for member in members if member.fresh)
        seconds = time.monotonic() - began
        optimizer.changes.append(Change(optimizer.steps, tuple(generation.node_ids), generation.lost, came, seconds))
        if rank == sources[0] or members[rank].fresh:
            log.warning("%s", optimizer.changes[-1])
        return rank not in sources

    def _stop(self, generation: Generation) -> None:
        """Save, and end the training for all members."""
        optimizer, saved = self.optimizer, ""
        try:
            if self.save is not None:
                self.save()
                saved = f" Saved after step {optimizer.steps}."
        except PerronError as why:
            saved = f" The state of step {optimizer.steps} was not saved: {why}"
        with suppress(NetworkError):  # wait for the others, who may need the store to save
            gather_texts("", generation, optimizer.timeout)
        error = NetworkError(f"The training ends: {generation.stops}.{saved} {RESUME_HINT}")
        self.membership.fail(error)
        raise error

    def _assemble(self, generation: Generation, x: Tensor, sources: list[int], step: int) -> None:
        """Form the network of a generation from this node's model x; sources are the ranks with a model to continue with."""
        optimizer = self.optimizer
        weights, seed, mixing = optimizer._settings["weights"], optimizer._settings["seed"], None
        if sources or generation.size != self.membership.size or generation.broken:
            mixing = rebuild_network(
                optimizer._graph,
                generation.node_ids,
                optimizer.algorithm,
                weights=weights,
                seed=seed,
                broken=generation.broken,
            )
        if sources:
            self._copy_groups(generation, sources)
        try:
            assemble(optimizer, generation, x, mixing, sources, step)
        except DisagreementError as error:
            if generation.rank in sources and len(sources) < generation.size:  # the node that joined has to leave
                raise NetworkError(str(error)) from None
            raise
        self.membership.assembled(generation)
        self._has_model = True

    def _copy_groups(self, generation: Generation, sources: list[int]) -> None:
        """Copy learning rates and other settings of the parameter groups to the nodes that have joined."""
        groups = self.optimizer.param_groups
        own = plain_groups([{key: value for key, value in one.items() if key != "params"} for one in groups])
        texts = gather_texts(json.dumps(own, default=str), generation, self.optimizer.timeout)
        if generation.rank not in sources:
            for group, theirs in zip(groups, typed_groups(json.loads(texts[sources[0]]), groups), strict=False):
                group.update(theirs)


def rebuild_network(
    graph: NetworkLike,
    members: Sequence[int],
    algorithm: Algorithm | None = None,
    *,
    weights: str = "uniform",
    seed: int = 0,
    broken: Collection[frozenset[int]] = (),
) -> Mixing:
    """Return a network for the present members, without links between ``broken`` pairs of them, given by their ranks.

    A topology's name or a function makes one of the new size; a fixed `Graph` or `Mixing` is restricted to the members. Where
    that is impossible (a hypercube of five nodes) or the algorithm refuses the result, the one-peer exponential graph is used,
    or else the complete graph.
    """
    size = len(members)
    if size == 1:
        return Mixing(pull=np.ones((1, 1)), push=np.ones((1, 1)))

    def resized() -> Mixing:
        if isinstance(graph, str) or (callable(graph) and not isinstance(graph, Graph | Mixing)):
            return build_network(graph, size, weights=weights, seed=seed)
        return restrict(build_network(graph, 0, weights=weights, seed=seed), members)

    builders: list[Callable[[], Mixing]] = [resized, *(partial(build_network, name, size) for name in FALLBACKS)]
    reason: Exception | None = None
    for build in builders:
        try:
            mixing = avoid(build(), broken)
            if algorithm is not None:
                algorithm.check(Network(mixing))
            return mixing
        except (PerronError, np.linalg.LinAlgError) as error:
            log.warning("The network cannot be rebuilt for %d nodes, another is used instead: %s", size, error)
            reason = error
    raise PerronError(f"No network for the {size} remaining nodes suits the algorithm. {reason}")
