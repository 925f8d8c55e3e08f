"""A study as a file, and the runs that it stands for.

Every parameter that may vary takes one value or a list; a study stands for all combinations. A study file is TOML:

    title = "Does Push-Pull speed up on a ring?"
    conclusion = "speedup"
    topologies = ["ring"]
    nodes = [4, 8, 16]
    algorithms = ["push_pull"]
    lr = 0.05
    steps = 2000
    [problem]
    kind = "quadratic"
    noise_std = 0.5
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from perron._registry import NAME, format_errors, lookup, options_model, unknown, validate
from perron.algorithms.moves import Moving
from perron.algorithms.unreliable import Links
from perron.data.augment import PRESETS
from perron.data.datasets import IMAGES
from perron.data.models import MODELS
from perron.data.partition import PARTITIONS
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.mixing import RULES
from perron.simulation.metrics import chosen
from perron.studies.conclusions import CONCLUSIONS
from perron.studies.run import PROBLEMS, Choice, Run, algorithm_of

NAMES: dict[str, Mapping[str, Any]] = {
    "data": dict.fromkeys(["digits", *IMAGES]),
    "model": MODELS,
    "partition": PARTITIONS,
    "augment": PRESETS,
}
SHARED = (  # keys that all runs of a study have in common
    "equal_effective_step", "steps", "horizon", "every", "trials", "metrics", "final_metrics", "precision", "device",
    "warmup", "decay", "rounds",
)  # fmt: skip
Scalar = bool | int | float | str | None


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _chosen(value: Any) -> Any:
    return [{"name": entry} if isinstance(entry, str) else entry for entry in _listed(value)]


T = TypeVar("T")
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["default"]
Many = Annotated[list[T], BeforeValidator(_listed), Field(min_length=1)]
Choices = Annotated[list[Choice], BeforeValidator(_chosen), Field(min_length=1)]


class Own(BaseModel):
    """What an algorithm may have instead of the study's."""

    weights: str | None = None
    lr: Many[Rate] | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None


