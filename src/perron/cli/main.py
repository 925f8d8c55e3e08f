"""The command ``perron``: a thin layer over the library.

Exit codes, for scripts (`perron.cli.app.EXIT_CODES`):

    0    done
    1    bad input, or a file or memory that cannot be had
    2    wrong usage: an unknown command or option, or a missing one
    3    done, but some of it failed: runs of a study, nodes of a training, claims with another verdict than expected
    70   a bug in perron
    130  interrupted

An error is one line on standard error that begins with ``perron:``. Its traceback is shown with ``--debug``, before or after the
command (only before ``launch``), or with PERRON_DEBUG=1 in the environment. With ``--json``, standard output holds one JSON
document and nothing else.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perron import networks
from perron._registry import unknown
from perron.cli import advise as advise_cli
from perron.cli import data as data_cli
from perron.cli import design as design_cli
from perron.cli import paper as paper_cli
from perron.cli import report as report_cli
from perron.cli import study as study_cli
from perron.cli import watch as watch_cli
from perron.cli.app import NETWORKS, OUTPUT, STUDIES, THEORY, TRAIN, App, say, screen, write_json
from perron.cli.options import (
    Json,
    MaybeNetwork,
    Nodes,
    Options,
    Push,
    Seed,
    Weights,
    Workers,
    number_option,
    out_option,
    parsed,
)
from perron.errors import FailedError, PerronError

if TYPE_CHECKING:
    from perron.networks.mixing import Mixing

app = App(
    help="""perron: decentralized optimisation and learning over directed networks.

    Nodes with data of their own minimise the average of their losses, and talk along the edges of a digraph only.

    perron graph exponential --nodes 16    # how well does a network mix?
    perron demo                            # more nodes, less noise: measured
    perron study new mine                  # start a study of your own
    """
)


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
    """The exit code. What went wrong is told in one line."""
    try:
        code = app(arguments, prog_name="perron", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough, as in perron algorithms | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        said, code = _told(error)
        say(f"perron: {' '.join(said.split())}")
    return int(code or 0)


def _told(error: Exception) -> tuple[str, int]:
    """What an error says, and the exit code."""
    if isinstance(error, PerronError):
        return str(error), 3 if isinstance(error, FailedError) else 1
    if isinstance(error, MemoryError):
        return "This does not fit into memory. Choose fewer nodes or edges.", 1
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}." if error.filename else "."), 1
    if hasattr(error, "format_message"):  # of typer: wrong usage
        ctx, said = getattr(error, "ctx", None), error.format_message().rstrip(".") + "."
        path = ctx.command_path if ctx else "perron"
        if hasattr(error, "possibilities") and ctx:
            known = [name for one in ctx.command.get_params(ctx) for name in one.opts if name.startswith("--")]
            said = str(unknown(error.option_name, known, f"option of {path}"))  # type: ignore[attr-defined]
        return f"{said} See {path} --help.", 2
    return (
        f"This is a bug in perron: {type(error).__name__}: {error}. Please report it with the command that you gave "
        "(CONTRIBUTING.md says how); the same command with --debug shows the traceback.",
        70,
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        from perron import __version__

        sys.stdout.write(f"perron {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (or set PERRON_DEBUG=1).")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options for all commands; ``main`` has read --debug already."""


