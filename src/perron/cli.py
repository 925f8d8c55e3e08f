"""The command ``perron``: a thin layer over the library. Exit codes: 0 done, 1 bad input, 2 wrong usage."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perron import advise_cli, data_cli, design_cli, paper_cli, study_cli
from perron.errors import PerronError
from perron.named import named_network, parameters, parsed

if TYPE_CHECKING:
    from perron.mixing import Mixing

app = typer.Typer(
    help="Decentralized optimisation and learning over directed networks.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(study_cli.app, name="study")
app.add_typer(data_cli.app, name="data")
app.add_typer(paper_cli.app, name="paper")
app.command()(advise_cli.advise)
app.command()(design_cli.design)
app.command()(design_cli.links)
_debug = False


def main() -> None:
    """Run the command line; an error that perron foresaw is one line, without a traceback."""
    try:
        app()
    except (PerronError, MemoryError) as error:
        if _debug:
            raise
        said = (
            str(error)
            if isinstance(error, PerronError)
            else "this does not fit into memory. Choose fewer nodes or edges."
        )
        sys.stderr.write(f"perron: {' '.join(said.split())}\n")
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        from perron import __version__

        sys.stdout.write(f"perron {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    global _debug  # noqa: PLW0603
    _debug = debug


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def launch(
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [OPTIONS]", help="A Python script and its options.")],
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="How many nodes to run on this machine.")] = 4,
    elastic: Annotated[bool, typer.Option("--elastic", help="Go on without nodes that die, let others join.")] = False,
    restarts: Annotated[
        int, typer.Option(help="How many times, in all, to start a node again that died (with --elastic).")
    ] = 0,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module.")] = False,
    size: Annotated[int | None, typer.Option(help="Nodes on all machines, if there are several.")] = None,
    first: Annotated[int, typer.Option(help="The number of the first node on this machine.")] = 0,
    store: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the machine with node 0 hosts the store.")
    ] = None,
) -> None:
    """Run a training script with one process for each node, as torchrun does; with --elastic it survives dead nodes."""
    if not module and not Path(script[0]).is_file():
        raise PerronError(f"There is no script {script[0]}.")
    from perron.launch import Launcher

    command = [sys.executable, *(["-m"] if module else []), *script]
    launcher = Launcher(
        command,
        nodes=nodes,
        size=size,
        first=first,
        store=store,
        elastic=elastic,
        restarts=restarts,
        say=lambda text: _say(f"perron: {text}"),
    )
    raise typer.Exit(launcher.run())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@app.command()
def graph(
    network: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", help="A topology, or a .graphml, .edges, .csv or .npz file."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="How many nodes, of a named topology (default 16).")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weight rule: random_integer (the default for topologies), uniform, lazy, metropolis, balanced, "
            "spanning_trees, authors; or file (the default for files with weights)."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of random topologies and of random weights (default 0).")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the topology, as probability=0.5."),
    ] = None,
    push: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The push matrix, if NAME|FILE is the pull matrix alone."),
    ] = None,
    power: Annotated[int, typer.Option(metavar="M", help="Also show s of A^m and B^m.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--draw", metavar="FILE", help="Draw it (.png, .pdf or .svg).")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the topologies and stop.")] = False,
) -> None:
    """Show how a network mixes: Perron vectors, rho_2, beta, kappa, s, M and c, as a table or JSON; and draw it.

    perron graph exponential --nodes 16
    perron graph random --nodes 12 --set probability=0.5 --seed 3 --draw random.png
    perron graph my-network.graphml --weights uniform --json
    perron graph A.csv --push B.csv
    """
    if show_list or network is None:
        _list_topologies()
        return
    from perron import plots, spectral

    drawn, mixing, notes = named_network(network, nodes, weights, seed, parsed(option or []), push)
    if picture:
        notes.append(f"drawn in {plots.draw(drawn, picture)}")
    metrics = spectral.describe(mixing)
    powers = _sums_of_powers(mixing, power)
    notes += [f"{name} = {value:.4g}" for name, value in powers.items()]
    if as_json:
        shape = {"edges": max(m.edges for m in (metrics.pull, metrics.push) if m), "notes": notes}
        sys.stdout.write(json.dumps(metrics.to_dict() | powers | shape | {"advice": metrics.advice()}) + "\n")
    else:
        _print_metrics(metrics, notes)


@app.command()
def algorithms(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the algorithms: what they mix with, what they send, what overlaps the gradient, exact or biased, and whence.

    perron algorithms
    perron algorithms --json
    """
    from dataclasses import asdict

    from perron.algorithms import ALGORITHMS

    if as_json:
        sys.stdout.write(json.dumps({name: asdict(algorithm.about) for name, algorithm in ALGORITHMS.items()}) + "\n")
        return
    from rich.box import SIMPLE
    from rich.console import Console
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
    console = Console(width=max(Console().width, 150))
    console.print(table)
    console.print(
        "A row-, B column-, W doubly stochastic (sym: symmetric), R C a spanning-tree pair. d: length of the model, n: nodes, "
        "p: constraints.\nstep: the effective one, to be held equal in comparisons. biased: off by O(lr) at a constant lr."
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the results.")] = Path("results/demo"),
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one for each core).")] = None,
) -> None:
    """Measure Push-Pull's linear speedup on the paper's six topologies, in less than two minutes on two cores.

    A smaller version of: perron study run synthetic-speedup
    """
    from perron.study import load

    study_cli.finish(study_cli.run_with_progress(load("demo"), out, workers), only=["Slopes"])


def _sums_of_powers(mixing: Mixing, power: int) -> dict[str, float]:
    """s_{A^m} and s_{B^m}, if m is not 1."""
    from perron import spectral

    found = {}
    if power != 1 and mixing.has_pull:
        found[f"s_A^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "pull"), power=power).value
    if power != 1 and mixing.has_push:
        found[f"s_B^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "push"), power=power).value
    return found


def _list_topologies() -> None:
    from rich.console import Console
    from rich.table import Table

    from perron import topologies

    table = Table("topology", "what it is", "options", title="Topologies (the paper's six first)")
    for name, function in topologies.NAMES.items():
        options = [option for option in parameters(function) if option != "n"]
        table.add_row(name, (function.__doc__ or "").partition("\n")[0], ", ".join(options))
    Console().print(table)


def _print_metrics(metrics: Any, notes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{metrics.name}: {metrics.nodes} nodes"
    if metrics.period > 1:
        title += f"; metrics of the product over its period of {metrics.period} steps"
    table = Table("", "", title=Text(title))
    table.add_column("pull (A)", justify="right")
    table.add_column("push (B)", justify="right")
    for row in metrics.rows():
        table.add_row(*row)
    console = Console()
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
