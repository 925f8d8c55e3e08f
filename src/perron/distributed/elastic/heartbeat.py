"""Heartbeats: every process tells a store that it lives, and watches that the others do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch.distributed as dist

from perron.distributed.process_group import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, TIMEOUT

TRIES = 3  # of the store, before it is given up

log = logging.getLogger("perron")


class Watched(Protocol):
    """What ends when one of its members is lost."""

    number: int
    members: Sequence[Any]

    def end(self, why: str) -> None:
        """Wake whoever waits."""


class Heartbeat(threading.Thread):
    """Sends this process's heartbeats, and watches those of others; ends an generation when one of its members is lost."""

    def __init__(self, store: Any, name: str) -> None:
        super().__init__(name="perron pulse", daemon=True)
        self.store = store
        self.own = name
        self.generation: Watched | None = None
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[str, float]] = {}
        self._count = 0
        self._final = ""
        self._stopped = threading.Event()
        self._beat()

    def set_final_status(self, final: str) -> None:
        """The last word of this process; nothing if it has had one."""
        if not self._final:
            self._final = final
            with self._lock, suppress(RuntimeError, dist.DistError):
                self._beat()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join(TIMEOUT)

    def watch(self, names: list[str]) -> None:
        """From now on, these."""
        with self._lock:
            now = time.monotonic()
            self._seen = {name: self._seen.get(name, ("", now)) for name in names}
            self.poll()

    def is_responsive(self, name: str) -> bool:
        """Whether a watched process has been heard of lately, and has neither finished nor gone."""
        value, since = self._seen[name]
        return not value.startswith(("finished", "gone")) and time.monotonic() - since < HEARTBEAT_TIMEOUT

    def status(self, name: str, patience: float = HEARTBEAT_TIMEOUT) -> str:
        """What is known of a watched process."""
        value, since = self._seen[name]
        if value.startswith(("finished", "gone")):
            return value.removeprefix("gone: ")
        silent = time.monotonic() - since
        return "alive" if silent < patience else f"silent for {silent:.0f} s"

    def run(self) -> None:
        """Until told to stop, or until the store is gone: then members can change no more, but go on."""
        before, failures = time.monotonic(), 0
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            try:
                now = time.monotonic()
                with self._lock:
                    if (
                        now - before > HEARTBEAT_TIMEOUT / 2
                    ):  # this process was stopped or starved: the others get their time again
                        self._seen = {name: (value, now) for name, (value, _) in self._seen.items()}
                    before = now
                    self._beat()
                    self.poll()
                self.detect_failures()
                failures = 0
            except (RuntimeError, dist.DistError):
                failures += 1
                if failures == TRIES:
                    log.warning(
                        "The launcher's store cannot be reached: training goes on, but members can change no more."
                    )
                    return

    def _beat(self) -> None:
        self._count += 1
        self.store.set(f"heartbeat/{self.own}", self._final or str(self._count))

    def poll(self) -> None:
        if not self._seen:
            return
        now, names = time.monotonic(), list(self._seen)
        for name, raw in zip(names, self.store.multi_get([f"heartbeat/{name}" for name in names]), strict=True):
            if raw.decode() != self._seen[name][0]:
                self._seen[name] = (raw.decode(), now)

    def detect_failures(self) -> None:
        generation = self.generation
        if generation is None:
            return
        with self._lock:
            key = f"generation/{generation.number}/end"
            lost = [
                f"node {one.node} is lost ({self.status(one.name)})"
                for one in generation.members
                if one.name in self._seen and not self.is_responsive(one.name) and self.status(one.name) != "finished"
            ]
            if lost and not self._final:
                self.store.compare_set(key, "", ", ".join(lost))
            why = self.store.get(key).decode() if self.store.check([key]) else ""
        if why:
            generation.end(why)
