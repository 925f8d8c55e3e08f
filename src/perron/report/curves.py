"""The curves of a study as the page draws them: means over trials with bands, thinned to the resolution of a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perron._storage.jsonable import to_jsonable
from perron._typing import FloatArray, IntArray
from perron.networks.facts import Network
from perron.report.facts import finished
from perron.simulation.cost import bytes_per_step
from perron.simulation.history import COSTS, SECONDS
from perron.simulation.metrics import BLOCKS, METRICS
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Table
from perron.studies.conclusions.text import OPTIONS, VARYING
from perron.studies.results import Outcome
from perron.studies.run import Run
from perron.studies.statistics import series

FEWEST, MOST = 40, 400  # points of a curve
LARGE = 600  # nodes, beyond which the bytes of a step are not counted: that takes dense matrices


def points(outcomes: Sequence[Outcome], numbers: int) -> int:
    """Return how many points each curve may have if all curves of a page together have ``numbers`` numbers."""
    arrays = 0
    for outcome in outcomes:
        if not outcome.table.empty:
            each = 4 if outcome.study.trials > 1 else 1
            arrays += outcome.table["run"].nunique() * len(measured(outcome.table)) * each
    return int(np.clip(numbers // max(arrays, 1), FEWEST, MOST))


def measured(table: Table) -> list[str]:
    """Return the metrics of a results table, without costs and seconds."""
    return [name for name in recorded_columns(table) if name not in (*COSTS, SECONDS)]


def recorded_columns(table: Table) -> list[str]:
    """Return the columns of a results table that differ from record to record, besides step and trial."""
    columns = list(table.columns)
    return columns[columns.index("trial") + 1 :]


def curves(outcome: Outcome, seconds: dict[str, float], most: int) -> dict[str, Any] | None:
    """Return the data of all curves; None if there is nothing to draw, as without results or steps."""
    table = outcome.table
    if table.empty or table["step"].max() == 0:
        return None
    first = table.drop_duplicates("run").set_index("run", drop=False)
    dimensions = _dimensions(outcome, first)
    names, step_lists, entries = measured(table), [], []
    costs, runs = _StepCosts(), finished(outcome)
    for key, part in table.groupby("run", sort=False):
        steps = np.unique(part["step"].to_numpy())
        kept = thinned(steps, most)
        if (shown := steps[kept].tolist()) not in step_lists:
            step_lists.append(shown)
        row = first.loc[key]
        per_step = {"seconds": to_jsonable(seconds.get(key, np.nan) / max(int(row["steps"]), 1), digits=6)}
        entries.append(
            {
                "run": key,
                "at": [dimension["keys"].index(str(row[dimension["name"]])) for dimension in dimensions],
                "steps": step_lists.index(shown),
                "clock": _clock(part, kept),
                "values": {name: _summary(part, name, kept) for name in names},
                "floor": to_jsonable(row["predicted"], digits=6) or None,
                "lr": to_jsonable(row["lr"], digits=5),
                "per_step": costs(runs.get(key)) | per_step,
            }
        )
    drawn = [name for name in names if any(_several(entry["values"][name]["mean"]) for entry in entries)]
    if not drawn:  # every run diverged at once
        return None
    recorded, longest = int(table.groupby("run")["step"].nunique().max()), max(map(len, step_lists))
    return {
        "metrics": [metric_about(name) for name in drawn],
        "dimensions": [{"title": dimension["title"], "values": dimension["labels"]} for dimension in dimensions],
        "steps": step_lists,
        "runs": [entry | {"values": {name: entry["values"][name] for name in drawn}} for entry in entries],
        "trials": int(table["trials"].max()),
        "thinned": [longest, recorded] if longest < recorded else None,
    } | _defaults(outcome, dimensions, first)


def thinned(steps: IntArray, most: int) -> IntArray:
    """Return the records to keep: spread evenly, some of them evenly on a logarithmic axis; the first and the last always."""
    if len(steps) <= most:
        return np.arange(len(steps))
    early = np.geomspace(1, len(steps) - 1, most // 4)
    even = np.linspace(0, len(steps) - 1, most - most // 4)
    return np.unique(np.round(np.concatenate([early, even])).astype(int))


def _summary(part: Table, name: str, kept: IntArray) -> dict[str, list[float | None]]:
    """Return mean, standard error, and the quantiles 10 % and 90 % over trials."""
    values = series(part, name)[1][kept]  # (records, trials)
    trials = values.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):  # of runs that diverged
        arrays: dict[str, FloatArray] = {"mean": values.mean(axis=1)}
        if trials > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=1)
            arrays |= {"error": values.std(axis=1, ddof=1) / np.sqrt(trials), "low": low, "high": high}
    return to_jsonable(arrays, digits=5)


def _clock(part: Table, kept: IntArray) -> list[float | None] | None:
    """Return the seconds on the run's clock, their mean over trials; None without a clock."""
    if SECONDS not in part or part[SECONDS].isna().all():
        return None
    seconds: list[float | None] = to_jsonable(series(part, SECONDS)[1][kept].mean(axis=1), digits=6)
    return seconds


