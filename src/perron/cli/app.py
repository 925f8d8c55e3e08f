"""Parts that all commands share: exit codes, the layout of help pages, and output.

A command's help is its docstring: a summary line, which lists of commands also show, optional paragraphs, and examples, which
are lines that begin with ``perron``. Examples are printed verbatim, so that they can be copied; a test parses each of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from perron._registry import unknown
from perron._storage.jsonable import to_json
from perron.errors import strip_control
from perron.monitor import progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

NETWORKS, STUDIES, THEORY, TRAIN = "Look at networks", "Run studies", "Theory and design", "Train"  # groups of commands
NETWORK, OUTPUT = "Network", "Output"  # groups of options
GUIDES = "README.md and docs/"
HELP_WIDTH = 110  # columns of help: longer lines are hard to read
FILE_WIDTH = 140  # columns of a table that goes to a file or a pipe


class ExitCode(IntEnum):
    """The exit codes of ``perron``, for scripts."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FAILED = 3
    BUG = 70
    INTERRUPTED = 130


EXIT_CODES = {
    ExitCode.DONE: "done",
    ExitCode.ERROR: "bad input, an unusable file, or not enough memory",
    ExitCode.USAGE: "wrong usage: an unknown command or option, or a missing one",
    ExitCode.FAILED: "done, but in part: runs of a study or nodes failed, a claim's verdict is not the expected one, or perron "
    "doctor found a problem",
    ExitCode.BUG: "a bug in perron; --debug shows where",
    ExitCode.INTERRUPTED: "interrupted; the same command resumes a study",
}


class Command(TyperCommand):
    """A command whose help shows examples verbatim."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_rendered(_help(self, ctx)))


class Group(TyperGroup):
    """Commands under one name; called without a command, it lists them, unless it does something itself."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_rendered(_help(self, ctx)))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            sys.stdout.write(_rendered(_overview(self, ctx)) if ctx.parent is None else f"{ctx.get_help()}\n")
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(str(unknown(args[0], self.commands, "command")))
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A typer application with the help pages of this module."""

    def __init__(self, **options: Any) -> None:
        settings = {"help_option_names": ["--help", "-h"]}
        super().__init__(cls=Group, context_settings=settings, pretty_exceptions_enable=False, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **({"cls": Command} | options))


# ---- output


def console(width: int = FILE_WIDTH, *, stderr: bool = False) -> Console:
    """Return standard output or error as a console: as wide as the terminal, or ``width`` columns where there is none.

    Text that comes from files can contain anything: control characters in it are not printed.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else _strip_lines(text), style, control)

    screen = SafeConsole(stderr=stderr)
    if not screen.is_terminal:
        screen.width = width
    return screen


def print_lines(*lines: str) -> None:
    """Print text to standard output, each line unwrapped and without markup."""
    screen = console()
    for line in lines:
        screen.print(line, soft_wrap=True, markup=False, highlight=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table of plain text to standard output."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title and Text(title))
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


def print_status(text: str) -> None:
    """Print lines to standard error; if the terminal has gone, print nothing from now on."""
    try:
        sys.stderr.write(f"{_strip_lines(text)}\n")
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)


def waiting(text: str) -> AbstractContextManager[None]:
    """Tell on standard error what is being done, once it has taken two seconds."""
    return progress.waiting(text, print_status)


def _strip_lines(text: str) -> str:
    """Return text without control characters other than the ends of its lines."""
    return "\n".join(map(strip_control, text.split("\n")))


def write_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    sys.stdout.write(to_json(value))


# ---- help


def examples(text: str) -> list[str]:
    """Return the commands in a help text.

    >>> examples("Draw it.\\n\\nperron graph ring --draw ring.png")
    ['perron graph ring --draw ring.png']
    """
    return [line.strip() for line in text.splitlines() if line.strip().startswith("perron ")]


def prose(text: str) -> list[str]:
    """Return the paragraphs of a help text that are not examples."""
    paragraphs = cleandoc(text).split("\n\n")
    return [" ".join(part.split()) for part in paragraphs if part and not part.startswith("perron ")]


def _rendered(parts: Iterator[RenderableType]) -> str:
    from rich.console import Console

    screen = Console(highlight=False)
    screen.width = min(screen.width, HELP_WIDTH)
    with screen.capture() as capture:
        for part in parts:
            screen.print(part, soft_wrap=getattr(part, "no_wrap", False) is True)  # examples are not wrapped
    return capture.get()


def _overview(group: Group, ctx: Any) -> Iterator[RenderableType]:
    """Yield the page of ``perron`` without a command."""
    from rich.text import Text

    title, *paragraphs = prose(group.help or "")
    yield Text.assemble("\n", (title, "bold"), "\n", *paragraphs, "\n")
    yield from _examples(group.help or "", "Try first")
    yield from _panels(_commands(group, ctx))
    yield Text.assemble("Help, with examples: ", ("perron COMMAND --help", "cyan"), "     Guides: ", (GUIDES, "cyan"))


def _help(command: Command | Group, ctx: Any) -> Iterator[RenderableType]:
    from rich.text import Text

    usage = (
        " ".join(command.collect_usage_pieces(ctx)).replace("{", "").replace("}", "")
    )  # typer's mark of the required
    yield Text.assemble("\n", ("Usage: ", "yellow"), (f"{ctx.command_path} {usage}", "bold"), "\n")
    for paragraph in prose(command.help or ""):
        yield Text(paragraph + "\n")
    yield from _examples(command.help or "", "Try first" if ctx.parent is None else "Examples")
    if isinstance(command, Group):
        yield from _panels(_commands(command, ctx))
    yield from _panels(_parameters(command, ctx))
    if ctx.parent is None:
        yield from _panels(("Exit codes", Text(str(code), style="bold"), text) for code, text in EXIT_CODES.items())


def _examples(text: str, title: str) -> Iterator[RenderableType]:
    from rich.text import Text

    if lines := examples(text):
        yield Text(title, style="bold")
        for line in lines:
            command, mark, remark = line.partition("  #")
            yield Text.assemble("  ", (command, "cyan"), (mark + remark, "dim"), no_wrap=True)
        yield Text("")


def _commands(group: Group, ctx: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the panel, name and summary of each command."""
    from rich.text import Text

    commands = {name: command for name in group.list_commands(ctx) if (command := group.get_command(ctx, name))}
    width = max(map(len, commands), default=0)
    for name, command in commands.items():
        if not command.hidden:
            panel = getattr(command, "rich_help_panel", None)
            title = panel if isinstance(panel, str) else "Commands"
            yield title, Text(name.ljust(width), style="bold cyan"), prose(command.help or "")[0]


def _parameters(command: Command | Group, ctx: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the panel, name and description of each argument and option."""
    from rich.text import Text

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
        text, default = parameter.help or "", parameter.get_default(ctx, call=False)
        if default is not None and default is not False and not callable(default):
            text = f"{text.rstrip('.')} (default: {default})."
        yield title, name, Text(text)


def _panels(rows: Iterable[tuple[str, Any, Any]]) -> Iterator[RenderableType]:
    """Yield a framed table for each title, of rows (title, name, description)."""
    from rich.panel import Panel
    from rich.table import Table

    tables: dict[str, Table] = {}
    for title, *cells in rows:
        if title not in tables:
            tables[title] = Table(show_header=False, box=None, expand=True, padding=(0, 2, 0, 0))
            tables[title].add_column(no_wrap=True)
            tables[title].add_column(ratio=1)
        tables[title].add_row(*cells)
    for title, table in tables.items():
        yield Panel(table, title=title, title_align="left", border_style="dim")
