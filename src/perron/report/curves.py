"""The curves of a study as the page draws them: means over trials with bands, thinned to what a screen shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perron._storage.jsonable import to_jsonable
from perron._typing import IntArray
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.report.facts import finished
from perron.simulation.cost import bytes_per_step
from perron.simulation.metrics import BLOCKS, METRICS
from perron.studies.conclusions.base import OPTIONS, VARYING, Table, spoken, titled
from perron.studies.run import PROBLEMS, Run, algorithm_of
from perron.studies.runner import Outcome
from perron.studies.statistics import series

FEWEST, MOST = 40, 400  # points of a curve
LARGE = 600  # nodes, beyond which the bytes of a step are not counted: that takes dense matrices
TITLES = {
    "grad_norm_sq": "squared gradient norm",
    "grad_norm_sq_mean": "squared gradient norm at the plain mean",
    "grad_norm_sq_local": "squared norm of the mean local gradient",
    "loss_mean": "training loss of the averaged model",
    "test_accuracy": "test accuracy of the averaged model",
    "test_loss": "test loss of the averaged model",
    "test_accuracy_weighted": "test accuracy of x-hat",
    "test_accuracy_local": "test accuracy of the nodes, mean",
    "test_accuracy_worst": "test accuracy of the worst node",
    "consensus_error_sq": "consensus error, squared",
    "residual_sq": "squared residual",
    "grad_norm_batch": "norm of the averaged minibatch gradient",
    "distance_sq": "squared distance from the optimum",
}


def points(outcomes: Sequence[Outcome], numbers: int) -> int:
    """How many points each curve may have if all curves of a page together are to have so many numbers."""
    arrays = 0
    for outcome in outcomes:
        if not outcome.table.empty:
            each = 4 if outcome.study.trials > 1 else 1
            arrays += outcome.table["run"].nunique() * len(measured(outcome.table)) * each
    return int(np.clip(numbers // max(arrays, 1), FEWEST, MOST))


def measured(table: Table) -> list[str]:
    """The metrics of a results table."""
    columns = list(table.columns)
    return columns[columns.index("trial") + 1 :]


def curves(outcome: Outcome, seconds: dict[str, float], most: int) -> dict[str, Any] | None:
    """All that the page needs to draw; None if there is nothing to draw, as without results or steps."""
    table = outcome.table
    if table.empty or table["step"].max() == 0:
        return None
    first = table.drop_duplicates("run").set_index("run", drop=False)
    dimensions = _dimensions(outcome, first)
    names, pool, found = measured(table), [], []
    scales = Scales()
    runs = finished(outcome)
    for key, part in table.groupby("run", sort=False):
        steps = np.unique(part["step"].to_numpy())
        kept = _thinned(steps, most)
        shown = steps[kept].tolist()
        if shown not in pool:
            pool.append(shown)
        row = first.loc[key]
        entry = {
            "run": key,
            "at": [dimension["keys"].index(dimension["of"](row)) for dimension in dimensions],
            "steps": pool.index(shown),
            "values": {name: _summary(part, name, kept) for name in names},
            "floor": to_jsonable(row["predicted"], digits=6) or None,
            "lr": to_jsonable(row["lr"], digits=5),
            "per_step": scales(runs.get(key))
            | {"seconds": to_jsonable(seconds.get(key, np.nan) / max(int(row["steps"]), 1), digits=6)},
        }
        found.append(entry)
    drawn = [name for name in names if any(_many(entry["values"][name]["mean"]) for entry in found)]
    if not drawn:  # every run diverged at once
        return None
    recorded = int(table.groupby("run")["step"].nunique().max())
    return {
        "metrics": [_metric(name) for name in drawn],
        "dimensions": [{"title": each["title"], "values": each["labels"]} for each in dimensions],
        "steps": pool,
        "runs": [entry | {"values": {name: entry["values"][name] for name in drawn}} for entry in found],
        "trials": int(table["trials"].max()),
        "thinned": [max(map(len, pool)), recorded] if max(map(len, pool)) < recorded else None,
    } | _first_look(outcome, dimensions, first)


def _thinned(steps: IntArray, most: int) -> IntArray:
    """Which records to keep: spread evenly, some of them evenly on a logarithmic axis; the first and the last always."""
    if len(steps) <= most:
        return np.arange(len(steps))
    early = np.geomspace(1, len(steps) - 1, most // 4)
    even = np.linspace(0, len(steps) - 1, most - most // 4)
    return np.unique(np.round(np.concatenate([early, even])).astype(int))


def _summary(part: Table, name: str, kept: IntArray) -> dict[str, Any]:
    """Mean, standard error, and the quantiles 10 % and 90 % over trials."""
    values = series(part, name)[1][kept]  # (records, trials)
    trials = values.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):  # of runs that diverged
        found = {"mean": to_jsonable(values.mean(axis=1), digits=5)}
        if trials > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=1)
            found |= {
                "error": to_jsonable(values.std(axis=1, ddof=1) / np.sqrt(trials), digits=5),
                "low": to_jsonable(low, digits=5),
                "high": to_jsonable(high, digits=5),
            }
    return found


def _many(values: list[float | None]) -> bool:
    return sum(value is not None for value in values) > 1


def _metric(name: str) -> dict[str, Any]:
    """How a metric is called, and what it is in one line."""
    if name.startswith(BLOCKS):
        m = name.removeprefix(BLOCKS)
        title, about = (
            f"residual over blocks of {m} steps",
            f"|sum of eps over {m} steps|^2 / {m}, of the last complete block.",
        )
    else:
        title = TITLES.get(name, spoken(name))
        about = " ".join((METRICS[name].__doc__ or "").partition("\n\n")[0].split()) if name in METRICS else ""
    return {"name": name, "title": title, "about": about, "share": "accuracy" in name}


# ---- what runs differ in


def _dimensions(outcome: Outcome, first: Table) -> list[dict[str, Any]]:
    """What the runs differ in: title, labels, and how to find a run's place."""
    rate = "effective step" if outcome.study.equal_effective_step else "learning rate"
    titles = {"lr_setting": rate, "nodes": "nodes", "seed": "seed", "network_seed": "seed of the network"}
    options = [name for name in first.columns if name.startswith(OPTIONS)]
    found: list[dict[str, Any]] = []
    for name in ["algorithm", "nodes", "topology", *VARYING, *options]:
        kept = [each["name"] for each in found]
        if name in kept or first[name].nunique(dropna=False) < 2:
            continue
        if kept and len(first[[*kept, name]].drop_duplicates()) == len(first[kept].drop_duplicates()):
            _told_by(found, name, titles.get(name, spoken(name)), first)
            continue  # what came before decides it, as where each topology has its own step: there is nothing to choose
        keys = list(dict.fromkeys(map(str, first[name])))
        if name in ("nodes", "lr_setting"):
            keys.sort(key=lambda key: (key == "default", float(key) if key != "default" else 0.0))
        found.append(
            {
                "name": name,
                "title": titles.get(name, spoken(name)),
                "keys": keys,
                "labels": [_label(name, key) for key in keys],
                "of": lambda row, name=name: str(row[name]),
            }
        )
    return found


