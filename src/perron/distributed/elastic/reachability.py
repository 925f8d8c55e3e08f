"""Reachability: whether two processes can exchange messages directly, tested without gloo.

Every process listens on one port. It closes TCP connections at once and reads nothing from them: that a connection was
established shows that packets pass in both directions. Where it cannot be established, datagrams with the sender's name tell
which direction works; if a firewall blocks datagrams, both count as broken.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from perron.distributed.process_group import TIMEOUT

ATTEMPT_SECONDS = 3.0  # for one connection: the kernel repeats a lost packet after one second
DATAGRAM_INTERVAL = 0.25  # seconds
LONGEST_NAME = 64  # bytes
SIOCGIFADDR = 0x8915
THREADS = 16


class Reachability:
    """Accepts the test connections of other processes, and tests the connections to them.

    Args:
        store: in which the address of each process is, as ``address/NAME``.
        name: of this process.
    """

    def __init__(self, store: Any, name: str) -> None:
        self.store, self.name = store, name
        self._heard: dict[str, float] = {}  # when a datagram with this name arrived
        self._tcp = socket.create_server((local_address(), 0), backlog=128)
        host, port = self._tcp.getsockname()[:2]
        self._udp = socket.socket(self._tcp.family, socket.SOCK_DGRAM)
        self._udp.bind((host, port))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="perron reachability", daemon=True)
        self._thread.start()
        store.set(f"address/{name}", f"{host} {port}")

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join(TIMEOUT)

    def probe(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Test the connections to these processes; return which are ``unreachable``, and which are ``heard`` nevertheless."""
        names, began = [name for name in names if name != self.name], time.monotonic()
        if not names:
            return {"unreachable": [], "heard": []}
        addresses = {name: self._address(name) for name in names}
        with ThreadPoolExecutor(min(THREADS, len(names))) as pool:
            futures = {name: pool.submit(reaches, addresses[name]) for name in names}
            while not all(future.done() for future in futures.values()):
                if time.monotonic() - began > DATAGRAM_INTERVAL / 4:  # else all is well
                    for name, future in futures.items():
                        if not future.done():
                            self._send_datagram(addresses[name])
                    time.sleep(DATAGRAM_INTERVAL)
                else:
                    time.sleep(DATAGRAM_INTERVAL / 100)
        unreachable = [name for name, future in futures.items() if not future.result()]
        return {
            "unreachable": unreachable,
            "heard": [name for name in unreachable if self._heard.get(name, 0) > began - 1],
        }

    def _address(self, name: str) -> tuple[str, int]:
        host, _, port = self.store.get(f"address/{name}").decode().rpartition(" ")
        return host, int(port)

    def _send_datagram(self, address: tuple[str, int]) -> None:
        with suppress(OSError):  # no route to it
            self._udp.sendto(self.name.encode(), address)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._tcp, self._udp:
            for one in (self._tcp, self._udp):
                one.setblocking(False)
                selector.register(one, selectors.EVENT_READ)
            while not self._closed.is_set():
                for key, _ in selector.select(DATAGRAM_INTERVAL):
                    with suppress(OSError):
                        self._tcp.accept()[0].close() if key.fileobj is self._tcp else self._hear()

    def _hear(self) -> None:
        name = self._udp.recv(LONGEST_NAME).decode(errors="replace")
        if len(self._heard) < 2**16:
            self._heard[name] = time.monotonic()


def reaches(address: tuple[str, int]) -> bool:
    """Return whether a connection to an address can be established."""
    try:
        socket.create_connection(address, ATTEMPT_SECONDS).close()
    except OSError:
        return False
    return True


def local_address() -> str:
    """Return the address at which gloo listens: that of GLOO_SOCKET_IFNAME, or else the one that faces the store."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        if interface and sys.platform == "linux":
            import fcntl

            request = struct.pack("256s", interface.encode()[:15])
            with suppress(OSError):  # it has no address of IPv4
                return socket.inet_ntoa(fcntl.ioctl(trial.fileno(), SIOCGIFADDR, request)[20:24])
        with suppress(OSError):
            trial.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # sends nothing
            return str(trial.getsockname()[0])
    return "127.0.0.1"
