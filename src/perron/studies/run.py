"""One run of a study: every parameter that decides its numbers, and the objects that it names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from perron._registry import lookup, options_model, validate
from perron.algorithms import ALGORITHMS
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import Wire
from perron.algorithms.moves import move_of
from perron.algorithms.unreliable import Links
from perron.clock import Clock
from perron.errors import PerronError
from perron.networks.builder import add_weights, build_graph, build_released
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.samplers import SAMPLERS
from perron.problems import LinearModel, Logistic, Neural, Quadratic, language_model
from perron.problems.base import Problem
from perron.problems.linear import KINDS
from perron.schedules import LearningRate, cosine, warmup
from perron.simulation.cost import gradients_per_step
from perron.studies import own
from perron.studies.clocks import clock_of

ON_DATA: dict[str, Callable[..., Problem]] = {kind: partial(LinearModel.from_data, kind=kind) for kind in KINDS}
PROBLEMS: dict[str, Callable[..., Problem]] = {
    "logistic": Logistic.synthetic,  # without data
    "quadratic": Quadratic.random,
    "images": Neural.images,
    "text": language_model,
    **{kind: make for kind, make in ON_DATA.items() if kind != "logistic"},
}


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
        """The name with its options, which may be choices themselves."""
        values = {
            key: Choice(**value).label if isinstance(value, dict) and "name" in value else value
            for key, value in self.options.items()
        }
        given = ", ".join(f"{key}={value}" for key, value in values.items())
        return f"{self.name}({given})" if given else self.name

    @property
    def graph_options(self) -> dict[str, Any]:
        """The options of a topology without its sampler."""
        return {key: value for key, value in self.options.items() if key != "sampler"}

    @property
    def sampler(self) -> str:
        """The name of the sampler of a topology; empty if it has none."""
        given = self.options.get("sampler", "")
        return str(given["name"] if isinstance(given, dict) else given)


class Run(BaseModel):
    """One combination of parameters: everything that decides the numbers of a run.

    Attributes:
        sources: a hash for each name of the user's own (`perron.studies.own`).
        folder: where these names are looked up; it does not decide numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    problem: dict[str, Any]
    topology: str
    topology_options: dict[str, Any]
    nodes: int
    weights: str
    network_seed: int
    algorithm: str
    algorithm_options: dict[str, Any]
    lr: float | Literal["default", "tune"]
    equal_effective_step: bool
    steps: int
    horizon: float | None
    every: int | Literal["log"] | None
    links: dict[str, Any]
    trials: int
    seed: int
    metrics: list[str]
    final_metrics: list[str]
    precision: str | None
    device: str
    sources: dict[str, str] = {}
    folder: str = ""
    warmup: int = 0
    decay: Literal["none", "cosine"] = "none"
    rounds: int = 1
    wire: Wire | None = None
    until: dict[str, float] = {}
    clock: dict[str, Any] = {}
    count: Literal["steps", "gradients"] = "steps"

    @cached_property
    def key(self) -> str:
        """A hash of its parameters; those with defaults are younger than the others, and count where they differ from them."""
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"folder"})
        if self.clock:  # 1 and 1.0 are the same seconds
            whole = {name: float(value) for name, value in self.clock.items() if type(value) is int}
            fields["clock"] = fields["clock"] | whole
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        step = f"lr {self.lr:g}" if isinstance(self.lr, float) else f"lr = {self.lr!r}"
        links = f", links {options}" if (options := Links(**self.links)) else ""
        return f"{self.algorithm} on {self.topology}({self.nodes}), {self.weights}, {step}, seed {self.seed}{links}"

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Each parameter as a column of the results table."""
        sent = ({"rounds": self.rounds} if self.rounds > 1 else {}) | ({"wire": self.wire} if self.wire else {})
        return {
            "run": self.key,
            "lr_setting": self.lr if isinstance(self.lr, str) else f"{self.lr:.10g}",
            "topology": Choice(name=self.topology, **self.topology_options).label,
            "nodes": self.nodes,
            "weights": self.weights,
            "network_seed": self.network_seed,
            "algorithm": Choice(name=self.algorithm, **self.algorithm_options, **sent).label,
            "trials": self.trials,
            "seed": self.seed,
            **{f"link_{name}": value for name, value in self.links.items()},
            **{f"clock_{name}": str(value) if name == "compute" else value for name, value in self.clock.items()},
            **{f"problem_{name}": value for name, value in self.problem.items()},
        }

    def build(self) -> tuple[Problem, Algorithm, Mixing]:
        """Build problem, algorithm and network."""
        own.check(self.sources, self.folder)
        return self.build_problem(self.nodes), self.build_algorithm(), self.mixing()

    def build_problem(self, nodes: int) -> Problem:
        """Build the problem for a number of nodes; files among its options are in the study's folder."""
        options = {name: own.file_path(value, self.folder) for name, value in self.problem.items() if name != "kind"}
        made: Problem = problem_maker(self.problem, self.folder)(nodes, **options)
        return made

    def build_algorithm(self) -> Algorithm:
        """Build the algorithm."""
        return algorithm_of(self.algorithm, self.algorithm_options, self.folder)

    def build_clock(self) -> Clock | None:
        """Build the clock; None if the run is not timed."""
        return clock_of(self.clock, self.folder)

    def in_steps(self, algorithm: Algorithm) -> Run:
        """Return the run with ``steps``, ``every`` and ``warmup`` in steps of its algorithm, if they count gradients."""
        if self.count == "steps":
            return self
        each = gradients_per_step(algorithm)
        every = max(1, self.every // each) if isinstance(self.every, int) else self.every
        return self.model_copy(
            update={
                "steps": ceil(self.steps / each),
                "every": every,
                "warmup": ceil(self.warmup / each),
                "count": "steps",
            }
        )

    def rate(self, algorithm: Algorithm, network: Network, smoothness: float | None) -> tuple[float, int]:
        """Return the learning rate and the number of steps."""
        if self.lr == "tune":
            raise PerronError("no learning rate was found: all candidates diverged or failed. Set lr, or tune.grid.")
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

    def schedule(self, lr: float, steps: int) -> LearningRate:
        """Return the learning rate as a function of the step, if it varies: lr is its peak."""
        decayed = cosine(lr, steps=steps) if self.decay == "cosine" else lr
        return warmup(decayed, self.warmup) if self.warmup else decayed

    def mixing(self) -> Mixing:
        """Build the network."""
        if self.weights == "authors":
            return build_released(self.topology, self.nodes, seed=self.network_seed)
        options, sampler = split_sampler(self.topology_options, self.folder)
        if own.is_file(self.topology):
            mixing = own.network(self.topology, self.folder, self.weights, self.network_seed, **options).mixing
        else:
            mixing = add_weights(self.graph(), self.weights, seed=self.network_seed)
        return mixing if sampler is None else sampler(mixing, seed=self.network_seed)

    def graph(self) -> Graph | tuple[Graph, ...]:
        """Build the graph with positions for drawing; of a time-varying network, one for each step of its period."""
        options = Choice(name=self.topology, **self.topology_options).graph_options
        if own.is_file(self.topology):
            return own.network(self.topology, self.folder, **options).graph
        if self.topology in self.sources:
            return cast(Graph, own.find(self.topology, {}, "topology", self.folder)(self.nodes, **options))
        graph = build_graph(self.topology, self.nodes, options, seed=self.network_seed)
        if self.weights != "authors" or isinstance(graph, tuple):
            return graph
        released = self.mixing().pull_graph
        return Graph(released.nodes, released.edges, positions=graph.positions if self.topology == "grid" else None)


def problem_maker(problem: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Return the function that makes a problem from the number of nodes and its options."""
    kind = problem["kind"]
    if kind in ON_DATA and "data" in problem:
        return ON_DATA[kind]
    made = own.find(kind, PROBLEMS, "kind of problem", folder)
    if kind == "logistic":  # the paper's samples; a slip in an option for others is better named as one of these
        plain, others = options_model(made).model_fields, options_model(ON_DATA[kind]).model_fields
        for key in (key for key in problem if key != "kind"):
            lookup(key, {**plain, **others}, "option")
        if needs := sorted(problem.keys() - plain.keys() - {"kind"}):
            raise PerronError(f'{needs[0]} is for a dataset or a file: add data = "a9a" or data = "file:PATH".')
    return made


def split_sampler(options: Mapping[str, Any], folder: str) -> tuple[dict[str, Any], Callable[..., Mixing] | None]:
    """Return the options of a topology without its sampler, and the sampler, a function of a mixing and a seed."""
    others, sampler = dict(options), None
    if "sampler" in others:
        given = others.pop("sampler")
        named = {"name": given} if isinstance(given, str) else dict(given)
        found = own.find(named.pop("name"), SAMPLERS, "sampler", folder)
        sampler = partial(
            found, **validate(options_model(partial(found, mixing=None)), named).model_dump(include=set(named))
        )
    return others, sampler


def algorithm_of(name: str, options: Mapping[str, Any], folder: str = "") -> Algorithm:
    """Return the algorithm of that name with some of its hyper-parameters changed."""
    base: Any = own.find(name, ALGORITHMS, "algorithm", folder)
    kind = base if isinstance(base, type) else type(base)
    if not issubclass(kind, Algorithm) or not is_dataclass(kind):
        raise PerronError(f"{name} is no algorithm: it must be a dataclass that inherits from perron.Algorithm.")
    known = [field.name for field in fields(kind)]
    for key in options:
        lookup(key, dict.fromkeys([*known, "weights"]), f"option of {name}")
    move = {"move": move_of(options["move"])} if "move" in options else {}
    given = {key: value for key, value in options.items() if key != "move"}
    if isinstance(base, type):
        return kind(**validate(options_model(kind), given).model_dump(include=set(given)), **move)
    others = {key: getattr(base, key) for key in known if key not in options}
    return replace(base, **validate(options_model(kind), given | others).model_dump(include=set(given)), **move)
