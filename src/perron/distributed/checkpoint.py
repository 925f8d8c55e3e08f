"""Checkpoints: each node saves its own state; loading verifies it, falls back to an older one, and agrees with the others.

    FOLDER/RUN/step-0000000120/node-3.safetensors   of node 3: the algorithm's state, the model's buffers, torch's random state
    FOLDER/RUN/step-0000000120/node-3.json          step, network, parameter groups, your own notes; size and sha256 of both files

RUN is the name of a training (the time at which its optimizer was made), so that parts of different trainings never mix. The JSON
file is written last and commits the other. Nothing is pickled. A file that was cut short or whose bits were flipped does not
count as saved, and is named. FOLDER/node-3.lock is held by the process that is node 3, until it ends: another training in the
same folder is refused. Not saved: schedulers, GradScaler, random states other than torch's own on the CPU; put what you
need into ``notes``.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import save as bytes_of
from torch import Tensor

from perron._modules import average_buffers
from perron._storage import tensorfile as saved
from perron._storage.atomic import PART, make_directory, write_bytes
from perron._storage.lockfile import acquire_lock
from perron.distributed.consistency import gathered
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import START_TIMEOUT
from perron.errors import FileError, PerronError, listed

FORMAT = 2
KINDS: dict[str, type] = {
    "format": int, "algorithm": str, "network": str, "node": int, "nodes": int, "step": int, "size": int, "sha256": str,
    "notes": dict, "param_groups": list,
}  # fmt: skip
LARGEST = 2**28  # bytes of a manifest
TRIALS = 5  # of writing into a directory that goes away
# What a training went on from, with its name; None if there was nothing.
_origins: WeakKeyDictionary[Decentralized, tuple[str, Moment | None]] = WeakKeyDictionary()
_held: dict[tuple[int, Path], Any] = {}  # locks, by process and file; until the process ends


@dataclass(frozen=True)
class Checkpoint:
    """What was loaded: the step it was taken after, your notes, and a remark if not everything could be taken over."""

    step: int
    notes: dict[str, Any]
    remark: str = ""


class Moment(NamedTuple):
    """A training and a step of it; later ones are greater."""

    run: str
    step: int

    def within(self, folder: Path) -> Path:
        """Its directory."""
        return folder / self.run / f"step-{self.step:010d}"


def save(folder: str | Path, optimizer: Decentralized, *, notes: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Save this node's part of a checkpoint; call it on every node after the same step.

    Args:
        folder: the same on all nodes, or one on each machine's own disk.
        notes: anything that JSON can hold, as the epoch.
        keep: how many checkpoints to keep, 2 or more (nodes do not save at the same moment). Older ones of this node are removed,
            but never the newest that every other node is sure to have: where saves are few steps apart, more are kept.
    """
    _check_pace(optimizer)
    if keep < 2:
        raise FileError(f"keep must be 2 or more, since nodes do not save at the same moment; got {keep}.")
    folder, state = Path(folder), optimizer.state_dict()
    own = state["perron"]
    make_directory(folder)
    _hold(folder, optimizer)
    tensors = {f"state.{name}": value for name, value in own["state"].items()}
    tensors |= {"last": own["last"], "random": torch.get_rng_state()}
    if optimizer.model is not None:
        tensors |= {f"buffer.{name}": buffer for name, buffer in optimizer.model.named_buffers()}
    content = bytes_of({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})
    facts = {name: own[name] for name in ("algorithm", "network", "node", "nodes", "step")}
    facts |= {"format": FORMAT, "size": len(content), "sha256": sha256(content).hexdigest(), "notes": notes or {}}
    try:
        manifest = _sealed(json.dumps(facts | {"param_groups": state["param_groups"]}).encode()[1:])
    except (TypeError, ValueError) as error:
        raise FileError(f"A checkpoint's notes and parameter groups must be plain JSON values: {error}.") from None
    now = Moment(optimizer.born, own["step"])
    target = now.within(folder)
    again = (target / f"node-{own['node']}.json").exists()
    try:
        _write(target / f"node-{own['node']}.safetensors", content)
        _write(target / f"node-{own['node']}.json", manifest)
    except FileError:
        if not again:
            _remove(target, own["node"])  # half of it is of no use, and takes space that is short
        raise
    others = sorted(set(_moments(folder, own["node"])) - {now}, reverse=True)
    needed = _needed(others, now, optimizer)
    for old in others[keep - 1 :]:
        if old not in needed:
            _remove(old.within(folder), own["node"])
    return target


