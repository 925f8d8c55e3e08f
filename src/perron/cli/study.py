"""``perron study``: list, write, check, run, plot and show studies."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perron._registry import NAME
from perron.cli.app import OUTPUT, App, say, screen, write_json
from perron.cli.options import SHIPPED, Changes, Folder, Json, StudyName, Workers, out_option, shipped_studies, studies
from perron.errors import FailedError, FileError, PerronError

if TYPE_CHECKING:
    from perron.studies.conclusions.base import Conclusion
    from perron.studies.executors import Pool
    from perron.studies.runner import Outcome

app = App(
    help="""Run sweeps over networks, algorithms and steps, from a file.

    perron study new mine                  # writes mine.toml: change it
    perron study run mine.toml             # results in results/mine
    perron study show results/mine         # tables, and what they mean
    """
)
QUIET = 60.0  # seconds between two lines of news where there is no terminal
TEMPLATE = SHIPPED / "new.template"


@app.command("list")
def list_studies(as_json: Json = False) -> None:
    """List the studies that come with perron.

    perron study list
    perron study list --json
    """
    import tomllib  # to read their titles takes no time, to check their content imports PyTorch

    files = {name: SHIPPED / f"{name}.toml" for name in shipped_studies()}
    found = [{"name": name} | tomllib.loads(path.read_text(encoding="utf-8")) for name, path in files.items()]
    if as_json:
        write_json([{key: one.get(key, "") for key in ("name", "title", "about", "conclusion")} for one in found])
        return
    from rich.table import Table

    table = Table("study", "what it shows", "conclusion", title="Studies (perron study run NAME)")
    for one in found:
        table.add_row(one["name"], one["title"], one["conclusion"])
    screen().print(table)


@app.command()
def new(
    study: Annotated[str, typer.Argument(metavar="NAME|FILE", help="The file to write; NAME stands for NAME.toml.")],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="STUDY", help="Start from this study, by name or file.", autocompletion=studies),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a study file to start from: every key, explained.

    As it is, it runs in seconds. Change what you like; what is not known is refused, with the nearest key that is.

    perron study new mine
    perron study new mnist-4.toml --from mnist-speedup
    """
    from perron._storage.atomic import write_bytes

    path = Path(study if study.endswith(".toml") else f"{study}.toml")
    if path.suffix != ".toml" or not re.match(NAME, path.stem):
        raise PerronError(f"A study's name has letters, digits, dots, dashes and underscores; got {path.stem!r}.")
    if not path.parent.is_dir():
        raise PerronError(f"{path}: there is no directory {path.parent}; make it first.")
    if path.exists() and not force:
        raise FileError(f"{path} exists; choose another name, or write over it with --force.")
    if source is None:
        text = TEMPLATE.read_text(encoding="utf-8")
    else:
        from perron.studies.spec import find

        text = f"# From the study {source}.\n{find(source).read_text(encoding='utf-8')}"
    write_bytes(path, text.replace("FILE.toml", str(path)).encode())
    named = shlex.quote(str(path))
    say(f"Wrote {path}. Next:\n  perron study check {named}      # how much work is it?\n  perron study run {named}")


@app.command()
def check(study: StudyName, change: Changes = None, as_json: Json = False) -> None:
    """Check a study, and say how much work it is, without running it.

    perron study check demo
    perron study check examples/own_study.toml --set trials=5
    """
    from perron.studies.job import cost
    from perron.studies.spec import load, parse

    loaded = load(study, parse(change or []))
    gradients = sum(cost(run) for run in loaded.runs)
    facts = {"name": loaded.name, "title": loaded.title, "conclusion": loaded.conclusion, "runs": len(loaded.runs)}
    if as_json:
        write_json(facts | {"gradients": gradients, "study": loaded.model_dump(mode="json")})
        return
    line = f"{loaded.title or loaded.name}: {len(loaded.runs)} runs, {gradients:.3g} gradients of a node in all."
    screen().print(line, soft_wrap=True, markup=False, highlight=False)


