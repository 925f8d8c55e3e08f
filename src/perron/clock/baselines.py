"""Centralized methods on given links: what a graph is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from perron.algorithms import ALGORITHMS
from perron.clock.clock import Clock
from perron.clock.cycle import CycleTime
from perron.errors import PerronError
from perron.networks.mixing import Mixing

PLAIN = ("all-reduce, ring by number", "parameter server")  # made without knowing the links


def averages(
    clock: Clock, mixing: Mixing, order: Sequence[int], *, dim: int | None = None, number: float = 4.0
) -> dict[str, CycleTime]:
    """Return the seconds of a step of all-reduce along the ring by number and along a short one, and of a parameter server.

    Those that lack a link are left out.

    Args:
        clock: the links.
        mixing: any network of the nodes.
        order: of the short ring, which is taken in the faster direction.
        dim, number: see `perron.Clock.cycle_time`.
    """
    algorithm, mean = ALGORITHMS["centralized"], clock.times.averaged
    kinds = {
        "all-reduce, ring by number": clock.changed(average="ring", order=None),
        "all-reduce, ring": clock.changed(average="ring", order=list(order)),
        "reversed": clock.changed(average="ring", order=list(order)[::-1]),
        "parameter server": clock.changed(average="server"),
    }
    cycles: dict[str, CycleTime] = {}
    for name, one in kinds.items():
        with suppress(PerronError):
            cycles[name] = one.changed(compute=mean).cycle_time(algorithm, mixing, dim=dim, number=number, trace=False)
    backward, forward = cycles.pop("reversed", None), cycles.get("all-reduce, ring")
    if backward is not None and (forward is None or backward.seconds < forward.seconds):
        cycles["all-reduce, ring"], kinds["all-reduce, ring"] = backward, kinds["reversed"]
    if clock.random:
        return {name: kinds[name].cycle_time(algorithm, mixing, dim=dim, number=number) for name in cycles}
    return cycles
