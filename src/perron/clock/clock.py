"""The clock: how many seconds a decentralized run would take on given machines and links."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from perron._typing import FloatArray, real_number, whole_number
from perron.algorithms.base import Algorithm
from perron.clock.compute import Compute
from perron.clock.cycle import CycleTime, exact_cycle_time, simulated_cycle_time
from perron.clock.links import Sizes
from perron.clock.machines import Machines
from perron.clock.recursion import Protocol, Recursion, Times
from perron.clock.tape import record_tape
from perron.errors import PerronError, brief
from perron.networks.mixing import Mixing

AHEAD_UP_TO = 16  # as in the engine
SAMPLED_FROM = 1000  # nodes, for hashes of functions
RECEIVE_AHEAD = 2  # as `perron.distributed.process_group.RECEIVE_AHEAD`


@dataclass(frozen=True)
class Clock:
    """Machines, links and messages: what decides how long a step takes. It never touches values.

    Args:
        machines: latencies and rates; a `Machines`, a file of links, or the name of a preset, as ``"gaia"``.
        compute: seconds of one gradient: a number, one per node, a distribution as ``"exponential(0.1)"``,
            ``"lognormal(0.1, 0.5)"`` or ``"stragglers(0.02, 0.1, 0.2)"``, or a .csv file of measured seconds. If None, that of
            the machines, or 0.
        size: bytes of one model vector on the wire; by default those of the problem that is simulated. A toy problem may stand
            for a large model.
        protocol: ``"rendezvous"``, as gloo: a message leaves once its receiver has asked for it, and the sender waits until it
            has left. ``"eager"``: it leaves at once, and queues for its link and the accesses.
        ahead: steps by which receives are posted in advance, as ``receive_ahead`` of `perron.Decentralized`.
        overhead: seconds that each batch of messages costs its nodes.
        per_byte: seconds that a node needs for each byte that it receives.
        average: how centralized methods average: ``"ring"`` (all-reduce) or ``"server"`` (parameter server).
        order: the nodes in the order of the ring, along which each sends to the one before it, as gloo; by number if None.
        hub: the node that is the server; the best one if None.

    Nodes of the machines and of a network are matched by name if both have names (`Machines.labels`, `Mixing.labels`), otherwise
    by number. ``compute``, ``order`` and ``hub`` are by the numbers of the machines.

    Losses and delays of links (``loss``, ``delay`` of `perron.Simulation`) take no time here: retransmission is part of a rate.

    Example:
        >>> import perron
        >>> clock = Clock(Machines(latency=0.05, rate=1e6), compute=0.1, size=1e5, protocol="eager")
        >>> mixing = perron.Mixing.uniform(perron.topologies.ring(8))
        >>> round(clock.cycle_time(perron.PushPull(), mixing).seconds, 6)  # max(compute, latency + 2 size / rate)
        0.25
    """

    machines: Machines | str | Path | None = None
    _: KW_ONLY
    compute: Any = None
    size: float | None = None
    protocol: Protocol = "rendezvous"
    ahead: int = RECEIVE_AHEAD
    overhead: float = 0.0
    per_byte: float = 0.0
    average: Literal["ring", "server"] = "ring"
    order: Sequence[int] | None = None
    hub: int | None = None

    def __post_init__(self) -> None:
        machines = Machines() if self.machines is None else self.machines
        if isinstance(machines, str | Path):
            machines = Machines.read(machines)
        if not isinstance(machines, Machines):
            raise PerronError(
                f"machines is a perron.Machines, a file of links or the name of a preset; got {brief(machines)}."
            )
        vars(self)["machines"] = machines  # the way into a frozen dataclass
        _check_choice("protocol", self.protocol, ("rendezvous", "eager"))
        _check_choice("average", self.average, ("ring", "server"))
        for name in ("overhead", "per_byte"):
            vars(self)[name] = _finite(name, getattr(self, name), "a number of seconds that is not negative")
        if self.size is not None:
            vars(self)["size"] = _finite("size", self.size, "the number of bytes of a model vector")
        ahead = whole_number(self.ahead)
        if ahead is None or not 0 <= ahead <= AHEAD_UP_TO:
            raise PerronError(f"ahead is a whole number of steps from 0 to {AHEAD_UP_TO}; got {brief(self.ahead)}.")
        vars(self)["ahead"] = ahead
        nodes = self.times.nodes
        if nodes is not None:
            machines.check_nodes(nodes)

    @property
    def record(self) -> Machines:
        """The machines, read if they were given by name."""
        return self.machines  # type: ignore[return-value]

    @cached_property
    def times(self) -> Compute:
        """The times of gradients."""
        given = self.record.compute if self.compute is None else self.compute
        return given if isinstance(given, Compute) else Compute(0.0 if given is None else given)

    @property
    def random(self) -> bool:
        """Whether times are drawn at random, so that trials differ."""
        return self.times.random

    def fingerprint(self, nodes: int) -> str:
        """Return a hash of everything that decides times on a network with that many nodes.

        Of functions it is that of the values of all links, beyond 1,000 nodes of those whose ends are powers of two apart.
        """
        machines = self.record
        if nodes <= SAMPLED_FROM:
            targets, sources = np.nonzero(~np.eye(nodes, dtype=bool))
        else:
            shifts = 2 ** np.arange((nodes - 1).bit_length())
            sources = np.repeat(np.arange(nodes), len(shifts))
            targets = (sources + np.tile(shifts, nodes)) % nodes
        content = hashlib.sha256()
        for value in (machines.latency, machines.rate, machines.up, machines.down):
            array = np.asarray(value(sources, targets), dtype=np.float64) if callable(value) else value
            if issparse(array):
                entries = csr_array(array).tocoo()
                order = np.lexsort((entries.col, entries.row))
                parts: tuple[Any, ...] = (
                    entries.row[order].astype(np.int64), entries.col[order].astype(np.int64), entries.data[order],
                )  # fmt: skip
            else:
                parts = (np.asarray(array),)
            for part in parts:
                content.update(f"{part.dtype}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        settings = (
            self.times.parts, self.size, self.protocol, self.ahead, self.overhead, self.per_byte, self.average,
            None if self.order is None else _whole_numbers(self.order), None if self.hub is None else whole_number(self.hub),
        )  # fmt: skip
        content.update(repr(settings).encode())
        return content.hexdigest()[:16]

    def changed(self, **changes: Any) -> Clock:
        """Return a clock with some settings replaced, as ``clock.changed(ahead=2)``."""
        return replace(self, **changes)

    def matched(self, mixing: Mixing) -> Clock:
        """Return the clock with its nodes in the order of a network's: by their names, if both machines and network have them."""
        machines, n = self.record, mixing.nodes
        machines.check_nodes(n)
        places = machines.places(mixing.labels)
        if places is None:
            return self
        node = np.argsort(places).tolist()  # of the network, for each machine
        changes: dict[str, Any] = {"machines": machines.reordered(places.tolist())}
        if self.compute is not None and self.times.nodes == n:
            changes["compute"] = Compute([self.times.parts[place] for place in places])
        if self.order is not None:
            changes["order"] = [node[place] for place in self._checked_order(n)]
        if self.hub is not None:
            changes["hub"] = node[self._checked_hub(n)]
        return self.changed(**changes)

    def start(
        self,
        algorithm: Algorithm,
        mixing: Mixing,
        *,
        dim: int | None = None,
        number: float = 4.0,
        vector: float | None = None,
        rounds: int = 1,
        seed: int = 0,
        trials: Sequence[int] = (0,),
    ) -> Timer:
        """Start to time an algorithm on a network.

        Args:
            algorithm, mixing, rounds: as in `perron.Simulation`.
            dim: length of the model vector, where the clock has no ``size``.
            number: bytes of a number on the wire.
            vector: bytes of the model vector on the wire, where they are not ``dim`` times ``number``.
            seed, trials: of random compute times.
        """
        clock = self.matched(mixing)
        recursion = clock._recursion(algorithm, mixing, self._sizes(dim, number, vector), rounds)
        return Timer(recursion, clock.times, seed=seed, trials=trials)

    def cycle_time(
        self,
        algorithm: Algorithm,
        mixing: Mixing,
        *,
        dim: int | None = None,
        number: float = 4.0,
        vector: float | None = None,
        rounds: int = 1,
        trace: bool = True,
    ) -> CycleTime:
        """Return the seconds per step in the long run, and (with ``trace``, which costs time) the critical cycle that sets them.

        For fixed compute times a step is a max-plus linear map of the nodes' times, and the seconds per step are its maximum
        cycle mean (over a period, where the network varies). Random times, very large networks and networks that never repeat are
        simulated instead; the result then says so.
        """
        clock = self.matched(mixing)
        recursion = clock._recursion(algorithm, mixing, self._sizes(dim, number, vector), rounds)
        compute, found = clock.times, None
        if not compute.random:
            found = exact_cycle_time(recursion, compute.means(recursion.real_nodes)[: recursion.nodes], trace=trace)
        if found is None:
            found = simulated_cycle_time(recursion, lambda trials: Timer(recursion, compute, seed=0, trials=trials))
        return replace(found, labels=mixing.labels or clock.record.labels)

    def _sizes(self, dim: int | None, number: float, vector: float | None) -> Sizes:
        if self.size is not None:
            return Sizes(float(self.size), number)
        if dim is None and vector is None:
            raise PerronError(
                "How large is a message? Pass size=, the bytes of a model vector, to Clock, or dim=, its length."
            )
        return Sizes(float(dim or 0) * number if vector is None else float(vector), number)

    def _recursion(self, algorithm: Algorithm, mixing: Mixing, sizes: Sizes, rounds: int) -> Recursion:
        machines, nodes = self.record, mixing.nodes
        machines.check_nodes(nodes)
        times = self.times
        if times.nodes not in (None, nodes):
            raise PerronError(f"compute has {times.nodes} times but the network {nodes} nodes; they must be equal.")
        order = None if self.order is None else self._checked_order(nodes)
        alike = not times.random and bool(np.ptp(times.means(nodes)) == 0)
        made = Recursion(
            record_tape(algorithm, nodes, rounds), machines, mixing, sizes, protocol=self.protocol, ahead=self.ahead,
            overhead=self.overhead, per_byte=self.per_byte, average=self.average, order=order, alike=alike,
        )  # fmt: skip
        if made.averages and self.average == "server":
            made.hub = self._best_hub(made) if self.hub is None else self._checked_hub(nodes)
        return made

    def _best_hub(self, recursion: Recursion) -> int:
        """The node with which a step takes least time, if all nodes start together."""
        if recursion.uniform:
            return 0
        compute = self.times.means(recursion.nodes)

        def seconds(hub: int) -> float:
            recursion.hub = hub
            times = recursion.start()
            try:
                for step in range(2):
                    recursion.advance(times, step, lambda _: compute)
            except PerronError:  # the hub lacks a link
                return float("inf")
            return float(times.now.max())

        hubs = min(range(recursion.nodes), key=seconds)
        if not isfinite(seconds(hubs)):
            raise PerronError("No node has links to and from all others, as a server needs; use machines.routed().")
        return hubs

    def _checked_order(self, nodes: int) -> list[int]:
        order = _whole_numbers(self.order)
        if sorted(order) != list(range(nodes)):
            raise PerronError(f"order lists each of the nodes 0 to {nodes - 1} once; got {brief(self.order)}.")
        return order

    def _checked_hub(self, nodes: int) -> int:
        hub = whole_number(self.hub)
        if hub is None or not 0 <= hub < nodes:
            raise PerronError(f"hub is the number of a node, from 0 to {nodes - 1}; got {brief(self.hub)}.")
        return hub


