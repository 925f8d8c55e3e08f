"""What is installed, what this machine offers, and whether perron works here: the rows that `perron doctor` prints.

software.py     versions of the dependencies, and the extras, from the metadata of the installed package
machine.py      cores, memory, disk, loopback ports, terminal, datasets
self_test.py    a simulation and a training with two processes (`trainee.py`), compared with a closed form and each other
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perron.doctor import machine, self_test, software
from perron.doctor.check import Check, Verdict

__all__ = ["Check", "Verdict", "examine", "test"]


def examine() -> Iterator[Check]:
    """Yield the checks that take no time: software, machine, datasets."""
    for check in (software.check_dependencies, software.check_extras, machine.check_machine, machine.check_datasets):
        yield from _guarded(check)


def test() -> Iterator[Check]:
    """Yield the checks of the self-test, which takes some seconds."""
    for check in (self_test.check_simulation, self_test.check_training):
        yield from _guarded(check)


def _guarded(check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Yield the checks of a function, and its error as a problem: a broken installation can raise any."""
    try:
        yield from check()
    except Exception as error:
        name = check.__name__.removeprefix("check_")
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield Check(
            name, message, Verdict.PROBLEM, "Install perron again in a new environment; if it stays, report it."
        )
