"""Joining and leaving the process group."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from perron.distributed.consistency import met
from perron.distributed.elastic.membership import Membership, connect
from perron.distributed.launch.worker import exit_with_launcher
from perron.distributed.process_group import DRAIN_SECONDS, START_TIMEOUT, check_timeout, first_line
from perron.errors import NetworkError, PerronError

_membership: Membership | None = None


def init(*, backend: str | None = None, timeout: float = START_TIMEOUT, elastic: bool | None = None) -> tuple[int, int]:
    """Join the processes that the launcher (torchrun, or perron launch) describes; this node's number, and how many begin.

    gloo on CPUs, NCCL where every process has a GPU of its own. ``timeout`` is how many seconds to wait for the others at the
    start. ``elastic``: go on when processes are lost, and let others join (gloo only); by default as `perron launch` says.
    Does nothing if it was called before. Processes that were started again by their launcher meet apart from those before.
    """
    global _membership  # noqa: PLW0603 - a process has one, as torch.distributed has one default group
    if not dist.is_available():
        raise PerronError("This build of PyTorch has no torch.distributed.")
    if _membership is not None:
        return _membership.node, _membership.size
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise PerronError(
            f"There is no process group: {', '.join(missing)} not set. Start with: torchrun --standalone --nproc-per-node 4 "
            "script.py"
        )
    check_timeout(timeout)
    exit_with_launcher()
    if elastic or (elastic is None and os.environ.get("PERRON_ELASTIC") == "1"):
        if backend not in (None, "gloo"):
            raise PerronError(f"Elastic membership works on gloo; got backend {backend!r}.")
        _membership = connect()
        return _membership.node, _membership.size
    many = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if many:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store = met(rank, size, timeout)
        chosen = backend or ("cpu:gloo,cuda:nccl" if many else "gloo")
        dist.init_process_group(chosen, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        raise NetworkError(f"The process group could not be formed within {timeout:g} s: {first_line(error)}") from None
    return rank, size


def membership() -> Membership | None:
    """This process's elastic membership, if it has one."""
    return _membership


def shutdown() -> None:
    """At the end of a script: take the process group down, on every node."""
    if dist.is_initialized():
        time.sleep(
            DRAIN_SECONDS
        )  # threads of gloo that still hold tensors when the interpreter goes would abort the process
        dist.destroy_process_group()


close = shutdown  # its name in version 0.1
