"""What is left on a disk after a power cut: a record of system calls, replayed as a file system may have done them at worst."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CALLS = (
    "openat,write,pwrite64,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync"
)
LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"|<((?:\\x[0-9a-f]{2}|[^<>"])*)>')
MARK = "marker-"


class Call(NamedTuple):
    """A system call: its name, the texts in its arguments, what it returned."""

    name: str
    texts: list[bytes]
    flags: str
    result: int


def tracer() -> list[str]:
    """The command that records."""
    return ["strace", "-f", "-y", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-o"]


def can_trace(folder: Path) -> bool:
    """Whether this machine lets us."""
    try:
        done = subprocess.run([*tracer(), str(folder / "trial"), "true"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def calls(record: Path, folder: Path) -> Iterator[Call]:
    """The calls that changed files in a folder."""
    begun: dict[str, str] = {}
    for line in record.read_text().splitlines():
        process, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", rest):
            rest = begun.pop(process) + rest[resumed.end() :]
        found = LINE.match(rest)
        if found is None:
            continue
        texts = [bytes.fromhex((quoted or shown).replace("\\x", "")) if "\\x" in (quoted or shown) else shown.encode()
                 for quoted, shown in TEXT.findall(found[2])]  # fmt: skip
        if any(text.startswith(str(folder).encode()) for text in texts):
            yield Call(found[1], texts, found[2], int(found[3]))


class Disk:
    """Files and names, each as the programme sees it and as it is on disk for sure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, int | None] = {}  # path within the folder -> number of a file; None: a directory
        self.pending: list[tuple[str, str, int | None]] = []  # ("set" or "del", path, what), not yet on disk
        self.durable: dict[str, int | None] = {}
        self.written: list[bytearray] = []
        self.synced: list[bytes] = []
        self.marked = 0  # the last step of which the programme was told that it is saved

    def do(self, call: Call) -> None:
        """Follow a call."""
        paths = [self.within(text) for text in call.texts]
        if call.name.startswith("unlink") and MARK in (paths[-1] or ""):
            self.marked = int(str(paths[-1]).partition(MARK)[2])
        if call.result < 0:
            return
        path = next((one for one in paths if one is not None), None)
        if path is None:
            return
        if call.name == "openat":
            path = paths[-1] if "O_CREAT" not in call.flags else next(one for one in paths if one not in (None, ""))
            if "O_CREAT" in call.flags and path not in self.names:
                self.written.append(bytearray())
                self.synced.append(b"")
                self.change("set", str(path), len(self.written) - 1)
        elif call.name in ("write", "pwrite64"):
            if (number := self.names.get(path)) is not None:
                self.written[number] += call.texts[-1][: call.result]
        elif call.name in ("fsync", "fdatasync"):
            self.sync(path)
        elif call.name.startswith("mkdir"):
            self.change("set", str(paths[-1]), None)
        elif call.name.startswith(("unlink", "rmdir")):
            self.change("del", str(paths[-1]), None)
        else:
            old, new = [one for one in paths if one is not None][-2:]
            number = self.names[old]
            self.change("set", new, number)
            if call.name.startswith("rename"):
                self.change("del", old, None)

    def within(self, text: bytes) -> str | None:
        """A path as one within the folder."""
        name, top = text.decode(errors="replace"), str(self.folder)
        return name[len(top) + 1 :] if name == top or name.startswith(f"{top}/") else None

    def change(self, what: str, path: str, number: int | None) -> None:
        """A name that is given or taken away; a file's old name goes with its new one (a rename is one thing)."""
        self.pending.append((what, path, number))
        _change(self.names, what, path, number)

    def sync(self, path: str) -> None:
        """A file's content, or a directory's names, are on disk from now on."""
        if (number := self.names.get(path)) is not None:
            self.synced[number] = bytes(self.written[number])
            return
        done = [one for one in self.pending if str(Path(one[1]).parent) == (path or ".")]
        for one in done:
            _change(self.durable, *one)
        self.pending = [one for one in self.pending if one not in done]

    def worst(self) -> Iterator[dict[str, bytes | None]]:
        """What may be there after a power cut: of the names that are not on disk none, all, the first ones, or only one;
        of contents that are not on disk nothing, or half."""
        choices = [self.pending[:many] for many in range(len(self.pending) + 1)]
        choices += [[one] for one in self.pending if one[0] == "del"]  # the worst that can come alone
        for chosen in choices:
            names = dict(self.durable)
            for one in chosen:
                _change(names, *one)
            for half in (False, True):
                found = {path: None if number is None else self.content(number, half) for path, number in names.items()}
                if all(
                    str(Path(path).parent) in (".", *found) for path in found
                ):  # files in directories that are gone, are gone
                    yield found
                else:
                    yield {path: what for path, what in found.items() if _reachable(path, found)}

    def content(self, number: int, half: bool) -> bytes:
        """What is on disk of a file for sure, or half of what was written since, too."""
        sure, all_of_it = self.synced[number], bytes(self.written[number])
        return all_of_it[: (len(sure) + len(all_of_it)) // 2] if half else sure


def _reachable(path: str, found: dict) -> bool:
    return all(str(parent) in found for parent in Path(path).parents if str(parent) != ".")


def _change(names: dict[str, int | None], what: str, path: str, number: int | None) -> None:
    if what == "set":
        names[path] = number
    else:
        names.pop(path, None)


def put(found: dict[str, bytes | None], folder: Path) -> None:
    """Make real files of it."""
    folder.mkdir()
    for path in sorted(found):
        place = folder / path
        if found[path] is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(found[path])
