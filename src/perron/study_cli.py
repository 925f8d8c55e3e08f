"""``perron study``: list, run, plot and show studies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.experiment import Outcome
    from perron.pools import Pool

app = typer.Typer(help="Studies: sweeps over networks, algorithms and steps, from a file.", no_args_is_help=True)
QUIET = 60.0  # seconds between two lines of news where there is no terminal
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study that was run.")]


@app.command("list")
def list_studies() -> None:
    """List the studies that come with perron."""
    from rich.console import Console
    from rich.table import Table

    from perron.study import load, shipped

    table = Table("study", "what it shows", "runs", title="Studies (perron study run NAME)")
    for name in shipped():
        study = load(name)
        table.add_row(name, study.title, str(len(study.runs)))
    Console().print(table)


@app.command()
def run(
    study: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A study that comes with perron, or a .toml file.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key, as lr=0.01, nodes=[4,8] or problem.batch=50."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where results go (default: results/NAME).")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one for each core).")] = None,
    on: Annotated[str, typer.Option(metavar="POOL", help="Who does the runs: local, ray or slurm.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDR", help="A Ray cluster (default: a new one on this machine).")
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of Slurm, as partition=long, time=90 or mem=4GB."),
    ] = None,
) -> None:
    """Run a study, or go on with one that was stopped: finished runs are not repeated.

    perron study run synthetic-speedup
    perron study run my-study.toml --set trials=5 --out results/quick
    perron study run my-study.toml --on ray --address auto
    perron study run my-study.toml --on slurm --slurm partition=short --slurm time=60
    """
    from perron.pools import chosen
    from perron.study import load, parse

    loaded = load(study, parse(change or []))
    pool = chosen(on, workers=workers, address=address, slurm=parse(slurm or [], "--slurm"))
    finish(run_with_progress(loaded, out or Path("results") / loaded.name, pool=pool))


@app.command()
def plot(folder: Folder) -> None:
    """Draw the figures of a study again and write its summary and report."""
    from rich.console import Console

    from perron.conclusions import conclude, write
    from perron.experiment import read_study

    outcome = read_study(folder)
    for path in write(outcome, conclude(outcome)):
        Console().print(str(path), soft_wrap=True, markup=False, highlight=False)


@app.command()
def show(folder: Folder) -> None:
    """Show the tables of a study and what they mean."""
    from perron.experiment import read_study

    finish(read_study(folder), files=False)


def run_with_progress(study: Any, folder: Path, workers: int | None = None, pool: Pool | None = None) -> Outcome:
    """Run a study with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from perron.experiment import run_study

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=3600) as bar:
        task = bar.add_task(study.name, total=1.0)
        last = time.monotonic()

        def news(line: str) -> None:
            nonlocal last
            if console.is_terminal:
                bar.update(task, description=line)
            elif time.monotonic() - last > QUIET:
                last = time.monotonic()
                console.print(line, highlight=False, markup=False, soft_wrap=True)

        def began(runs: int, done: int) -> None:
            already = f", {done} of them done already" if done else ""
            line = f"{study.title or study.name}: {runs} runs{already}."
            console.print(line, highlight=False, markup=False, soft_wrap=True)

        try:
            return run_study(
                study,
                folder,
                workers=workers,
                pool=pool,
                progress=lambda share: bar.update(task, completed=share),
                began=began,
                news=news,
            )
        except KeyboardInterrupt:
            bar.stop()
            console.print(
                f"Stopped. What was done is kept in {folder}; the same command goes on.", markup=False, soft_wrap=True
            )
            raise typer.Exit(130) from None


def finish(outcome: Outcome, *, files: bool = True, only: Sequence[str] = ()) -> None:
    """Show what a study found (all its tables, or only some), write its files, and say which runs failed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from perron.conclusions import conclude, failures, write

    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file has room
    try:
        found = conclude(outcome)
    except PerronError as error:
        hidden = outcome.failed and not outcome.table.empty
        raise PerronError(f"{error} Besides, runs failed: {failures(outcome)}" if hidden else str(error)) from None
    for title, cells in reversed(found.tables.items()):
        if not only or title in only:
            table = Table(*map(str, cells.columns), title=title)
            for row in cells.to_numpy().tolist():
                table.add_row(*(Text(cell) for cell in row))
            console.print(table)
    before = f", {outcome.reused} of them from before" if outcome.reused else ""
    lines = [f"{len(outcome.study.runs) - len(outcome.failed)} runs in {outcome.seconds:.0f} s{before}."]
    if files:
        lines += [f"Picture: {path}" for path in write(outcome, found) if path.suffix == ".png"]
        lines.append(f"Table: {outcome.folder / 'results.parquet'}; report: {outcome.folder / 'report.md'}")
    if outcome.warned:
        lines.append(f"{len(outcome.warned)} runs gave warnings (manifest.json): {next(iter(outcome.warned.values()))}")
    for line in [*lines, *found.sentences]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if outcome.failed:
        raise PerronError(
            "; ".join(outcome.failed.values()) + ". The other runs are done; the same command tries these again."
        )
