"""Heartbeats: each process increments a counter in the store, and detects the failure of members whose counter stops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perron.distributed.elastic.protocol import ALIVE, DEAD, FINISHED, SILENT, Status
from perron.distributed.process_group import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, TIMEOUT
from perron.distributed.store import STORE_ERRORS

if TYPE_CHECKING:
    from perron.distributed.elastic.generation import Generation

MAX_FAILURES = 3  # consecutive failed calls of the store after which the thread stops

log = logging.getLogger("perron")


class ObservedClock:
    """A clock that counts at most ``most`` seconds between two readings.

    It measures how long another process has been silent. While this process is stopped or starved, or the store does not
    answer, there is nothing to observe, so that this time does not count against others.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.clock = most, clock
        self.now, self._last = 0.0, clock()

    def read(self) -> float:
        """Return the time now."""
        last, self._last = self._last, self.clock()
        self.now += min(self._last - last, self.most)
        return self.now


class Heartbeat(threading.Thread):
    """Sends this process's heartbeats and polls those of others; ends a generation when one of its members is lost."""

    def __init__(self, store: Any, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="perron heartbeat", daemon=True)
        self.store, self.own = store, name
        self.generation: Generation | None = None
        self._lock = threading.RLock()
        self._clock = ObservedClock(2 * HEARTBEAT_INTERVAL, clock)
        self._seen: dict[str, tuple[str, float]] = {}  # the last value of each watched process, and when it changed
        self._count, self._stepped = 0, -1
        self._final_status = ""
        self._stopped = threading.Event()
        self._send()

    def set_final_status(self, status: str) -> None:
        """Send ``finished`` or ``gone: REASON`` from now on instead of a counter; the first call counts."""
        if not self._final_status:
            self._final_status = status
            with self._lock, suppress(*STORE_ERRORS):
                self._send()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self.is_alive():
            self.join(TIMEOUT)

    def watch(self, names: list[str]) -> None:
        """Watch these processes from now on, and no others."""
        with self._lock:
            now = self._clock.now
            self._seen = {name: self._seen.get(name, ("", now)) for name in names}
            self.poll()

    def status(self, name: str, timeout: float = HEARTBEAT_TIMEOUT) -> Status:
        """Return what is known of a watched process; it is silent after ``timeout`` observed seconds without a heartbeat."""
        with self._lock:
            value, since = self._seen[name]
            silent = self._clock.now - since
        if value.startswith("gone"):
            return Status(DEAD, value.removeprefix("gone: "))
        if value == FINISHED:
            return Status(FINISHED, FINISHED)
        return Status(ALIVE, ALIVE) if silent < timeout else Status(SILENT, f"silent for {silent:.0f} s")

    def run(self) -> None:
        """Send and poll until stopped, or until the store is gone: members then keep training, but cannot change."""
        failures = 0
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            try:
                self.tick()
                failures = 0
            except STORE_ERRORS:
                failures += 1
                if failures == MAX_FAILURES:
                    log.warning(
                        "The launcher's store cannot be reached: training continues, but members cannot change."
                    )
                    return

    def tick(self) -> None:
        """Send a heartbeat, poll those of others, and end the generation if that is due."""
        with self._lock:
            self._send()
            self._clock.read()  # after the store has answered
            self.poll()
        self.detect_failures()

    def _send(self) -> None:
        self._count += 1
        self.store.set(f"heartbeat/{self.own}", self._final_status or str(self._count))

    def poll(self) -> None:
        """Read the values of all watched processes."""
        if not self._seen:
            return
        now, names = self._clock.now, list(self._seen)
        for name, raw in zip(names, self.store.multi_get([f"heartbeat/{name}" for name in names]), strict=True):
            if raw.decode() != self._seen[name][0]:
                self._seen[name] = (raw.decode(), now)

    def detect_failures(self) -> None:
        """End the present generation if one of its members is lost, here or according to another, or if the training failed."""
        generation = self.generation
        if generation is None:
            return
        with self._lock:
            key = f"generation/{generation.number}/end"
            if generation.stepped and generation.number != self._stepped:
                self.store.set("stepped", str(generation.number))
                self._stepped = generation.number
            statuses = {one.node: self.status(one.name) for one in generation.members if one.name in self._seen}
            lost = [f"node {node} is lost ({how.text})" for node, how in statuses.items() if how.kind in (DEAD, SILENT)]
            if lost and not self._final_status:
                self.store.compare_set(key, "", ", ".join(lost))
            why = next((self.store.get(one).decode() for one in (key, "failure") if self.store.check([one])), "")
        if why:
            generation.end(why)