def _told_by(found: list[dict[str, Any]], name: str, title: str, first: Table) -> None:
    """Add to the labels of what decides ``name`` alone, if something does, what it decides."""
    for each in found:
        own = first.astype({each["name"]: str}).groupby(each["name"])[name]
        if own.nunique(dropna=False).max() == 1:
            values = own.first().map(str)
            usual = values.mode()[0] if name == "weights" else None  # most have the study's own
            for place, key in enumerate(each["keys"]):
                if values[key] != usual:
                    each["labels"][place] += f", {title} {spoken(values[key])}"
            return


def _label(name: str, key: str) -> str:
    if name == "algorithm":
        return titled(key)
    return f"n = {key}" if name == "nodes" else spoken(key)


def _first_look(outcome: Outcome, dimensions: list[dict[str, Any]], first: Table) -> dict[str, Any]:
    """What decides colour, dash and panel at first, and which values are shown: few enough curves to be read."""
    names = [each["name"] for each in dimensions]
    wanted = ["nodes", "algorithm"] if outcome.study.conclusion == "speedup" else ["algorithm", "nodes"]
    colour = next((name for name in [*wanted, *names] if name in names), None)
    panel = "topology" if "topology" in names and colour != "topology" else None
    rest = [name for name in names if name not in (colour, panel)]
    shown = []
    for each in dimensions:
        many = len(each["keys"])
        place = (
            _common(first, each["keys"])
            if each["name"] == "nodes"
            else many // 2
            if each["name"] == "lr_setting"
            else 0
        )
        shown.append([place] if each["name"] in rest else list(range(many)))
    number = {name: i for i, name in enumerate(names)}
    return {
        "colour": number.get(colour or "", -1),
        "dash": number[rest[0]] if rest else -1,
        "panel": number.get(panel or "", -1),
        "shown": shown,
        "nested": colour == "algorithm",  # their curves often coincide: from thick to thin, none hides another
    }


