"""Joining and leaving the process group."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore  # dist exports it, but its type stubs do not

from perron.distributed.consistency import refuse_differences, versions
from perron.distributed.elastic.membership import Membership, connect
from perron.distributed.launch.worker import ErrorRecorder, exit_with_launcher
from perron.distributed.process_group import (
    DRAIN_SECONDS,
    START_TIMEOUT,
    check_timeout,
    first_line,
    hide_world,
    show_world,
    world,
)
from perron.distributed.store import STORE_PREFIX, connect_store
from perron.errors import NetworkError, PerronError

_membership: Membership | None = None
# From which transformers, Accelerate and Lightning conclude that a process is one of several.
LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS")


def init(
    *,
    backend: str | None = None,
    timeout: float = START_TIMEOUT,
    elastic: bool | None = None,
    min_nodes: int | None = None,
    isolate: bool = False,
) -> tuple[int, int]:
    """Join the process group that the launcher (torchrun or perron launch) describes; return rank and initial size.

    A second call does nothing. Processes that the launcher restarted form a group of their own.

    Args:
        backend: by default NCCL where every process has its own GPU, otherwise gloo.
        timeout: seconds to wait for the other processes.
        elastic: whether to continue when processes are lost, and to let others join (gloo only); by default as the option
            of `perron launch`.
        min_nodes: of an elastic training: with fewer members it saves and ends (more than half are required in any case); by
            default as the option of `perron launch`, or 1. The same on all nodes.
        isolate: whether to hide the other processes from libraries such as transformers, Accelerate and Lightning: the launcher's
            variables are removed from the environment, and torch.distributed has no default group. Every node is then a
            training of its own to them, with its own data and checkpoints, and `Decentralized` is the only link between nodes.
    """
    rank_and_size = _join(backend, timeout, elastic, min_nodes)
    if isolate:
        hide_world()
        for name in LAUNCH_VARIABLES:
            os.environ.pop(name, None)
    return rank_and_size


def _join(backend: str | None, timeout: float, elastic: bool | None, min_nodes: int | None) -> tuple[int, int]:
    global _membership  # noqa: PLW0603 - one for each process, like the default group of torch.distributed
    if not dist.is_available():
        raise PerronError("This build of PyTorch has no torch.distributed.")
    if _membership is not None:
        return _membership.node, _membership.size
    if (group := world()) is not None:
        return group.rank(), group.size()
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise PerronError(
            f"There is no process group: {', '.join(missing)} not set. Start with: torchrun --standalone --nproc-per-node 4 "
            "script.py"
        )
    check_timeout(timeout)
    exit_with_launcher()
    ErrorRecorder.install()
    if elastic or (elastic is None and os.environ.get("PERRON_ELASTIC") == "1"):
        if backend not in (None, "gloo"):
            raise PerronError(f"Elastic membership works on gloo; got backend {backend!r}.")
        _membership = connect(min_nodes=min_nodes)
        return _membership.node, _membership.size
    if min_nodes is not None:
        raise PerronError(f"min_nodes is for elastic training: pass elastic=True, too; got min_nodes={min_nodes}.")
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    chosen = backend or ("cpu:gloo,cuda:nccl" if gpus else "gloo")
    try:
        store = _rendezvous(rank, size, timeout)
        dist.init_process_group(chosen, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        raise NetworkError(f"The process group could not be formed within {timeout:g} s: {first_line(error)}") from None
    return rank, size


def _rendezvous(rank: int, size: int, timeout: float) -> Any:
    """Return the store of this attempt, after comparing the facts through it without which no group can be formed.

    Each attempt has its own prefix: otherwise gloo would find the addresses of processes that have died.
    """
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    server = connect_store(timeout, serve=rank == 0 and not agent)
    store = PrefixStore(f"{STORE_PREFIX}/attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)
    own = json.dumps({"the number of nodes": size} | versions())
    store.set(f"facts/{rank}", own)
    refuse_differences({0: store.get("facts/0").decode(), rank: own})
    return store


def membership() -> Membership | None:
    """Return this process's elastic membership, if it has one."""
    return _membership


def shutdown() -> None:
    """Destroy the process group, at the end of a script and on every node."""
    if world() is not None:
        time.sleep(DRAIN_SECONDS)  # a gloo thread that still holds tensors would abort the interpreter's exit
        show_world()
        dist.destroy_process_group()


close = shutdown  # its name in version 0.1
