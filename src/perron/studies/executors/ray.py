"""A Ray cluster: one that is started here, or one that is there already.

Machines need not share files: a job travels as text and its results as bytes, and this process writes them. A run is saved
on its way only where its worker sees the study's directory. How far the runs are is kept by a small actor, the board.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perron._storage.atomic import write_bytes
from perron.errors import PerronError
from perron.studies.executors.base import POLL, Ends, Told, needed, overdue, without_interrupts
from perron.studies.executors.local import cores
from perron.studies.job import Job, Report, Result, keep, perform, prepare

REACH = 5.0  # seconds in which a machine must answer
GRACE = 10.0  # seconds in which Ray may end a run that is cancelled; after that its process is killed
SEEN = "seen.part"  # a file beside the runs, by which a worker knows that it sees the same directory


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A Ray cluster, by its address; a new one on this machine by default. At most so many workers at a time."""

    workers: int | None = None
    address: str | None = None

    def run(self, jobs: Sequence[Job], told: Told) -> Ends:
        """Do the jobs; see `perron.studies.executors`."""
        ray = needed("ray", "ray")
        folder = jobs[0].target.parent
        token = secrets.token_hex(16)
        write_bytes(folder / SEEN, token.encode())
        try:
            with self._connected(ray):
                _check_resources(ray, jobs)
                yield from _Crew(ray, jobs, told, token).run(self.workers or len(jobs))
        finally:
            (folder / SEEN).unlink(missing_ok=True)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        if ray.is_initialized():  # whoever did that ends it, too
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        own = {} if self.address else {"num_cpus": self.workers or cores(), "include_dashboard": False}
        if self.address:
            _check_there(self.address)
        try:
            with nullcontext() if self.address else without_interrupts():
                ray.init(address=self.address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())[:300]
            where = f"at {self.address}" if self.address else "on this machine"
            hint = " If it asks for a token, set RAY_AUTH_MODE=token." if self.address else ""
            raise PerronError(f"There is no Ray cluster {where}: {said.rstrip('.')}.{hint}") from None
        try:
            yield
        finally:
            ray.shutdown()


def _check_there(address: str) -> None:
    """Ray itself would try for minutes to reach an address where nobody listens."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():  # such as auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError, UnicodeError) as error:
        said = (isinstance(error, OSError) and error.strerror) or error
        raise PerronError(f"There is no Ray cluster at {address}: {str(said).rstrip('.')}.") from None


def _check_resources(ray: Any, jobs: Sequence[Job]) -> None:
    """What no machine has would be waited for in vain."""
    there = ray.cluster_resources()
    for name, amount in {name: amount for job in jobs for name, amount in _needs(job).items()}.items():
        resource = name.removeprefix("num_").removesuffix("s").upper()
        if there.get(resource, 0.0) < amount:
            raise PerronError(f"A run needs {amount} {resource}, but the Ray cluster has {there.get(resource, 0.0):g}.")


def _needs(job: Job) -> dict[str, int]:
    return {"num_cpus": 1, "num_gpus": 1} if job.run.device.startswith("cuda") else {"num_cpus": 1}


class _Crew:
    """The jobs on a cluster, and where each of them stands."""

    def __init__(self, ray: Any, jobs: Sequence[Job], told: Told, token: str) -> None:
        self.ray, self.jobs, self.told, self.token = ray, jobs, told, token
        # If its process or machine dies, Ray makes a new one, and whoever writes to it waits for that: else a run that is
        # not heard of would have no time limit.
        self.board = ray.remote(num_cpus=0, max_restarts=-1)(Board).remote()
        self.pending: dict[Any, int] = {}  # by what Ray will give for it, the place of a job
        self.where: dict[int, tuple[str, int]] = {}  # of those under way: the machine and the process
        self.until: dict[int, float] = {}  # when its time is over
        self.late: dict[int, float] = {}  # since when it is cancelled

    def run(self, limit: int) -> Ends:
        waiting = list(range(len(self.jobs)))
        try:
            while waiting or self.pending:
                while waiting and len(self.pending) < limit:
                    self._submit(waiting.pop(0))
                done, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=POLL)
                self._listen()
                for reference in done:
                    place = self.pending.pop(reference)
                    said = self._ended(reference, place)
                    yield place, said
                self._stop_overdue()
                yield None
        finally:
            for reference in self.pending:
                self.ray.cancel(reference, force=True)

    def _submit(self, place: int) -> None:
        job = self.jobs[place]
        task = self.ray.remote(max_retries=0, **_needs(job))(_work)
        self.pending[task.remote(job.text, place, self.token, self.board)] = place

    def _listen(self) -> None:
        """Hear how far the runs are."""
        try:
            heard = self.ray.get(self.board.read.remote(), timeout=GRACE)
        except self.ray.exceptions.RayError:  # the runs go on meanwhile
            return
        for place, text in heard.items():
            news = json.loads(text)
            if place not in self.until:
                self.until[place] = time.monotonic() + 60 * self.jobs[place].timeout
                self.where[place] = news["machine"], news["process"]
            self.told(place, Report(news["step"], news["steps"], news["values"]))

    def _ended(self, reference: Any, place: int) -> str | None:
        """Write the results of a job, or say what went wrong."""
        errors = self.ray.exceptions
        job = self.jobs[place]
        try:
            return keep(job.target, Result(*self.ray.get(reference)))
        except (errors.WorkerCrashedError, errors.TaskCancelledError):
            return overdue(job) if place in self.late else "its process was killed"
        except errors.OutOfMemoryError:
            return "its machine ran out of memory, and Ray stopped it"
        except errors.RayTaskError as error:
            return f"cannot be done on a machine of the cluster: {type(error.cause).__name__}: {error.cause}"
        except errors.RayError as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            self.until.pop(place, None)

    def _stop_overdue(self) -> None:
        for reference, place in self.pending.items():
            if time.monotonic() < self.until.get(place, float("inf")):
                continue
            if place not in self.late:
                self.late[place] = time.monotonic()
                self.ray.cancel(reference, force=True)
            elif time.monotonic() - self.late[place] > GRACE:  # it does not even hear Ray
                self.until.pop(place)
                self._kill(*self.where[place])

    def _kill(self, machine: str, process: int) -> None:
        there = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(machine, soft=False)
        self.ray.remote(num_cpus=0, scheduling_strategy=there)(_end).remote(process)


class Board:
    """The last news of each run."""

    def __init__(self) -> None:
        self.news: dict[int, str] = {}

    def write(self, place: int, text: str) -> None:
        """Put up the news of a run."""
        self.news[place] = text

    def read(self) -> dict[int, str]:
        """What is new since the last time."""
        news, self.news = self.news, {}
        return news


def _work(text: str, place: int, token: str, board: Any) -> tuple[str, bytes, str | None]:
    """A job in a worker."""
    import ray

    machine, process = ray.get_runtime_context().get_node_id(), os.getpid()

    def report(news: Report) -> None:
        board.write.options(max_task_retries=-1).remote(
            place, json.dumps({**news._asdict(), "machine": machine, "process": process})
        )

    prepare()
    report(Report(0, 1, {}))  # from now on its time counts
    job = Job.read(text)
    result = perform(job, report, seen=_sees(job.target.parent, token))
    return result.facts, result.table, result.failed


def _end(process: int) -> None:
    """Kill a process of this machine."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _sees(folder: Path, token: str) -> bool:
    try:
        return (folder / SEEN).read_text(encoding="utf-8") == token and os.access(folder, os.W_OK)
    except (OSError, UnicodeDecodeError):
        return False
