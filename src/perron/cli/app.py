"""What all commands share: how their help looks, and how they print.

A command's help is its docstring: a first line that also stands in lists of commands, more about it if need be, and examples:
lines that begin with ``perron``. They are shown as they are, so that they can be copied, and a test parses each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from perron._registry import unknown
from perron._storage.jsonable import to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

NETWORKS, STUDIES, THEORY, TRAIN = "Look at networks", "Run studies", "Theory and design", "Train"  # groups of commands
NETWORK, OUTPUT = "Network", "Output"  # groups of options
EXIT_CODES = {
    0: "done",
    1: "bad input, or a file or memory that cannot be had",
    2: "wrong usage: an unknown command or option, or a missing one",
    3: "done, but some of it failed: runs of a study, nodes of a training, claims with another verdict than expected",
    70: "a bug in perron; --debug shows where",
    130: "interrupted; studies go on with the same command",
}
GUIDES = "README.md and docs/"
WIDEST = 110  # columns of help: longer lines are hard to read
ROOM = 140  # columns of a table in a file or a pipe


class Command(TyperCommand):
    """A command whose help shows examples as examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help as text, for the terminal."""
        formatter.write(_rendered(_help(self, ctx)))


class Group(TyperGroup):
    """Commands under one name. Without one of them it shows what there is."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help as text, for the terminal."""
        formatter.write(_rendered(_help(self, ctx)))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Show what there is, or go on."""
        if not args and not ctx.resilient_parsing:
            sys.stdout.write(_rendered(_overview(self, ctx)) if ctx.parent is None else f"{ctx.get_help()}\n")
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name; an unknown one is refused with the nearest."""
        if not ctx.resilient_parsing and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(str(unknown(args[0], self.commands, "command")))
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A group of commands with help as above."""

    def __init__(self, **options: Any) -> None:
        settings = {"help_option_names": ["--help", "-h"]}
        super().__init__(cls=Group, context_settings=settings, pretty_exceptions_enable=False, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """As typer's."""
        return super().command(name, **({"cls": Command} | options))


def screen(room: int = ROOM) -> Console:
    """Standard output, for tables: as wide as the terminal, or with room where it is none."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = room
    return console


def say(text: str) -> None:
    """A line of news on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def write_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(to_json(value))


# ---- help


def examples(text: str) -> list[str]:
    """The commands in a help text.

    >>> examples("Draw it.\\n\\nperron graph ring --draw ring.png")
    ['perron graph ring --draw ring.png']
    """
    return [line.strip() for line in text.splitlines() if line.strip().startswith("perron ")]


def prose(text: str) -> list[str]:
    """The paragraphs of a help text that are not examples."""
    paragraphs = cleandoc(text).split("\n\n")
    return [" ".join(part.split()) for part in paragraphs if part and not part.startswith("perron ")]


def _rendered(parts: Iterator[RenderableType]) -> str:
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=getattr(part, "no_wrap", False) is True)  # examples stay whole, for copying
    return capture.get()


def _overview(group: Group, ctx: Any) -> Iterator[RenderableType]:
    """What a newcomer sees first."""
    from rich.text import Text

    title, *more = prose(group.help or "")
    yield Text.assemble("\n", (title, "bold"), "\n", *more, "\n")
    yield from _examples(group.help or "", "Try first")
    yield from _commands(group, ctx)
    yield Text.assemble("Help, with examples: ", ("perron COMMAND --help", "cyan"), "     Guides: ", (GUIDES, "cyan"))


def _help(command: Command | Group, ctx: Any) -> Iterator[RenderableType]:
    from rich.text import Text

    pieces = (
        " ".join(command.collect_usage_pieces(ctx)).replace("{", "").replace("}", "")
    )  # typer's for what is required
    yield Text.assemble("\n", ("Usage: ", "yellow"), (f"{ctx.command_path} {pieces}", "bold"), "\n")
    for paragraph in prose(command.help or ""):
        yield Text(paragraph + "\n")
    yield from _examples(command.help or "", "Try first" if ctx.parent is None else "Examples")
    if isinstance(command, Group):
        yield from _commands(command, ctx)
    yield from _parameters(command, ctx)
    if ctx.parent is None:
        yield _panel("Exit codes", [(Text(str(code), style="bold"), told) for code, told in EXIT_CODES.items()])


def _examples(text: str, title: str) -> Iterator[RenderableType]:
    from rich.text import Text

    if not (found := examples(text)):
        return
    yield Text(title, style="bold")
    for line in found:
        command, mark, remark = line.partition("  #")
        yield Text.assemble("  ", (command, "cyan"), (mark + remark, "dim"), no_wrap=True)
    yield Text("")


def _commands(group: Group, ctx: Any) -> Iterator[RenderableType]:
    panels: dict[str, list[tuple[Any, Any]]] = {}
    shown = [(name, command) for name in group.list_commands(ctx) if (command := group.get_command(ctx, name))]
    width = max((len(name) for name, _ in shown), default=0)
    for name, command in shown:
        if not command.hidden:
            panel = getattr(command, "rich_help_panel", None)
            title = panel if isinstance(panel, str) else "Commands"
            panels.setdefault(title, []).append((_padded(name, width), prose(command.help or "")[0]))
    for title, rows in panels.items():
        yield _panel(title, rows)


def _parameters(command: Command | Group, ctx: Any) -> Iterator[RenderableType]:
    """Arguments and options, by group."""
    from rich.text import Text

    panels: dict[str, list[tuple[Any, Any]]] = {}
    parameters: list[Any] = command.get_params(ctx)
    for parameter in parameters:
        if getattr(parameter, "hidden", False) or (parameter.name == "help" and ctx.parent is not None):
            continue
        argument = parameter.param_type_name == "argument"
        panel = getattr(parameter, "rich_help_panel", None)
        title = panel if isinstance(panel, str) else "Arguments" if argument else "Options"
        name = Text("" if argument else ", ".join(parameter.opts), style="cyan", no_wrap=True)
        if parameter.metavar:
            name.append(parameter.metavar if argument else f" {parameter.metavar}", style="yellow")
        told, default = parameter.help or "", parameter.get_default(ctx, call=False)
        if default is not None and default is not False and not callable(default):
            told = f"{told.rstrip('.')} (default: {default})."
        panels.setdefault(title, []).append((name, Text(told)))
    for title, rows in panels.items():
        yield _panel(title, rows)


def _padded(name: str, width: int) -> Any:
    from rich.text import Text

    return Text(name.ljust(width), style="bold cyan")


def _panel(title: str, rows: list[tuple[Any, Any]]) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table

    table = Table(show_header=False, box=None, expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", border_style="dim")
