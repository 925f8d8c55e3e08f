"""Measure the links between nodes: what ``perron launch --measure FILE`` runs in place of a script.

gloo moves a message once its receive is posted. So the receiver of a timed message posts its receive first, says so on the same
connection, and acknowledges the message by another whose receive is posted, too. The sender's clock then shows

    seconds = latency there + bytes / rate + latency back,

from which small messages give the latency and large ones the rate; no two clocks are compared.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from perron.errors import PerronError

if TYPE_CHECKING:
    from torch import Tensor

    from perron._typing import FloatArray
    from perron.clock.machines import Machines

SIZE = 4_000_000  # bytes of a large message
ROUNDS = 20  # small messages
REPEATS = 3  # large messages after a first one, as long as all take less than QUICK seconds
QUICK, LONG = 2.0, 20.0  # seconds; what takes longer than LONG is not repeated
TRANSFER_TIMEOUT = 3600.0  # seconds for one message; the launcher ends all nodes if one dies
NAME_BYTES = 256  # of a host name
ORDER, READY, DONE, CONTENT = 1, 2, 3, 4  # tags of messages


class Progress:
    """Lines on the screen: what is measured now, at least every two seconds."""

    INTERVAL = 1.5

    def __init__(self, write: Callable[[str], Any] | None) -> None:
        self._write, self._text, self._start = write, "starting", time.monotonic()
        self._end = threading.Event()
        if write is not None:
            threading.Thread(target=self._run, daemon=True).start()

    def say(self, text: str) -> None:
        """Set what is shown."""
        self._text = text

    def close(self) -> None:
        """Show nothing more."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self.INTERVAL):
            self._write(f"perron: {time.monotonic() - self._start:.0f} s, {self._text}\n")  # type: ignore[misc]


