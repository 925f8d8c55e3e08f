"""Start one process for each node on this machine, host their store, and start nodes again when one has died.

A training that is elastic goes on without the dead, and they join again. Otherwise one death ends all, and all are started again:
that is an *attempt*, with keys of its own in the store, and the script goes on from its last checkpoint.

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
from torch.distributed.distributed_c10d import PrefixStore  # dist names it, but its types do not

from perron.distributed.launch.fork_server import DEFAULTS, ForkedProcess, ForkServer
from perron.distributed.launch.handshake import ENVIRONMENT_VARIABLE, Handshake, join
from perron.distributed.process_group import (
    EXIT_GRACE,
    STALL_TIMEOUT,
    START_TIMEOUT,
    STOP_GRACE,
    TIMEOUT,
    check_timeout,
    first_line,
)
from perron.distributed.store import STORE_PREFIX, enable_tcp_keepalive
from perron.errors import NetworkError, PerronError

POLL_INTERVAL = 0.05
LOOPBACK = "127.0.0.1"
ASKED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # the codes of nodes that were asked to end, and saved

log = logging.getLogger("perron")


@dataclass
class Worker:
    """A node's process."""

    node: int
    starts: int = 0
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
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
        restarts: how many times, in all, a node that died is started again; if not elastic, all nodes together.
        secret: what launchers of one training have in common, see `perron.distributed.launch.handshake`.
        grace: seconds for nodes that were told to end, as to save; longer than a step and a save take.
        say: where to tell what happens.
        fork_server: from which nodes are forked; they are started as processes of their own if None.
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
        secret: str = "",
        grace: float = STOP_GRACE,
        say: Callable[[str], None] = log.warning,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.command, self.size, self.elastic, self.restarts, self.say = command, size or nodes, elastic, restarts, say
        self.fork_server, self.grace = fork_server, check_timeout(grace)
        if nodes < 1 or first < 0 or restarts < 0:
            raise PerronError(f"Give at least one node, and no negative numbers; got {nodes}, {first} and {restarts}.")
        if first + nodes > self.size:
            raise PerronError(f"Nodes {first} to {first + nodes - 1} are more than --size {self.size}.")
        if store is None and (first or self.size > nodes):
            raise PerronError(
                "Nodes on several machines need --store HOST:PORT, with the address of the first machine."
            )
        self.workers = [Worker(first + place) for place in range(nodes)]
        self.attempt = 0  # at a training that is not elastic
        self.guests: set[int] = set()  # nodes of other launchers that were let in
        self.host, self.port, opened = _opened(store, serve=first == 0)
        self.store = PrefixStore(STORE_PREFIX, opened)
        self.secret = secret
        self.terms = {"size": self.size, "elastic": elastic} | ({} if elastic else {"restarts": restarts})
        self.handshake = Handshake(self.store, secret, say, self._misfit) if first == 0 else None
        if self.handshake is None:
            here = [worker.node for worker in self.workers]
            who = f"The launcher of nodes {here[0]} to {here[-1]} on {socket.gethostname()}"
            brought = self.terms | {"nodes": here}
            join(self.store, secret, who, brought, timeout=START_TIMEOUT)  # the host may still be importing

    def run(self) -> int:
        """Start all and wait for them; 0 if training was finished by somebody, and nobody failed who was not done without."""
        old = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while True:
                for worker in self.workers:
                    self._start(worker)
                if self.fork_server is not None and not self.restarts:  # nobody will be forked again
                    self.fork_server.close()
                self._watch()
                if not self._again():
                    break
        except _Interrupted as told:
            return self._interrupted(told.number)
        finally:
            for number in old:
                signal.signal(number, signal.SIG_IGN)
            self._stop(signal.SIGKILL)
            for number, handler in old.items():
                signal.signal(number, handler)
        codes = [worker.code for worker in self.workers]
        asked = [code for code in codes if code in ASKED]
        if asked:
            return asked[0] or 0
        if not any(codes):
            with suppress(RuntimeError, dist.DistError):
                self.store.set(f"a{self.attempt}/finished", f"nodes {[worker.node for worker in self.workers]}")
        return 0 if not any(codes) or (self.elastic and 0 in codes) else 1

    def _start(self, worker: Worker) -> None:
        worker.starts += 1
        worker.code = None
        told = {
            "RANK": worker.node,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": worker.node - self.workers[0].node,
            "LOCAL_WORLD_SIZE": len(self.workers),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # plain init_process_group() must not host a store of its own
            "TORCHELASTIC_RESTART_COUNT": self.attempt,
            "PERRON_NAME": worker.name,
            "PERRON_ELASTIC": int(self.elastic),
            "PERRON_LAUNCHER": os.getpid(),
            ENVIRONMENT_VARIABLE: self.secret,
        }
        loopback = {} if self.host != LOOPBACK else {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        environment = DEFAULTS | loopback | os.environ | {name: str(value) for name, value in told.items()}
        worker.process = self.fork_server.fork(environment) if self.fork_server is not None else None
        if worker.process is None:
            self.fork_server = None
            worker.process = subprocess.Popen(  # noqa: S603 - the user's own command
                list(self.command),
                env=environment,
                start_new_session=True,  # Ctrl-C is typed to the launcher, which tells every node once
            )

    def _watch(self) -> None:
        """Until all have ended; if not elastic, until one has died, anywhere."""
        while any(worker.code is None for worker in self.workers):
            time.sleep(POLL_INTERVAL)
            if self.handshake is not None:
                with suppress(RuntimeError, dist.DistError):
                    self.handshake.poll()
            ended = self._just_ended()
            for worker, code in ended:
                self._ended(worker, code)
            bad = [(worker, code) for worker, code in ended if code]
            if any(code in ASKED for _, code in bad):  # all nodes agreed to save and end
                self._wait(self.grace)
                self._just_ended()
                return
            if not self.elastic and (bad or self._over_elsewhere()):
                self._farewell()
                return
            self._end_silent()

    def _just_ended(self) -> list[tuple[Worker, int]]:
        """Those that have ended since the last look, the killed ones first: others may have ended because of them."""
        found = []
        for worker in self.workers:
            if worker.code is None and worker.process is not None and (code := worker.process.poll()) is not None:
                worker.code = code
                found.append((worker, code))
        return sorted(found, key=lambda one: one[1])

    def _ended(self, worker: Worker, code: int) -> None:
        """Tell the others; if elastic, start it again or not."""
        how = f"was killed by {_name(-code)}" if code < 0 else f"ended with code {code}"
        with suppress(RuntimeError, dist.DistError):
            self.store.set(f"heartbeat/{worker.name}", "finished" if code == 0 else f"gone: {how.removeprefix('was ')}")
        if code == 0 or code in ASKED:
            return
        why = self._in_vain() if self.elastic and self.restarts else ""
        if self.elastic and self.restarts > 0 and not self._done() and not why:
            self.restarts -= 1
            self.say(f"Node {worker.node} {how}; it is started again ({self.restarts} restarts left).")
            self._start(worker)
            return
        self.say(f"Node {worker.node} {how}.{f' {why}, so it is not started again.' if why else ''}")
        with suppress(RuntimeError, dist.DistError):
            self.store.set(f"dead/{worker.node}", how)
            self.store.compare_set(f"a{self.attempt}/end", "", f"node {worker.node} {how}")

    def _over_elsewhere(self) -> bool:
        """Whether a node has died on another machine."""
        key = f"a{self.attempt}/end"
        if self.size == len(self.workers):
            return False
        try:
            over = self.store.check([key])
        except (RuntimeError, dist.DistError):  # the host has ended: with its nodes, so that ours will see it
            return False
        if over:
            self.say(f"On another machine {self.store.get(key).decode()}.")
        return bool(over)

    def _farewell(self) -> None:
        """A node has died: the others have a moment to say what they saw, and are ended."""
        self._wait(EXIT_GRACE)
        for worker, code in self._just_ended():
            if code < 0:
                self.say(f"Node {worker.node} was killed by {_name(-code)}.")
        self._stop(signal.SIGKILL)

    def _again(self) -> bool:
        """Whether all are started once more, after one has died."""
        codes = [worker.code for worker in self.workers]
        if self.elastic or not any(codes) or any(code in ASKED for code in codes) or not self.restarts:
            return False
        if why := self._in_vain():
            self.say(f"{why}, so nobody is started again.")
            return False
        self.restarts -= 1
        self.attempt += 1
        self.say(f"All nodes are started again ({self.restarts} restarts left).")
        return True

    def _in_vain(self) -> str:
        """Why nodes that were started again would wait for others in vain, if they would."""
        key = f"a{self.attempt}/finished"
        try:
            if self.store.check([key]) and not self.elastic:
                return f"On another machine {self.store.get(key).decode()} have finished already"
        except (RuntimeError, dist.DistError):
            return "The store at node 0 is gone"
        return ""

    def _interrupted(self, number: int) -> int:
        """The first time nodes may save; the second time they may not."""
        self.say(f"Ending {self._running()} nodes: {_name(number)}. Once more ends them at once.")
        with suppress(_Interrupted):
            self._stop(signal.SIGTERM)
        return 128 + number

    def _done(self) -> bool:
        return any(worker.code == 0 for worker in self.workers)

    def _end_silent(self) -> None:
        """When some have finished, those that were stopped or hang are ended: nobody trains with them any more."""
        for worker in self.workers if self._done() and self.elastic else ():
            if worker.code is None and worker.process is not None:
                key = f"heartbeat/{worker.name}"
                try:
                    beat = self.store.get(key).decode() if self.store.check([key]) else ""
                except (RuntimeError, dist.DistError):  # its host has ended, since its own nodes have finished
                    return
                if beat != worker.beat:
                    worker.beat, worker.since = beat, time.monotonic()
                elif time.monotonic() - worker.since > STALL_TIMEOUT and beat != "finished":
                    self.say(f"Node {worker.node} is silent, and the others have finished; it is ended.")
                    worker.process.kill()

    def _running(self) -> int:
        return sum(worker.process is not None and worker.process.poll() is None for worker in self.workers)

    def _wait(self, patience: float) -> None:
        """For all to end by themselves."""
        deadline = time.monotonic() + patience
        while self._running() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)

    def _stop(self, number: int) -> None:
        """End all: the signal, and then without mercy."""
        for sent in (number, signal.SIGKILL):
            for worker in self.workers:
                if worker.process is not None and worker.process.poll() is None:
                    worker.process.send_signal(sent)
                    worker.process.send_signal(signal.SIGCONT)  # one that was stopped cannot end
            self._wait(self.grace)
        self._just_ended()

    def _misfit(self, theirs: dict[str, Any]) -> str:
        """What is wrong with what another launcher brings; nodes of an elastic training bring nothing."""
        for name, mine in self.terms.items():
            if (other := theirs.get(name, mine)) != mine:
                return f"--{name} is {other} there and {mine} at node 0; they need the same"
        theirs_here = set(theirs.get("nodes", ()))
        if taken := theirs_here & ({worker.node for worker in self.workers} | self.guests):
            return f"node {min(taken)} is here already; check --first"
        if not self.elastic:  # else they may have died, and come again
            self.guests |= theirs_here
        return ""


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
        if serve:
            listening = socket.create_server((host, port))
            port = listening.getsockname()[1]
        opened = TCPStore(
            host,
            port,
            is_master=serve,
            timeout=timedelta(seconds=START_TIMEOUT),  # until the host is there
            wait_for_workers=False,
            master_listen_fd=listening.detach() if serve else None,
        )
        opened.set_timeout(timedelta(seconds=TIMEOUT))
        if not serve:
            enable_tcp_keepalive(host, port)
    except (OSError, RuntimeError, dist.DistError) as error:
        raise NetworkError(
            f"The store at {host}:{port} cannot be {'opened' if serve else 'reached'}: {first_line(error)}."
        ) from None
    return host, port, opened
