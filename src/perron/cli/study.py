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
from perron.cli.app import OUTPUT, App, ExitCode, console, print_lines, print_status, print_table, waiting, write_json
from perron.cli.options import (
    SHIPPED,
    Changes,
    Folder,
    Json,
    StudyName,
    Workers,
    check_writable,
    complete_studies,
    flag,
    option,
    out_option,
    shipped_studies,
)
from perron.errors import FailedError, FileError, PerronError

if TYPE_CHECKING:
    from perron.studies.conclusions.base import Conclusion
    from perron.studies.executors import Executor
    from perron.studies.results import Outcome

app = App(
    help="""Run sweeps over networks, algorithms and steps, from a file.

    perron study new mine                  # writes mine.toml: change it
    perron study run mine.toml             # results in results/mine
    perron study show results/mine         # tables and conclusions
    """
)
LINE_INTERVAL = 60.0  # seconds between two progress lines where there is no terminal
TEMPLATE = SHIPPED / "new.template"


@app.command("list")
def list_studies(as_json: Json = False) -> None:
    """List the studies that come with perron.

    perron study list
    perron study list --json
    """
    import tomllib  # only the titles: validating a study would import PyTorch

    keys = ("name", "title", "about", "conclusion")
    texts = {name: (SHIPPED / f"{name}.toml").read_text(encoding="utf-8") for name in shipped_studies()}
    shipped = [{"name": name} | tomllib.loads(text) for name, text in texts.items()]
    if as_json:
        write_json([{key: study.get(key, "") for key in keys} for study in shipped])
        return
    rows = ((study["name"], study["title"], study["conclusion"]) for study in shipped)
    print_table(("study", "title", "conclusion"), rows, title="Studies (perron study run NAME)")


