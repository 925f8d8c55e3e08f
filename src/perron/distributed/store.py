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

from perron.distributed.process_group import START_TIMEOUT, TIMEOUT, first_line
from perron.errors import NetworkError, PerronError

LOOPBACK = "127.0.0.1"
LARGEST_PORT = 2**16 - 1
STORE_PREFIX = "perron"  # of all keys
STORE_ERRORS = (RuntimeError, dist.DistError)  # what a call of the store raises if its host cannot be reached


def connect_store(timeout: float, *, serve: bool = False) -> Any:
    """Return the store at MASTER_ADDR and MASTER_PORT, hosted by this process if ``serve``."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    seconds = timedelta(seconds=timeout)
    store = TCPStore(host, port, is_master=serve, timeout=seconds, wait_for_workers=False, multi_tenant=True)
    enable_tcp_keepalive(host, port)
    return store


def open_store(address: str | None, *, serve: bool) -> tuple[str, int, Any]:
    """Host the launcher's store on this machine, or connect to the one on another; return host, port and store.

    A name is resolved once, here: the host that is returned is an address, so that a later failure of name resolution does not
    matter.

    Args:
        address: HOST:PORT, or [HOST]:PORT for an address of IPv6; a free port of the loopback interface if None.
        serve: whether to host it.
    """
    host, port = LOOPBACK, 0
    if address is not None:
        host, _, digits = address.rpartition(":")
        if not host or not digits.isdecimal() or not 0 < int(digits[:6]) <= LARGEST_PORT:
            raise PerronError(
                f"A store's address is HOST:PORT with a port from 1 to {LARGEST_PORT}, as 10.0.0.1:29500; got {address!r}."
            )
        port = int(digits)
        host = host.removeprefix("[").removesuffix("]")
    try:
        family, _, _, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        host = str(resolved[0])
        listening = socket.create_server((host, port), family=family) if serve else None
        port = listening.getsockname()[1] if listening else port
        store = TCPStore(
            host,
            port,
            is_master=serve,
            timeout=timedelta(seconds=START_TIMEOUT),  # until the host is there
            wait_for_workers=False,
            master_listen_fd=listening.detach() if listening else None,
        )
        store.set_timeout(timedelta(seconds=TIMEOUT))
        if not serve:
            enable_tcp_keepalive(host, port)
    except (OSError, *STORE_ERRORS) as error:
        problem = "opened" if serve else "reached"
        raise NetworkError(f"The store at {host}:{port} cannot be {problem}: {first_line(error)}.") from None
    return host, port, store


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
