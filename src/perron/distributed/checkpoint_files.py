"""The files of checkpoints: their names, their formats, and reading those that are not trusted.

    FOLDER/RUN/step-0000000120/node-3.safetensors   of node 3, see `perron._storage.tensorfile`
    FOLDER/RUN/step-0000000120-2/...                after 2 of the gradients of the next step, with local steps
    FOLDER/node-3.runs.json                         the runs that node 3 has taken part in, see `checkpoint_record`

| format | written        | files of node 3                                                                       |
|--------|----------------|---------------------------------------------------------------------------------------|
| 3      | now            | one safetensors file with facts and checksum in it                                    |
| 2      | by version 0.1 | ``node-3.safetensors`` and a manifest ``node-3.json`` that begins with its own size   |
| 1      | before         | as 2, the manifest has only a checksum of its own; the very first ones without RUN/   |

All of them are read. A file of another format raises a `FormatError`, a damaged one a `FileError`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from perron._storage import tensorfile
from perron._storage.atomic import PART, make_directory
from perron.distributed.finite import describe, is_finite
from perron.errors import FileError, FormatError, listed

FORMAT = 3
READABLE = (1, 2, FORMAT)
TYPES: dict[str, type] = {
    "algorithm": str, "network": str, "node": int, "nodes": int, "step": int, "notes": dict, "param_groups": list,
}  # fmt: skip
WRITE_ATTEMPTS = 5  # into a directory that other nodes may remove
BUFFER = "buffer."  # the prefix of the model's buffers
INNER = "inner."  # that of the inner optimizer's state
STATES = "states."  # that of schedulers, generators and other objects of the user


class Moment(NamedTuple):
    """A run, a step of it, and the gradients of the next step that were in; later ones are greater.

    The run is empty in folders of the first format. Where nodes have different numbers of local steps, gradients do not count.
    """

    run: str
    step: int
    received: int = 0

    def within(self, folder: Path) -> Path:
        return folder / self.run / (f"step-{self.step:010d}" + (f"-{self.received}" if self.received else ""))

    def __str__(self) -> str:
        return f"{self.step}" + (f" and {self.received} gradients" if self.received else "")


def find_moments(folder: Path, node: int | None = None) -> list[Moment]:
    """Return the moments of which there are files (of a node, or of any)."""
    places = [
        place for place in _directories(folder) if (numbers := find_nodes(place)) and (node is None or node in numbers)
    ]
    return [_moment(folder, place) for place in places]


def find_nodes(place: Path) -> list[int]:
    """Return the nodes that have files in the directory of a moment."""
    files = [re.fullmatch(r"node-(\d+)\.(?:safetensors|json)", name, re.ASCII) for name in _names(place)]
    return sorted({int(file[1]) for file in files if file})


def read_part(
    folder: Path, moment: Moment, node: int, infinite: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return facts and tensors of a node's part of a checkpoint; the error names the file and the reason.

    Args:
        folder, moment, node: whose part it is.
        infinite: the buffers that may have infinite entries; any other tensor that is not finite counts as damaged.
    """
    path = moment.within(folder) / f"node-{node}.safetensors"
    manifest = path.with_suffix(".json")  # of formats 1 and 2
    try:
        links, old = [one for one in (path, manifest) if one.is_symlink()], manifest.exists()
    except OSError as error:  # a directory that may be listed, but not entered
        raise FileError(f"{path} cannot be read: {error.strerror}.") from None
    if links:
        raise FileError(f"{links[0]} cannot be read: it is a link, which may lead anywhere; copy the file.")
    if not old and _lacks_manifest(path):
        raise FileError(
            f"{path} is damaged: it has {path.stat().st_size:,} bytes, and its manifest {manifest.name} is missing."
        )
    tensors, facts = tensorfile.read_with_manifest(manifest) if old else tensorfile.read(path)
    path = manifest if old else path
    if not isinstance(facts.get("format"), int):
        raise FileError(f"{path} cannot be read: format is {facts.get('format')!r:.80}.")
    if facts["format"] not in READABLE:
        raise FormatError(f"{path} has format {facts['format']}; this version of perron reads {listed(READABLE)}.")
    for name, kind in TYPES.items():
        if not isinstance(facts.get(name), kind):
            raise FileError(f"{path} cannot be read: {name} is {facts.get(name)!r:.80}.")
    if (facts["node"], facts["step"]) != (node, moment.step):
        raise FileError(f"{path} is that of node {facts['node']} and step {facts['step']}: it was put there.")
    if wrong := find_nonfinite(tensors, infinite):
        raise FileError(f"{path} was saved after the training had diverged: it is not finite in {wrong}.")
    return facts, tensors


def find_nonfinite(tensors: dict[str, Tensor], infinite: frozenset[str]) -> str:
    """Return the names of the tensors that are not finite; in the buffers ``infinite``, only NaN counts.

    Objects of the user may have states of any value.
    """
    return listed(
        f"{name} ({describe(tensor)})"
        for name, tensor in tensors.items()
        if not name.startswith(STATES)
        and not is_finite(tensor)
        and (name.removeprefix(BUFFER) not in infinite or bool(tensor.isnan().any()))
    )


def saved_by(folder: Path, moment: Moment) -> int | None:
    """Return the number of nodes that saved a checkpoint; None if no part of it can be read."""
    for number in find_nodes(moment.within(folder)):
        with suppress(FileError):
            return int(read_part(folder, moment, number)[0]["nodes"])
    return None


def write_part(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
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


def remove_part(folder: Path, moment: Moment, node: int) -> None:
    """Remove a node's part of a checkpoint, and the directories if they are empty then."""
    place = moment.within(folder)
    for suffix in (".json", ".safetensors"):
        (place / f"node-{node}{suffix}").unlink(missing_ok=True)
    _remove_empty(place)


def remove_partial(folder: Path, node: int, runs: set[str]) -> None:
    """Remove files that earlier processes of this node, killed while saving in these runs, left behind."""
    for place in _directories(folder):
        if _moment(folder, place).run in runs:
            for name in _names(place):
                partial = PART.fullmatch(name)
                if partial and partial[1] in (f"node-{node}.json", f"node-{node}.safetensors"):
                    (place / name).unlink(missing_ok=True)
            _remove_empty(place)


def _remove_empty(place: Path) -> None:
    with suppress(OSError):  # another node's part is still there, or that node has removed it
        place.rmdir()
        place.parent.rmdir()


def _lacks_manifest(path: Path) -> bool:
    """Return whether a file is one of format 1 or 2, which have no checksum in them."""
    with suppress(FileError):
        return path.is_file() and tensorfile.CHECKSUM not in tensorfile.header_of(path)[1]
    return False


def _names(folder: Path) -> list[str]:
    """Return the names in a directory, none if another node has removed it. Links to directories are left out."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not (entry.is_symlink() and entry.is_dir()))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _directories(folder: Path) -> list[Path]:
    """Return the directories of all moments."""
    names = _names(folder)
    places = [folder / name for name in names] + [folder / run / name for run in names for name in _names(folder / run)]
    return [place for place in places if re.fullmatch(r"step-\d+(-\d+)?", place.name, re.ASCII)]


def _moment(folder: Path, place: Path) -> Moment:
    numbers = map(int, place.name.removeprefix("step-").split("-"))
    return Moment("" if place.parent == folder else place.parent.name, *numbers)