class Measurement:
    """This node's part of measuring the links of all nodes. All nodes call the same methods in the same order."""

    def __init__(self, rank: int, size: int, group: Any, progress: Progress) -> None:
        self.rank, self.size, self.group, self.progress = rank, size, group, progress
        self.round_trip: FloatArray = np.zeros((size, size))
        self.rate: FloatArray = np.full((size, size), np.inf)
        self.up: FloatArray = np.full(size, np.inf)
        self.down: FloatArray = np.full(size, np.inf)

    # ---- messages

    def _send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        import torch.distributed as dist

        return dist.isend(tensor, group_dst=peer, group=self.group, tag=tag)

    def _receive(self, tensor: Tensor, peer: int, tag: int) -> Any:
        import torch.distributed as dist

        return dist.irecv(tensor, group_src=peer, group=self.group, tag=tag)

    def _barrier(self) -> None:
        import torch.distributed as dist

        dist.barrier(group=self.group)

    # ---- one node measures, its peers answer

    def sending(self, node: int, sizes: dict[int, int]) -> dict[int, float]:
        """Return the seconds, there and back, of messages from a node to peers at once; the result is valid on that node."""
        import torch

        if self.rank != node:
            while self.rank in sizes and self._answer(node):
                pass
            return {}
        contents = {peer: torch.zeros(size, dtype=torch.uint8) for peer, size in sizes.items()}

        def once() -> dict[int, float]:
            ready = [self._receive(torch.zeros(1), peer, READY) for peer in sizes]
            done = {peer: self._receive(torch.zeros(1), peer, DONE) for peer in sizes}
            self._order(sizes)
            for one in ready:
                one.wait()
            start = time.perf_counter()
            sent = [self._send(contents[peer], peer, CONTENT) for peer in sizes]
            seconds = _finished(done, start)
            for work in sent:
                work.wait()
            return seconds

        return self._repeated(once, sizes)

    def _answer(self, node: int) -> bool:
        """Receive a message of the size that the node states, and acknowledge it; whether there was one."""
        import torch

        if not (size := self._ordered(node)):
            return False
        coming = self._receive(torch.empty(size, dtype=torch.uint8), node, CONTENT)
        self._send(torch.zeros(1), node, READY).wait()
        coming.wait()
        self._send(torch.zeros(1), node, DONE).wait()
        return True

    def receiving(self, node: int, sizes: dict[int, int]) -> dict[int, float]:
        """Return the seconds, with those of the request, of messages from peers to a node at once, likewise."""
        import torch

        if self.rank != node:
            content = torch.zeros(sizes[self.rank], dtype=torch.uint8)
            while self._ordered(node):
                self._send(content, node, CONTENT).wait()
            return {}

        def once() -> dict[int, float]:
            coming = {
                peer: self._receive(torch.empty(size, dtype=torch.uint8), peer, CONTENT) for peer, size in sizes.items()
            }
            start = time.perf_counter()
            self._order(sizes)
            return _finished(coming, start)

        return self._repeated(once, sizes)

    def _order(self, sizes: dict[int, int]) -> None:
        import torch

        for work in [self._send(torch.tensor([size]), peer, ORDER) for peer, size in sizes.items()]:
            work.wait()

    def _ordered(self, node: int) -> int:
        import torch

        order = torch.zeros(1, dtype=torch.int64)
        self._receive(order, node, ORDER).wait()
        return int(order)

    def _repeated(self, once: Callable[[], dict[int, float]], sizes: dict[int, int]) -> dict[int, float]:
        """Repeat a measurement, and take medians; the first time only fills the connection, unless it took very long."""
        small = max(sizes.values()) == 1
        found = [once()]
        start = time.perf_counter()
        while len(found) < 1 + (ROUNDS if small else REPEATS) and max(found[0].values()) < LONG:
            found.append(once())
            if not small and time.perf_counter() - start > QUICK:
                break
        self._order(dict.fromkeys(sizes, 0))
        return {peer: median([one[peer] for one in found[1:] or found]) for peer in sizes}

    # ---- links and accesses

    def pair(self, source: int, target: int, size: int) -> None:
        """Measure the link from source to target alone."""
        small, large = (self.sending(source, {target: one}) for one in (1, size))
        if self.rank == source:
            self.round_trip[target, source] = small[target]
            self.rate[target, source] = size / _positive(large[target] - small[target])

    def access(self, node: int, size: int) -> None:
        """Measure what a node sends to all others at once, and what it receives, in proportion to the rates of links."""
        for method, rates, of_nodes in (
            (self.sending, self.rate[:, node], self.up),
            (self.receiving, self.rate[node, :], self.down),
        ):
            sizes = self._shares(rates, node, size)
            seconds = method(node, sizes)
            if self.rank == node:
                last = max(seconds[peer] - self.round_trip[peer, node] for peer in sizes)
                of_nodes[node] = sum(sizes.values()) / _positive(last)
            self._barrier()

    @staticmethod
    def _shares(rates: FloatArray, node: int, size: int) -> dict[int, int]:
        """Bytes for each peer in proportion to rates, so that a slow link keeps no other waiting; the fastest gets ``size``."""
        fastest = np.delete(rates, node).max()
        return {peer: max(2, int(size * rate / fastest)) for peer, rate in enumerate(rates) if peer != node}

    # ---- all

    def run(self, size: int) -> None:
        """Measure all links, one pair after the other, then every node with all others."""
        pairs = [(source, target) for source in range(self.size) for target in range(self.size) if source != target]
        for count, (source, target) in enumerate(pairs, 1):
            self.progress.say(f"link {source} -> {target}, {count} of {len(pairs)}")
            self.pair(source, target, size)
            self._barrier()
        self._share()
        for node in range(self.size):
            self.progress.say(f"node {node}, one of {self.size}, with all others at once")
            self.access(node, size)
        self._share()

    def _share(self) -> None:
        """Give all nodes what each has measured: the columns of links, and the accesses of its node."""
        import torch
        import torch.distributed as dist

        me = self.rank
        own = [*self.round_trip[:, me], *self.rate[:, me], self.up[me], self.down[me]]
        found = [torch.zeros(2 * self.size + 2, dtype=torch.float64) for _ in range(self.size)]
        dist.all_gather(found, torch.tensor(own, dtype=torch.float64), group=self.group)
        table = torch.stack(found).numpy()
        n = self.size
        self.round_trip, self.rate = table[:, :n].T.copy(), table[:, n : 2 * n].T.copy()
        self.up, self.down = table[:, -2].copy(), table[:, -1].copy()

    def names(self) -> list[str] | None:
        """Return the names of the hosts if all are different."""
        import torch
        import torch.distributed as dist

        name = socket.gethostname().encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        found = [torch.zeros(NAME_BYTES, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, torch.tensor(list(name), dtype=torch.uint8), group=self.group)
        names = [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace").strip() for one in found]
        good = len(set(names)) == self.size and all(one and one.isprintable() for one in names)
        return names if good else None

    def machines(self, labels: Sequence[str] | None) -> Machines:
        """Return what was measured. The latency of a link is half of the round trip, in which both directions are alike."""
        from perron.clock.machines import Machines

        both = (self.round_trip + self.round_trip.T) / 2
        return Machines(both / 2, self.rate, up=self.up, down=self.down, labels=labels, name="measured")


def check_size(size: int, nodes: int) -> None:
    """Raise an error unless links of that number of nodes can be measured by messages of that size."""
    if nodes < 2:
        raise PerronError(f"Links are measured between at least 2 nodes; got {nodes}. Give --nodes, or --size.")
    if not 1000 <= size <= 2**31:
        raise PerronError(
            f"--measure-size is a number of bytes from 1000 to {2**31}; got {size}. Use that of a real message."
        )


def measure(path: str | Path, size: int = SIZE, write: Callable[[str], Any] | None = None) -> None:
    """Measure the links of the process group that the launcher describes; node 0 writes the file."""
    progress = Progress(write)  # from now on, since imports and the other nodes take a while
    import torch.distributed as dist

    from perron.distributed import setup

    rank, nodes = setup.init(backend="gloo", elastic=False)
    check_size(size, nodes)
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=TRANSFER_TIMEOUT))
    found = Measurement(rank, nodes, group, progress)
    found.run(size)
    machines = found.machines(found.names())
    progress.close()
    if rank == 0:
        written = machines.write(path)
        if write is not None:
            write(f"{_summary(machines)}\nperron: {nodes} nodes and {nodes * (nodes - 1)} links written to {written}\n")
    setup.shutdown()


