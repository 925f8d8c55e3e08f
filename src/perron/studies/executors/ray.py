"""A Ray cluster: one that is started here, or one that runs already.

Machines need not share files: a job is sent as text and its results return as bytes, which this process writes. A run is saved
while it runs only where its worker sees the study's directory. A small actor, the board, keeps the last report of each run.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from perron._storage.atomic import write_bytes
from perron.errors import PerronError
from perron.studies.executors.base import (
    POLL_INTERVAL,
    Ends,
    Executor,
    OnProgress,
    Scheduler,
    block_interrupts,
    require,
)
from perron.studies.executors.local import cores
from perron.studies.job import Job, Report, Result, perform, prepare, write_result

CONNECT_TIMEOUT = 5.0  # seconds
OLDEST = (2, 52)  # the first version of Ray with token authentication
# Settings that Ray reads when it is imported. The second one makes a cluster use 127.0.0.1 as its address, on Linux as well.
PRIVATE = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
GRACE = 10.0  # seconds in which Ray may end a run that is cancelled; after that its process is killed
TOKEN = "seen.part"  # a file beside the runs, by which a worker recognizes the directory  # noqa: S105


@dataclass(frozen=True, kw_only=True)
class Ray(Executor):
    """A Ray cluster, by its address; a new one on this machine by default. ``workers`` limits the runs at a time."""

    workers: int | None = None
    address: str | None = None

    def check(self) -> None:
        ray = self._import()
        if not ray.is_initialized() and self.address:
            _check_address(self.address)

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Ends:
        """Do the jobs; see `perron.studies.executors`."""
        ray = self._import()
        token_file, token = jobs[0].target.parent / TOKEN, secrets.token_hex(16)
        write_bytes(token_file, token.encode())
        try:
            with self._connected(ray):
                _check_resources(ray, jobs)
                yield from _Scheduler(ray, jobs, on_progress, token).run(self.workers or len(jobs))
        finally:
            token_file.unlink(missing_ok=True)

    def _import(self) -> Any:
        """Import Ray, set up so that a cluster of our own listens on the loopback interface and asks for a token.

        Ray reads these settings when it is imported. The token is random and stays in the environment of our processes; Ray
        itself would write one into a file that other users may be able to read.
        """
        loaded = sys.modules.get("ray")
        if self.address is None and not (loaded and loaded.is_initialized()):
            if loaded and any(os.environ.get(name) != value for name, value in PRIVATE.items()):
                settings = " ".join(f"{name}={value}" for name, value in PRIVATE.items())
                raise PerronError(
                    f"Ray was imported before perron could set it up to listen on this machine only: set {settings} in the "
                    "environment, or import ray later, or call ray.init yourself, and perron uses that cluster."
                )
            os.environ.update(PRIVATE)
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray = require("ray", "ray")
        if tuple(map(int, re.findall(r"\d+", ray.__version__)[:2])) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise PerronError(
                f"--on ray needs Ray {oldest} or later, which asks clients for a token; this is {ray.__version__}: "
                f"pip install 'ray>={oldest}'"
            )
        return ray

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        if ray.is_initialized():  # by the caller, who also shuts it down
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        own = {} if self.address else {"num_cpus": self.workers or cores(), "include_dashboard": False}
        try:
            with nullcontext() if self.address else block_interrupts():
                ray.init(address=self.address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300].rstrip(".")
            where = f"at {self.address}" if self.address else "on this machine"
            hint = " If it asks for a token, set RAY_AUTH_MODE=token." if self.address else ""
            raise PerronError(f"There is no Ray cluster {where}: {reason}.{hint}") from None
        try:
            if not self.address and not (ip := ip_address(ray.util.get_node_ip_address())).is_loopback:
                raise PerronError(
                    f"This version of Ray ({ray.__version__}) listens on {ip} instead of the loopback interface; "
                    "start a cluster yourself (ray start) if that is wanted, and give its --address."
                )
            yield
        finally:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address that does not accept connections; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():  # such as auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise PerronError(f"There is no Ray cluster at {address}: {str(reason).rstrip('.')}.") from None


def _check_resources(ray: Any, jobs: Sequence[Job]) -> None:
    """Refuse jobs whose resources no machine has; Ray would wait for them forever."""
    available = ray.cluster_resources()
    for name, amount in {name: amount for job in jobs for name, amount in _resources(job).items()}.items():
        resource = name.removeprefix("num_").removesuffix("s").upper()
        if (have := available.get(resource, 0.0)) < amount:
            raise PerronError(f"A run needs {amount} {resource}, but the Ray cluster has {have:g}.")


def _resources(job: Job) -> dict[str, int]:
    return {"num_cpus": 1, "num_gpus": 1} if job.run.device.startswith("cuda") else {"num_cpus": 1}


class _Scheduler(Scheduler):
    """The jobs on a cluster, and their states."""

    def __init__(self, ray: Any, jobs: Sequence[Job], on_progress: OnProgress, token: str) -> None:
        super().__init__(jobs, on_progress)
        self.ray, self.token = ray, token
        # If its process or machine dies, Ray starts a new one, and writers wait for it: otherwise a run without reports
        # would have no time limit.
        self.board = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self.pending: dict[int, Any] = {}  # Ray's reference to the result of each job
        self.workers: dict[int, tuple[str, int]] = {}  # the machine and process of each job
        self.cancelled: dict[int, float] = {}  # the time at which a job was cancelled

    def run(self, limit: int) -> Ends:
        waiting = list(range(len(self.jobs)))
        try:
            while waiting or self.pending:
                while waiting and len(self.pending) < limit:
                    self._submit(waiting.pop(0))
                references = list(self.pending.values())
                done, _ = self.ray.wait(references, num_returns=len(references), timeout=POLL_INTERVAL)
                self._poll()
                for place, reference in list(self.pending.items()):
                    if reference in done:
                        del self.pending[place]
                        yield place, self._end(reference, place)
                self._stop_overdue()
                yield None
        finally:
            for reference in self.pending.values():
                self.ray.cancel(reference, force=True)

    def _submit(self, place: int) -> None:
        job = self.jobs[place]
        task = self.ray.remote(max_retries=0, **_resources(job))(_work)
        self.pending[place] = task.remote(job.text, place, self.token, self.board)

    def _poll(self) -> None:
        """Receive the reports of the runs."""
        try:
            reports = self.ray.get(self.board.read.remote(), timeout=GRACE)
        except self.ray.exceptions.RayError:  # the runs continue meanwhile
            return
        for place, text in reports.items():
            message = self.receive(place, text)
            self.workers[place] = message["machine"], message["process"]

    def _end(self, reference: Any, place: int) -> str | None:
        """Write the results of a job; return the reason if it failed."""
        errors = self.ray.exceptions
        job = self.jobs[place]
        try:
            return write_result(job.target, Result(*self.ray.get(reference)))
        except (errors.WorkerCrashedError, errors.TaskCancelledError):
            return job.timed_out if place in self.cancelled else "its process was killed"
        except errors.OutOfMemoryError:
            return "its machine ran out of memory, and Ray stopped it"
        except errors.RayTaskError as error:
            return f"cannot be done on a machine of the cluster: {type(error.cause).__name__}: {error.cause}"
        except errors.RayError as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"

    def _stop_overdue(self) -> None:
        for place in self.overdue(list(self.pending)):
            if place not in self.cancelled:
                self.cancelled[place] = time.monotonic()
                self.ray.cancel(self.pending[place], force=True)
            elif time.monotonic() - self.cancelled[place] > GRACE:  # it does not respond to Ray
                self.deadlines[place] = float("inf")
                self._kill(*self.workers[place])

    def _kill(self, machine: str, process: int) -> None:
        there = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(machine, soft=False)
        self.ray.remote(num_cpus=0, scheduling_strategy=there)(_kill_process).remote(process)


class _Board:
    """The last report of each run."""

    def __init__(self) -> None:
        self.reports: dict[int, str] = {}

    def write(self, place: int, text: str) -> None:
        self.reports[place] = text

    def read(self) -> dict[int, str]:
        """Return the reports since the last call."""
        reports, self.reports = self.reports, {}
        return reports


def _work(text: str, place: int, token: str, board: Any) -> Result:
    """Do a job in a worker."""
    import ray

    worker = {"machine": ray.get_runtime_context().get_node_id(), "process": os.getpid()}

    def on_progress(report: Report) -> None:
        board.write.options(max_task_retries=-1).remote(place, json.dumps(report._asdict() | worker))

    prepare()
    on_progress(Report(0, 1, {}))  # from now on its time counts
    job = Job.read(text)
    return perform(job, on_progress, shared=_is_shared(job.target.parent, token))


def _kill_process(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def _is_shared(folder: Path, token: str) -> bool:
    """Return whether this machine sees the study's directory, and may write to it."""
    try:
        return (folder / TOKEN).read_text(encoding="utf-8") == token and os.access(folder, os.W_OK)
    except (OSError, UnicodeDecodeError):
        return False
