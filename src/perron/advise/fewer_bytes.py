"""Bytes and seconds of a gradient on given links: what local steps and quantized messages save."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perron.advise.records import GradientCost
from perron.algorithms import ALGORITHMS
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import Wire, wire_sizes
from perron.clock.clock import Clock
from perron.clock.tape import Average, record_tape
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.simulation.cost import bytes_per_step

MODERATE = 16  # local steps
METHODS: tuple[tuple[str, int, Wire | None], ...] = (  # algorithm, local steps, codec; the first is what others are compared with
    ("push_pull", 1, None), ("push_pull", 1, "int8"), ("push_pull", 1, "int4"), ("local_push_pull", 4, "int8"),
    ("push_pull_diloco", 16, "int4"), ("push_pull_diloco", 64, "int4"), ("centralized", 1, None), ("diloco", 16, None),
)  # fmt: skip


def gradient_costs(mixing: Mixing, clock: Clock, size: float, order: Sequence[int]) -> tuple[GradientCost, ...]:
    """Return what a gradient costs with each of some methods on a network; those that cannot be used there are left out.

    Args:
        mixing, clock: the network, and the links under it.
        size: bytes of a model vector of 32-bit numbers.
        order: the ring of an all-reduce, which takes the faster of its two directions.
    """
    if not size:
        return ()
    network, dim, found = Network(mixing), max(1, round(size / 4)), []
    for name, steps, wire in METHODS:
        algorithm: Any = ALGORITHMS[name]
        if steps > 1:
            algorithm = replace(algorithm, local_steps=steps)
        vector = wire_sizes(wire, dim).vector
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                algorithm.check(network)
            seconds = _seconds(algorithm, mixing, clock.changed(size=vector, average="ring"), order) / steps
            sent = bytes_per_step(algorithm, network, dim=dim, wire=wire or 4) / steps / mixing.nodes
        except PerronError:  # without a push graph, an unstable outer step, no links for a ring
            continue
        found.append(GradientCost(algorithm=name, local_steps=steps, wire=wire, bytes=sent, seconds=seconds))
    return tuple(found)


def _seconds(algorithm: Algorithm, mixing: Mixing, clock: Clock, order: Sequence[int]) -> float:
    """The seconds of a step."""
    averages = any(isinstance(one, Average) for one in record_tape(algorithm, mixing.nodes).operations)
    times, missing = [], None
    for ring in (order, order[::-1]) if averages else (order,):
        try:
            times.append(clock.changed(order=list(ring)).cycle_time(algorithm, mixing, trace=False).seconds)
        except PerronError as error:  # links may exist in one direction only
            missing = error
    if missing is not None and not times:
        raise missing
    return min(times)


def words_on_bytes(costs: Sequence[GradientCost]) -> list[str]:
    """Return in a sentence what rounds of moderate length with quantized messages save."""
    base = next((one for one in costs if one.plain and one.algorithm == "push_pull"), None)
    others = [one for one in costs if one.wire and 1 < one.local_steps <= MODERATE]
    if base is None or not others:
        return []
    best = min(others, key=lambda one: one.seconds)
    line = f"For each gradient on the given network {best.described} takes {best.seconds * 1e3:.3g} ms"
    if not best.seconds:
        fewer = f"{base.bytes / best.bytes:.3g} times fewer bytes than {base.described}"
        return [f"{line}, and sends {fewer}. The longer a round, the less its gradients gain."]
    line += (
        f", {base.seconds / best.seconds:.3g} times less than {base.described}, and sends "
        f"{base.bytes / best.bytes:.3g} times fewer bytes"
    )
    reduced = next((one for one in costs if one.algorithm == "centralized"), None)
    if reduced is not None:
        times = f"{reduced.seconds / best.seconds:.3g} and {reduced.bytes / best.bytes:.3g} times"
        line += f"; than an all-reduce of every gradient, {times}"
    return [f"{line}. The longer a round, the less its gradients gain."]
