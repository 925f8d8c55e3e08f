"""How a training goes, told to `perron watch` and TensorBoard by two lines in its script."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from perron.errors import FileError
from perron.monitor.records import PATIENCE, WAITED, Records
from perron.monitor.tensorboard import FOLDER, Board

log = logging.getLogger("perron")


class Log:
    """Tells how a training goes, for `perron watch DIR` and, if wanted, for TensorBoard; two lines in a training script:

        log = perron.Log("results/my-training", steps=10_000)
        ...
        log(optimizer.steps, loss=loss)

    Make one on each node, or on node 0 only. Each node appends to a file of its own, ``node-K.jsonl``, and a process that takes
    its place goes on in the same file. It costs next to nothing: what was told less than 0.2 seconds ago is skipped, without
    looking at the value, so a tensor on a GPU is not waited for. Values of other names, as an accuracy once in a while, are told
    on their own. What perron itself warns of, as members that were lost or came, is told, too.

    Args:
        folder: where; it is made if need be.
        steps: how many there will be, if known: for the time that is left.
        node: the number of this node; by default what torchrun or `perron launch` says (``RANK``), else 0.
        tensorboard: whether to write TensorBoard's events, too, into ``folder/tensorboard/node-K``.
        every: seconds between two lines with the same names; 0 for all.
        optimizer: of the training, if `perron watch` is to tell which node the others wait for.

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
        every: float = PATIENCE,
        optimizer: Any = None,
    ) -> None:
        folder, self._optimizer = Path(folder), optimizer
        self.node = int(os.environ.get("RANK", "0")) if node is None else node
        self._board: Any = None
        if tensorboard:
            self._board = Board(folder / FOLDER / f"node-{self.node}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
        about = {"node": self.node, "nodes": int(os.environ.get("WORLD_SIZE", "1"))}
        self._records = Records(folder / f"node-{self.node}.jsonl", about, steps=steps, every=every)
        self._heard = _Heard(self._records)
        log.addHandler(self._heard)

    def __call__(self, step: int, /, **values: Any) -> None:
        """Tell what was measured after a step: numbers, or tensors with one element; without values, that it has come so far."""
        if self._optimizer is not None:
            values[WAITED] = sum(self._optimizer.node.waited.values())
        told = self._records(step, **values)
        if told and self._board is not None:
            self._board(step, **told)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(ended=kind is None)

    def close(self, *, ended: bool = True) -> None:
        """The training has ended. Without it, watchers see that the process is gone before its time."""
        log.removeHandler(self._heard)
        waited = dict(self._optimizer.node.waited) if self._optimizer is not None else {}
        if waited:
            each = ", ".join(f"{seconds:.1f} s for node {node}" for node, seconds in sorted(waited.items()))
            self._records.event(f"Node {self.node} waited {each}")
        self._records.close(ended=ended)
        if self._board is not None:
            self._board.close()


class _Heard(logging.Handler):
    """Takes down what perron warns of."""

    def __init__(self, records: Records) -> None:
        super().__init__(logging.WARNING)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        self.records.event(record.getMessage())