def _several(values: list[float | None]) -> bool:
    return sum(value is not None for value in values) > 1


def metric_about(name: str) -> dict[str, Any]:
    """Return the title of a metric and its description in one line."""
    if name.startswith(BLOCKS):
        m = name.removeprefix(BLOCKS)
        title = f"residual over blocks of {m} steps"
        about = f"|sum of eps over {m} steps|^2 / {m}, of the last complete block."
    else:
        title = text.metric_title(name)
        about = " ".join((METRICS[name].__doc__ or "").partition("\n\n")[0].split()) if name in METRICS else ""
    return {"name": name, "title": title, "about": about, "share": "accuracy" in name}


# ---- the parameters in which runs differ


def _dimensions(outcome: Outcome, first: Table) -> list[dict[str, Any]]:
    """Return the parameters in which the runs differ: name, title, values and their labels."""
    rate = "effective step" if outcome.study.equal_effective_step else "learning rate"
    titles = {"lr_setting": rate, "network_seed": "seed of the network"}
    options = [name for name in first.columns if name.startswith(OPTIONS)]
    dimensions: list[dict[str, Any]] = []
    for name in dict.fromkeys(["algorithm", "nodes", "topology", *VARYING, *options]):
        if first[name].nunique(dropna=False) < 2:
            continue
        title, kept = titles.get(name, text.readable(name)), [dimension["name"] for dimension in dimensions]
        if kept and len(first[[*kept, name]].drop_duplicates()) == len(first[kept].drop_duplicates()):
            _add_to_labels(dimensions, name, title, first)
            continue  # the dimensions before decide it, as where each topology has its own step: there is nothing to choose
        keys = list(dict.fromkeys(map(str, first[name])))
        if name in ("nodes", "lr_setting"):
            keys.sort(key=lambda key: (key == "default", float(key) if key != "default" else 0.0))
        labels = [_label(name, key) for key in keys]
        dimensions.append({"name": name, "title": title, "keys": keys, "labels": labels})
    return dimensions


def _add_to_labels(dimensions: list[dict[str, Any]], name: str, title: str, first: Table) -> None:
    """Add the value of ``name`` to the labels of the dimension that alone decides it, if there is one."""
    for dimension in dimensions:
        own = first.astype({dimension["name"]: str}).groupby(dimension["name"])[name]
        if own.nunique(dropna=False).max() == 1:
            values = own.first().map(str)
            usual = values.mode()[0] if name == "weights" else None  # most have the study's own
            for place, key in enumerate(dimension["keys"]):
                if values[key] != usual:
                    dimension["labels"][place] += f", {title} {text.readable(values[key])}"
            return


