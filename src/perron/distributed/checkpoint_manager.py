"""Automatic checkpoints: at regular steps, and before a signal ends the training.

    manager = perron.CheckpointManager("checkpoints", optimizer, every=100)   # resumes from the newest checkpoint, if any
    while optimizer.steps < 10_000:
        ...
        optimizer.step()
        manager()

On SIGTERM or the first Ctrl-C, to one node or to all, every node saves after the *same* step and exits with code 143 or 130; a
second signal ends the process immediately. Nodes may be at different steps when the signal arrives, or inside a step, waiting for
another node. So a thread of each node publishes in the store the step that the node is in, which it will complete; no node begins
another step before all have published. The largest of these steps is the final one: every node can still reach it, and none is
beyond it. Until a signal arrives the thread polls the store twice a second, and steps cost nothing.

    stop/RUN/why         the number of the signal
    stop/RUN/step/3      the step that node 3 will complete, or "finished"
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from perron._storage.atomic import make_directory, write_bytes
from perron.distributed import checkpoint
from perron.distributed.checkpoint import Checkpoint
from perron.distributed.checkpoint_record import note_run
from perron.distributed.checkpoint_states import check_states
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import TIMEOUT, first_line, world_store
from perron.distributed.setup import membership
from perron.distributed.store import STORE_ERRORS, STORE_PREFIX, enable_tcp_keepalive
from perron.errors import FileError, NetworkError, PerronError, listed

SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_INTERVAL = 0.5  # seconds, until a signal arrives
FAST_POLL_INTERVAL = 0.02  # and afterwards

log = logging.getLogger("perron")


class CheckpointManager:
    """Saves checkpoints of a training; construct it after the optimizer, and call it after each step, on every node.

    Args:
        folder: as of `perron.distributed.checkpoint.save`; refused immediately if it is not writable.
        optimizer: the optimizer of the training.
        every: steps between two checkpoints.
        keep: the number of checkpoints to keep.
        fresh: whether to start a new training although there are checkpoints in the folder; they are neither loaded nor
            removed. When the launcher restarts the nodes of this training, they resume from its own checkpoints.
        states: schedulers, scalers, samplers and generators of this node, under any names, which are saved and restored with
            it: ``CheckpointManager("checkpoints", optimizer, every=100, schedule=schedule, generator=generator)``.

    Attributes:
        found: the checkpoint from which the training resumes; None if there is none.
    """

    def __init__(
        self,
        folder: str | Path,
        optimizer: Decentralized,
        *,
        every: int = 100,
        keep: int = 2,
        fresh: bool = False,
        **states: Any,
    ) -> None:
        if every < 1:
            raise PerronError(f"every is a number of steps, 1 or more; got {every}.")
        check_states(states)
        self.folder, self.optimizer, self.every, self.keep, self.states = Path(folder), optimizer, every, keep, states
        self._check_writable()
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        self.found: Checkpoint | None = checkpoint.load(folder, optimizer, fresh=fresh and not restarted, states=states)
        if optimizer.joined and states:
            log.warning("Node %d joined: its %s start from the beginning.", optimizer.node.name, listed(states))
        self._saved, self._notes = optimizer.steps, dict[str, Any]()  # nothing new to save yet
        if optimizer._recovery is not None:
            optimizer._recovery.save = self._save
        self._signal = 0
        self._lock = threading.Lock()
        self._published = ""  # the run in which the other nodes know this node's step
        self._next_step = optimizer.steps + 1
        self._final_step: int | None = None
        self._store_error = ""
        self._store = _connect()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll_store, name="perron checkpoints", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def __call__(self, **notes: Any) -> None:
        """Save if a checkpoint is due; if the training is ending, save after the final step and exit.

        ``notes`` are saved as well, see `perron.distributed.checkpoint.save`.
        """
        self._notes = notes
        note_run(self.folder, self.optimizer)  # members may have changed
        if self.optimizer.gradients_received:  # in the middle of a step with several gradients
            return
        with self._lock:
            ending = bool(self._published)
            if not ending:
                self._next_step = self.optimizer.steps + 1
        if ending and self._final_step is None:
            self._await_final_step()
        final = ending and self._final_step is not None and self.optimizer.steps >= self._final_step
        if final or (self.optimizer.steps % self.every == 0 and self.optimizer.steps > self._saved):
            self._save()
        if final:
            self._exit()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the signal handlers. Also called when the process exits."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join(TIMEOUT)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def _save(self) -> None:
        checkpoint.save(self.folder, self.optimizer, notes=self._notes, states=self.states, keep=self.keep)
        self._saved = self.optimizer.steps

    def _check_writable(self) -> None:
        """Refuse a folder before training rather than at the first checkpoint."""
        name = self.optimizer.node.name
        trial = self.folder / f"trial-{name}"
        try:
            make_directory(self.folder)
            write_bytes(trial, b"")
        except FileError as error:
            raise FileError(f"Node {name} cannot save to {self.folder}: {error}") from None
        trial.unlink(missing_ok=True)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._signal = number
        for one in SIGNALS:  # a second signal ends the process even where no Python code runs
            signal.signal(one, signal.SIG_DFL)

    def _exit(self) -> None:
        """Exit after the final step. All nodes have done it, so that the messages in flight arrive."""
        number = self._signal or int(self._store.get(f"{self._published}/why"))
        report = log.warning if self.optimizer.node.number == 0 else log.info
        report("Saved after step %d, and ended by %s.", self.optimizer.steps, signal.Signals(number).name)
        with suppress(NetworkError):  # this node's part is saved, whatever happens to others
            self.optimizer.close()
        gc.freeze()  # collecting torch's objects when the interpreter exits takes most of a second
        sys.exit(128 + number)

    def _await_final_step(self) -> None:
        deadline = time.monotonic() + self.optimizer.timeout
        while self._final_step is None:
            if self._store_error or time.monotonic() > deadline:
                why = self._store_error or f"some were silent for {self.optimizer.timeout:g} s"
                raise NetworkError(
                    f"Node {self.optimizer.node.name} was to save and exit, but not all nodes published their step: {why}. "
                    "Earlier checkpoints are kept."
                )
            time.sleep(FAST_POLL_INTERVAL)

    def _poll_store(self) -> None:
        """Publish a signal to the other nodes, and notice theirs; runs in a thread."""
        try:
            while not self._closed.wait(FAST_POLL_INTERVAL if self._signal or self._published else POLL_INTERVAL):
                self._poll(f"stop/{self.optimizer.run_id}")
            if not self._published:
                self._store.set(f"stop/{self.optimizer.run_id}/step/{self.optimizer.node.name}", "finished")
        except STORE_ERRORS as error:
            self._store_error = f"the store cannot be reached ({first_line(error)})"

    def _poll(self, run: str) -> None:
        if self._published != run:
            if not self._signal and not self._store.check([f"{run}/why"]):
                return
            if self._signal:
                self._store.set(f"{run}/why", str(self._signal))
            with self._lock:
                self._published, self._final_step, step = run, None, self._next_step
            self._store.set(f"{run}/step/{self.optimizer.node.name}", str(step))
        keys = [f"{run}/step/{name}" for name in self.optimizer.node.peers.node_ids]
        if self._final_step is None and self._store.check(keys):
            steps = [raw.decode() for raw in self._store.multi_get(keys)]
            # If a node has finished, the others are about to: the training ends by itself.
            self._final_step = sys.maxsize if "finished" in steps else max(map(int, steps))


Keeper = CheckpointManager  # its name in version 0.1


def _connect() -> Any:
    """Return a connection of its own to the store of the process group or of the membership."""
    member = membership()
    prefix, store = (STORE_PREFIX, world_store()) if member is None else ("checkpoints", member.store)
    connection = PrefixStore(prefix, store.clone())
    enable_tcp_keepalive()
    return connection
