"""A study as a file: what is run over which networks, with everything that may vary as a list; and the runs it stands for.

Every value that may vary takes one value or a list of them; a study stands for all combinations. A study file is TOML:

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

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from importlib import resources
from inspect import Parameter, signature
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, field_validator

from perron import authors, topologies
from perron.algorithm import Algorithm
from perron.algorithms import ALGORITHMS
from perron.errors import PerronError
from perron.graph import Graph
from perron.metrics import chosen
from perron.mixing import RULES, Mixing
from perron.network import Network
from perron.problem import Problem
from perron.problems import Logistic, Quadratic

PROBLEMS: dict[str, Callable[..., Problem]] = {"logistic": Logistic.synthetic, "quadratic": Quadratic.random}
CONCLUSIONS = ("speedup", "time_to_accuracy", "residual", "comparison", "topologies")
Scalar = bool | int | float | str | None


class Choice(BaseModel):
    """A name and its options: ``"ring"`` or ``{ name = "random", probability = 0.5 }``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """The name with its options."""
        given = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}({given})" if given else self.name


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _chosen(value: Any) -> Any:
    return [{"name": entry} if isinstance(entry, str) else entry for entry in _listed(value)]


T = TypeVar("T")
Many = Annotated[list[T], BeforeValidator(_listed), Field(min_length=1)]
Choices = Annotated[list[Choice], BeforeValidator(_chosen), Field(min_length=1)]


class Study(BaseModel):
    """What a study file says.

    Attributes:
        title, about: for people.
        conclusion: what is made of the results; see `perron.conclusions`.
        problem: ``kind`` and the options of `Logistic.synthetic` or `Quadratic.random` (but nodes).
        topologies: names, or tables with options, as ``{ name = "random", probability = 0.5 }``.
        nodes: node counts, for all topologies; or a table of them by topology (``grid``), or by topology and weights
            (``"random/authors"``), with ``default`` for the others.
        weights: names of weight rules, or ``"authors"`` for the networks that the paper's authors released.
        network_seed: of random topologies and weights.
        algorithms: names, or tables with options; the option ``weights`` overrides the study's.
        lr: learning rates, or ``"default"`` for each algorithm's own rule.
        equal_effective_step: whether lr is the *effective* step, so that each algorithm gets lr divided by its factor (c for
            Push-Pull, n for pull-only methods).
        steps: how many; with ``horizon``, at most so many.
        horizon: run for horizon / lr steps: small steps get more time.
        every: measure after every so many steps; ``"log"``; or by default about 200 times.
        trials, seeds: independent runs side by side, for each seed.
        metrics: names, see `perron.metrics.METRICS`; ``residual_block_sq_20`` sums over blocks of 20 steps.
        accuracies: for the conclusion time_to_accuracy, values of grad_norm_sq to be reached.
        timeout: minutes after which a run counts as hung.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "study"
    title: str = ""
    about: str = ""
    conclusion: Literal["speedup", "time_to_accuracy", "residual", "comparison", "topologies"] = "speedup"
    problem: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict, validate_default=True)
    topologies: Choices
    nodes: dict[str, Many[Annotated[int, Field(ge=1)]]]
    weights: Many[str] = Field(default_factory=lambda: ["random_integer"])
    network_seed: Many[Annotated[int, Field(ge=0)]] = Field(default_factory=lambda: [0])
    algorithms: Choices = Field(default_factory=lambda: [Choice(name="push_pull")])
    lr: Many[Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["default"]] = ["default"]
    equal_effective_step: bool = False
    steps: Annotated[int, Field(ge=0)] = 1000
    horizon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    every: Annotated[int, Field(ge=1)] | Literal["log"] | None = None
    trials: Annotated[int, Field(ge=1)] = 10
    seeds: Many[int] = Field(default_factory=lambda: [0])
    metrics: Many[str] = Field(default_factory=lambda: ["grad_norm_sq"])
    accuracies: Many[Annotated[float, Field(gt=0)]] = Field(default_factory=lambda: [1e-4, 1e-5])
    timeout: Annotated[float, Field(gt=0)] = 120.0

    @field_validator("nodes", mode="before")
    @classmethod
    def _default_nodes(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"default": value}

    @field_validator("nodes")
    @classmethod
    def _known_nodes(cls, value: dict[str, list[int]], info: Any) -> dict[str, list[int]]:
        named = [choice.name for choice in info.data.get("topologies", [])]
        for name in value:
            if name != "default" and name.partition("/")[0] not in named:
                raise ValueError(f"{name!r} is not among the study's topologies: {', '.join(named)}")
        if "default" not in value and (missing := [name for name in named if name not in value]):
            raise ValueError(f"no node counts for {', '.join(missing)}: add them, or default = [...]")
        return value

    @field_validator("problem")
    @classmethod
    def _known_problem(cls, value: dict[str, Any]) -> dict[str, Any]:
        kind = value.get("kind", "logistic")
        if kind not in PROBLEMS:
            raise ValueError(f"kind is one of {', '.join(PROBLEMS)}; got {kind!r}")
        given = {key: entry for key, entry in value.items() if key != "kind"}
        model = _options_of(PROBLEMS[kind], several=True)
        return {"kind": kind} | model.model_validate(given).model_dump()

    @field_validator("topologies")
    @classmethod
    def _known_topologies(cls, value: list[Choice]) -> list[Choice]:
        for choice in value:
            _options_of(_named(choice.name, topologies.NAMES, "topology")).model_validate(choice.options)
        return value

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(cls, value: list[Choice]) -> list[Choice]:
        for choice in value:
            options = choice.options
            cls._known_weights([options.pop("weights", "uniform")])
            _algorithm(choice.name, options)
        return value

    @field_validator("weights")
    @classmethod
    def _known_weights(cls, value: list[str]) -> list[str]:
        for name in value:
            _named(name, {**RULES, "authors": None}, "weight rule")
        return value

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, value: list[str]) -> list[str]:
        try:
            chosen(value)
        except PerronError as error:
            raise ValueError(str(error)) from None
        return value

    @cached_property
    def runs(self) -> list[Run]:
        """All combinations, in the order of the file's lists."""
        found = []
        problems = [
            dict(zip(self.problem, values, strict=True)) for values in product(*map(_listed, self.problem.values()))
        ]
        for problem, topology, seed, network_seed in product(problems, self.topologies, self.seeds, self.network_seed):
            for algorithm, lr in product(self.algorithms, self.lr):
                options = algorithm.options
                own = options.pop("weights", None)
                for weights in [own] if own else self.weights:
                    for nodes in self._counts(topology.name, weights):
                        found.append(
                            Run(
                                problem=problem,
                                topology=topology.name,
                                topology_options=topology.options,
                                nodes=nodes,
                                weights=weights,
                                network_seed=network_seed,
                                algorithm=algorithm.name,
                                algorithm_options=options,
                                lr=lr,
                                equal_effective_step=self.equal_effective_step,
                                steps=self.steps,
                                horizon=self.horizon,
                                every=self.every,
                                trials=self.trials,
                                seed=seed,
                                metrics=self.metrics,
                            )
                        )
        return list({run.key: run for run in found}.values())

    def _counts(self, topology: str, weights: str) -> list[int]:
        for key in (f"{topology}/{weights}", topology, "default"):
            if key in self.nodes:
                return self.nodes[key]
        return []


