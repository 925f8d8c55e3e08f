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
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from perron._registry import NAME, format_errors, lookup, options_model, validate
from perron._storage.atomic import write_bytes
from perron.algorithms import ALGORITHMS
from perron.algorithms.codecs import Wire
from perron.algorithms.moves import Moving
from perron.algorithms.unreliable import Links
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.mixing import RULES
from perron.networks.samplers import SAMPLERS
from perron.simulation.metrics import chosen
from perron.studies import own
from perron.studies._problems import checked_problem
from perron.studies._values import Choices, Many, Rate, Scalar, change, combinations, entry_at, listed, own_settings
from perron.studies.clocks import check_clock
from perron.studies.conclusions import CONCLUSIONS
from perron.studies.figure import Figure
from perron.studies.run import PROBLEMS, Choice, Run, algorithm_of, split_sampler
from perron.studies.toml import INTERNAL, to_toml
from perron.studies.tuning import Tune, place_of, varying_options, with_rate

MAX_BYTES, MAX_RUNS = 2**20, 100_000  # of a study file, and of a study
READING = "reading"  # context of the validation of a study that was run before
SHARED = (  # keys that all runs of a study have in common
    "equal_effective_step", "steps", "horizon", "every", "trials", "metrics", "final_metrics", "precision", "device",
    "warmup", "decay", "rounds", "wire", "until", "count",
)  # fmt: skip


