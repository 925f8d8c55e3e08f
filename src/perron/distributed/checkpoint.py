"""Checkpoints: each node saves its own state; loading verifies it, falls back to an older one, and agrees with the others.

    FOLDER/RUN/step-0000000120/node-3.safetensors   of node 3, see `perron._storage.tensorfile`

A file holds the algorithm's state, the model's buffers and torch's random state on the CPU; its facts are the step, the network,
the parameter groups and the user's notes (for the states of schedulers and the like, which are not saved). RUN is the `run_id` of
the training, so that parts of different trainings never mix. A damaged file does not count as saved, and is named. The process
that is node 3 locks FOLDER/node-3.lock until it ends: another training in the same folder is refused.

Version 0.1 wrote a manifest ``node-3.json`` beside each file; such checkpoints are read, too.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from perron._modules import average_buffers
from perron._storage import tensorfile
from perron._storage.atomic import PART, make_directory
from perron._storage.lockfile import acquire_lock
from perron.distributed.collective import retry_collective
from perron.distributed.consistency import gather_texts
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import START_TIMEOUT
from perron.errors import FileError, PerronError, listed

FORMAT = 3
READABLE = (2, FORMAT)
IDENTITY = ("algorithm", "network", "node", "nodes", "step")
TYPES: dict[str, type] = {
    "format": int, "algorithm": str, "network": str, "node": int, "nodes": int, "step": int, "notes": dict, "param_groups": list,
}  # fmt: skip
WRITE_ATTEMPTS = 5  # into a directory that other nodes may remove
# The run id of a training and the checkpoint that it resumed from; None if it began without one.
_origins: WeakKeyDictionary[Decentralized, tuple[str, Moment | None]] = WeakKeyDictionary()
_locks: dict[tuple[int, Path], Any] = {}  # by process and file; held until the process ends


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was loaded: its step, the user's notes, and a remark if not everything could be restored."""

    step: int
    notes: dict[str, Any]
    remark: str = ""


class Moment(NamedTuple):
    """A run and a step of it; later ones are greater."""

    run: str
    step: int

    def within(self, folder: Path) -> Path:
        return folder / self.run / f"step-{self.step:010d}"


