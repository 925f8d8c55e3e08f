"""The command ``perron``: a thin layer over the library.

An error is one line on standard error that begins with ``perron:``. ``--debug``, before or after the command (only before
``launch``), or PERRON_DEBUG=1 in the environment, adds its traceback. With ``--json``, standard output holds one JSON document
and nothing else. The exit codes are those of `perron.cli.app.EXIT_CODES`.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from perron._registry import unknown
from perron.cli import data, examples, paper, study
from perron.cli.advise import advise
from perron.cli.algorithms import algorithms
from perron.cli.app import NETWORKS, STUDIES, THEORY, TRAIN, App, ExitCode, print_status
from perron.cli.demo import demo
from perron.cli.design import design
from perron.cli.doctor import doctor
from perron.cli.graph import graph
from perron.cli.launch import SCRIPT_OPTIONS, launch
from perron.cli.links import links
from perron.cli.options import flag
from perron.cli.play import play
from perron.cli.report import report
from perron.cli.tune import tune
from perron.cli.watch import watch
from perron.errors import NO_TORCH, FailedError, PerronError

app = App(
    help="""perron: decentralized optimization and learning over directed networks.

    Nodes with data of their own minimize the average of their losses, and communicate only along the edges of a digraph.

    perron graph exponential --nodes 16    # how well does a network mix?
    perron demo                            # more nodes, less noise: measured
    perron study new mine                  # start a study of your own
    """
)
app.command(rich_help_panel=NETWORKS)(graph)
app.command(rich_help_panel=NETWORKS)(algorithms)
app.command(rich_help_panel=NETWORKS)(play)
app.command(rich_help_panel=STUDIES)(demo)
app.command(rich_help_panel=STUDIES)(report)
app.command(rich_help_panel=STUDIES)(watch)
app.command(rich_help_panel=STUDIES)(tune)
app.add_typer(study.app, name="study", rich_help_panel=STUDIES)
app.add_typer(data.app, name="data", rich_help_panel=STUDIES)
app.command(rich_help_panel=THEORY)(advise)
app.command(rich_help_panel=THEORY)(design)
app.command(rich_help_panel=THEORY)(links)
app.add_typer(paper.app, name="paper", rich_help_panel=THEORY)
app.add_typer(examples.app, name="examples", rich_help_panel=TRAIN)
app.command(rich_help_panel=TRAIN, context_settings=SCRIPT_OPTIONS)(launch)
app.command(rich_help_panel=TRAIN)(doctor)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    arguments = sys.argv[1:]
    debug = os.environ.get("PERRON_DEBUG", "") not in ("", "0")
    command = next((place for place, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    launches = arguments[command : command + 1] == ["launch"]  # its script may have a --debug, too
    if "--debug" in arguments[: command if launches else None]:
        debug = True
        arguments.remove("--debug")
    sys.exit(_run(arguments, debug=debug))


def _run(arguments: list[str], *, debug: bool) -> int:
    """Run a command, print its error if there is one, and return the exit code."""
    try:
        code = app(arguments, prog_name="perron", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it, as in perron algorithms | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.ERROR
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error)
        print_status(f"perron: {' '.join(message.split())}")
    return int(code or 0)


def _explain(error: Exception) -> tuple[str, ExitCode]:
    """Return the message of an error, and the exit code."""
    if isinstance(error, PerronError):
        return str(error), ExitCode.FAILED if isinstance(error, FailedError) else ExitCode.ERROR
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return NO_TORCH, ExitCode.ERROR
    if isinstance(error, MemoryError):
        return "This does not fit into memory. Choose fewer nodes or edges.", ExitCode.ERROR
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}." if error.filename else "."), ExitCode.ERROR
    if hasattr(error, "format_message"):  # of typer: wrong usage
        ctx, message = getattr(error, "ctx", None), error.format_message().rstrip(".") + "."
        path = ctx.command_path if ctx else "perron"
        if hasattr(error, "possibilities") and ctx:
            known = [name for parameter in ctx.command.get_params(ctx) for name in parameter.opts if name[:2] == "--"]
            message = str(unknown(error.option_name, known, f"option of {path}"))  # type: ignore[attr-defined]
        return f"{message} See {path} --help.", ExitCode.USAGE
    return (
        f"This is a bug in perron: {type(error).__name__}: {error}. Please report it with the command that you gave "
        "(CONTRIBUTING.md says how); the same command with --debug shows the traceback.",
        ExitCode.BUG,
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        from perron import __version__

        sys.stdout.write(f"perron {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, flag("--debug", "Show the traceback of an error (or set PERRON_DEBUG=1).")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options for all commands; ``main`` has read --debug already."""


if __name__ == "__main__":
    main()