class Run(BaseModel):
    """One combination: everything that decides its numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    problem: dict[str, Any]
    topology: str
    topology_options: dict[str, Any]
    nodes: int
    weights: str
    network_seed: int
    algorithm: str
    algorithm_options: dict[str, Any]
    lr: float | Literal["default"]
    equal_effective_step: bool
    steps: int
    horizon: float | None
    every: int | Literal["log"] | None
    trials: int
    seed: int
    metrics: list[str]

    @cached_property
    def key(self) -> str:
        """A name made of its parameters."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        step = f"lr {self.lr:g}" if isinstance(self.lr, float) else "default lr"
        return f"{self.algorithm} on {self.topology}({self.nodes}), {self.weights}, {step}, seed {self.seed}"

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Each parameter as a column of the results table."""
        return {
            "run": self.key,
            "topology": Choice(name=self.topology, **self.topology_options).label,
            "nodes": self.nodes,
            "weights": self.weights,
            "network_seed": self.network_seed,
            "algorithm": Choice(name=self.algorithm, **self.algorithm_options).label,
            "trials": self.trials,
            "seed": self.seed,
        } | {f"problem_{name}": value for name, value in self.problem.items()}

    def build(self) -> tuple[Problem, Algorithm, Mixing]:
        """The objects it names."""
        options = {name: value for name, value in self.problem.items() if name != "kind"}
        problem = PROBLEMS[self.problem["kind"]](self.nodes, **options)
        algorithm = _algorithm(self.algorithm, self.algorithm_options)
        return problem, algorithm, self.mixing()

    def rate(self, algorithm: Algorithm, network: Network, smoothness: float | None) -> tuple[float, int]:
        """The learning rate and the number of steps."""
        if self.lr == "default":
            if smoothness is None:
                raise PerronError("Without a smoothness constant of the problem there is no default step: set lr.")
            lr = algorithm.default_lr(network, smoothness)
        else:
            lr = self.lr / (algorithm.effective_step(network) if self.equal_effective_step else 1.0)
        if self.horizon is None:
            return lr, self.steps
        step = lr * algorithm.effective_step(network)
        return lr, min(self.steps, max(1, round(self.horizon / step)))

    def mixing(self) -> Mixing:
        """The network."""
        if self.weights == "authors":
            return _named(self.topology, authors.NAMES, "network of the authors")(self.nodes, seed=self.network_seed)
        rule = RULES[self.weights]
        return rule(self.graph(), **({"seed": self.network_seed} if "seed" in signature(rule).parameters else {}))

    def graph(self) -> Graph | tuple[Graph, ...]:
        """Who hears whom, laid out for drawing; of a time-varying network, in each step of its period."""
        family = topologies.NAMES[self.topology]
        seed = {"seed": self.network_seed} if "seed" in signature(family).parameters else {}
        drawn = family(self.nodes, **(seed | self.topology_options))
        if self.weights != "authors" or isinstance(drawn, tuple):
            return drawn
        theirs = self.mixing().pull_graph
        return Graph(theirs.nodes, theirs.edges, positions=drawn.positions if self.topology == "grid" else None)


def load(name_or_file: str | Path, changes: Mapping[str, Any] | None = None) -> Study:
    """A study that ships with perron, by name, or a file; with some of its keys changed, as ``{"problem.batch": 50}``."""
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
        raise PerronError(f"{path.name}: {_told(error)}") from None


def find(name_or_file: str | Path) -> Path:
    """The file of a study."""
    path = Path(name_or_file)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if not path.is_file():
            raise PerronError(f"There is no study file {path}.")
        return path
    return _named(str(name_or_file), shipped(), "study")


def shipped() -> dict[str, Path]:
    """The studies that come with perron."""
    folder = Path(str(resources.files("perron"))) / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def parse(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` texts with TOML values (or plain words) as changes to a study."""
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise PerronError(f"--set takes KEY=VALUE, as lr=0.01 or problem.batch=50; got {pair!r}.")
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


