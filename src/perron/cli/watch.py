"""``perron watch``: a study or a training that is under way, live in the terminal."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perron.cli import study as study_cli
from perron.cli.app import OUTPUT, write_json
from perron.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from perron.monitor.dashboard import Watch

REFRESH = 1.0  # seconds between two frames
LINES = 30  # of a frame where there is no terminal


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a study, or of a training with perron.Log.")
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="What to draw (default: a loss, or grad_norm_sq).")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and stop.", rich_help_panel=OUTPUT)] = False,
    as_json: Json = False,
) -> None:
    """Watch a study or a training live: curves, progress, time left.

    It ends when that ends; q or Ctrl-C quits.

    perron watch results/my-study
    perron watch results/my-training --metric accuracy
    perron watch results/my-study --json
    """
    from perron.monitor.dashboard import Watch
    from perron.monitor.status import StudyFolder, opened

    view = Watch(opened(folder), metric)
    if as_json:
        write_json(view.record())
        return
    from rich.console import Console

    console = Console()
    followed = not once and console.is_terminal and view.folder.running
    if followed:
        if not _follow(view, console):
            return
    elif not once and view.folder.running:  # a log, not a terminal: nobody can press a key
        console.print("This is no terminal: one frame.", style="dim")
    lines = console.height - 1 if console.is_terminal else LINES
    console.print(view.frame(console.width, lines))
    if followed and isinstance(view.folder, StudyFolder) and view.folder.ended:
        study_cli.show(folder)


def _follow(view: Watch, console: Console) -> bool:
    """Frame after frame until it ends; False if the person at the terminal wants no more."""
    from rich.live import Live

    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while view.folder.running:
                live.update(view.frame(console.width, console.height), refresh=True)
                if pressed(REFRESH):
                    return False
                view.look()
        except KeyboardInterrupt:
            return False
    return True


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits some seconds for the key q."""
    import termios
    import time
    import tty

    def pressed(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not sys.stdin.isatty():
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
                return True
        return False

    if not sys.stdin.isatty():
        yield pressed
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