def load(folder: str | Path, optimizer: Decentralized) -> Checkpoint | None:
    """Go on from the newest checkpoint that every node can read; None if there is none.

    With as many nodes as saved it, training goes on bit for bit. With another number, every node takes the average of the saved
    models that it finds, and the algorithm starts anew from there. A warning says so, and also if newer checkpoints were left
    aside because they are damaged or not there on every node. A process that joined a training under way loads nothing.
    """
    _check_pace(optimizer)
    folder = Path(folder)
    texts: list[str] = []

    def tell() -> None:
        number, nodes = optimizer.node.number, optimizer.node.nodes
        found: dict[str, Any] = {"mine": [], "foreign": [], "seen": _moments(folder, number), "wrong": []}
        for moment in _moments(folder):
            by = _saved_by(folder, moment)
            if by is not None and by != nodes:
                found["foreign"].append(moment)
            elif moment in found["seen"]:
                try:
                    _read(folder, moment, number)
                    found["mine"].append(moment)
                except FileError as error:
                    found["wrong"].append([*moment, f"Node {number}: {error}"])
        texts[:] = gathered(json.dumps(found), optimizer.node.peers, START_TIMEOUT)

    if optimizer.joined:
        return None
    with suppress(FileError):  # one may load from where one may not write
        make_directory(folder)
        _hold(folder, optimizer)
    if not optimizer.together("load", tell):
        return None
    everybody = [json.loads(text) for text in texts]
    told = [{key: {Moment(*one) for one in each[key]} for key in ("mine", "foreign", "seen")} for each in everybody]
    same, other = (set.intersection(*(one[key] for one in told)) for key in ("mine", "foreign"))
    latest = max((moment.run for one in told for moment in one["seen"]), default="")
    if latest >= optimizer.born and (number := latest.partition("-")[0]).isdecimal():
        # The clock was set back: what is saved from now on must still count as newer.
        optimizer.born = f"{int(number) + 1:020d}-{optimizer.born.partition('-')[2]}"
    chosen = max(same | other, default=None)
    _origins[optimizer] = (optimizer.born, chosen)
    newer = sorted(moment for moment in set.union(*(one["seen"] for one in told)) if chosen is None or moment > chosen)
    wrong = [why for one in everybody for run, step, why in one["wrong"] if Moment(run, step) in newer]
    wrong += [
        f"Node {number} has none of {one.step}."
        for one in newer
        for number, each in enumerate(told)
        if one not in each["seen"]
    ]
    steps = ", ".join(str(one.step) for one in newer)
    remark = (
        f"Checkpoints of step {steps} are damaged or not there on every node. {listed(wrong, sep=' ')}" if newer else ""
    )
    if chosen is None:
        if remark:
            warnings.warn(f"{remark} Nothing was loaded.", stacklevel=2)
        return None
    try:
        found = (_resume if chosen in same else _adopt)(folder, chosen, optimizer, remark)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:  # whole, but not what we would write
        raise FileError(f"{chosen.within(folder)} is not a checkpoint of this model: {error!r:.200}.") from None
    if found.remark:
        warnings.warn(found.remark, stacklevel=2)
    return found


def _resume(folder: Path, moment: Moment, optimizer: Decentralized, remark: str) -> Checkpoint:
    manifest, tensors = _read(folder, moment, optimizer.node.number)
    own = {name: manifest[name] for name in ("algorithm", "network", "node", "nodes", "step")}
    own |= {"last": tensors["last"], "state": saved.part(tensors, "state.")}
    optimizer.load_state_dict({"state": {}, "param_groups": manifest["param_groups"], "perron": own})
    _set_buffers(optimizer, saved.part(tensors, "buffer."))
    torch.set_rng_state(tensors["random"])
    return Checkpoint(moment.step, manifest["notes"], remark)


