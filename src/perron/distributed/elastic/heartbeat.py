"""Heartbeats: each process increments a counter in the store, and detects the failure of members whose counter stops."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perron.distributed.process_group import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, TIMEOUT
from perron.distributed.store import STORE_ERRORS

if TYPE_CHECKING:
    from perron.distributed.elastic.membership import Generation

MAX_FAILURES = 3  # consecutive failed calls of the store after which the thread stops

log = logging.getLogger("perron")


class Heartbeat(threading.Thread):
    """Sends this process's heartbeats and polls those of others; ends a generation when one of its members is lost."""

    def __init__(self, store: Any, name: str) -> None:
        super().__init__(name="perron heartbeat", daemon=True)
        self.store, self.own = store, name
        self.generation: Generation | None = None
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[str, float]] = {}  # the last value of each watched process, and when it changed
        self._count = 0
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
        self.join(TIMEOUT)

    def watch(self, names: list[str]) -> None:
        """Watch these processes from now on, and no others."""
        with self._lock:
            now = time.monotonic()
            self._seen = {name: self._seen.get(name, ("", now)) for name in names}
            self.poll()

    def is_responsive(self, name: str) -> bool:
        """Return whether a watched process sent a heartbeat lately, and has neither finished nor gone."""
        return self.status(name) == "alive"

    def status(self, name: str, timeout: float = HEARTBEAT_TIMEOUT) -> str:
        """Return ``alive``, ``finished``, how a watched process ended, or since when it has been silent."""
        value, since = self._seen[name]
        if value.startswith(("finished", "gone")):
            return value.removeprefix("gone: ")
        silent = time.monotonic() - since
        return "alive" if silent < timeout else f"silent for {silent:.0f} s"

    def run(self) -> None:
        """Send and poll until stopped, or until the store is gone: members then keep training, but cannot change."""
        before, failures = time.monotonic(), 0
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            try:
                now = time.monotonic()
                with self._lock:
                    if now - before > HEARTBEAT_TIMEOUT / 2:  # this process was stopped or starved: others start afresh
                        self._seen = {name: (value, now) for name, (value, _) in self._seen.items()}
                    before = now
                    self._send()
                    self.poll()
                self.detect_failures()
                failures = 0
            except STORE_ERRORS:
                failures += 1
                if failures == MAX_FAILURES:
                    log.warning(
                        "The launcher's store cannot be reached: training continues, but members cannot change."
                    )
                    return

    def _send(self) -> None:
        self._count += 1
        self.store.set(f"heartbeat/{self.own}", self._final_status or str(self._count))

    def poll(self) -> None:
        """Read the values of all watched processes."""
        if not self._seen:
            return
        now, names = time.monotonic(), list(self._seen)
        for name, raw in zip(names, self.store.multi_get([f"heartbeat/{name}" for name in names]), strict=True):
            if raw.decode() != self._seen[name][0]:
                self._seen[name] = (raw.decode(), now)

    def detect_failures(self) -> None:
        """End the present generation if one of its members is lost, here or according to another member."""
        generation = self.generation
        if generation is None:
            return
        with self._lock:
            key = f"generation/{generation.number}/end"
            statuses = {one.node: self.status(one.name) for one in generation.members if one.name in self._seen}
            lost = [
                f"node {node} is lost ({how})" for node, how in statuses.items() if how not in ("alive", "finished")
            ]
            if lost and not self._final_status:
                self.store.compare_set(key, "", ", ".join(lost))
            why = self.store.get(key).decode() if self.store.check([key]) else ""
        if why:
            generation.end(why)