@app.command()
def new(
    study: Annotated[str, typer.Argument(metavar="NAME|FILE", help="The file to write; NAME stands for NAME.toml.")],
    source: Annotated[
        str | None,
        option("--from", "STUDY", "Start from this study, by name or file.", autocompletion=complete_studies),
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
) -> None:
    """Write a study file to start from: every key, explained.

    Unchanged, it runs in seconds. Change any key; unknown keys are refused, with the nearest known one.

    perron study new mine
    perron study new mnist-4.toml --from mnist-speedup
    """
    from perron._storage.atomic import write_bytes

    path = Path(study if study.endswith(".toml") else f"{study}.toml")
    if path.suffix != ".toml" or not re.match(NAME, path.stem):
        raise PerronError(f"A study's name has letters, digits, dots, dashes and underscores; got {path.stem!r}.")
    check_writable(path)
    if path.exists() and not force:
        raise FileError(f"{path} exists; choose another name, or overwrite it with --force.")
    if source is None:
        text = TEMPLATE.read_text(encoding="utf-8")
    else:
        from perron.studies.spec import find

        text = f"# From the study {source}.\n{find(source).read_text(encoding='utf-8')}"
    write_bytes(path, text.replace("FILE.toml", str(path)).encode())
    quoted = shlex.quote(str(path))
    print_status(f"Wrote {path}. Next:\n  perron study check {quoted}      # how much work is it?")
    print_status(f"  perron study run {quoted}")


@app.command()
def check(study: StudyName, changes: Changes = None, as_json: Json = False) -> None:
    """Check a study and its networks, and estimate its work.

    perron study check demo
    perron study check examples/own_study.toml --set trials=5
    """
    from perron.studies._values import parse
    from perron.studies.check import check_networks
    from perron.studies.job import cost
    from perron.studies.spec import load

    loaded = load(study, parse(changes or []))
    with waiting("building the networks"):
        check_networks(loaded.runs)
    gradients = sum(cost(run) for run in loaded.runs)
    if as_json:
        facts = {"name": loaded.name, "title": loaded.title, "conclusion": loaded.conclusion, "runs": len(loaded.runs)}
        write_json(facts | {"gradients": gradients, "study": loaded.model_dump(mode="json")})
        return
    name = loaded.title or loaded.name
    print_lines(f"{name}: {len(loaded.runs)} runs, {gradients:.3g} gradients of a node in total.")
    if loaded.is_tuned:
        from perron.studies.tuner import first_round

        tried = first_round(loaded).runs
        print_lines(f"Before that, lr is tuned: {len(tried)} runs or more, {sum(map(cost, tried)):.3g} gradients.")


@app.command()
def run(
    study: StudyName,
    changes: Changes = None,
    workers: Workers = None,
    on: Annotated[str, option("--on", "POOL", "Where the runs are executed: local, ray or slurm.")] = "local",
    address: Annotated[
        str | None, option("--address", "ADDR", "A Ray cluster (default: a new one on this machine).")
    ] = None,
    slurm: Annotated[
        list[str] | None, option("--slurm", "KEY=VALUE", "An option of Slurm, as partition=long, time=90 or mem=4GB.")
    ] = None,
    out: Annotated[Path | None, out_option("Where results go (default: results/NAME).", "DIR")] = None,
    tensorboard: Annotated[
        bool, flag("--tensorboard", "Also write the curves for TensorBoard, to DIR/tensorboard.", OUTPUT)
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a study, or resume one that was stopped.

    Finished runs are not repeated. If some runs fail, the others are still done, and the exit code is 3.

    perron study run synthetic-speedup
    perron study run my-study.toml --set trials=5 --out results/quick
    perron study run my-study.toml --on ray --address auto
    perron study run my-study.toml --on slurm --slurm partition=short --slurm time=60
    """
    from perron.studies._values import parse
    from perron.studies.executors import create
    from perron.studies.spec import load

    loaded = load(study, parse(changes or []))
    executor = create(on, workers=workers, address=address, slurm=parse(slurm or [], "--slurm"))
    folder = out or Path("results") / loaded.name
    finish(run_with_progress(loaded, folder, executor=executor, tensorboard=tensorboard), as_json=as_json)


@app.command()
def plot(folder: Folder, as_json: Json = False) -> None:
    """Draw the figures of a study again and write its report.

    perron study plot results/demo
    """
    from perron.studies.conclusions import conclude, write
    from perron.studies.results import read_study

    outcome = read_study(folder)
    written = write(outcome, conclude(outcome))
    if as_json:
        write_json({"files": written})
        return
    print_lines(*map(str, written))


@app.command()
def show(
    folder: Folder,
    code: Annotated[
        str | None, option("--code", "HASH", "Results of this code of perron (default: those of results.parquet).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the tables of a study and its conclusions.

    Results of other code stay in the directory: they are listed below the tables, and shown with --code.

    perron study show results/demo
    perron study show results/demo --code 3fa2c1aa
    perron study show results/demo --json
    """
    from perron.studies.results import read_study

    finish(read_study(folder, code=code), files=False, as_json=as_json)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The directories of studies that were run.")],
    x: Annotated[
        str, option("--x", "COLUMN", "steps, gradients, bytes, seconds or another measured column.")
    ] = "steps",
    y: Annotated[str | None, option("--y", "METRIC", "A metric (default: the first).")] = None,
    panels: Annotated[
        list[str] | None,
        option("--panels", "COLUMN", "A panel for each value of this column, as topology; repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None, option("--where", "COLUMN=VALUE", "Show these runs only, as nodes=[8,16]; repeatable.")
    ] = None,
    target: Annotated[
        float | None, option("--target", "Y", "The best step is the one that reaches this value first.")
    ] = None,
    log_x: Annotated[bool, flag("--log-x", "A logarithmic x axis.")] = False,
    columns: Annotated[str, option("--columns", "WIDTH", "Of the page: one (3.5 in) or two (7.16 in).")] = "one",
    latex: Annotated[bool, flag("--latex", "Set the text of figures with LaTeX, if it is installed.")] = False,
    out: Annotated[Path, out_option("Where figures and tables go.", "DIR")] = Path("results/compare"),
    as_json: Json = False,
) -> None:
    """Draw studies on the same axes, each algorithm at its best step.

    Writes the curves, the sweep over learning rates, and the table as Markdown, CSV and LaTeX.

    perron study compare results/a results/b --x bytes
    perron study compare results/a --y consensus_error_sq --panels topology --columns two
    """
    from perron.studies import compare as compared
    from perron.studies._values import parse

    options = {"x": x, "y": y, "log_x": log_x, "panels": panels, "target": target, "columns": columns, "latex": latex}
    found = compared(folders, **options, where=parse(where or [], "--where"))
    paths = found.save(out)
    if as_json:
        write_json({"sentences": found.sentences, "summary": found.summary, "files": paths})
        return
    for title, cells in found.tables.items():
        print_table(list(map(str, cells.columns)), cells.to_numpy().tolist(), title=title)
    print_lines(*found.sentences, *map(str, paths))


def run_with_progress(
    study: Any, folder: Path, workers: int | None = None, executor: Executor | None = None, *, tensorboard: bool = False
) -> Outcome:
    """Run a study with a progress bar on standard error."""
    from rich.progress import Progress, TimeElapsedColumn

    from perron.monitor.tensorboard import StudyBoard
    from perron.studies.runner import run_study

    screen, board = console(stderr=True), StudyBoard(folder) if tensorboard else None
    columns = list(Progress.get_default_columns())
    columns.insert(-1, TimeElapsedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, speed_estimate_period=3600) as bar:
        task = bar.add_task(study.name, total=1.0)
        last = time.monotonic()

        def print_line(line: str) -> None:
            screen.print(line, highlight=False, markup=False, soft_wrap=True)

        def news(line: str) -> None:
            nonlocal last
            if screen.is_terminal:
                bar.update(task, description=line)
            elif time.monotonic() - last > LINE_INTERVAL:
                last = time.monotonic()
                print_line(line)

        def began(runs: int, done: int) -> None:
            print_line(f"{study.title or study.name}: {runs} runs{f', {done} of them already done' if done else ''}.")

        def progress(share: float) -> None:
            bar.update(task, completed=share)
            if board:
                board.update()

        try:
            return run_study(
                study,
                folder,
                workers=workers,
                executor=executor,
                progress=progress,
                began=began,
                news=news,
                notice=print_line,
            )
        except KeyboardInterrupt:
            bar.stop()
            print_line(f"Stopped. Finished runs are kept in {folder}; the same command resumes the study.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            if board:
                board.close()


def finish(outcome: Outcome, *, files: bool = True, only: Sequence[str] = (), as_json: bool = False) -> None:
    """Print the conclusions of a study and its tables (or only some), write its files, and raise if runs failed."""
    from perron import report
    from perron.studies.conclusions import conclude, failures, write
    from perron.studies.results import earlier_results, results_by_code

    try:
        conclusion = conclude(outcome)
    except PerronError as error:
        if files and outcome.written:  # the page shows the error
            report.write([outcome], outcome.folder / "report.html")
        hidden = outcome.failed and not outcome.table.empty
        message = f"{error} Besides, runs failed: {failures(outcome)}" if hidden else str(error)
        message += "" if outcome.written else f" The results that were in {outcome.folder} before are still there."
        raise (FailedError if outcome.failed else PerronError)(message) from None
    paths = write(outcome, conclusion) if files else []
    if files:
        paths.append(report.write([outcome], outcome.folder / "report.html", concluded=conclusion))
    code, by_code = outcome.manifest.code if outcome.manifest else "", results_by_code(outcome.folder)
    if as_json:
        fields = {name: getattr(outcome, name) for name in ("folder", "done", "reused", "failed", "warned")}
        fields |= {"study": outcome.study.name, "runs": len(outcome.study.runs), "seconds": round(outcome.seconds, 3)}
        fields |= {"conclusion": outcome.study.conclusion, "sentences": conclusion.sentences}
        fields |= {"code": code, "results_by_code": by_code, "earlier": earlier_results(outcome.folder)}
        write_json(fields | {"summary": conclusion.summary, "files": paths})
    else:
        _print(outcome, conclusion, paths, only)
        for hashed in by_code.keys() - {code}:
            command = f"perron study show {outcome.folder} --code {hashed}"
            print_lines(f"There are also results of other code, {by_code[hashed]} runs: {command} shows them.")
    if outcome.failed:
        raise FailedError(
            f"{len(outcome.failed)} of {len(outcome.study.runs)} runs failed: {failures(outcome).rstrip('.')}. "
            "The others are done; the same command retries these."
        )


def _print(outcome: Outcome, conclusion: Conclusion, paths: list[Path], only: Sequence[str]) -> None:
    for title, cells in reversed(conclusion.tables.items()):
        if not only or title in only:
            print_table(list(map(str, cells.columns)), cells.to_numpy().tolist(), title=title)
    runs, failed = len(outcome.study.runs), len(outcome.failed)
    count = f"{runs}" if outcome.done == runs else f"{outcome.done} of {runs}"
    before = f", {outcome.reused} of them from before" if outcome.reused else ""
    lines = [f"{count} runs in {outcome.seconds:.0f} s{before}."]
    if outcome.done + failed < runs:
        lines.append("The others are not done yet; the same perron study run resumes.")
    if paths:
        lines += [f"Picture: {path}" for path in paths if path.suffix == ".png"]
        lines.append(f"Table: {outcome.folder / 'results.parquet'}; as text: {outcome.folder / 'report.md'}")
        lines.append(f"Report: {outcome.folder / 'report.html'} (open it in a browser)")
    if outcome.warned:
        lines.append(f"{len(outcome.warned)} runs gave warnings (manifest.json): {next(iter(outcome.warned.values()))}")
    print_lines(*lines, *conclusion.sentences)