class Study(BaseModel):
    """The content of a study file.

    Attributes:
        title, about: for people.
        conclusion: what follows from the results; see `perron.studies.conclusions`.
        problem: ``kind`` and the options (but nodes) of `Logistic.synthetic`, `Quadratic.random`, for networks that classify
            images `Neural.images`, or for text `language_model`; ``batch = "all"`` for exact gradients.
        topologies: names, or tables with options, as ``{ name = "random", probability = 0.5 }``.
        nodes: node counts, for all topologies; or a table of them by topology (``grid``), or by topology and weights
            (``"random/authors"``), with ``default`` for the others.
        weights: names of weight rules, or ``"authors"`` for the networks that the paper's authors released.
        network_seed: of random topologies and weights.
        algorithms: names, or tables with options; the options ``weights``, ``lr`` and ``rounds`` override the study's. The
            option ``move`` is a name from `perron.algorithms.MOVES` or a table, as
            ``{ name = "adamw", weight_decay = 0.1, clip = 1.0 }``.
        lr: learning rates, or ``"default"`` for each algorithm's own rule; or a table of them by topology, with ``default`` for
            the others.
        warmup, decay: the number of steps over which lr grows to its value, and ``"cosine"`` if it falls to zero until the last
            step.
        rounds: exchanges in a step.
        equal_effective_step: whether lr is the *effective* step, so that each algorithm gets lr divided by its factor (c for
            Push-Pull, n for pull-only methods).
        steps: the number of steps; with ``horizon``, the largest.
        horizon: run for horizon / (effective step) steps: small steps get more time.
        every: the number of steps between two records; ``"log"``; or by default about 200 records.
        links: ``loss``, ``delay`` and ``repeats`` of links that are not reliable, see `perron.algorithms.unreliable.Links`.
        trials, seeds: independent runs side by side, for each seed.
        metrics: names, see `perron.simulation.metrics.METRICS`; ``residual_block_sq_20`` sums over blocks of 20 steps.
        final_metrics: those that are measured after the last step only.
        accuracies: for the conclusion time_to_accuracy, values of grad_norm_sq to be reached.
        losses: for the conclusion training, values of the training loss to be reached.
        precision: ``"float32"`` or ``"float64"``; the problem's own by default.
        device: where tensors live, as ``"cuda"``.
        save_every: seconds between two checkpoints of a run.
        timeout: minutes after which a run counts as hung.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(pattern=NAME)] = "study"
    title: str = ""
    about: str = ""
    conclusion: str = "speedup"
    problem: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict, validate_default=True)
    topologies: Choices
    nodes: dict[str, Many[Annotated[int, Field(ge=1)]]]
    weights: Many[str] = Field(default_factory=lambda: ["random_integer"])
    network_seed: Many[Annotated[int, Field(ge=0)]] = Field(default_factory=lambda: [0])
    algorithms: Choices = Field(default_factory=lambda: [Choice(name="push_pull")])
    lr: dict[str, Many[Rate]] = Field(default={"default": ["default"]}, validate_default=True)
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["none", "cosine"] = "none"
    rounds: Annotated[int, Field(ge=1)] = 1
    equal_effective_step: bool = False
    steps: Annotated[int, Field(ge=0)] = 1000
    horizon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    every: Annotated[int, Field(ge=1)] | Literal["log"] | None = None
    links: dict[str, Many[int | float]] = Field(default_factory=dict, validate_default=True)
    trials: Annotated[int, Field(ge=1)] = 10
    seeds: Many[int] = Field(default_factory=lambda: [0])
    metrics: Many[str] = Field(default_factory=lambda: ["grad_norm_sq"])
    final_metrics: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    accuracies: Many[Annotated[float, Field(gt=0)]] = Field(default_factory=lambda: [1e-4, 1e-5])
    losses: Many[Annotated[float, Field(gt=0)]] = Field(default_factory=lambda: [0.3, 0.1, 0.03])
    precision: Literal["float32", "float64"] | None = None
    device: str = "cpu"
    save_every: Annotated[float, Field(ge=0)] = 60.0
    timeout: Annotated[float, Field(gt=0)] = 120.0

    @field_validator("conclusion")
    @classmethod
    def _known_conclusion(cls, value: str) -> str:
        lookup(value, CONCLUSIONS, "conclusion")
        return value

    @field_validator("nodes", "lr", mode="before")
    @classmethod
    def _for_all(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"default": value}

    @field_validator("nodes", "lr")
    @classmethod
    def _known_topology(cls, value: dict[str, list[Any]], info: Any) -> dict[str, list[Any]]:
        known = [choice.name for choice in info.data.get("topologies", [])]
        for name in value:
            lookup(name.partition("/")[0], dict.fromkeys([*known, "default"]), "topology of the study's")
        if "default" not in value and (missing := [name for name in known if name not in value]):
            raise ValueError(f"nothing for {', '.join(missing)}: add it, or default = ...")
        return value

    @field_validator("problem")
    @classmethod
    def _known_problem(cls, value: dict[str, Any]) -> dict[str, Any]:
        kind = value.get("kind", "logistic")
        if not isinstance(kind, str) or kind not in PROBLEMS:
            raise unknown(kind, PROBLEMS, "kind of problem")
        given = {key: entry for key, entry in value.items() if key != "kind"}
        if "batch" in given:
            sizes = [None if size == "all" else size for size in _listed(given["batch"])]
            given["batch"] = sizes if isinstance(given["batch"], list) else sizes[0]
        model = options_model(PROBLEMS[kind], several=True)
        if empty := [key for key, entry in given.items() if entry == []]:
            raise ValueError(f"{empty[0]} is an empty list")
        problem = {"kind": kind} | validate(model, given).model_dump()
        if kind == "logistic" and problem["compiled"] is None:
            problem["compiled"] = find_spec("numba") is not None  # part of a run's key: the order of sums differs
        for key, among in NAMES.items() if kind == "images" else ():
            for name in _listed(problem[key]):
                lookup(name, among, key)
        return problem

    @field_validator("topologies")
    @classmethod
    def _known_topologies(cls, value: list[Choice]) -> list[Choice]:
        for choice in value:
            validate(options_model(lookup(choice.name, topologies.NAMES, "topology")), choice.options)
        return value

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(cls, value: list[Choice]) -> list[Choice]:
        for choice in value:
            options, own = _own(choice)
            cls._known_weights([own.weights] if own.weights else [])
            algorithm_of(choice.name, options)
        return value

    @field_validator("weights")
    @classmethod
    def _known_weights(cls, value: list[str]) -> list[str]:
        for name in value:
            lookup(name, {**RULES, "authors": None}, "weight rule")
        return value

    @field_validator("links")
    @classmethod
    def _known_links(cls, value: dict[str, list[int | float]]) -> dict[str, list[int | float]]:
        for name, values in value.items():
            lookup(name, vars(Links()), "option of links")
            for entry in values:
                try:
                    Links(**{name: entry})  # type: ignore[arg-type]
                except PerronError as error:
                    raise ValueError(str(error)) from None
        return {name: [default] for name, default in vars(Links()).items()} | value

    @field_validator("metrics", "final_metrics")
    @classmethod
    def _known_metrics(cls, value: list[str]) -> list[str]:
        try:
            chosen(value)
        except PerronError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _fits_its_conclusion(self) -> Study:
        """Check the requirements of the conclusion before hours of runs, not after."""
        used = {*self.weights, *(choice.options.get("weights", self.weights[0]) for choice in self.algorithms)}
        for key in [*self.nodes, *self.lr]:
            if "/" in key and key.partition("/")[2] not in used:
                raise ValueError(f"{key!r} names weights that the study does not use: {', '.join(sorted(used))}")
        if "authors" in used and (odd := [choice.label for choice in self.topologies if choice.options]):
            raise ValueError(f"weights: the authors' networks take no options; got {', '.join(odd)}")
        for choice in self.algorithms:
            own = _own(choice)[1].lr
            if any("default" in rates for rates in ([own] if own else self.lr.values())):
                self._check_default_step(choice)
        for requirement in CONCLUSIONS[self.conclusion].requirements:
            if lacking := requirement(self):
                raise ValueError(f"conclusion: {self.conclusion} needs {lacking}")
        return self

    @staticmethod
    def _check_default_step(choice: Choice) -> None:
        algorithm = algorithm_of(choice.name, _own(choice)[0])
        try:
            if isinstance(algorithm, Moving):
                algorithm.move.default_lr(1.0)
        except PerronError as error:
            raise ValueError(f"lr: {choice.label}: {error}") from None

    @cached_property
    def runs(self) -> list[Run]:
        """All combinations, in the order of the file's lists."""
        shared = {name: getattr(self, name) for name in SHARED}
        found = []
        for problem, topology, links, seed, network_seed, algorithm in product(
            _combinations(self.problem), self.topologies, _combinations(self.links), self.seeds, self.network_seed,
            self.algorithms,
        ):  # fmt: skip
            options, own = _own(algorithm)
            for weights in [own.weights] if own.weights else self.weights:
                tables = ({"default": own.lr} if own.lr else self.lr, self.nodes)
                for lr, nodes in product(*(_at(table, topology.name, weights) for table in tables)):
                    run = Run(
                        problem=problem, topology=topology.name, topology_options=topology.options, nodes=nodes,
                        weights=weights, network_seed=network_seed, algorithm=algorithm.name, algorithm_options=options,
                        lr=lr, links=links, seed=seed, **shared | ({"rounds": own.rounds} if own.rounds else {}),
                    )  # fmt: skip
                    found.append(run)
        return list({run.key: run for run in found}.values())


