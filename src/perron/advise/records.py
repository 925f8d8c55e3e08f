"""Inputs and results of the adviser: the constants of a problem, the assessment of each algorithm, the limits of a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any

from scipy.sparse import csr_array

from perron._storage.jsonable import to_jsonable
from perron.algorithms.codecs import Wire, codec_of
from perron.algorithms.node import Side
from perron.errors import PerronError
from perron.networks.mixing import Mixing
from perron.networks.spectral import NetworkMetrics
from perron.theory import StableRange
from perron.theory.time_to_accuracy import CONDITION, check_target, curvatures_of

BETTER = 0.8  # another algorithm is preferred to Push-Pull if its error is less than this times that of Push-Pull


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The constants of the training problem that advice depends on.

    Attributes:
        smoothness: L, the largest curvature of a node's loss.
        noise_var: sigma^2, E |noise|^2 of one node's gradient.
        gap: Delta = f(x_0) - f*.
        steps: T, the budget.
        dim: d, the length of the model, for bytes; None if unknown.
        wire: bytes of a number on the wire; or ``"bf16"``, ``"int8"`` or ``"int4"`` for quantized vectors of 32-bit numbers.
    """

    smoothness: float = 1.0
    noise_var: float = 1.0
    gap: float = 1.0
    steps: int = 10_000
    dim: int | None = None
    wire: int | Wire = 4

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "steps"):
            value = getattr(self, name)
            if not 0 < value < 1e300:
                raise PerronError(f"{name} must be a positive number; got {value}.")
        if not (self.noise_var >= 0 and isfinite(self.noise_var)):
            raise PerronError(f"noise_var must be a number that is not negative; got {self.noise_var}.")
        if isinstance(self.wire, str):
            codec_of(self.wire)
        for name, value in (("dim", self.dim), ("wire", self.number)):
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise PerronError(f"{name} is a whole number, at least 1; got {value}.")

    @property
    def number(self) -> int:
        """The bytes of a number in full precision."""
        return 4 if isinstance(self.wire, str) else self.wire