@app.command(rich_help_panel=NETWORKS)
def graph(
    network: MaybeNetwork = None,
    nodes: Nodes = None,
    weights: Weights = None,
    seed: Seed = None,
    option: Options = None,
    push: Push = None,
    power: Annotated[int, number_option("power", "M", "Also show s of A^m and B^m.")] = 1,
    show_list: Annotated[bool, typer.Option("--list", help="List the topologies and stop.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Draw it (.png, .pdf or .svg).", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a network mixes, and draw it.

    Perron vectors, rho_2, beta, kappa, s, M and c of a named topology or a file, with advice.

    perron graph exponential --nodes 16
    perron graph --list
    perron graph random --nodes 12 --set probability=0.5 --seed 3 --draw random.png
    perron graph my-network.graphml --weights uniform --json
    perron graph A.csv --push B.csv
    """
    if show_list or network is None:
        if any(given is not None for given in (nodes, weights, seed, option, push, picture)):
            raise PerronError(
                "Which network? Name a topology or a file, as in perron graph ring --nodes 8; without, topologies are listed."
            )
        _list_topologies(as_json=as_json)
        return
    from perron.networks import spectral

    drawn, mixing, notes = networks.load_network(network, nodes, weights, seed, parsed(option or []), push)
    if picture:
        from perron import plots

        notes.append(f"drawn in {plots.draw(drawn, picture)}")
    metrics = spectral.describe(mixing)
    powers = _sums_of_powers(mixing, power)
    notes += [f"{name} = {value:.4g}" for name, value in powers.items()]
    if as_json:
        shape = {"edges": max(m.edges for m in (metrics.pull, metrics.push) if m), "notes": notes}
        write_json(metrics.to_dict() | powers | shape | {"advice": metrics.advice()})
    else:
        _print_metrics(metrics, notes)


@app.command(rich_help_panel=NETWORKS)
def algorithms(as_json: Json = False) -> None:
    """List the algorithms: what they need, send and reach.

    perron algorithms
    perron algorithms --json
    """
    from dataclasses import asdict

    from perron.algorithms import ALGORITHMS

    if as_json:
        write_json({name: asdict(algorithm.about) for name, algorithm in ALGORITHMS.items()})
        return
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("name", "algorithm", "matrices", "sends per edge", "overlaps", "step", "", "reference", box=SIMPLE)
    family = ""
    for name, algorithm in ALGORITHMS.items():
        about = algorithm.about
        if about.family != family:
            family = about.family
            table.add_row(f"[bold]{family}[/bold]")
        effective = {"1": "lr"}.get(about.effective, f"{about.effective} lr")
        exact = "exact" if about.exact else "biased"
        table.add_row(
            f" {name}", about.title, about.matrices, about.sends, about.overlap, effective, exact, about.reference
        )
    console = screen(150)
    console.width = max(console.width, 150)
    console.print(table)
    console.print(
        "A row-, B column-, W doubly stochastic (sym: symmetric), R C a spanning-tree pair. d: length of the model, n: nodes, "
        "p: constraints.\nstep: the effective one, to be held equal in comparisons. biased: off by O(lr) at a constant lr."
    )


@app.command(rich_help_panel=STUDIES)
def demo(
    workers: Workers = None,
    out: Annotated[Path, out_option("Where results go.", "DIR")] = Path("results/demo"),
    as_json: Json = False,
) -> None:
    """Measure Push-Pull's linear speedup, in two minutes.

    On the paper's six topologies; a smaller version of perron study run synthetic-speedup.

    perron demo
    perron demo --out results/first --workers 1
    """
    from perron.studies.spec import load

    outcome = study_cli.run_with_progress(load("demo"), out, workers)
    study_cli.finish(outcome, only=["Slopes"], as_json=as_json)


app.add_typer(study_cli.app, name="study", rich_help_panel=STUDIES)
app.command(rich_help_panel=STUDIES)(report_cli.report)
app.command(rich_help_panel=STUDIES)(watch_cli.watch)
app.add_typer(data_cli.app, name="data", rich_help_panel=STUDIES)
app.command(rich_help_panel=THEORY)(advise_cli.advise)
app.command(rich_help_panel=THEORY)(design_cli.design)
app.command(rich_help_panel=THEORY)(design_cli.links)
app.add_typer(paper_cli.app, name="paper", rich_help_panel=THEORY)


@app.command(rich_help_panel=TRAIN, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def launch(
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]", help="A Python script and its options.")],
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", metavar="N", help="How many nodes to run on this machine.")
    ] = 4,
    elastic: Annotated[bool, typer.Option("--elastic", help="Go on without nodes that die, let others join.")] = False,
    restarts: Annotated[
        int, number_option("restarts", "N", "How often to start again what died: all nodes, with --elastic one.")
    ] = 0,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module.")] = False,
    size: Annotated[int | None, number_option("size", "N", "Nodes on all machines, if there are several.")] = None,
    first: Annotated[int, number_option("first", "NODE", "The number of the first node on this machine.")] = 0,
    store: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the machine with node 0 hosts the store.")
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long nodes that are told to end may take, as to save.")
    ] = 30.0,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What launchers must have in common (or PERRON_SECRET).")
    ] = None,
) -> None:
    """Train with one process for each node.

    As torchrun does, and for the same scripts; options of the script stand after it. When a node dies, all end; with --restarts
    they are started again, and go on from the last checkpoint; with --elastic the others go on without it. On Ctrl-C nodes whose
    script has a perron.Keeper save before they end.

    perron launch --nodes 4 examples/train_mnist.py
    perron launch --nodes 4 --restarts 3 examples/train_mnist.py
    perron launch --nodes 5 --elastic --restarts 3 examples/train_mnist.py
    """
    if not module and not Path(script[0]).is_file():
        raise PerronError(f"There is no script {script[0]}.")
    if not 0 < grace < float("inf"):
        raise PerronError(f"--grace is a number of seconds, more than 0; got {grace:g}.")
    from perron.distributed.launch.fork_server import ForkServer

    command = [sys.executable, *(["-m"] if module else []), *script]
    fork_server = ForkServer.for_command(command)  # it imports PyTorch while we do
    from perron.distributed.launch.handshake import read_secret
    from perron.distributed.launch.launcher import Launcher

    try:
        code = Launcher(
            command,
            nodes=nodes,
            size=size,
            first=first,
            store=store,
            elastic=elastic,
            restarts=restarts,
            secret=read_secret(secret_file),
            grace=grace,
            say=lambda text: say(f"perron: {text}"),
            fork_server=fork_server,
        ).run()
    finally:
        if fork_server is not None:
            fork_server.close()
    gc.freeze()  # what is collected when the interpreter goes takes most of a second, since torch is large
    raise typer.Exit(3 if code == 1 else code)


def _sums_of_powers(mixing: Mixing, power: int) -> dict[str, float]:
    """s_{A^m} and s_{B^m}, if m is not 1."""
    from perron.networks import spectral

    found = {}
    if power != 1 and mixing.has_pull:
        found[f"s_A^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "pull"), power=power).value
    if power != 1 and mixing.has_push:
        found[f"s_B^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "push"), power=power).value
    return found


def _list_topologies(*, as_json: bool) -> None:
    from inspect import signature

    from perron.networks import topologies

    found = [
        {
            "name": name,
            "about": (function.__doc__ or "").partition("\n")[0],
            "options": [option for option in signature(function).parameters if option != "n"],
        }
        for name, function in topologies.NAMES.items()
    ]
    if as_json:
        write_json(found)
        return
    from rich.table import Table

    table = Table("topology", "what it is", "options", title="Topologies (the paper's six first)")
    for one in found:
        table.add_row(str(one["name"]), str(one["about"]), ", ".join(one["options"]))
    screen().print(table)


def _print_metrics(metrics: Any, notes: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    title = f"{metrics.name}: {metrics.nodes} nodes"
    if metrics.period > 1:
        title += f"; metrics of the product over its period of {metrics.period} steps"
    table = Table("", "")
    table.add_column("pull (A)", justify="right")
    table.add_column("push (B)", justify="right")
    for row in metrics.rows():
        table.add_row(*row)
    console = screen()
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)
    for side in ("pull", "push"):
        if (matrix := getattr(metrics, side)) is not None:
            shown = ", ".join(f"{weight:.4f}" for weight in matrix.perron[:32])
            more = f", ... ({metrics.nodes - 32} more)" if metrics.nodes > 32 else ""
            console.print(f"Perron vector of {side}: {shown}{more}", soft_wrap=True, highlight=False)
    for line in [*metrics.advice(), *notes]:
        console.print(f"- {line}", soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