def _common(first: Table, counts: list[str]) -> int:
    """The place of the node count that most topologies have; the largest of those."""
    topologies = first.groupby("nodes")["topology"].nunique()
    return max(range(len(counts)), key=lambda place: (topologies[int(counts[place])], place))


# ---- other x axes


class Scales:
    """What a step of a run costs: bytes over all links and passes over the data. What is costly to find out is done once."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int, int | None] | None] = {}
        self._networks: dict[str, Network] = {}
        self._bytes: dict[str, float | None] = {}

    def __call__(self, run: Run | None) -> dict[str, float | None]:
        """Of one run; None where it is not known."""
        size = self._size(run) if run else None
        if run is None or size is None:
            return {"bytes": None, "epochs": None}
        dim, wire, samples = size
        where = f"{run.topology} {run.topology_options} {run.nodes} {run.weights} {run.network_seed}"
        what = f"{where} {run.algorithm} {run.algorithm_options} {dim} {wire}"
        if what not in self._bytes:
            self._bytes[what] = self._count(run, where, dim, wire)
        batch, passes = run.problem.get("batch"), None
        if samples:
            passes = 1.0 if batch is None else to_jsonable(run.nodes * batch / samples, digits=6)
        return {"bytes": self._bytes[what], "epochs": passes}

    def _count(self, run: Run, where: str, dim: int, wire: int) -> float | None:
        if run.nodes > LARGE:
            return None
        try:
            if where not in self._networks:
                self._networks[where] = Network(run.mixing())
            algorithm = algorithm_of(run.algorithm, run.algorithm_options)
            return bytes_per_step(algorithm, self._networks[where], dim=dim, wire=wire)
        except PerronError:
            return None

    def _size(self, run: Run) -> tuple[int, int, int | None] | None:
        """The length of the model, the bytes of a number, and how many samples there are."""
        problem, wire = run.problem, {"float32": 4, "float64": 8, None: None}[run.precision]
        if problem["kind"] != "images":
            return int(problem["dim"]), wire or 8, problem.get("samples")
        key = str(problem)
        if key not in self._sizes:
            options = {name: value for name, value in problem.items() if name != "kind"}
            try:  # the network itself knows how many parameters it has, if its data are on this machine
                made: Any = PROBLEMS["images"](1, **options)
                self._sizes[key] = (made.dim, wire or made.dtype.itemsize, sum(map(len, made.parts)))
            except PerronError:
                self._sizes[key] = None
        return self._sizes[key]
