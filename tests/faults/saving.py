"""Processes that save, for the tests that kill them, cut their power or fill their disk: saving.py WHAT KIND FOLDER [MORE].

They are forked from one that has imported everything, so that a trial takes a fraction of a second.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from kinds import KINDS, group

import perron


def forked(action) -> int:
    """Do something in a child; its number."""
    child = os.fork()
    if child == 0:
        try:
            with group():
                action()
                sys.stdout.flush()
                os._exit(0)
        finally:
            os._exit(1)
    return child


def say(**facts) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def parts(folder: Path) -> int:
    """How many files were left half-written."""
    return sum(path.name.endswith(".part") for path in folder.rglob("*"))


def written(folder: Path) -> dict[Path, int]:
    """When which file was written."""
    while True:
        with suppress(FileNotFoundError):  # removed while we look
            return {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}


def killed(kind, folder: Path, trials: int) -> None:
    """A process that saves all the time is killed; another loads at once. Again and again."""
    dice = random.Random(5)

    def forever() -> None:
        one = kind(folder, width=100)
        step, _ = one.load()
        if kind.name == "simulation":
            one.step = step
        while True:
            one.save()

    def loaded() -> None:
        step, said = kind(folder, width=100).load()
        say(step=step, said=said, left=left)

    for _ in range(trials):
        before = written(folder)
        child = forked(forever)
        while written(folder) == before:
            time.sleep(0.02)
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                raise RuntimeError("it ended by itself")
        time.sleep(dice.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = parts(folder)
        os.waitpid(forked(loaded), 0)

    def once_more() -> None:
        one = kind(folder, width=100)
        one.step = one.load()[0]
        one.save()

    os.waitpid(forked(once_more), 0)
    say(finally_left=parts(folder))


def recorded(kind, folder: Path, saves: int) -> None:
    """Save so many times; after each, a call that fails marks where in the record it was finished."""

    def some() -> None:
        one = kind(folder)
        for _ in range(saves):
            step = one.save()
            (folder / f"marker-{step}").unlink(missing_ok=True)

    os.waitpid(forked(some), 0)


def filled(kind, folder: Path, width: int) -> None:
    """Save until the disk is full; what was said then, and what is left."""

    def some() -> None:
        one = kind(folder, width=width)
        step = 0
        try:
            for _ in range(100):
                step = one.save()
        except perron.FileError as error:
            files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            again = kind(folder, width=width)
            again.step = step
            say(step=step, said=str(error), files=files, loaded=again.load(), left=parts(folder))

    os.waitpid(forked(some), 0)


def held(kind, folder: Path, steps: int) -> None:
    """Save again and again, and say when the first time is over."""
    with group():
        one = kind(folder)
        one.save()
        if kind.name == "simulation":
            one.run(steps, lambda step, values: say(step=step))
        say(step=1)
        for _ in range(steps):
            one.save()
            time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, which, where, many = sys.argv[1:]
    {"killed": killed, "recorded": recorded, "filled": filled, "held": held}[what](KINDS[which], Path(where), int(many))
