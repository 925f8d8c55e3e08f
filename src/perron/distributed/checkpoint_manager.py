"""Checkpoints by themselves: every so many steps, and before a training is ended by a signal.

    keeper = perron.Keeper("checkpoints", optimizer, every=100)   # goes on from the newest checkpoint, if there is one
    while optimizer.steps < 10_000:
        ...
        optimizer.step()
        keeper()

On SIGTERM or the first Ctrl-C, to one node or to all, every node saves after the *same* step and ends with code 143 or 130; a
second signal ends it at once. Nodes are not at the same step when the signal comes, and one may be inside a step, waiting for
another. So each tells the store, from a thread, up to which step it has promised to go: the one that it is in. Nobody begins
another before all have told. The largest of these steps is where all save: everybody can still get there, and nobody is beyond
it. While there is no signal, a node looks into the store twice a second, and steps cost nothing.

    stop/TRAINING/why         the number of the signal
    stop/TRAINING/step/3      up to which step node 3 has promised to go, or "finished"
"""

from __future__ import annotations

import atexit
import gc
import logging
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from perron._storage.atomic import write_bytes
from perron.distributed import checkpoint
from perron.distributed.checkpoint import Checkpoint
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import TIMEOUT, first_line
from perron.distributed.setup import membership
from perron.distributed.store import STORE_PREFIX, enable_tcp_keepalive
from perron.errors import FileError, NetworkError, PerronError

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK = 0.5  # seconds between looks into the store, while nothing is known of a signal
SOON = 0.02  # and when it is

log = logging.getLogger("perron")


class Keeper:
    """Keeps checkpoints of a training; make it after the optimizer, and call it after each step, on every node.

    Args:
        folder: as of `perron.distributed.checkpoint.save`; refused at once if it cannot be written to.
        optimizer: whose training it is.
        every: steps between two checkpoints.
        keep: how many of them to keep.

    Attributes:
        found: the checkpoint from which the training goes on; None if it is new.
    """

    def __init__(self, folder: str | Path, optimizer: Decentralized, *, every: int = 100, keep: int = 2) -> None:
        if every < 1:
            raise PerronError(f"every is a number of steps, 1 or more; got {every}.")
        self.folder, self.optimizer, self.every, self.keep = Path(folder), optimizer, every, keep
        self._try_folder()
        self.found: Checkpoint | None = checkpoint.load(folder, optimizer)
        self._saved = optimizer.steps  # there is nothing new to save yet
        self._signal = 0
        self._lock = threading.Lock()
        self._told = ""  # the training in which others know where this node is going
        self._promised = optimizer.steps + 1
        self._goal: int | None = None
        self._lost = ""
        self._store = _store()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="perron keeper", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def __call__(self, **notes: Any) -> None:
        """After a step: save if it is time to; if the training is to end, save after the step that all agree on, and end.

        ``notes`` are saved along, see `perron.distributed.checkpoint.save`.
        """
        if self.optimizer.asked:  # an algorithm with several gradients in a step
            return
        with self._lock:
            ending = bool(self._told)
            if not ending:
                self._promised = self.optimizer.steps + 1
        if ending and self._goal is None:
            self._await_goal()
        last = ending and self._goal is not None and self.optimizer.steps >= self._goal
        if last or (self.optimizer.steps % self.every == 0 and self.optimizer.steps > self._saved):
            checkpoint.save(self.folder, self.optimizer, notes=notes, keep=self.keep)
            self._saved = self.optimizer.steps
        if last:
            self._end()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave signals as they were before. Done at the end of the process, too."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join(TIMEOUT)
            for number, handler in self._old.items():
                signal.signal(number, handler)

    def _try_folder(self) -> None:
        """Better now than after the first hundred steps."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            who = self.optimizer.node.name
            raise FileError(f"Node {who} cannot make the directory {self.folder}: {error.strerror}.") from None
        trial = self.folder / f"trial-{self.optimizer.node.name}"
        try:
            write_bytes(trial, b"")
        except FileError as error:
            raise FileError(f"Node {self.optimizer.node.name} cannot save to {self.folder}: {error}") from None
        trial.unlink(missing_ok=True)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._signal = number
        for one in SIGNALS:  # a second one ends the process even where no Python runs
            signal.signal(one, signal.SIG_DFL)

    def _end(self) -> None:
        """All nodes have done as many steps, so that the messages under way can be waited for."""
        number = self._signal or int(self._store.get(f"{self._told}/why"))
        tell = log.warning if self.optimizer.node.number == 0 else log.info
        tell("Saved after step %d, and ended by %s.", self.optimizer.steps, signal.Signals(number).name)
        with suppress(NetworkError):  # it is saved, whatever happens to others
            self.optimizer.close()
        gc.freeze()  # what is collected when the interpreter goes takes most of a second, since torch is large
        sys.exit(128 + number)

    def _await_goal(self) -> None:
        deadline = time.monotonic() + self.optimizer.timeout
        while self._goal is None:
            if self._lost or time.monotonic() > deadline:
                why = self._lost or f"some were silent for {self.optimizer.timeout:g} s"
                raise NetworkError(
                    f"Node {self.optimizer.node.name} was to save and end, but not all nodes told their step: {why}. Earlier "
                    "checkpoints are kept."
                )
            time.sleep(SOON)

    def _listen(self) -> None:
        """The thread that tells the others of a signal, and hears of theirs."""
        try:
            while not self._closed.wait(SOON if self._signal or self._told else LOOK):
                self._look(f"stop/{self.optimizer.born}")
            if not self._told:
                self._store.set(f"stop/{self.optimizer.born}/step/{self.optimizer.node.name}", "finished")
        except (RuntimeError, dist.DistError) as error:
            self._lost = f"the store cannot be reached ({first_line(error)})"

    def _look(self, training: str) -> None:
        if self._told != training:
            if not self._signal and not self._store.check([f"{training}/why"]):
                return
            if self._signal:
                self._store.set(f"{training}/why", str(self._signal))
            with self._lock:
                self._told, self._goal, promised = training, None, self._promised
            self._store.set(f"{training}/step/{self.optimizer.node.name}", str(promised))
        keys = [f"{training}/step/{name}" for name in self.optimizer.node.peers.node_ids]
        if self._goal is None and self._store.check(keys):
            told = [raw.decode() for raw in self._store.multi_get(keys)]
            # Some are done: then so will be the others, and the training ends by itself.
            self._goal = sys.maxsize if "finished" in told else max(map(int, told))


def _store() -> Any:
    """Through which the processes found each other."""
    member = membership()
    default: Any = _get_default_store() if member is None else None
    store = (
        PrefixStore(STORE_PREFIX, default.clone()) if member is None else PrefixStore("keeper", member.store.clone())
    )
    enable_tcp_keepalive()
    return store