@app.command()
def run(
    study: StudyName,
    change: Changes = None,
    workers: Workers = None,
    on: Annotated[str, typer.Option(metavar="POOL", help="Who does the runs: local, ray or slurm.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDR", help="A Ray cluster (default: a new one on this machine).")
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of Slurm, as partition=long, time=90 or mem=4GB."),
    ] = None,
    out: Annotated[Path | None, out_option("Where results go (default: results/NAME).", "DIR")] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write the curves for TensorBoard, too, to DIR/tensorboard.", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a study, or go on with one that was stopped.

    Finished runs are not repeated. Exit code 3 if some runs failed; all others are done then.

    perron study run synthetic-speedup
    perron study run my-study.toml --set trials=5 --out results/quick
    perron study run my-study.toml --on ray --address auto
    perron study run my-study.toml --on slurm --slurm partition=short --slurm time=60
    """
    from perron.studies.executors import chosen
    from perron.studies.spec import load, parse

    loaded = load(study, parse(change or []))
    pool = chosen(on, workers=workers, address=address, slurm=parse(slurm or [], "--slurm"))
    folder = out or Path("results") / loaded.name
    finish(run_with_progress(loaded, folder, pool=pool, tensorboard=tensorboard), as_json=as_json)


@app.command()
def plot(folder: Folder, as_json: Json = False) -> None:
    """Draw the figures of a study again and write its report.

    perron study plot results/demo
    """
    from perron.studies.conclusions import conclude, write
    from perron.studies.runner import read_study

    outcome = read_study(folder)
    written = write(outcome, conclude(outcome))
    if as_json:
        write_json({"files": written})
        return
    for path in written:
        screen().print(str(path), soft_wrap=True, markup=False, highlight=False)


@app.command()
def show(folder: Folder, as_json: Json = False) -> None:
    """Show the tables of a study and what they mean.

    perron study show results/demo
    perron study show results/demo --json
    """
    from perron.studies.runner import read_study

    finish(read_study(folder), files=False, as_json=as_json)


def run_with_progress(
    study: Any, folder: Path, workers: int | None = None, pool: Pool | None = None, *, tensorboard: bool = False
) -> Outcome:
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

    from perron.monitor.tensorboard import StudyBoard
    from perron.studies.runner import run_study

    console, board = Console(stderr=True), StudyBoard(folder) if tensorboard else None
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

        def progress(share: float) -> None:
            bar.update(task, completed=share)
            if board:
                board.update()

        try:
            return run_study(
                study,
                folder,
                workers=workers,
                pool=pool,
                progress=progress,
                began=began,
                news=news,
            )
        except KeyboardInterrupt:
            bar.stop()
            console.print(
                f"Stopped. What was done is kept in {folder}; the same command goes on.", markup=False, soft_wrap=True
            )
            raise typer.Exit(130) from None
        finally:
            if board:
                board.close()


def finish(outcome: Outcome, *, files: bool = True, only: Sequence[str] = (), as_json: bool = False) -> None:
    """Show what a study found (all its tables, or only some), write its files, and say which runs failed."""
    from perron import report
    from perron.studies.conclusions import conclude, failures, write

    try:
        found = conclude(outcome)
    except PerronError as error:
        if files:  # its page says what went wrong
            report.write([outcome], outcome.folder / "report.html")
        hidden = outcome.failed and not outcome.table.empty
        said = f"{error} Besides, runs failed: {failures(outcome)}" if hidden else str(error)
        raise (FailedError if outcome.failed else PerronError)(said) from None
    paths = write(outcome, found) if files else []
    if files:
        paths.append(report.write([outcome], outcome.folder / "report.html", concluded=found))
    if as_json:
        write_json(
            {
                "study": outcome.study.name,
                "folder": outcome.folder,
                "runs": len(outcome.study.runs),
                "done": outcome.done,
                "reused": outcome.reused,
                "failed": outcome.failed,
                "warned": outcome.warned,
                "seconds": round(outcome.seconds, 3),
                "conclusion": outcome.study.conclusion,
                "sentences": found.sentences,
                "summary": found.summary,
                "files": paths,
            }
        )
    else:
        _print(outcome, found, paths, only)
    if outcome.failed:
        raise FailedError(
            f"{len(outcome.failed)} of {len(outcome.study.runs)} runs failed: {failures(outcome).rstrip('.')}. "
            "The others are done; the same command tries these again."
        )


def _print(outcome: Outcome, found: Conclusion, paths: list[Path], only: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = screen()
    for title, cells in reversed(found.tables.items()):
        if not only or title in only:
            table = Table(*map(str, cells.columns), title=title)
            for row in cells.to_numpy().tolist():
                table.add_row(*(Text(cell) for cell in row))
            console.print(table)
    before = f", {outcome.reused} of them from before" if outcome.reused else ""
    runs = len(outcome.study.runs)
    many = f"{runs}" if outcome.done == runs else f"{outcome.done} of {runs}"
    lines = [f"{many} runs in {outcome.seconds:.0f} s{before}."]
    if outcome.done + len(outcome.failed) < runs:
        lines.append("The others are not done yet; the same perron study run goes on.")
    if paths:
        lines += [f"Picture: {path}" for path in paths if path.suffix == ".png"]
        lines.append(f"Table: {outcome.folder / 'results.parquet'}; as text: {outcome.folder / 'report.md'}")
        lines.append(f"Report: {outcome.folder / 'report.html'} (open it in a browser)")
    if outcome.warned:
        lines.append(f"{len(outcome.warned)} runs gave warnings (manifest.json): {next(iter(outcome.warned.values()))}")
    for line in [*lines, *found.sentences]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