class Study(BaseModel):
    """The content of a study file.

    Attributes:
        folder: where names of your own are looked up: that of the study file.
        sources, sizes: a hash of what each of these names stands for, and the number of nodes of each file; written by perron.
        title, about: for people.
        conclusion: what follows from the results; see `perron.studies.conclusions`.
        problem: ``kind`` and the options (but nodes) of `Logistic.synthetic`, `Quadratic.random`, for networks that classify
            images `Neural.images`, for text `language_model`, or for logistic (with ``data``), ridge, lasso and softmax
            regression `LinearModel.from_data`; ``batch = "all"`` for exact gradients, ``data = "file:hospitals.csv"`` for a file.
        topologies: names, or tables with options, as ``{ name = "random", probability = 0.5 }``; ``"file:abilene.gml"`` for a
            file, with the options undirected and largest_component. Their option ``sampler`` draws the matrices of each step at
            random: a name from `perron.networks.SAMPLERS` or a table, as ``{ name = "link_failures", probability = 0.2 }``.
            Topologies, samplers, algorithms and kinds of problems of your own are ``"my_module:name"``, see `perron.studies.own`.
        nodes: node counts, for all topologies but files; or a table of them by topology (``grid``), or by topology and weights
            (``"random/authors"``), with ``default`` for the others.
        weights: names of weight rules, or ``"authors"`` for the networks that the paper's authors released.
        network_seed: of random topologies and weights.
        algorithms: names, or tables with options; the options ``weights``, ``lr``, ``rounds`` and ``wire`` override the study's.
            The option ``move`` is a name from `perron.algorithms.MOVES` or a table, as ``{ name = "adamw", clip = 1.0 }``.
        lr: learning rates, or ``"default"`` for each algorithm's own rule; or a table of them by topology, with ``default`` for
            the others. ``"tune"``: those in the table ``tuned``, or found before the study runs (`perron.studies.tune`).
        tune, tuned: how learning rates are found (`perron.studies.Tune`); those that `perron tune` has found.
        warmup, decay: the number of steps over which lr grows to its value, and ``"cosine"`` if it falls to zero until the last
            step.
        rounds, wire: exchanges in a step; ``"bf16"``, ``"int8"`` or ``"int4"`` for quantized messages.
        equal_effective_step: whether lr is the *effective* step, so that each algorithm gets lr divided by its factor (c for
            Push-Pull, n for pull-only methods).
        steps: the number of steps; with ``horizon``, the largest.
        count: what ``steps``, ``every`` and ``warmup`` count: ``"steps"``, or ``"gradients"`` of a node, of which a method with
            local steps takes several in a step.
        horizon: run for horizon / (effective step) steps: small steps get more time.
        until: values of metrics at which a run ends before ``steps``, as ``{ grad_norm_sq = 1e-8 }``, see `perron.simulate`.
        every: the number of steps between two records; ``"log"``; or by default about 200 records.
        links: ``loss``, ``delay`` and ``repeats`` of links that are not reliable, see `perron.algorithms.unreliable.Links`.
        clock: machines and links on which runs are timed, see `perron.Clock`: ``links``, the name of a preset (``"gaia"``) or
            ``"file:links.csv"`` (with ``route = true`` to fill in missing pairs), or ``latency`` and ``rate`` of all links;
            ``up``, ``down``, ``compute``, ``size``, ``protocol``, ``ahead``, ``overhead``, ``per_byte``, ``average``.
        trials, seeds: independent runs side by side, for each seed.
        metrics: names, see `perron.simulation.metrics.METRICS`; ``residual_block_sq_20`` sums over blocks of 20 steps.
        final_metrics: those that are measured after the last step only.
        accuracies: for the conclusion time_to_accuracy, values of grad_norm_sq to be reached.
        losses: for the conclusion training, values of the training loss to be reached.
        figure: for the conclusion curves, a table: x, y, log_x, panels, where, target, columns, latex (`perron.studies.Figure`).
        precision: ``"float32"`` or ``"float64"``; the problem's own by default.
        device: where tensors live, as ``"cuda"``.
        save_every: seconds between two checkpoints of a run.
        timeout: minutes after which a run counts as hung.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    folder: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    sizes: dict[str, int] = Field(default_factory=dict)
    name: Annotated[str, Field(pattern=NAME)] = "study"
    title: str = ""
    about: str = ""
    conclusion: str = "speedup"
    problem: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict, validate_default=True)
    topologies: Choices
    nodes: dict[str, Many[Annotated[int, Field(ge=1)]]] = Field(default_factory=dict, validate_default=True)
    weights: Many[str] = Field(default_factory=lambda: ["random_integer"])
    network_seed: Many[Annotated[int, Field(ge=0)]] = Field(default_factory=lambda: [0])
    algorithms: Choices = Field(default_factory=lambda: [Choice(name="push_pull")])
    lr: dict[str, Many[Rate | Literal["tune"]]] = Field(default={"default": ["default"]}, validate_default=True)
    tune: Tune = Field(default_factory=Tune)
    tuned: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["none", "cosine"] = "none"
    rounds: Annotated[int, Field(ge=1)] = 1
    wire: Wire | None = None
    equal_effective_step: bool = False
    steps: Annotated[int, Field(ge=0)] = 1000
    count: Literal["steps", "gradients"] = "steps"
    horizon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    until: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    every: Annotated[int, Field(ge=1)] | Literal["log"] | None = None
    links: dict[str, Many[int | float]] = Field(default_factory=dict, validate_default=True)
    clock: dict[str, Many[Scalar]] = Field(default_factory=dict)
    trials: Annotated[int, Field(ge=1)] = 10
    seeds: Many[int] = Field(default_factory=lambda: [0])
    metrics: Many[str] = Field(default_factory=lambda: ["grad_norm_sq"])
    final_metrics: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    accuracies: Many[Annotated[float, Field(gt=0)]] = Field(default_factory=lambda: [1e-4, 1e-5])
    losses: Many[Annotated[float, Field(gt=0)]] = Field(default_factory=lambda: [0.3, 0.1, 0.03])
    figure: Figure = Field(default_factory=Figure)
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
        needed = [name for name in known if info.field_name == "lr" or not own.is_file(name)]
        if "default" not in value and (missing := [name for name in needed if name not in value]):
            raise ValueError(f"nothing for {', '.join(missing)}: add it, or default = ...")
        return value

    @field_validator("problem")
    @classmethod
    def _known_problem(cls, value: dict[str, Any], info: Any) -> dict[str, Any]:
        return checked_problem(value, info.data["folder"], reading=info.context == READING)

    @field_validator("topologies")
    @classmethod
    def _known_topologies(cls, value: list[Choice], info: Any) -> list[Choice]:
        for choice in value:
            if info.context == READING and ":" in choice.name + choice.sampler:
                continue
            options, _ = split_sampler(choice.options, info.data["folder"])
            if own.is_file(choice.name):
                for key in options:
                    lookup(key, dict.fromkeys(["undirected", "largest_component"]), "option of a network file")
            else:
                made = own.find(choice.name, topologies.NAMES, "topology", info.data["folder"])
                validate(options_model(made), options)
        return value

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(cls, value: list[Choice], info: Any) -> list[Choice]:
        for choice in value:
            options, instead = own_settings(choice)
            cls._known_weights([instead.weights] if instead.weights else [])
            if info.context != READING or choice.name in ALGORITHMS:
                algorithm_of(choice.name, options, info.data["folder"])
        return value

    @field_validator("weights")
    @classmethod
    def _known_weights(cls, value: list[str]) -> list[str]:
        for name in value:
            lookup(name, {**RULES, "authors": None, "file": None}, "weight rule")
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

    @field_validator("clock")
    @classmethod
    def _known_clock(cls, value: dict[str, list[Scalar]], info: Any) -> dict[str, list[Scalar]]:
        check_clock(value, read=info.context != READING)
        return value

    @field_validator("metrics", "final_metrics", "until")
    @classmethod
    def _known_metrics(cls, value: Any) -> Any:
        try:
            chosen([*value])
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
        plain = [choice.label for choice in self.topologies if not own.is_file(choice.name)]
        if "file" in used and plain:
            raise ValueError(f"weights: 'file' stands for weights of a network file, and {', '.join(plain)} is none")
        for choice in self.algorithms:
            rates = own_settings(choice)[1].lr
            if any("default" in one for one in ([rates] if rates else self.lr.values())):
                self._check_default_step(choice)
        if any("tune" in rates for rates in self.lr.values()) and self.lr != {"default": ["tune"]}:
            raise ValueError('lr: "tune" stands alone; for fixed values give the algorithms an lr of their own')
        if self.tuned:
            places = dict.fromkeys(place_of(run, self.varying) for run in self.runs)
            for name in self.tuned:
                lookup(name, places, "group of runs for tuned")
        timed = {"seconds", "seconds_spread"} & {*self.metrics, *self.final_metrics, *self.until}
        if timed and not self.clock:
            raise ValueError(f"metrics: {' and '.join(sorted(timed))} needs a table [clock]")
        for requirement in CONCLUSIONS[self.conclusion].requirements:
            if lacking := requirement(self):
                raise ValueError(f"conclusion: {self.conclusion} needs {lacking}")
        return self

    def _check_default_step(self, choice: Choice) -> None:
        if choice.name in self.sources:  # it was checked before it ran
            return
        algorithm = algorithm_of(choice.name, own_settings(choice)[0], self.folder)
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
        for problem, topology, links, clock, seed, network_seed, algorithm in product(
            combinations(self.problem), self.topologies, combinations(self.links), combinations(self.clock), self.seeds,
            self.network_seed, self.algorithms,
        ):  # fmt: skip
            options, instead = own_settings(algorithm)
            sources = self._sources(problem, topology, algorithm.name, clock)
            for weights in [instead.weights] if instead.weights else self.weights:
                tables = ({"default": instead.lr} if instead.lr else self.lr, self._sizes(topology))
                for lr, nodes in product(*(entry_at(table, topology.name, weights) for table in tables)):
                    run = Run(
                        problem=problem, topology=topology.name, topology_options=topology.options, nodes=nodes,
                        weights=weights, network_seed=network_seed, algorithm=algorithm.name, algorithm_options=options,
                        lr=lr, links=links, clock=clock, seed=seed, sources=sources, folder=self.folder,
                        **shared | instead.model_dump(include={"rounds", "wire"}, exclude_none=True),
                    )  # fmt: skip
                    found.append(run)
                    if len(found) > MAX_RUNS:
                        raise PerronError(
                            f"{self.name}: a study has at most {MAX_RUNS:,} runs; this one has more. Shorten its lists."
                        )
        return list({run.key: run for run in (with_rate(run, self.tuned, self.varying) for run in found)}.values())

    @property
    def varying(self) -> set[str]:
        """The options of the problem and of links that have several values."""
        return varying_options(self.problem, self.links)

    @property
    def is_tuned(self) -> bool:
        """Whether learning rates have to be found first."""
        return any("tune" in rates for rates in self.lr.values()) and any(run.lr == "tune" for run in self.runs)

    def _sizes(self, topology: Choice) -> dict[str, list[int]]:
        """The numbers of nodes of a topology; a file has one."""
        if not own.is_file(topology.name):
            return self.nodes
        size = self.sizes.get(topology.label)
        return {"default": [size or own.network(topology.name, self.folder, **topology.graph_options).mixing.nodes]}

    def _sources(
        self, problem: Mapping[str, Any], topology: Choice, algorithm: str, clock: Mapping[str, Any]
    ) -> dict[str, str]:
        """A hash for each of the names that perron does not know."""
        known: list[Mapping[str, Any]] = [PROBLEMS, topologies.NAMES, SAMPLERS, ALGORITHMS]
        given = zip((problem["kind"], topology.name, topology.sampler, algorithm), known, strict=True)
        others = [name for name, among in given if name and name not in among]
        others += [value for value in (*problem.values(), *clock.values()) if own.is_file(value)]
        return {name: self.sources.get(name) or own.digest(name, self.folder) for name in others}

    @property
    def uses_own(self) -> bool:
        """Whether there are names that perron does not know."""
        choices = (*self.topologies, *self.algorithms)
        names = {self.problem["kind"], *(name for one in choices for name in (one.name, one.sampler) if name)}
        tables = (*self.problem.values(), *self.clock.values())
        files = any(own.is_file(entry) for value in tables for entry in listed(value))
        return files or bool(names - {*PROBLEMS, *topologies.NAMES, *SAMPLERS, *ALGORITHMS})

    def save(self, path: str | Path) -> Path:
        """Write the study as a file, which `load` reads; the paths of files in it are relative to that file."""
        return write_bytes(path, to_toml(self).encode())

    def __repr__(self) -> str:
        algorithms = ", ".join(choice.label for choice in self.algorithms)
        return f"<Study {self.name!r}: {algorithms:.80}; conclusion {self.conclusion!r}>"

    @cached_property
    def fixed(self) -> Study:
        """The study with sources and sizes, so that its results can be read when these files are not there."""
        sources = {name: digest for run in self.runs for name, digest in run.sources.items()}
        files = [choice for choice in self.topologies if own.is_file(choice.name)]
        sizes = {choice.label: self._sizes(choice)["default"][0] for choice in files}
        return self.model_copy(update={"sources": sources, "sizes": sizes})


def load(name_or_file: str | Path, changes: Mapping[str, Any] | None = None) -> Study:
    """Read a study that ships with perron, by name, or a file; ``changes`` sets keys, as ``{"problem.batch": 50}``."""
    path = find(name_or_file)
    if path.stat().st_size > MAX_BYTES:
        raise PerronError(f"{path} is not a study: it has more than {MAX_BYTES:,} bytes.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PerronError(f"Cannot read the study {path}: {error}.") from None
    except (ValueError, RecursionError) as error:  # also numbers of too many digits, and tables nested too deeply
        raise PerronError(f"{path} is not a TOML file: {error}.") from None
    for key, value in (changes or {}).items():
        change(content, key, value)
    try:
        study = Study.model_validate({"name": path.stem, "folder": str(path.parent.absolute())} | content)
        return study if study.uses_own else study.model_copy(update={"folder": ""})
    except ValidationError as error:
        raise PerronError(
            f"{path.name}: {format_errors(error, [key for key in Study.model_fields if key not in INTERNAL])}"
        ) from None


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
