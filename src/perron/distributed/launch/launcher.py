"""The launcher: start one worker process per node on this machine, host the store, and restart workers that died.

An elastic training continues without dead nodes, and restarted ones join it. Otherwise the death of one node ends all, and all
are restarted: a new *attempt*, with its own keys in the store, in which the script resumes from its last checkpoint.

The store, through which nodes find each other and agree on the members, lives in the launcher and survives the death of any node.
On one machine it listens on the loopback interface only. Workers get the environment variables of torchrun.
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
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore  # dist names it, but its types do not

from perron.distributed.elastic.membership import check_min_nodes
from perron.distributed.elastic.protocol import Decision
from perron.distributed.launch import error_files
from perron.distributed.launch.fork_server import DEFAULTS, ForkedProcess, ForkServer
from perron.distributed.launch.handshake import ENVIRONMENT_VARIABLE, Handshake, join
from perron.distributed.process_group import EXIT_GRACE, STALL_TIMEOUT, START_TIMEOUT, STOP_GRACE, check_timeout
from perron.distributed.store import LOOPBACK, STORE_ERRORS, STORE_PREFIX, open_store
from perron.errors import PerronError

POLL_INTERVAL = 0.05  # seconds
SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]  # end the training; nodes save first
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of nodes that saved after a signal

log = logging.getLogger("perron")


@dataclass
class Worker:
    """The process of a node."""

    node: int
    starts: int = 0
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    code: int | None = None  # of a process that ended and is not restarted
    heartbeat: str = ""  # the last value in the store, and when it changed
    since: float = 0.0

    @property
    def name(self) -> str:
        """A new name for every start."""
        return f"{self.node}.{self.starts}"

    @property
    def running(self) -> bool:
        """Whether it has a process that has not ended."""
        return self.process is not None and self.process.poll() is None


class Launcher:
    """The workers of one machine.

    Args:
        command: the command that every worker runs.
        nodes: number of nodes on this machine.
        size: number of nodes on all machines; ``nodes`` if None.
        first: the number of the first node on this machine; the launcher of node 0 hosts the store.
        store: HOST:PORT of the store; a free port of the loopback interface if None, if all nodes are on this machine.
        elastic: whether the other nodes continue when one has died. If not, all end.
        min_nodes: with fewer nodes an elastic training saves and ends.
        restarts: how many times a node that died is restarted, in total; if not elastic, all nodes together.
        secret: shared by all launchers of one training, see `perron.distributed.launch.handshake`.
        grace: seconds for nodes to finish a step, save and exit after a signal.
        log_dir: where nodes that fail write their errors; a temporary folder if None, which is kept if the training fails.
        say: is called with a sentence about each event.
        fork_server: forks the workers; they are started as new interpreters if None.
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
        min_nodes: int = 1,
        restarts: int = 0,
        secret: str = "",
        grace: float = STOP_GRACE,
        log_dir: Path | None = None,
        say: Callable[[str], None] = log.warning,
        fork_server: ForkServer | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise PerronError("perron launch needs Linux or macOS. On Windows, use the Windows Subsystem for Linux.")
        self.command, self.size, self.elastic, self.restarts, self.say = command, size or nodes, elastic, restarts, say
        self.fork_server, self.grace, self.secret = fork_server, check_timeout(grace), secret
        self.log_dir = log_dir
        if nodes < 1 or first < 0 or restarts < 0:
            raise PerronError(f"Give at least one node, and no negative numbers; got {nodes}, {first} and {restarts}.")
        if first + nodes > self.size:
            raise PerronError(f"Nodes {first} to {first + nodes - 1} are more than --size {self.size}.")
        self.min_nodes = check_min_nodes(min_nodes, self.size)
        if min_nodes > 1 and not elastic:
            raise PerronError(f"--min-nodes is for --elastic; without it all nodes are required. Got {min_nodes}.")
        if store is None and (first or self.size > nodes):
            raise PerronError(
                "Nodes on several machines need --store HOST:PORT, with the address of the first machine."
            )
        self.workers = [Worker(first + place) for place in range(nodes)]
        self.attempt = 0
        self.host, self.port, opened = open_store(store, serve=first == 0)
        self.store = PrefixStore(STORE_PREFIX, opened)
        self.config = {"size": self.size, "elastic": elastic}
        self.config |= {"min-nodes": min_nodes} if elastic else {"restarts": restarts}
        self._remote_nodes: set[int] = set()  # of other launchers that have joined
        self._handshake = Handshake(self.store, secret, say, self._conflict) if first == 0 else None
        if self._handshake is None:
            name = f"The launcher of nodes {first} to {first + nodes - 1} on {socket.gethostname()}"
            config = self.config | {"nodes": [worker.node for worker in self.workers]}
            join(self.store, secret, name, config, timeout=START_TIMEOUT)  # the host may still be importing

    def run(self) -> int:
        """Start all workers, wait for them, and return the exit code.

        It is 0 if all succeeded, or if the training is elastic and some did; 128 + the number of a signal that ended it; or 1.
        """
        self._errors, code = error_files.ErrorFolder(self.log_dir), 1
        try:
            code = self._run()
        finally:
            self._errors.close(failed=code == 1)
        if code == 1 and (first := error_files.find_first(self._errors.path(one.name) for one in self.workers)):
            self.say(f"First failure: {first}")
        return code

    def _run(self) -> int:
        old = {number: signal.signal(number, _interrupt) for number in SIGNALS}
        try:
            while True:
                for worker in self.workers:
                    self._start(worker)
                if self.fork_server is not None and not self.restarts:  # not needed any more
                    self.fork_server.close()
                self._supervise()
                if not self._restart_all():
                    break
            self._serve_others()
        except _Interrupted as interrupt:
            (number,) = interrupt.args
            running = sum(worker.running for worker in self.workers)
            self.say(f"Ending {running} nodes: {_signal_name(number)}. A second signal ends them at once.")
            with suppress(_Interrupted):
                self._stop(signal.SIGTERM)
            return int(128 + number)
        finally:
            for number in old:
                signal.signal(number, signal.SIG_IGN)
            self._stop(signal.SIGKILL)
            for number, handler in old.items():
                signal.signal(number, handler)
        codes = [worker.code for worker in self.workers]
        if stopped := [code for code in codes if code in STOPPED]:
            return stopped[0] or 0
        if not any(codes):
            self._publish(f"attempt/{self.attempt}/finished", f"nodes {[worker.node for worker in self.workers]}")
        failed = self.elastic and bool(self._read("failure"))
        return 0 if not any(codes) or (self.elastic and 0 in codes and not failed) else 1

    def _start(self, worker: Worker) -> None:
        worker.starts += 1
        worker.code = None
        variables = {
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
            "PERRON_MIN_NODES": self.min_nodes,
            "PERRON_LAUNCHER": os.getpid(),
            ENVIRONMENT_VARIABLE: self.secret,
            **self._errors.prepare(worker.name),
        }
        loopback = {} if self.host != LOOPBACK else {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        environment = DEFAULTS | loopback | os.environ | {name: str(value) for name, value in variables.items()}
        worker.process = self.fork_server.fork(environment) if self.fork_server is not None else None
        if worker.process is None:
            self.fork_server = None
            worker.process = subprocess.Popen(  # noqa: S603 - the user's own command
                list(self.command),
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the launcher only, which signals every node once
            )

    def _supervise(self) -> None:
        """Wait until all workers have ended; if not elastic, until one has died on any machine."""
        while any(worker.code is None for worker in self.workers):
            time.sleep(POLL_INTERVAL)
            if self._handshake is not None:
                with suppress(*STORE_ERRORS):
                    self._handshake.poll()
            ended = self._collect_codes()
            for worker, code in ended:
                self._on_end(worker, code)
            failed = [code for _, code in ended if code]
            if any(code in STOPPED for code in failed):  # all nodes agreed to save and exit
                self._wait(self.grace)
                self._collect_codes()
                return
            if not self.elastic and (failed or self._failed_elsewhere()):
                self._end_attempt()
                return
            if self.elastic and any(worker.code == 0 for worker in self.workers):
                self._kill_stalled()

    def _collect_codes(self) -> list[tuple[Worker, int]]:
        """Return the workers that have ended since the last call, the killed ones first: they may have caused other ends."""
        ended = []
        for worker in self.workers:
            if worker.code is None and worker.process is not None and (code := worker.process.poll()) is not None:
                worker.code = code
                ended.append((worker, code))
        return sorted(ended, key=lambda pair: pair[1])

    def _on_end(self, worker: Worker, code: int) -> None:
        """Publish how a worker ended; if elastic, restart it unless that is pointless."""
        how = _how(code)
        self._publish(f"heartbeat/{worker.name}", "finished" if code == 0 else f"gone: {how.removeprefix('was ')}")
        if code == 0 and self.elastic:
            with suppress(*STORE_ERRORS):
                self.store.compare_set("finished", "", f"node {worker.node}")
        if code == 0 or code in STOPPED:
            return
        error_files.write(self._errors.path(worker.name), how, node=worker.node)  # if it left none
        obstacle = self._restart_obstacle() if self.elastic and self.restarts else ""
        if self.elastic and self.restarts and not obstacle:
            self.restarts -= 1
            self.say(f"Node {worker.node} {how}; restarting it ({self.restarts} restarts left).")
            self._start(worker)
            return
        self.say(f"Node {worker.node} {how}.{f' {obstacle}, so it is not restarted.' if obstacle else ''}")
        self._publish(f"dead/{worker.node}", how)
        with suppress(*STORE_ERRORS):
            self.store.compare_set(f"attempt/{self.attempt}/end", "", f"node {worker.node} {how}")

    def _failed_elsewhere(self) -> bool:
        """Return whether a node has died on another machine."""
        reason = self._read(f"attempt/{self.attempt}/end") if self.size > len(self.workers) else ""
        if reason:
            self.say(f"On another machine {reason}.")
        return bool(reason)

    def _end_attempt(self) -> None:
        """Give the other nodes the grace period to report the death of one, then kill them."""
        self._wait(EXIT_GRACE)
        for worker, code in self._collect_codes():
            if code < 0:
                self.say(f"Node {worker.node} {_how(code)}.")
                error_files.write(self._errors.path(worker.name), _how(code), node=worker.node)
        self._stop(signal.SIGKILL)

    def _restart_all(self) -> bool:
        """Begin another attempt if a node has died and restarts are left; return whether."""
        codes = [worker.code for worker in self.workers]
        if self.elastic or not any(codes) or any(code in STOPPED for code in codes) or not self.restarts:
            return False
        if obstacle := self._restart_obstacle():
            self.say(f"{obstacle}, so no node is restarted.")
            return False
        self.restarts -= 1
        self.attempt += 1
        self.say(f"Restarting all nodes ({self.restarts} restarts left).")
        return True

    def _restart_obstacle(self) -> str:
        """Return why a restart is pointless; empty if it is not."""
        finished = self._read("finished" if self.elastic else f"attempt/{self.attempt}/finished")
        if finished is None:
            return "The store at node 0 is gone"
        if self.elastic:
            failed = "The training has failed" if self._read("failure") else ""
            return failed or (f"The training has finished ({finished})" if finished else "")
        return f"On another machine {finished} have finished already" if finished else ""

    def _serve_others(self) -> None:
        """Keep the store for the nodes of other launchers until all of them have finished or are gone."""
        if self._handshake is None or not self.elastic:
            return
        own, told, since = {worker.node for worker in self.workers}, False, time.monotonic()
        values: dict[str, str] = {}
        while time.monotonic() - since < STALL_TIMEOUT:
            names = [name for name in self._members() if int(name.partition(".")[0]) not in own]
            latest = {name: self._read(f"heartbeat/{name}") or "" for name in names}
            if all(value.startswith(("finished", "gone")) for value in latest.values()):
                return
            if not told:
                told = True
                self.say("The nodes of this launcher have ended; it stays for the others, since it hosts their store.")
            since = time.monotonic() if latest != values else since
            values = latest
            self._handshake.poll()
            time.sleep(POLL_INTERVAL)

    def _members(self) -> list[str]:
        """Return the names of the members of the last generation."""
        number = self._read("latest")
        decision = self._read(f"generation/{number}/members") if number else ""
        return Decision.from_json(decision).names if decision else []

    def _kill_stalled(self) -> None:
        """Kill workers that are stopped or hang after others have finished: no node trains with them any more."""
        for worker in self.workers:
            if worker.code is None and worker.process is not None:
                value = self._read(f"heartbeat/{worker.name}")
                if value is None:  # the store's host has exited, since its own nodes have finished
                    return
                if value != worker.heartbeat:
                    worker.heartbeat, worker.since = value, time.monotonic()
                elif time.monotonic() - worker.since > STALL_TIMEOUT and value != "finished":
                    self.say(f"Node {worker.node} is silent, and the others have finished; killing it.")
                    worker.process.kill()

    def _publish(self, key: str, value: str) -> None:
        with suppress(*STORE_ERRORS):
            self.store.set(key, value)

    def _read(self, key: str) -> str | None:
        """Return a value of the store; empty if it is not set, None if the store cannot be reached."""
        try:
            return self.store.get(key).decode() if self.store.check([key]) else ""
        except STORE_ERRORS:
            return None

    def _wait(self, seconds: float) -> None:
        """Wait until all workers have ended, but not longer."""
        deadline = time.monotonic() + seconds
        while any(worker.running for worker in self.workers) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)

    def _stop(self, number: int) -> None:
        """Send the signal, then SIGKILL after the grace period."""
        for sent in (number, signal.SIGKILL):
            for worker in self.workers:
                if worker.process is not None and worker.running:
                    worker.process.send_signal(sent)
                    worker.process.send_signal(signal.SIGCONT)  # a stopped process cannot exit
            self._wait(self.grace)
        self._collect_codes()

    def _conflict(self, config: dict[str, Any]) -> str:
        """Return what is wrong with the options of another launcher; nodes of an elastic training send none."""
        for name, mine in self.config.items():
            if (theirs := config.get(name, mine)) != mine:
                return f"--{name} is {theirs} there and {mine} at node 0; they must be equal"
        nodes = set(config.get("nodes", ()))
        if taken := nodes & ({worker.node for worker in self.workers} | self._remote_nodes):
            return f"node {min(taken)} exists already; check --first"
        if not self.elastic:  # else its launcher may have died, and be started again
            self._remote_nodes |= nodes
        return ""


class _Interrupted(BaseException):
    """A signal to end, by its number."""


def _interrupt(number: int, _frame: Any) -> None:
    raise _Interrupted(number)


def _how(code: int) -> str:
    return f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
