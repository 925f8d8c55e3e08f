"""How a study was run: machine, duration, results, and the command and file to repeat it."""

from __future__ import annotations

from perron.errors import PerronError
from perron.monitor.progress import format_duration
from perron.studies.conclusions.text import OPTIONS, VARYING
from perron.studies.results import Manifest, Outcome
from perron.studies.run import Run
from perron.studies.spec import Study, load, shipped


def run_facts(outcome: Outcome, manifest: Manifest) -> dict[str, str]:
    """Return when, where and with what software a study was run, by title."""
    machine = manifest.machine
    runs = f"{outcome.done} of {len(outcome.study.runs)} finished"
    lines = {
        "Study": outcome.study.name,
        "Runs": f"{runs}; {outcome.reused} of them in an earlier session" if outcome.reused else runs,
        "Started": f"{manifest.started:%Y-%m-%d %H:%M} (UTC)" if manifest.started else "",
        "Duration": format_duration(outcome.seconds, decimals=1),
        "Time on all cores": format_duration(manifest.core_seconds, decimals=1),
        "Seeds": ", ".join(map(str, outcome.study.seeds)),
        "perron": manifest.perron,
        "Commit": manifest.commit or "not known (not run from a checkout)",
        "Code": manifest.code,
        "Machine": f"{machine.get('system', '')}, {machine.get('cores', '?')} cores" if machine else "",
        "Software": ", ".join(
            f"{title} {machine[key]}"
            for key, title in (("python", "Python"), ("torch", "PyTorch"), ("numpy", "NumPy"))
            if key in machine
        ),
    }
    return {key: value for key, value in lines.items() if value}


def finished(outcome: Outcome) -> dict[str, Run]:
    """Return the runs that have results, by their names in the table.

    The name is the key of the run; but results of an earlier perron may have other keys for the same runs, which are then found
    by the parameters in which runs differ.
    """
    if outcome.table.empty:
        return {}
    first = outcome.table.drop_duplicates("run")
    options = [name for name in first.columns if name.startswith(OPTIONS) and first[name].nunique(dropna=False) > 1]
    names = ["topology", "nodes", *VARYING, *options]
    by_key = {run.key: run for run in outcome.study.runs}
    alike = {tuple(str(run.columns.get(name)) for name in names): run for run in outcome.study.runs}
    runs = {
        row["run"]: by_key.get(row["run"]) or alike.get(tuple(str(row[name]) for name in names))
        for _, row in first.iterrows()
    }
    return {key: run for key, run in runs.items() if run is not None}


def missing(outcome: Outcome) -> list[str]:
    """Return the runs that neither finished nor failed: the study was stopped before."""
    done = {run.key for run in finished(outcome).values()} | set(outcome.failed)
    return [str(run) for run in outcome.study.runs if run.key not in done]


def command(study: Study) -> tuple[str, bool]:
    """Return the command that repeats a study, and whether it needs the study's own file."""
    try:
        if study.name in shipped() and load(study.name) == study:
            return f"perron study run {study.name}", False
    except PerronError:  # a shipped study of that name that has changed
        pass
    return f"perron study run {study.name}.toml", True
