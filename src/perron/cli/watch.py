"""``perron watch``: the progress of a study or a training, live in the terminal or the browser."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perron.cli import study
from perron.cli.app import OUTPUT, print_lines, write_json
from perron.cli.options import Json, flag, option
from perron.errors import PerronError

if TYPE_CHECKING:
    from rich.console import Console

    from perron.monitor.dashboard import Dashboard

REFRESH = 1.0  # seconds between two frames
LINES = 30  # of a frame that does not go to a terminal


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a study, or of a training with perron.Log.")
    ],
    metric: Annotated[
        str | None, option("--metric", "NAME", "The metric to draw (default: a loss, or grad_norm_sq).")
    ] = None,
    once: Annotated[bool, flag("--once", "Print one frame and stop.", OUTPUT)] = False,
    web: Annotated[bool, flag("--web", "Serve a live page to the browser on this machine.", OUTPUT)] = False,
    port: Annotated[
        int | None, option("--port", "PORT", "With --web: the port (default: any that is free).", OUTPUT)
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch a study or a training live: curves, progress, time left.

    In a terminal it stops when the study or training does; q or Ctrl-C quits. With --web it prints the address of a page with the
    curves of the report, which refreshes itself, until Ctrl-C. Only this machine can reach it, and only with the whole address.

    perron watch results/my-study
    perron watch results/my-study --web
    perron watch results/my-training --metric accuracy
    perron watch results/my-study --json
    """
    from perron.monitor.dashboard import Dashboard
    from perron.monitor.records import HAS_LOCKS
    from perron.monitor.status import StudyFolder, open_folder

    if port is not None and not web:
        raise PerronError(f"--port is for --web, which serves a page; got --port {port}.")
    if web and (once or as_json):
        raise PerronError("--web serves a page until Ctrl-C; leave out --once and --json.")
    dashboard = Dashboard(open_folder(folder), metric)
    if as_json:
        write_json(dashboard.to_dict())
        return
    if web:
        _serve(dashboard, port or 0)
        return
    from rich.console import Console

    screen = Console()
    live = not once and screen.is_terminal and dashboard.folder.running
    if live:
        if not _follow(dashboard, screen):
            return
    elif not once and dashboard.folder.running:
        screen.print("Not a terminal: one frame.", style="dim")
    elif not once and not HAS_LOCKS:
        screen.print(
            "Live frames need Linux or macOS, whose file locks tell which processes run: one frame.", style="dim"
        )
    screen.print(dashboard.render(screen.width, screen.height - 1 if screen.is_terminal else LINES))
    if live and isinstance(dashboard.folder, StudyFolder) and dashboard.folder.ended:
        study.show(folder)


def _serve(dashboard: Dashboard, port: int) -> None:
    """Serve the live page until Ctrl-C."""
    from perron.report.live import serve

    def tell(address: str) -> None:
        print_lines(f"Watch {dashboard.folder.title}: {address}", "Ctrl-C ends this page; the run continues.")

    with suppress(KeyboardInterrupt):
        serve(dashboard, port, tell)


def _follow(dashboard: Dashboard, screen: Console) -> bool:
    """Show frame after frame until the end; return False if the user quits."""
    from rich.live import Live

    with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        try:
            while dashboard.folder.running:
                live.update(dashboard.render(screen.width, screen.height), refresh=True)
                if pressed(REFRESH):
                    return False
                dashboard.refresh()
        except KeyboardInterrupt:
            return False
    return True


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits some seconds and returns whether q was pressed."""
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