def _adopt(folder: Path, moment: Moment, optimizer: Decentralized, remark: str) -> Checkpoint:
    """The average of what another number of nodes saved."""
    by = _saved_by(folder, moment) or 0
    found, wrong = [], []
    for number in range(by):
        if (moment.within(folder) / f"node-{number}.json").exists():  # others may be on other machines
            try:
                found.append(_read(folder, moment, number))
            except FileError as error:
                wrong.append(str(error))
    if not found:
        raise FileError(f"None of the files in {moment.within(folder)} can be read. {listed(wrong, sep=' ')}")
    optimizer.take(torch.stack([tensors["state.x"] for _, tensors in found]).mean(0))
    optimizer.node.step = moment.step
    for own, old in zip(optimizer.param_groups, found[0][0]["param_groups"], strict=False):
        own.update({key: value for key, value in old.items() if key != "params"})
    parts = [saved.part(tensors, "buffer.") for _, tensors in found]
    together: dict[str, list[Tensor]] = defaultdict(list)
    for part in parts:
        for name, value in part.items():
            together[name].append(value)
    floats = {name: torch.stack(values) for name, values in together.items() if values[0].is_floating_point()}
    _set_buffers(optimizer, parts[0] | average_buffers(floats))
    said = (
        f"The checkpoint of step {moment.step} was saved by {by} nodes, now there are {optimizer.node.nodes}: all start from "
        f"the average of the {len(found)} models found, and the algorithm starts anew."
    )
    return Checkpoint(moment.step, found[0][0]["notes"], " ".join(part for part in (remark, *wrong, said) if part))


def _needed(others: list[Moment], now: Moment, optimizer: Decentralized) -> list[Moment]:
    """Those of this node's other moments, newest first, without which all nodes might have none in common if they died now.

    A node can be a step ahead of each of its neighbours, so n - 1 ahead of the last one, who may just be saving. So what this
    training saved n steps ago or before is there on every node, and what it went on from. That, and what came later, is needed.
    """
    run, begun = _origins.get(optimizer, ("", None))
    mine = [one for one in others if one.run == now.run]
    common = next((one for one in mine if one.step <= now.step - optimizer.node.nodes), None)
    if common is None and run != now.run:  # it never loaded, or members have changed since: nobody knows
        return others
    common = common or begun
    return [one for one in others if one == common or (one.run == now.run and (common is None or one > common))]


def _check_pace(optimizer: Decentralized) -> None:
    if optimizer.asynchronous:
        raise PerronError(
            "Checkpoints are taken after the same step on every node, and asynchronous nodes do not step together. Save the "
            "averaged model (optimizer.averaged_model()), or leave out asynchronous=True."
        )


def _hold(folder: Path, optimizer: Decentralized) -> None:
    """This process is the only one that saves as this node (the number that stays when others go); at first it clears up."""
    number = optimizer.node.name
    place = (os.getpid(), (folder / f"node-{number}.lock").absolute())
    if place not in _held:
        busy = f"Another training saves as node {number} into {folder}"
        _held[place] = acquire_lock(place[1], busy, "wait for it, end it, or choose another folder")
        _clear(folder, optimizer.node.number, optimizer.born)


def _write(path: Path, content: bytes) -> None:
    """A file in a directory that others remove when they are ahead and find it empty."""
    for left in reversed(range(TRIALS)):
        make_directory(path.parent)
        try:
            write_bytes(path, content)
        except FileError:
            if path.parent.exists() or not left:
                raise
        else:
            return


def _clear(folder: Path, node: int, run: str) -> None:
    """Remove what earlier processes of this node that were killed in the middle of a save left behind."""
    for place in _places(folder):
        if place.parent.name != run:
            names = set(_names(place))
            for name in names:
                part = PART.fullmatch(name)
                half = name == f"node-{node}.safetensors" and f"node-{node}.json" not in names
                if half or (part and part[1] in (f"node-{node}.json", f"node-{node}.safetensors")):
                    (place / name).unlink(missing_ok=True)
            _remove_empty(place)


