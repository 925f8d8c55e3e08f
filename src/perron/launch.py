"""Start one process for each node on this machine, host their store, and start those again that die.

The store, through which nodes find each other and agree who takes part, lives in the launcher: no node's death can take it away.
On one machine it listens on the loopback interface only. Workers find what torchrun would tell them in their environment, so
that scripts run under both.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from perron.errors import NetworkError, PerronError
from perron.peers import line
from perron.pulse import BEATS, KEYS

GRACE = 5.0  # seconds for workers to end by themselves when told to, or when one of them has died
SILENCE = 20.0  # seconds without a heartbeat after which a node that is left over is ended
LOOK = 0.05
LOOPBACK = "127.0.0.1"

log = logging.getLogger("perron")


@dataclass
class Worker:
    """A node's process."""

    node: int
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None  # of a process that is not started again
    beat: str = ""  # the last heartbeat seen, and when
    since: float = 0.0

    @property
    def name(self) -> str:
        """A new one for every start."""
        return f"{self.node}.{self.starts}"


class Launcher:
    """The nodes of one machine.

    Args:
        command: what each of them runs.
        nodes: how many here.
        size: how many in all; as many as here if None.
        first: the number of the first one here; the launcher of node 0 hosts the store.
        store: HOST:PORT of the store; on loopback, at a free port, if all nodes are here.
        elastic: whether nodes go on without one that died. If not, all are ended.
        restarts: how many times, in all, a node that died is started again.
        say: where to tell what happens.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        nodes: int,
        size: int | None = None,
        first: int = 0,
        store: str | None = None,
        elastic: bool = False,
        restarts: int = 0,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self.command, self.size, self.elastic, self.restarts, self.say = command, size or nodes, elastic, restarts, say
        if nodes < 1 or first < 0 or restarts < 0:
            raise PerronError(f"Give at least one node, and no negative numbers; got {nodes}, {first} and {restarts}.")
        if restarts and not elastic:
            raise PerronError("A node can only be started again if the others go on: give --elastic with --restarts.")
        if store is None and (first or self.size > nodes):
            raise PerronError(
                "Nodes on several machines need --store HOST:PORT, with the address of the first machine."
            )
        self.workers = [Worker(first + place) for place in range(nodes)]
        self.host, self.port, self.store = _opened(store, serve=first == 0)

    def run(self) -> int:
        """Start all and wait for them; 0 if training was finished by somebody, and nobody failed who was not done without."""
        old = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for worker in self.workers:
                self._start(worker)
            while any(worker.code is None for worker in self.workers):
                time.sleep(LOOK)
                for worker in self.workers:
                    if worker.code is None and worker.process is not None and worker.process.poll() is not None:
                        self._ended(worker, worker.process.returncode)
                self._end_silent()
        except _Interrupted as interrupted:
            for number in old:  # a second one changes nothing: it ends within seconds
                signal.signal(number, signal.SIG_IGN)
            self.say(f"Ending {self._running()} nodes: {_name(interrupted.number)}.")
            typed = interrupted.number == signal.SIGINT  # the terminal has told the workers, too
            self._stop(signal.SIGTERM, grace=GRACE if typed else 0.0)
            return 128 + interrupted.number
        finally:
            self._stop(signal.SIGKILL)
            for number, handler in old.items():
                signal.signal(number, handler)
        codes = [worker.code for worker in self.workers]
        return 0 if not any(codes) or (self.elastic and 0 in codes) else 1

    def _start(self, worker: Worker) -> None:
        worker.starts += 1
        loopback = {} if self.host != LOOPBACK else {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        told = {
            "RANK": worker.node,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": worker.node - self.workers[0].node,
            "LOCAL_WORLD_SIZE": len(self.workers),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # plain init_process_group() must not host a store of its own
            "PERRON_NAME": worker.name,
            "PERRON_ELASTIC": int(self.elastic),
            "PERRON_LAUNCHER": os.getpid(),
        }
        environment = {"OMP_NUM_THREADS": "1"} | loopback | dict(os.environ) | {k: str(v) for k, v in told.items()}
        worker.process = subprocess.Popen(list(self.command), env=environment)  # noqa: S603 - the user's own command

    def _ended(self, worker: Worker, code: int) -> None:
        """Tell the others, and start it again or not."""
        how = f"was killed by {_name(-code)}" if code < 0 else f"ended with code {code}"
        with suppress(RuntimeError, dist.DistError):
            self.store.set(f"{BEATS}/{worker.name}", "finished" if code == 0 else f"gone: {how.removeprefix('was ')}")
        if code == 0:
            worker.code = 0
        elif self.restarts > 0 and not self._done():
            self.restarts -= 1
            self.say(f"Node {worker.node} {how}; it is started again ({self.restarts} restarts left).")
            self._start(worker)
        else:
            self.say(f"Node {worker.node} {how}.")
            worker.code = code
            with suppress(RuntimeError, dist.DistError):
                self.store.set(f"{KEYS}/dead/{worker.node}", how)
            if not self.elastic:
                self._stop(signal.SIGTERM, grace=GRACE)

    def _done(self) -> bool:
        return any(worker.code == 0 for worker in self.workers)

    def _end_silent(self) -> None:
        """When some have finished, those that were stopped or hang are ended: nobody trains with them any more."""
        for worker in self.workers if self._done() and self.elastic else ():
            if worker.code is None and worker.process is not None:
                key = f"{BEATS}/{worker.name}"
                beat = self.store.get(key).decode() if self.store.check([key]) else ""
                if beat != worker.beat:
                    worker.beat, worker.since = beat, time.monotonic()
                elif time.monotonic() - worker.since > SILENCE and beat != "finished":
                    self.say(f"Node {worker.node} is silent, and the others have finished; it is ended.")
                    worker.process.kill()

    def _running(self) -> int:
        return sum(worker.process is not None and worker.process.poll() is None for worker in self.workers)

    def _stop(self, number: int, grace: float = 0.0) -> None:
        """End all: some time to end by themselves, then the signal, then without mercy."""
        for patience, sent in ((grace, None), (GRACE, number), (GRACE, signal.SIGKILL)):
            for worker in self.workers:
                if sent is not None and worker.process is not None and worker.process.poll() is None:
                    worker.process.send_signal(sent)
                    worker.process.send_signal(signal.SIGCONT)  # one that was stopped cannot end
            deadline = time.monotonic() + patience
            while self._running() and time.monotonic() < deadline:
                time.sleep(LOOK)
        for worker in self.workers:
            if worker.code is None and worker.process is not None and (code := worker.process.poll()) is not None:
                worker.code = code


class _Interrupted(BaseException):
    """A signal to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _name(number: int) -> str:
    """Of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _interrupt(number: int, _frame: Any) -> None:
    raise _Interrupted(number)


def _opened(address: str | None, *, serve: bool) -> tuple[str, int, Any]:
    """The store: served here, or reached at another machine."""
    host, port = LOOPBACK, 0
    if address is not None:
        host, _, digits = address.rpartition(":")
        if not host or not digits.isdecimal():
            raise PerronError(f"A store's address is HOST:PORT, as 10.0.0.1:29500; got {address!r}.")
        port = int(digits)
    try:
        if not serve:
            return (
                host,
                port,
                TCPStore(host, port, is_master=False, timeout=timedelta(minutes=5), wait_for_workers=False),
            )
        listening = socket.create_server((host, port))
        port = listening.getsockname()[1]
        served = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach(), use_libuv=True
        )
    except (OSError, RuntimeError, dist.DistError) as error:
        raise NetworkError(
            f"The store at {host}:{port} cannot be {'opened' if serve else 'reached'}: {line(error)}."
        ) from None
    return host, port, served