def _label(name: str, key: str) -> str:
    if name == "algorithm":
        return text.algorithm_title(key)
    return f"n = {key}" if name == "nodes" else text.readable(key)


def _defaults(outcome: Outcome, dimensions: list[dict[str, Any]], first: Table) -> dict[str, Any]:
    """Return which dimensions decide color, dash and panel, and which values are shown, at first: few enough curves to read."""
    names = [dimension["name"] for dimension in dimensions]
    preferred = ["nodes", "algorithm"] if outcome.study.conclusion == "speedup" else ["algorithm", "nodes"]
    color = next((name for name in [*preferred, *names] if name in names), None)
    panel = "topology" if "topology" in names and color != "topology" else None
    rest = [name for name in names if name not in (color, panel)]
    shown = []
    for dimension in dimensions:
        name, count = dimension["name"], len(dimension["keys"])
        if name not in rest:
            shown.append(list(range(count)))
        elif name == "nodes":
            shown.append([_common(first, dimension["keys"])])
        else:
            shown.append([count // 2 if name == "lr_setting" else 0])
    number = {name: i for i, name in enumerate(names)}
    return {
        "color": number.get(color or "", -1),
        "dash": number[rest[0]] if rest else -1,
        "panel": number.get(panel or "", -1),
        "shown": shown,
        "nested": color == "algorithm",  # their curves often coincide: from thick to thin, none hides another
    }


def _common(first: Table, counts: list[str]) -> int:
    """Return the place of the node count that most topologies have; the largest of those."""
    topologies = first.groupby("nodes")["topology"].nunique()
    return max(range(len(counts)), key=lambda place: (topologies[int(counts[place])], place))


# ---- other x axes


class _StepCosts:
    """The cost of a step of a run: bytes over all links, and passes over the data; None where it is not known."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __call__(self, run: Run | None) -> dict[str, float | None]:
        size = self._once(f"{run.problem} {run.precision}", lambda: size_of(run)) if run else None
        if run is None or size is None:
            return {"bytes": None, "epochs": None}
        dim, number, samples = size
        network = f"{run.topology} {run.topology_options} {run.nodes} {run.weights} {run.network_seed}"
        algorithm = f"{run.algorithm} {run.algorithm_options}"
        count = self._once(
            f"{network} {algorithm} {dim} {number} {run.wire}", lambda: self._bytes(run, network, dim, number)
        )
        batch, passes = run.problem.get("batch"), None
        if samples:
            passes = 1.0 if batch is None else to_jsonable(run.nodes * batch / samples, digits=6)
        return {"bytes": count, "epochs": passes}

    def _once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Compute a value that takes long once; None if it cannot be computed here."""
        if key not in self._known:
            try:
                self._known[key] = compute()
            except Exception:  # its data or code may not be here, and code of the user's own may raise anything
                self._known[key] = None
        return self._known[key]

    def _bytes(self, run: Run, name: str, dim: int, number: int) -> float | None:
        network = self._once(name, lambda: Network(run.mixing())) if run.nodes <= LARGE else None
        if network is None:
            return None
        return bytes_per_step(run.build_algorithm(), network, dim=dim, wire=run.wire or number, number=number)


def size_of(run: Run) -> tuple[int, int, int | None]:
    """Return the length of the model, the bytes of a number, and the number of samples."""
    problem, wire = run.problem, {"float32": 4, "float64": 8, None: None}[run.precision]
    on_data = "l2" in problem  # a linear model, whose size depends on its data
    if "dim" in problem and not on_data:
        return int(problem["dim"]), wire or 8, problem.get("samples")
    mine = problem["kind"] in run.sources  # a problem of the user's own may need its number of nodes
    made: Any = run.build_problem(run.nodes if mine or on_data else 1)  # knows its size, if its data are here
    if made.sample_counts is not None:
        return made.dim, wire or made.dtype.itemsize, int(made.sample_counts.sum())
    return made.dim, wire or made.dtype.itemsize, None if mine else sum(map(len, made.parts))