def _names(folder: Path) -> list[str]:
    """What is in a directory; nothing if another node has removed it. Links are left alone: they lead elsewhere."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not (entry.is_symlink() and entry.is_dir()))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _places(folder: Path) -> list[Path]:
    """The directories of checkpoints."""
    found = [folder / run / name for run in _names(folder) for name in _names(folder / run)]
    return [place for place in found if re.fullmatch(r"step-\d+", place.name, re.ASCII)]


def _moments(folder: Path, node: int | None = None) -> list[Moment]:
    """All of which there are files (of a node, or of any)."""
    wanted = re.compile(rf"node-{r'.*' if node is None else node}\.json")
    places = [place for place in _places(folder) if any(map(wanted.fullmatch, _names(place)))]
    return [Moment(place.parent.name, int(place.name.removeprefix("step-"))) for place in places]


def _saved_by(folder: Path, moment: Moment) -> int | None:
    """How many nodes saved a checkpoint, as the first readable file says."""
    place = moment.within(folder)
    for name in _names(place):
        if name.startswith("node-") and name.endswith(".json"):
            with suppress(FileError):
                return int(_manifest(place / name)["nodes"])
    return None


def _sealed(rest: bytes) -> bytes:
    """A manifest, given without its opening brace. Its size and checksum come first: a stump tells how long it was."""
    return f'{{"own_size": {HEAD + len(rest):12d}, "own_sha256": "{sha256(rest).hexdigest()}", '.encode() + rest


HEAD = len(f'{{"own_size": {0:12d}, "own_sha256": "{"":64}", ')


def _manifest(path: Path) -> dict[str, Any]:
    """What a manifest says; an error that names it, if it is not whole or not one of ours."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
            raise FileError(f"{path} cannot be read: it is not there, a link, or far too large.")
        content = path.read_bytes()
    except OSError as error:  # another node may just have removed it
        raise FileError(f"{path} cannot be read: {error.strerror}.") from None
    if content != _sealed(content[HEAD:]):
        said = re.match(rb'\{"own_size": +(\d+), "own_sha256": "(\w{64})", ', content)
        size = f"it has {len(content):,} bytes"
        if said is None:
            raise FileError(
                f"{path} is damaged: {size}, and does not begin as a manifest of {HEAD:,} bytes or more does."
            )
        if int(said[1]) != len(content):
            raise FileError(f"{path} is damaged: {size} instead of {int(said[1]):,}.")
        found = sha256(content[HEAD:]).hexdigest()
        raise FileError(f"{path} is damaged: {size}, with {saved.differs(found, said[2].decode())}.")
    try:
        manifest = saved.plain_json(content)
    except ValueError as error:
        raise FileError(f"{path} cannot be read: {error}.") from None
    for name, kind in KINDS.items():
        if not isinstance(manifest.get(name), kind):
            raise FileError(f"{path} cannot be read: {name} is {manifest.get(name)!r:.80}.")
    if manifest["format"] != FORMAT:
        raise FileError(f"{path} has format {manifest['format']}; this version of perron reads {FORMAT}.")
    return manifest


def _read(folder: Path, moment: Moment, node: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A node's part of a checkpoint; an error that names the file and what is wrong with it, if it is not whole."""
    path = moment.within(folder) / f"node-{node}.json"
    manifest, data = _manifest(path), path.with_suffix(".safetensors")
    if (manifest["node"], manifest["step"]) != (node, moment.step):
        raise FileError(f"{path} is that of node {manifest['node']} and step {manifest['step']}: it was put there.")
    if data.is_symlink():
        raise FileError(f"{data} cannot be read: it is a link, which may lead anywhere; copy the file.")
    size = data.stat().st_size if data.is_file() else None
    if size is not None and size != manifest["size"]:
        raise FileError(f"{data} is damaged: it has {size:,} bytes instead of {manifest['size']:,}.")
    size, digest, _ = saved.measured(data)
    if digest.hex() != manifest["sha256"]:
        raise FileError(
            f"{data} is damaged: it has {size:,} bytes, with {saved.differs(digest.hex(), manifest['sha256'])}."
        )
    return manifest, saved.contents(data)[0]


def _set_buffers(optimizer: Decentralized, buffers: dict[str, Tensor]) -> None:
    if optimizer.model is not None:
        with torch.no_grad():
            for name, buffer in optimizer.model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _remove(place: Path, node: int) -> None:
    """A node's part of an old checkpoint, the manifest first; the directories, if nothing is left in them."""
    for suffix in (".json", ".safetensors"):
        (place / f"node-{node}{suffix}").unlink(missing_ok=True)
    _remove_empty(place)


def _remove_empty(place: Path) -> None:
    with suppress(OSError):  # another node's part is still there, or it was the one to remove it
        place.rmdir()
        place.parent.rmdir()
