"""Error files: why the process of a node failed, for the launcher and for people.

A process that ends with an error writes it to the file that TORCHELASTIC_ERROR_FILE names. torchrun and `perron launch` set this
variable. The format is that of torch, with fields of perron beside it:

    {"message": {"message": "ValueError: ...", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1790000000"}},
     "node": 2, "step": 151, "time": "2026-11-19T05:00:00+00:00", "monotonic": 812.5}

The launcher writes the file of a process that could not do so itself, because it was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from perron._storage.atomic import make_directory, write_bytes
from perron.errors import FileError, NetworkError, strip_control

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LONGEST = 300  # characters of an error that the launcher prints


class Failure(NamedTuple):
    """What an error file says, and where it is."""

    path: Path
    text: str
    node: int | None
    step: int | None
    at: float  # on the monotonic clock, which the processes of a machine share

    def __str__(self) -> str:
        step = "" if self.step is None else f" in step {self.step}"
        return f"node {self.node}{step}: {self.text.rstrip('.')}. See {self.path}"


def write(path: Path, text: str, traceback: str = "", *, node: int | None = None, step: int | None = None) -> None:
    """Write an error file, unless there is one already."""
    now = datetime.now(UTC)
    information = {"py_callstack": traceback, "timestamp": str(int(now.timestamp()))}
    content: dict[str, Any] = {"message": {"message": text, "extraInfo": information}, "node": node, "step": step}
    content |= {"time": now.isoformat(timespec="seconds"), "monotonic": time.monotonic()}
    with suppress(FileError, OSError):
        if not path.exists() or not path.stat().st_size:
            write_bytes(path, json.dumps(content, indent=1).encode())


def read(path: Path) -> Failure | None:
    """Return what an error file says; None if there is none, or if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        message = content["message"]
        text = message if isinstance(message, str) else message["message"]
        words = " ".join(strip_control(str(text)).split())
        at = float(content.get("monotonic", path.stat().st_mtime))
        return Failure(path, words[:LONGEST], content.get("node"), content.get("step"), at)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def find_first(paths: Iterable[Path]) -> Failure | None:
    """Return the failure that came first. A lost neighbor is a failure only if there is no other that explains it."""
    found = [failure for path in paths if (failure := read(path)) is not None]
    return min(found, key=lambda one: (one.text.startswith(NetworkError.__name__), one.at), default=None)


class ErrorFolder:
    """The error files of the processes that a launcher starts.

    Args:
        folder: where they go; a temporary folder if None, which is kept only if the training fails.
    """

    def __init__(self, folder: Path | None) -> None:
        self.temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="perron-")) if folder is None else folder.resolve()
        make_directory(self.folder)

    def path(self, name: str) -> Path:
        """Return the file of a process."""
        return self.folder / f"node-{name}.json"

    def prepare(self, name: str) -> dict[str, str]:
        """Return the variables by which a process finds its file; one of an earlier training is removed."""
        self.path(name).unlink(missing_ok=True)
        return {ERROR_FILE: str(self.path(name))}

    def close(self, *, failed: bool) -> None:
        """Remove a temporary folder, unless it tells why the training failed."""
        if self.temporary and not (failed and any(self.folder.iterdir())):
            shutil.rmtree(self.folder, ignore_errors=True)


def own_file() -> Path | None:
    """Return the error file of this process."""
    name = os.environ.get(ERROR_FILE)
    return Path(name) if name else None