def _own(algorithm: Choice) -> tuple[dict[str, Any], Own]:
    """Return the hyper-parameters of an algorithm, and what it has instead of the study's."""
    options = algorithm.options
    return options, validate(Own, {name: options.pop(name) for name in Own.model_fields if name in options})


def _combinations(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of options whose values may be lists."""
    return [dict(zip(options, values, strict=True)) for values in product(*map(_listed, options.values()))]


def _at(table: Mapping[str, list[Any]], topology: str, weights: str) -> list[Any]:
    """Return the entry of a table by topology, or by topology and weights."""
    keys = (f"{topology}/{weights}", topology, "default")
    return next((table[key] for key in keys if key in table), [])


def load(name_or_file: str | Path, changes: Mapping[str, Any] | None = None) -> Study:
    """Read a study that ships with perron, by name, or a file; ``changes`` sets keys, as ``{"problem.batch": 50}``."""
    path = find(name_or_file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PerronError(f"Cannot read the study {path}: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise PerronError(f"{path} is not a TOML file: {error}.") from None
    for key, value in (changes or {}).items():
        _change(content, key, value)
    try:
        return Study.model_validate({"name": path.stem} | content)
    except ValidationError as error:
        raise PerronError(f"{path.name}: {format_errors(error, Study.model_fields)}") from None


def find(name_or_file: str | Path) -> Path:
    """Return the file of a study."""
    path = Path(name_or_file)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if not path.is_file():
            raise PerronError(f"There is no study file {path}.")
        return path
    return lookup(str(name_or_file), shipped(), "study")


def shipped() -> dict[str, Path]:
    """Return the files of the studies that ship with perron, by name."""
    folder = Path(str(resources.files("perron"))) / "studies" / "shipped"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def parse(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """Parse ``key=value`` texts whose values are TOML or plain words."""
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            example = "lr=0.01 or problem.batch=50" if option == "--set" else "time=60"
            raise PerronError(f"{option} takes KEY=VALUE, as {example}; got {pair!r}.")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key.strip()] = value.strip()
    return changes


def _change(content: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise PerronError(f"{key} cannot be set: {table} is {inner!r}, not a table.")
        content = inner
    content[last] = value