def _named(name: str, among: Mapping[str, T], kind: str) -> T:
    if name in among:
        return among[name]
    close = get_close_matches(name, among, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownNameError(f"there is no {kind} {name!r}; {hint}There are: {', '.join(among)}.")


class UnknownNameError(PerronError, ValueError):
    """A name that is not known: pydantic collects it as a ValueError, everybody else sees a PerronError."""


def _algorithm(name: str, options: Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name with some of its hyper-parameters changed."""
    base: Any = _named(name, ALGORITHMS, "algorithm")
    known = [field.name for field in fields(base)]
    for key in options:
        if key not in known:
            raise UnknownNameError(f"{name} has no option {key!r}; it has: {', '.join([*known, 'weights'])}.")
    return replace(base, **options)


@lru_cache
def _options_of(function: Callable[..., Any], *, several: bool = False) -> type[BaseModel]:
    """A model of a function's options, made from its signature; with ``several``, each may be a list."""
    hints = get_type_hints(function)
    options: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if name in ("n", "nodes", "dtype") or parameter.kind is Parameter.VAR_KEYWORD:
            continue
        default = None if parameter.default is Parameter.empty else parameter.default
        hint: Any = hints[name]
        options[name] = (hint | list[hint] if several else hint, default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **options)


def _told(error: ValidationError) -> str:
    """All that is wrong with a study, each with its key."""
    told = []
    for problem in error.errors():
        key = ".".join(
            str(part)
            for part in problem["loc"]
            if part not in ("function-before[_listed()]", "function-before[_chosen()]")
        )
        said = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            close = get_close_matches(key, Study.model_fields, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            said = f"there is no such key; {hint}There are: {', '.join(Study.model_fields)}."
        elif problem["type"] != "value_error":
            said = f"{said[0].lower()}{said[1:]}; got {problem['input']!r}"
        told.append(f"{key}: {said}")
    return "; ".join(told)