class Timer:
    """The times of the nodes of all trials in a run.

    Attributes:
        times: the state of the recursion; ``times.now`` has when each node had done its last step, ``(trials, n)``. There is one
            row for all trials if nothing is random, and one column for all nodes if they are alike.
    """

    def __init__(self, recursion: Recursion, compute: Compute, *, seed: int, trials: Sequence[int]) -> None:
        self.recursion, self.trials = recursion, len(trials)
        self.times: Times = recursion.start((len(trials) if compute.random else 1,))
        self._gradients = recursion.tape.gradients
        self._draw = compute.sampler(recursion.nodes, seed=seed, trials=trials) if compute.random else None
        self._fixed: FloatArray | float = compute.means(recursion.real_nodes)[: recursion.nodes]
        if not np.ptp(self._fixed):
            self._fixed = float(self._fixed[0])  # arithmetic with it is faster

    def advance(self, step: int) -> None:
        """Do one step."""
        draw, fixed, many = self._draw, self._fixed, self._gradients
        if draw is None:
            self.recursion.advance(self.times, step, lambda _: fixed)
        else:
            self.recursion.advance(self.times, step, lambda number: draw(step * many + number))

    @property
    def seconds(self) -> FloatArray:
        """When the last node had done the step, ``(trials,)``."""
        return np.broadcast_to(self.times.now.max(-1), (self.trials,))

    @property
    def first_seconds(self) -> FloatArray:
        """When the first node had done the step, ``(trials,)``."""
        return np.broadcast_to(self.times.now.min(-1), (self.trials,))

    def saved(self) -> dict[str, Tensor]:
        """Return the state, to resume from."""
        return {name: torch.from_numpy(value.copy()) for name, value in self.times.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what was saved."""
        expected = {name: value.shape for name, value in self.times.items()}
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        if expected != found:
            raise PerronError("The saved clock is of other machines, another protocol or another number of trials.")
        self.times.update({name: value.numpy().copy() for name, value in tensors.items()})


def _whole_numbers(values: Any) -> list[int]:
    """The values if they are whole numbers, an empty list if not."""
    numbers = [whole_number(one) for one in values] if np.ndim(values) == 1 else []
    return [] if None in numbers else numbers  # type: ignore[return-value]


def _finite(name: str, value: Any, kind: str) -> float:
    number = real_number(value)
    if number is None or not 0 <= number < float("inf"):
        raise PerronError(f"{name} is {kind}; got {brief(value)}.")
    return number


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise PerronError(f"{name} is one of {', '.join(map(repr, choices))}; got {value!r}.")
