"""The command ``perron``: a thin layer over the library. Exit codes: 0 done, 1 bad input, 2 wrong usage."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perron import data_cli, paper_cli, study_cli
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.graph import Graph
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

    drawn, mixing, notes = _network(network, nodes, weights, seed, _parsed(option or []), push)
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


def _network(
    network: str, nodes: int | None, weights: str | None, seed: int | None, options: dict[str, Any], push: Path | None
) -> tuple[Graph | tuple[Graph, ...], Mixing, list[str]]:
    """What the arguments of ``perron graph`` name: what to draw, the network, and remarks."""
    from perron import authors, topologies
    from perron.mixing import Mixing

    if push is not None:
        from perron.files import read_matrix

        _refuse("a file with --push", nodes=nodes, weights=weights, seed=seed, set=options or None)
        mixing = Mixing(pull=read_matrix(network), push=read_matrix(push), name=f"{network}, {push}")
        return mixing.pull_graph, mixing, []
    if "." in network or "/" in network:
        _refuse("a file", nodes=nodes, set=options or None)
        return _from_file(Path(network), weights, seed)
    family = _choice(network, topologies.NAMES, "topology", "perron graph --list")
    nodes = 16 if nodes is None else nodes
    if weights == "authors":
        family = _choice(network, authors.NAMES, "released network", "perron graph --list")
        mixing = _call(family, nodes, ({} if seed is None else {"seed": seed}) | options)
        return mixing.pull_graph, mixing, []
    if "seed" in _parameters(family):
        options = {"seed": seed or 0} | options
    built = _call(family, nodes, options)
    notes = [built.note] if not isinstance(built, tuple) and built.note else []
    return built, _weighted(built, weights or "random_integer", seed), notes


def _sums_of_powers(mixing: Mixing, power: int) -> dict[str, float]:
    """s_{A^m} and s_{B^m}, if m is not 1."""
    from perron import spectral

    found = {}
    if power != 1 and mixing.has_pull:
        found[f"s_A^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "pull"), power=power).value
    if power != 1 and mixing.has_push:
        found[f"s_B^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "push"), power=power).value
    return found


def _refuse(what: str, **options: object) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if value is not None:
            raise PerronError(f"--{name} does not go with {what}; leave it out.")


def _from_file(path: Path, weights: str | None, seed: int | None) -> tuple[Graph, Mixing, list[str]]:
    from perron.files import holds_mixing, read_graph, read_matrix, read_mixing
    from perron.mixing import Mixing

    if holds_mixing(path):
        _refuse("a file that holds both matrices", weights=weights, seed=seed)
        mixing = read_mixing(path)
        return (mixing.pull_graph if mixing.has_pull else mixing.push_graph), mixing, []
    graph, matrix, notes = read_graph(path), read_matrix(path), []
    if weights is None:
        weights = "random_integer" if (matrix.data == 1).all() else "file"
    if not len(graph.self_loops):
        graph = graph.with_self_loops()
        notes.append("the file has no self-loops; every node was given one")
        if weights == "file":
            from scipy.sparse import eye_array

            notes[-1] += ", of weight 1"
            matrix = matrix + eye_array(graph.nodes)
    if weights == "file":
        _refuse("the file's own weights", seed=seed)
        return graph, Mixing.normalized(matrix, name=f"{path.name}, its own weights"), notes
    return graph, _weighted(graph, weights, seed), notes


def _weighted(graph: Graph | tuple[Graph, ...], weights: str, seed: int | None) -> Mixing:
    from perron.mixing import RULES

    rule = _choice(weights, RULES, "weight rule", "perron graph --help")
    return rule(graph, **({"seed": seed or 0} if "seed" in _parameters(rule) else {}))


def _choice(name: str, among: dict[str, Callable[..., Any]], kind: str, where: str) -> Callable[..., Any]:
    found = among.get(name.replace("-", "_"))
    if found is None:
        close = get_close_matches(name, among, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise PerronError(f"There is no {kind} {name!r}; {hint}All of them: {', '.join(among)} ({where}).")
    return found


def _parameters(function: Callable[..., Any]) -> list[str]:
    from inspect import signature

    return list(signature(function).parameters)


def _call(function: Callable[..., Any], nodes: int, options: dict[str, Any]) -> Any:
    known = [name for name in _parameters(function) if name != "n"]
    for key in options:
        if key not in known:
            raise PerronError(f"{function.__name__} has no option {key!r}; it has: {', '.join(known) or 'none'}.")
    return function(nodes, **options)


def _parsed(pairs: list[str]) -> dict[str, Any]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            equals = ""
        if not equals or isinstance(options[key], bool) or not isinstance(options[key], int | float):
            raise PerronError(f"--set takes KEY=NUMBER, as probability=0.5; got {pair!r}.")
    return options


def _list_topologies() -> None:
    from rich.console import Console
    from rich.table import Table

    from perron import topologies

    table = Table("topology", "what it is", "options", title="Topologies (the paper's six first)")
    for name, function in topologies.NAMES.items():
        options = [option for option in _parameters(function) if option != "n"]
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