def save(folder: str | Path, optimizer: Decentralized, *, notes: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Save this node's part of a checkpoint; call it on every node after the same step.

    Args:
        folder: the same on all nodes, or one on each machine's own disk.
        notes: anything that JSON can represent, as the epoch.
        keep: the number of checkpoints to keep, 2 or more (nodes do not save at the same moment). Older ones of this node are
            removed, but never the newest that every other node is sure to have: where saves are few steps apart, more are kept.
    """
    _refuse_asynchronous(optimizer)
    if keep < 2:
        raise FileError(f"keep must be 2 or more, since nodes do not save at the same moment; got {keep}.")
    folder, state = Path(folder), optimizer.state_dict()
    own = state["perron"]
    number, now = own["node"], Moment(optimizer.run_id, own["step"])
    make_directory(folder)
    _lock(folder, optimizer)
    tensors = {f"state.{name}": value for name, value in own["state"].items()}
    tensors |= {"last": own["last"], "random": torch.get_rng_state()}
    if optimizer.model is not None:
        tensors |= {f"buffer.{name}": buffer for name, buffer in optimizer.model.named_buffers()}
    facts = {"format": FORMAT} | {name: own[name] for name in IDENTITY}
    facts |= {"notes": notes or {}, "param_groups": state["param_groups"]}
    try:
        json.dumps(facts)
    except (TypeError, ValueError) as error:
        raise FileError(f"A checkpoint's notes and parameter groups must be plain JSON values: {error}.") from None
    target = now.within(folder)
    _write(target / f"node-{number}.safetensors", tensors, facts)
    others = sorted(set(_moments(folder, number)) - {now}, reverse=True)
    needed = _needed(others, now, optimizer)
    for old in others[keep - 1 :]:
        if old not in needed:
            _remove(old.within(folder), number)
    return target


def load(folder: str | Path, optimizer: Decentralized) -> Checkpoint | None:
    """Resume from the newest checkpoint that every node can read; return None if there is none.

    With the number of nodes that saved it, training resumes bit for bit. With another number, every node starts from the
    average of the saved models that it finds, and the algorithm restarts. A warning says so, and also if newer checkpoints
    were skipped because they are damaged or missing on a node. A process that joined a running training loads nothing.
    """
    _refuse_asynchronous(optimizer)
    if optimizer.joined:
        return None
    folder = Path(folder)
    with suppress(FileError):  # loading from a read-only folder is allowed
        make_directory(folder)
        _lock(folder, optimizer)
    texts: list[str] = []

    def exchange() -> None:
        texts[:] = gather_texts(json.dumps(_inspect(folder, optimizer)), optimizer.node.peers, START_TIMEOUT)

    if not retry_collective(optimizer, "load", exchange):
        return None
    reports = [json.loads(text) for text in texts]
    same, other, seen = ([{Moment(*one) for one in each[key]} for each in reports] for key in ("same", "other", "seen"))
    common = set.intersection(*same)
    chosen = max(common | set.intersection(*other), default=None)
    _keep_run_id_newest(optimizer, max((moment.run for each in seen for moment in each), default=""))
    _origins[optimizer] = (optimizer.run_id, chosen)
    newer = sorted(moment for moment in set.union(*seen) if chosen is None or moment > chosen)
    remark = ""
    if newer:
        damage = [text for each in reports for run, step, text in each["damage"] if Moment(run, step) in newer]
        damage += [
            f"Node {number} has none of {moment.step}."
            for moment in newer
            for number, each in enumerate(seen)
            if moment not in each
        ]
        steps = ", ".join(str(moment.step) for moment in newer)
        remark = f"Checkpoints of step {steps} are damaged or not there on every node. {listed(damage, sep=' ')}"
    if chosen is None:
        if remark:
            warnings.warn(f"{remark} Nothing was loaded.", stacklevel=2)
        return None
    try:
        checkpoint = (_resume if chosen in common else _average)(folder, chosen, optimizer, remark)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:  # intact, but not written by `save`
        raise FileError(f"{chosen.within(folder)} is not a checkpoint of this model: {error!r:.200}.") from None
    if checkpoint.remark:
        warnings.warn(checkpoint.remark, stacklevel=2)
    return checkpoint


def _inspect(folder: Path, optimizer: Decentralized) -> dict[str, list[Any]]:
    """Return the moments with files of this node; those of this number of nodes, and of another; and descriptions of damage."""
    number, nodes = optimizer.node.number, optimizer.node.nodes
    seen = _moments(folder, number)
    report: dict[str, list[Any]] = {"same": [], "other": [], "seen": seen, "damage": []}
    for moment in _moments(folder):
        damage = ""
        try:
            saved_by = _read(folder, moment, number)[0]["nodes"]
        except FileError as error:
            saved_by, damage = _saved_by(folder, moment), f"Node {number}: {error}"
        if saved_by not in (None, nodes):
            report["other"].append(moment)
        elif not damage:
            report["same"].append(moment)
        elif moment in seen:
            report["damage"].append([*moment, damage])
    return report


def _keep_run_id_newest(optimizer: Decentralized, latest: str) -> None:
    """Raise the run id above those in the folder, if the clock was set back: the next checkpoints have to count as newer."""
    if latest >= optimizer.run_id and (number := latest.partition("-")[0]).isdecimal():
        optimizer.run_id = f"{int(number) + 1:020d}-{optimizer.run_id.partition('-')[2]}"


def _resume(folder: Path, moment: Moment, optimizer: Decentralized, remark: str) -> Checkpoint:
    facts, tensors = _read(folder, moment, optimizer.node.number)
    own = {name: facts[name] for name in IDENTITY}
    own |= {"last": tensors["last"], "state": tensorfile.part(tensors, "state.")}
    optimizer.load_state_dict({"state": {}, "param_groups": facts["param_groups"], "perron": own})
    _set_buffers(optimizer, tensorfile.part(tensors, "buffer."))
    torch.set_rng_state(tensors["random"])
    return Checkpoint(moment.step, facts["notes"], remark)


def _average(folder: Path, moment: Moment, optimizer: Decentralized, remark: str) -> Checkpoint:
    """Start from the average of the models that another number of nodes saved."""
    readable, damage = [], []
    for number in _numbers(moment.within(folder)):  # others may be on other machines
        try:
            readable.append(_read(folder, moment, number))
        except FileError as error:
            damage.append(str(error))
    if not readable:
        raise FileError(f"None of the files in {moment.within(folder)} can be read. {listed(damage, sep=' ')}")
    facts = readable[0][0]
    optimizer.set_parameters(torch.stack([tensors["state.x"] for _, tensors in readable]).mean(0))
    optimizer.node.step = moment.step
    for own, old in zip(optimizer.param_groups, facts["param_groups"], strict=False):
        own.update({key: value for key, value in old.items() if key != "params"})
    buffers: dict[str, list[Tensor]] = defaultdict(list)
    for _, tensors in readable:
        for name, value in tensorfile.part(tensors, "buffer.").items():
            buffers[name].append(value)
    floats = {name: torch.stack(values) for name, values in buffers.items() if values[0].is_floating_point()}
    _set_buffers(optimizer, {name: values[0] for name, values in buffers.items()} | average_buffers(floats))
    text = (
        f"The checkpoint of step {moment.step} was saved by {facts['nodes']} nodes, now there are {optimizer.node.nodes}: all "
        f"start from the average of the {len(readable)} models found, and the algorithm restarts."
    )
    return Checkpoint(moment.step, facts["notes"], " ".join(part for part in (remark, *damage, text) if part))


def _set_buffers(optimizer: Decentralized, buffers: dict[str, Tensor]) -> None:
    if optimizer.model is not None:
        with torch.no_grad():
            for name, buffer in optimizer.model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _refuse_asynchronous(optimizer: Decentralized) -> None:
    if optimizer.asynchronous:
        raise PerronError(
            "Checkpoints are taken after the same step on every node, and asynchronous nodes do not step together. Save the "
            "averaged model (optimizer.averaged_model()), or leave out asynchronous=True."
        )


# ---- retention


def _needed(others: list[Moment], now: Moment, optimizer: Decentralized) -> list[Moment]:
    """Return which of this node's other moments, newest first, the nodes may need to have one in common if they die now.

    A node can be a step ahead of each of its neighbors, so n - 1 steps ahead of the last node, which may still be saving. So
    every node has what this training saved n or more steps ago, and the checkpoint that it resumed from. The newest of these
    is needed, and all later ones.
    """
    run, origin = _origins.get(optimizer, ("", None))
    common = next((one for one in others if one.run == now.run and one.step <= now.step - optimizer.node.nodes), None)
    if common is None and run != now.run:  # it never loaded, or members have changed since: nothing is known
        return others
    common = common or origin
    return [one for one in others if one == common or (one.run == now.run and (common is None or one > common))]


def _lock(folder: Path, optimizer: Decentralized) -> None:
    """Make this process the only one that saves as this node (by the name that stays when others leave)."""
    name = optimizer.node.name
    key = (os.getpid(), (folder / f"node-{name}.lock").absolute())
    if key not in _locks:
        busy = f"Another training saves as node {name} into {folder}"
        _locks[key] = acquire_lock(key[1], busy, "wait for it, end it, or choose another folder")
        _remove_partial(folder, optimizer.node.number, optimizer.run_id)


def _remove_partial(folder: Path, node: int, run: str) -> None:
    """Remove files that earlier processes of this node, killed while saving, left behind."""
    for place in _directories(folder):
        if place.parent.name != run:
            for name in _names(place):
                partial = PART.fullmatch(name)
                if partial and partial[1] in (f"node-{node}.json", f"node-{node}.safetensors"):
                    (place / name).unlink(missing_ok=True)
            _remove_empty(place)


def _remove(place: Path, node: int) -> None:
    """Remove a node's part of a checkpoint, and the directories if they are empty then."""
    for suffix in (".json", ".safetensors"):
        (place / f"node-{node}{suffix}").unlink(missing_ok=True)
    _remove_empty(place)


def _remove_empty(place: Path) -> None:
    with suppress(OSError):  # another node's part is still there, or that node has removed it
        place.rmdir()
        place.parent.rmdir()


# ---- files


def _write(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write a file into a directory that nodes which are ahead remove when they find it empty."""
    for left in reversed(range(WRITE_ATTEMPTS)):
        make_directory(path.parent)
        try:
            tensorfile.write(path, tensors, facts)
            return
        except FileError:
            if path.parent.exists() or not left:
                _remove_empty(path.parent)
                raise


def _read(folder: Path, moment: Moment, node: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return facts and tensors of a node's part of a checkpoint; the error names the file and the damage."""
    path = moment.within(folder) / f"node-{node}.safetensors"
    manifest = path.with_suffix(".json")  # of version 0.1
    try:
        links, old = [one for one in (path, manifest) if one.is_symlink()], manifest.exists()
    except OSError as error:  # a directory that may be listed, but not entered
        raise FileError(f"{path} cannot be read: {error.strerror}.") from None
    if links:
        raise FileError(f"{links[0]} cannot be read: it is a link, which may lead anywhere; copy the file.")
    if old:
        path = manifest
        tensors, facts = tensorfile.read_with_manifest(manifest)
    else:
        tensors, facts = tensorfile.read(path)
    for name, kind in TYPES.items():
        if not isinstance(facts.get(name), kind):
            raise FileError(f"{path} cannot be read: {name} is {facts.get(name)!r:.80}.")
    if facts["format"] not in READABLE:
        raise FileError(f"{path} has format {facts['format']}; this version of perron reads {listed(READABLE)}.")
    if (facts["node"], facts["step"]) != (node, moment.step):
        raise FileError(f"{path} is that of node {facts['node']} and step {facts['step']}: it was put there.")
    return facts, tensors


def _saved_by(folder: Path, moment: Moment) -> int | None:
    for number in _numbers(moment.within(folder)):
        with suppress(FileError):
            return int(_read(folder, moment, number)[0]["nodes"])
    return None


def _names(folder: Path) -> list[str]:
    """Return the names in a directory, none if another node has removed it. Links to directories are left out."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not (entry.is_symlink() and entry.is_dir()))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _numbers(place: Path) -> list[int]:
    files = [re.fullmatch(r"node-(\d+)\.(?:safetensors|json)", name, re.ASCII) for name in _names(place)]
    return sorted({int(file[1]) for file in files if file})


def _directories(folder: Path) -> list[Path]:
    places = [folder / run / name for run in _names(folder) for name in _names(folder / run)]
    return [place for place in places if re.fullmatch(r"step-\d+", place.name, re.ASCII)]


def _moments(folder: Path, node: int | None = None) -> list[Moment]:
    """Return the moments of which there are files (of a node, or of any)."""
    places = [
        place for place in _directories(folder) if (numbers := _numbers(place)) and (node is None or node in numbers)
    ]
    return [Moment(place.parent.name, int(place.name.removeprefix("step-"))) for place in places]
