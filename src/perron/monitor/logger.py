"""`perron.Log`: progress records and TensorBoard events of a training, by two lines in its script."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from perron.errors import FileError
from perron.monitor.records import INTERVAL, SENT, WAITED, Records
from perron.monitor.tensorboard import FOLDER, ScalarWriter

log = logging.getLogger("perron")


class Log:
    """Records the progress of a training for `perron watch DIR` and, if wanted, TensorBoard; two lines in a training script:

        log = perron.Log("results/my-training", steps=10_000)
        ...
        log(optimizer.steps, loss=loss)

    Make one on each node, or on node 0 only. Each node appends to a file of its own, ``node-K.jsonl``, which a process that
    replaces it continues. A call less than 0.2 seconds after the last with the same names is skipped without reading the values,
    so that a tensor on a GPU causes no synchronization; values with other names, as an accuracy now and then, are recorded on
    their own. Perron's warnings, as of members that were lost or joined, are recorded, too.

    Args:
        folder: the directory, which is made if need be.
        steps: their number, if known, from which the time left follows.
        node: the number of this node; by default ``RANK`` of torchrun or `perron launch`, else 0.
        tensorboard: whether to write TensorBoard's events, too, into ``folder/tensorboard/node-K``.
        every: seconds between two lines with the same names; 0 records every call.
        optimizer: the training's, to record the bytes that it sends, and how long it waits for others.

    Example:
        >>> import tempfile
        >>> from perron.monitor.records import read
        >>> folder = tempfile.mkdtemp()
        >>> with Log(folder, steps=3, every=0) as log:
        ...     for step in range(1, 4):
        ...         log(step, loss=1 / step)
        >>> read(Path(folder, "node-0.jsonl")).curves["loss"]
        [(1, 1.0), (2, 0.5), (3, 0.3333333333333333)]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        steps: int | None = None,
        node: int | None = None,
        tensorboard: bool = False,
        every: float = INTERVAL,
        optimizer: Any = None,
    ) -> None:
        folder, self._optimizer = Path(folder), optimizer
        self.node = int(os.environ.get("RANK", "0")) if node is None else node
        self._board = ScalarWriter(folder / FOLDER / f"node-{self.node}") if tensorboard else None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
        about = {"node": self.node, "nodes": int(os.environ.get("WORLD_SIZE", "1"))}
        self._records = Records(folder / f"node-{self.node}.jsonl", about, steps=steps, every=every)
        self._handler = _WarningRecorder(self._records)
        log.addHandler(self._handler)

    def __call__(self, step: int, /, **values: Any) -> None:
        """Record the step, and values measured after it: numbers, or tensors with one element."""
        if self._optimizer is not None:
            node = self._optimizer.node
            values |= {WAITED: sum(node.waited.values()), SENT: node.bytes_sent}
        written = self._records(step, **values)
        if written and self._board is not None:
            self._board(step, **written)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(ended=kind is None)

    def close(self, *, ended: bool = True) -> None:
        """Record that the training has ended; otherwise it looks as if its process had died."""
        log.removeHandler(self._handler)
        if self._optimizer is not None and (waited := dict(self._optimizer.node.waited)):
            times = ", ".join(f"{seconds:.1f} s for node {node}" for node, seconds in sorted(waited.items()))
            self._records.event(f"Node {self.node} waited {times}")
        self._records.close(ended=ended)
        if self._board is not None:
            self._board.close()


class _WarningRecorder(logging.Handler):
    """Records perron's warnings as events."""

    def __init__(self, records: Records) -> None:
        super().__init__(logging.WARNING)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.event(record.getMessage())
