"""Links with latencies and rates on one machine: network namespaces joined by a router in user space.

    latency = [[0, 40], [60, 0]]                      # milliseconds, [to][from], one way
    with Latencies(2, latency_ms=latency, up_mbit=20) as spaces:
        subprocess.Popen([*spaces.within(0), sys.executable, ...], env=os.environ | spaces.environment)

Each node's namespace has one TUN device. A process reads the packets of all of them and writes each to the device of its
destination when its latency has passed; where a link has a rate, packets queue for it. Rates of uplinks are shaped by the kernel,
as in `links.py`. No module of the kernel besides TUN is needed (netem often is missing). All namespaces use TCP Reno.

It takes Linux, root, `ip` and `tc`; `unavailable` says why it cannot be used. The router needs a share of a processor: about 20
microseconds for a packet.
"""

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from links import run, tool

PREFIX, NETWORK = "perron-latency-", "10.214.7."
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
PACKET = 65536

Matrix = Sequence[Sequence[float]]


def unavailable() -> str | None:
    """Return why there can be no such namespaces here, or None."""
    for name in ("ip", "tc"):
        if tool(name) is None:
            return f"there is no program {name!r} (Linux has it in iproute2)."
    if os.geteuid():
        return "network namespaces need root."
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun."
    return None


class Latencies:
    """Namespaces whose links have latencies and rates, for as long as the context lasts.

    Args:
        nodes: their number, n.
        latency_ms: one way, in milliseconds, ``[to][from]``; a number for all links.
        rate_mbit: of each link, Mbit/s, ``[to][from]``, or a number for all; unlimited if None or 0.
        up_mbit: of all that a node sends, for each node or for all; unlimited if None or 0.
        congestion: TCP's congestion control in the namespaces.
    """

    device = "tun0"

    def __init__(
        self,
        nodes: int,
        *,
        latency_ms: Matrix | float,
        rate_mbit: Matrix | float | None = None,
        up_mbit: Sequence[float] | float | None = None,
        congestion: str = "reno",
    ) -> None:
        self.nodes, self.congestion = nodes, congestion
        self.latency = _square(latency_ms, nodes)
        self.rate = _square(rate_mbit or 0.0, nodes)
        self.up = [float(up_mbit or 0)] * nodes if not isinstance(up_mbit, Sequence) else list(up_mbit)
        self._router: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the processes of the nodes: gloo's device."""
        return {"GLOO_SOCKET_IFNAME": self.device}

    def within(self, node: int) -> list[str]:
        """Return what to put before a command so that it runs at a node."""
        return [str(tool("ip")), "netns", "exec", f"{PREFIX}{node}"]

    def __enter__(self) -> "Latencies":
        self.clean()
        try:
            for node in range(self.nodes):
                run("ip", "netns", "add", f"{PREFIX}{node}")
            tables = ";".join(
                ",".join(f"{one:g}" for row in table for one in row) for table in (self.latency, self.rate)
            )
            self._router = subprocess.Popen(
                [sys.executable, __file__, str(self.nodes), tables], stdout=subprocess.PIPE, text=True
            )
            if self._router.stdout is None or self._router.stdout.readline() != "ready\n":
                raise OSError("The router could not be started.")
            for node in range(self.nodes):
                self._configure(node)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _configure(self, node: int) -> None:
        space, device = f"{PREFIX}{node}", self.device
        run("ip", "-n", space, "addr", "add", f"{address(node)}/24", "dev", device)
        run("ip", "-n", space, "link", "set", device, "txqueuelen", "10000", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        setting = f"net.ipv4.tcp_congestion_control={self.congestion}"
        run("ip", "netns", "exec", space, str(tool("sysctl")), "-qw", setting)
        if self.up[node]:
            shape = ("tbf", "rate", f"{self.up[node]:g}mbit", "burst", "64kb", "latency", "400ms")
            run("ip", "netns", "exec", space, str(tool("tc")), "qdisc", "add", "dev", device, "root", *shape)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._router is not None:
            self._router.kill()
            self._router.wait()
            if self._router.stdout is not None:
                self._router.stdout.close()
        self.clean()

    @staticmethod
    def clean() -> None:
        """Remove all namespaces of this module, also those of a run that was killed."""
        for line in run("ip", "netns", "list").splitlines():
            if line.startswith(PREFIX):
                run("ip", "netns", "del", line.split()[0])


def address(node: int) -> str:
    """Return the address of a node, in its namespace."""
    return f"{NETWORK}{node + 1}"


def _square(values: Matrix | float, nodes: int) -> list[list[float]]:
    if isinstance(values, int | float):
        return [[float(values)] * nodes for _ in range(nodes)]
    return [[float(one) for one in row] for row in values]


# ---- the router, a process of its own


def _device(space: str) -> int:
    """Create the TUN device of a namespace; return its file, which this process can use from everywhere."""
    with Path("/proc/self/ns/net").open() as own, Path("/run/netns", space).open() as other:
        _enter(other.fileno())
        try:
            file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", Latencies.device.encode(), IFF_TUN | IFF_NO_PI))
        finally:
            _enter(own.fileno())
    return file


def _enter(space: int) -> None:
    """Move this thread to a network namespace; `os.setns` is there from Python 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def route(nodes: int, latency: list[list[float]], rate: list[list[float]]) -> None:
    """Forward packets for ever; latency in seconds, rate in bytes per second (0: unlimited)."""
    with suppress(OSError):
        os.nice(-20)  # latencies are to be exact on a busy machine
    files = [_device(f"{PREFIX}{node}") for node in range(nodes)]
    numbers = {file: node for node, file in enumerate(files)}
    free = [[0.0] * nodes for _ in range(nodes)]  # when each link has sent what it has
    waiting: list[tuple[float, int, int, bytes]] = []  # when it arrives, a number for the order, where, what
    print("ready", flush=True)
    count = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            os.write(files[target], packet)
        left = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        for file in select.select(files, [], [], left)[0]:
            source = numbers[file]
            for _ in range(64):
                try:
                    packet = os.read(file, PACKET)
                except BlockingIOError:
                    break
                target = packet[19] - 1
                if packet[0] >> 4 != 4 or not 0 <= target < nodes or target == source:
                    continue  # IPv6 and broadcasts
                now = time.monotonic()
                if rate[target][source]:
                    now = max(now, free[target][source]) + len(packet) / rate[target][source]
                    free[target][source] = now
                count += 1
                heapq.heappush(waiting, (now + latency[target][source], count, target, packet))


if __name__ == "__main__":
    size = int(sys.argv[1])
    values = [[float(one) for one in table.split(",")] for table in sys.argv[2].split(";")]
    delays, rates = ([table[row * size :][:size] for row in range(size)] for table in values)
    route(
        size,
        [[one / 1e3 for one in row] for row in delays],
        [[one * 1e6 / 8 for one in row] for row in rates],
    )