def _summary(machines: Machines) -> str:
    off = ~np.eye(machines.latency_matrix.shape[0], dtype=bool)

    def spread(values: FloatArray, unit: str) -> str:
        return f"{values.min():.4g} to {values.max():.4g} {unit} (median {np.median(values):.4g})"

    return (
        f"perron: latency {spread(1e3 * machines.latency_matrix[off], 'ms')}, rate of a link alone "
        f"{spread(8e-6 * machines.rate_matrix[off], 'Mbit/s')},\nperron: of a node with all others: up "
        f"{spread(8e-6 * machines.up, 'Mbit/s')}, down {spread(8e-6 * machines.down, 'Mbit/s')}"
    )


def _positive(seconds: float) -> float:
    return max(seconds, 1e-9)


def _finished(works: dict[int, Any], start: float) -> dict[int, float]:
    """Wait for all; return when each was complete, in seconds since the start."""
    seconds: dict[int, float] = {}

    def wait(peer: int) -> None:
        works[peer].wait()
        seconds[peer] = time.perf_counter() - start

    if len(works) == 1:  # a thread would take as long as a message on a fast link
        wait(*works)
        return seconds
    threads = [threading.Thread(target=wait, args=(peer,), daemon=True) for peer in works]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return seconds


if __name__ == "__main__":
    loud = os.environ.get("LOCAL_RANK", "0") == "0"
    measure(sys.argv[1], int(sys.argv[2]), sys.stderr.write if loud else None)
