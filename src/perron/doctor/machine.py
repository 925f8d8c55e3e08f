"""The machine: cores, memory, disk, ports of the loopback interface, the terminal, and the datasets."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from perron.doctor.check import Check, Verdict

LEAST_MEMORY = 2e9  # bytes: PyTorch takes about 0.3 GB in each process
LEAST_DISK = 1e9  # bytes
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container
LOOPBACK = "127.0.0.1"
SILENCE = 5.0  # seconds after which a connection to ourselves counts as blocked


def check_machine() -> Iterator[Check]:
    """Memory, disk, ports, the terminal and cores."""
    yield _check_memory()
    yield check_folder("disk: this folder", Path.cwd(), "Free some, or work in another folder.")
    yield check_folder("disk: temporary", Path(tempfile.gettempdir()), "Free some, or set TMPDIR to another folder.")
    yield check_ports()
    yield _check_terminal()
    from perron.studies.executors import cores  # imports torch, which may fail: the rows above are there then

    yield Check("cores", str(cores()))


def check_datasets() -> Iterator[Check]:
    """The folder of datasets, those that are here, and those that can be fetched."""
    from perron.data import datasets

    folder = datasets.cache("mnist").parent
    yield check_folder("disk: datasets", folder, "Free some, or set PERRON_DATA to another folder.")
    here = [name for name in datasets.TITLES if datasets.find(name)]
    others = [name for name in datasets.TITLES if name not in here]
    yield Check("datasets", ", ".join(["digits", *here]))
    if others:
        yield Check("other datasets", ", ".join(others), Verdict.MISSING, "perron data fetch NAME")


def check_ports() -> Check:
    """Whether a process can listen on the loopback interface and be reached there, as the nodes of a training are."""
    name = "loopback ports"
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            server.settimeout(SILENCE)
            with socket.create_connection(server.getsockname(), timeout=SILENCE):
                server.accept()[0].close()
    except OSError as error:
        return Check(
            name,
            f"{LOOPBACK}: {error.strerror or error}",
            Verdict.PROBLEM,
            "Allow connections within this machine (firewall, sandbox or container): perron launch needs them.",
        )
    return Check(name, "can be bound and reached")


def check_folder(name: str, folder: Path, remedy: str) -> Check:
    """Whether a folder, or the one in which it would be made, can be written and has room."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:,.1f} GB free in {folder}"
    if not os.access(there, os.W_OK):
        return Check(name, f"{there} cannot be written", Verdict.PROBLEM, remedy)
    return Check(name, found, Verdict.PROBLEM, remedy) if free < LEAST_DISK else Check(name, found)


def _check_memory() -> Check:
    if not hasattr(os, "sysconf"):
        return Check("memory", "not known on this system")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            total = min(total, int(Path(path).read_text(encoding="utf-8")))
    found = f"{total / 1e9:.1f} GB"
    if total < LEAST_MEMORY:
        return Check(
            "memory", found, Verdict.PROBLEM, f"Use a machine or a container with {LEAST_MEMORY / 1e9:.0f} GB."
        )
    return Check("memory", found)


def _check_terminal() -> Check:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if not sys.stdout.isatty():
        return Check("terminal", "none: the output goes to a file or a pipe")
    columns, lines = shutil.get_terminal_size()
    found = f"{columns} x {lines}, {sys.stdout.encoding}"
    if encoding != "utf8":
        return Check("terminal", found, Verdict.MISSING, "LANG=C.UTF-8 lets perron watch draw curves.")
    return Check("terminal", found)
