"""The key-value store through which processes find each other, and the TCP connections to it."""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # dist names it, but its types do not

from perron.distributed.process_group import TIMEOUT

STORE_PREFIX = "perron"  # of all keys
STORE_ERRORS = (RuntimeError, dist.DistError)  # what a call of the store raises if its host cannot be reached


def connect_store(timeout: float, *, serve: bool = False) -> Any:
    """Return the store at MASTER_ADDR and MASTER_PORT, hosted by this process if ``serve``."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    seconds = timedelta(seconds=timeout)
    store = TCPStore(host, port, is_master=serve, timeout=seconds, wait_for_workers=False, multi_tenant=True)
    enable_tcp_keepalive(host, port)
    return store


def enable_tcp_keepalive(host: str | None = None, port: int | None = None) -> None:
    """Make this process's connections to a store fail within `TIMEOUT` seconds if the store's host disappears (Linux only).

    Without this, torch's store waits indefinitely for a reply from a machine that lost its power, and the operating system
    for many minutes.

    Args:
        host: of the store; MASTER_ADDR if None.
        port: of the store; MASTER_PORT if None.
    """
    host, port = host or os.environ.get("MASTER_ADDR"), port or int(os.environ.get("MASTER_PORT", "0"))
    if sys.platform != "linux" or host is None:  # processes may also have met through a file
        return
    addresses = {info[4][:2] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # closed meanwhile, or not connected
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family == socket.AF_UNIX:
                    continue
                address, port = connection.getpeername()[:2]
                if (address.removeprefix("::ffff:"), port) in addresses:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(TIMEOUT / 3))
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(TIMEOUT / 5))
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * TIMEOUT))