def edges_of(mixing: Mixing | None) -> dict[str, Any]:
    """Return the edges of a network as (source, target), without loops; for each step of its period, if it varies."""
    if mixing is None:
        return {}
    edges: dict[str, Any] = {}
    for side, matrices in zip(("pull", "push"), mixing.sequences, strict=True):
        steps = []
        for matrix in matrices:
            targets, sources = csr_array(matrix).nonzero()
            steps.append([(int(j), int(i)) for i, j in zip(targets, sources, strict=True) if i != j])
        edges[f"{side}_edges"] = steps if mixing.varies else next(iter(steps), [])
    return edges


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The predicted performance of an algorithm on the network; numbers are None where it cannot be used or is not stable.

    Attributes:
        name, title, family: of the algorithm.
        refusal: why it cannot be used here; empty if it can.
        stable: the steps lr that are stable at the curvature L; ``exact`` says whether from the recursion or from a rule.
        lr, step: the recommended lr, and its effective step.
        level: the predicted stationary E |grad f(x-hat)|^2 at that lr, if all curvature is L.
        level_local: the predicted stationary mean_i E |grad f(x_i)|^2, of the nodes' own models; from the recursion only.
        error: the bound on the mean of E |grad f|^2 over T steps; None for biased methods and those in which nodes take part at
            random, for which it does not hold.
        transient: T*, the number of steps after which the network no longer slows convergence.
        speedup: the factor by which a single node would need more steps for the same bound.
        saturation: n*, the number of nodes beyond which more nodes help little within T steps, if the cap stays the same.
        bytes_per_step: over all links; in vectors of length d if d is not known. None if the algorithm cannot be used.
        remark: the quantity that limits its step.
    """

    name: str
    title: str
    family: str
    refusal: str = ""
    stable: StableRange | None = None
    exact: bool = True
    lr: float | None = None
    step: float | None = None
    level: float | None = None
    level_local: float | None = None
    error: float | None = None
    transient: float | None = None
    speedup: float | None = None
    saturation: float | None = None
    bytes_per_step: float | None = None
    remark: str = ""

    @property
    def works(self) -> bool:
        """Whether there is a step to recommend."""
        return self.lr is not None


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The weight to which a number is most sensitive.

    Attributes:
        side: the matrix of the weight.
        what: the number: rho_2, s or c.
        source, target: the edge.
        slope: the derivative of the number with respect to the weight of the edge, its row or column normalised again.
        node: the node whose choice of weights affects the number most.
        moved: the number after the weight is changed by a tenth (or half of itself) in the direction that lowers it.
    """

    side: Side
    what: str
    source: int
    target: int
    slope: float
    node: int
    moved: float | None = None


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What seconds are counted to.

    Attributes:
        target: the share of |grad f|^2 at the start that may remain; 1e-8 if it is given as None, and 1e-4 with noise.
        condition: L / mu of the losses, on which the number of steps depends.
        noisy: whether gradients have the noise of `Needs`, whose level may then be half of the goal; |grad f|^2 at the start is
            counted as 2 L Delta.
    """

    target: float | None = None
    condition: float = CONDITION
    noisy: bool = False

    def __post_init__(self) -> None:
        vars(self)["target"] = check_target(self.target, noisy=self.noisy)  # the way into a frozen dataclass
        curvatures_of(1.0, self.condition)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """An algorithm on a graph, in seconds.

    Attributes:
        algorithm: its name; ``"centralized"`` for all-reduce and a parameter server.
        graph: the name of the graph, ``"given"`` for the network asked about.
        given: whether it is the network asked about, or that with links both ways.
        plain: whether the graph was made without knowing the links.
        directed: whether some link has no way back, or models and trackers use different graphs.
        step_seconds: of one step, in the long run.
        steps: to the goal, at the best lr; infinite if no lr is stable, or not known.
        lr: that step size.
        standard_error: of the seconds of a step, where compute times are random, so that steps are simulated; None elsewhere.
        critical: what sets the seconds of a step (if compute times are random: that with their means), in words; empty if it was
            not computed.
        links: the links of the critical cycle, as (source, target).
        remark: why there are no steps.
        mixing: the network; None for centralized methods.
    """

    algorithm: str
    graph: str
    given: bool = False
    plain: bool = False
    directed: bool = False
    step_seconds: float
    steps: float
    lr: float | None = None
    standard_error: float | None = None
    critical: str = ""
    links: tuple[tuple[int, int], ...] = ()
    remark: str = ""
    mixing: Mixing | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the network."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "mixing"}
        return values | {"seconds": self.seconds}

    @property
    def seconds(self) -> float:
        """Seconds to the goal."""
        return self.step_seconds * self.steps

    @property
    def described(self) -> str:
        """The algorithm and the graph in words."""
        if self.algorithm == "centralized":
            return self.graph
        return f"{self.algorithm} on {'the given network' if self.graph == 'given' else self.graph}"


@dataclass(frozen=True, kw_only=True)
class GradientCost:
    """What a gradient of each node costs on the given network and links.

    Attributes:
        algorithm: its name; ``"centralized"`` and ``"diloco"`` average by a ring all-reduce.
        local_steps: H, gradients for one exchange.
        wire: the codec of quantized messages, or None.
        bytes: sent by a node, on average.
        seconds: in the long run.
    """

    algorithm: str
    local_steps: int
    wire: str | None
    bytes: float
    seconds: float

    @property
    def plain(self) -> bool:
        """Whether each gradient is exchanged, in full precision."""
        return self.local_steps == 1 and self.wire is None

    @property
    def described(self) -> str:
        """The method in words."""
        steps = f" with H = {self.local_steps}" if self.local_steps > 1 else ""
        wire = f" and {self.wire} messages" if steps else f" with {self.wire} messages"
        return f"{self.algorithm}{steps}{wire if self.wire else '' if steps else ' in full precision'}"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Advice on a network; ``print`` it, or use `to_dict` for JSON.

    Attributes:
        metrics: of the network.
        needs: the constants of the problem.
        assessments: of the candidate algorithms.
        chosen: the recommended one; None if none works.
        limits: the weights that limit the network.
        crossover: the number of nodes of this family beyond which more do not help within T steps; None if not known or none.
        family: the numbers of nodes that were tried for it, with the bound on the error for each.
        words: the advice in sentences.
        goal: what seconds are counted to; None without a clock.
        times: algorithms and graphs in seconds, fastest first; empty without a clock.
        gradients: what a gradient costs with local steps and quantized messages on the given network; empty without a clock.
    """

    metrics: NetworkMetrics
    needs: Needs
    assessments: tuple[Assessment, ...]
    chosen: Assessment | None
    limits: tuple[Limit, ...]
    crossover: int | None
    family: tuple[tuple[int, float], ...]
    words: tuple[str, ...]
    goal: Goal | None = None
    times: tuple[Timing, ...] = ()
    gradients: tuple[GradientCost, ...] = ()

    @property
    def fastest(self) -> Timing | None:
        """The fastest choice with a network of its own, which centralized methods have not; None without seconds."""
        known = (one for one in self.times if one.mixing is not None and isfinite(one.seconds))
        return min(known, key=lambda one: one.seconds, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON: infinite values become None."""
        seconds = {}
        if self.goal is not None:
            seconds = {
                "goal": asdict(self.goal),
                "times": [one.to_dict() for one in self.times],
                "fastest": self.fastest and self.fastest.to_dict() | edges_of(self.fastest.mixing),
                "gradients": [asdict(one) for one in self.gradients],
            }
        return to_jsonable(
            {
                "network": self.metrics.to_dict(),
                "needs": asdict(self.needs),
                "algorithms": [
                    asdict(fit) | {"stable": fit.stable and fit.stable._asdict()} for fit in self.assessments
                ],
                "chosen": self.chosen and self.chosen.name,
                "limits": [asdict(limit) for limit in self.limits],
                "crossover": self.crossover,
                "family": [{"nodes": nodes, "error": error} for nodes, error in self.family],
                "words": self.words,
            }
            | seconds
        )

    def __str__(self) -> str:
        unit = "bytes/step" if self.needs.dim is not None else "d-vectors/step"
        head = f"{'':22}{'stable lr':>12}{'lr':>11}{'floor':>11}{'speedup':>9}{unit:>16}"
        lines = [f"{self.metrics.name or 'network'}: {self.metrics.nodes} nodes", head]
        for fit in self.assessments:
            if not fit.works:
                lines.append(f"{fit.name:22}{fit.refusal or 'no stable step'}")
                continue
            values = (
                fit.stable.upper if fit.stable else None,
                fit.lr,
                fit.level,
                fit.speedup,
                fit.bytes_per_step,
            )
            cells = ["-" if value is None else f"{value:.4g}" for value in values]
            lines.append(f"{fit.name:22}" + "".join(map(str.rjust, cells, (12, 11, 11, 9, 16))))
        return "\n".join([*lines, *self.words])
