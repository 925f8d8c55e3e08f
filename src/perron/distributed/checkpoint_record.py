"""What a node knows of its training: the runs that belong to it, and which checkpoints it may remove.

A *run* is the time between two starts (with elastic membership, between two changes of members). A *training* consists of the
runs that resumed from each other. A node lists the runs that it takes part in, before it saves anything in them:

    FOLDER/node-3.runs.json    {"format": 1, "runs": [...], "first": RUN, "since": RUN, "last": [RUN, STEP, GRADIENTS]}

So a checkpoint that the node does not have is *unfinished* if it is of a listed run and later than the last one that the node
saved: it did not live to save it. Any other one is *missing*, as when a disk is not mounted. Only files of the training's own
runs are ever removed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from perron._storage import tensorfile
from perron._storage.atomic import write_bytes
from perron._storage.lockfile import acquire_lock
from perron.distributed.checkpoint_files import Moment
from perron.distributed.optimizer import Decentralized
from perron.errors import FileError, FormatError

FORMAT = 1
NEVER = Moment("", -1)
_locks: dict[tuple[int, Path], Any] = {}  # by process and file; held until the process ends


@dataclass
class Record:
    """The runs of a node, in the order of time.

    Attributes:
        runs: those that it took part in.
        first: the first one of the present training; earlier ones may belong to another.
        since: the run that was started afresh; older checkpoints are not loaded any more.
        last: the moment that it saved last.
    """

    runs: list[str] = field(default_factory=list)
    first: str = ""
    since: str = ""
    last: Moment = NEVER

    def died_before(self, moment: Moment) -> bool:
        """Return whether the node did not live to save a moment."""
        return moment.run in self.runs and moment > self.last


@dataclass(frozen=True)
class Origin:
    """How a training began in this process.

    Attributes:
        run: the run id after loading.
        moment: the checkpoint that it resumed from, if any.
        kept: checkpoints that must not be removed: this node cannot read them, or others lack them for an unknown reason.
    """

    run: str
    moment: Moment | None
    kept: frozenset[Moment] = frozenset()


origins: WeakKeyDictionary[Decentralized, Origin] = WeakKeyDictionary()
_records: WeakKeyDictionary[Decentralized, dict[Path, Record]] = WeakKeyDictionary()  # by folder


def lock_folder(folder: Path, optimizer: Decentralized) -> None:
    """Make this process the only one that saves as this node (by the name that stays when others leave)."""
    name = optimizer.node.name
    key = (os.getpid(), (folder / f"node-{name}.lock").absolute())
    if key not in _locks:
        busy = f"Another training saves as node {name} into {folder}"
        _locks[key] = acquire_lock(key[1], busy, "wait for it, end it, or choose another folder")


def read_record(folder: Path, name: int) -> Record:
    """Return the record of a node; an empty one if there is none."""
    path = _path(folder, name)
    try:
        fields = tensorfile.parse_object(path.read_bytes())
    except (OSError, ValueError):
        return Record()
    if fields.pop("format", None) != FORMAT:
        raise FormatError(f"{path} is not of format {FORMAT}, the only one that this version of perron reads.")
    try:
        fields["last"] = Moment(str(fields["last"][0]), *map(int, fields["last"][1:]))
        record = Record(**fields)
        if not all(isinstance(text, str) for text in (*record.runs, record.first, record.since)):
            raise ValueError
    except (KeyError, IndexError, TypeError, ValueError):
        raise FileError(f"{path} is damaged. Without it, checkpoints are still read: remove it.") from None
    return record


def write_record(folder: Path, optimizer: Decentralized, record: Record) -> None:
    """Write a record, with the present run added to it."""
    if optimizer.run_id not in record.runs:
        record.runs.append(optimizer.run_id)
    record.first = record.first or optimizer.run_id
    _records.setdefault(optimizer, {})[folder] = record
    write_bytes(_path(folder, optimizer.node.name), json.dumps({"format": FORMAT} | asdict(record)).encode())


def note_run(folder: Path, optimizer: Decentralized) -> Record:
    """Record that this node takes part in the present run, and return the record."""
    record = _records.get(optimizer, {}).get(folder)
    if record is None:  # it did not load from this folder: earlier runs may belong to another training
        record = read_record(folder, optimizer.node.name)
        record.first = optimizer.run_id
    elif optimizer.run_id in record.runs:
        return record
    write_record(folder, optimizer, record)
    return record


def find_removable(
    others: list[Moment], now: Moment, optimizer: Decentralized, record: Record, keep: int
) -> list[Moment]:
    """Return which of this node's other moments to remove after saving one, so that ``keep`` of this training are left."""
    kept = origins[optimizer].kept if optimizer in origins else frozenset()
    runs = {run for run in record.runs if run >= record.first}
    own = [one for one in sorted(others, reverse=True) if one.run in runs and one not in kept]
    needed = find_needed(own, now, optimizer)
    return [old for old in own[keep - 1 :] if old not in needed]


def find_needed(others: list[Moment], now: Moment, optimizer: Decentralized) -> list[Moment]:
    """Return which of this node's other moments, newest first, the nodes may need to have one in common if they die now.

    A node can be a step ahead of each of its neighbors, so n - 1 steps ahead of the last node, which may still be saving. So
    every node has what this training saved n or more steps ago, and the checkpoint that it resumed from. The newest of these
    is needed, and all later ones.
    """
    origin = origins.get(optimizer, Origin("", None))
    common = next((one for one in others if one.run == now.run and one.step <= now.step - optimizer.node.nodes), None)
    if common is None and origin.run != now.run:  # it never loaded, or members have changed since: nothing is known
        return others
    common = common or origin.moment
    return [one for one in others if one == common or (one.run == now.run and (common is None or one > common))]


def _path(folder: Path, name: int) -> Path:
    return folder / f"node-{name}.runs.json"
