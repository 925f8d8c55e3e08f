"""One run of a study as a job: text in, bytes out, so that any process on any machine can do it.

A worker receives text (JSON) and returns text and bytes (JSON and Parquet), whatever transports them. A worker whose perron,
PyTorch or NumPy differs from that of the study refuses the job: its numbers could differ without notice.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from threadpoolctl import threadpool_limits

from perron._storage import tensorfile
from perron._storage.atomic import write_bytes
from perron.errors import FileError, PerronError
from perron.monitor.records import LIVE, Records
from perron.networks._checks import BYTES_PER_NODE
from perron.studies import own
from perron.studies.provenance import versions

if TYPE_CHECKING:
    import pandas as pd

    from perron.studies.run import Run

PARTIAL = ".partial"
BEFORE = f"{PARTIAL}.before"


class Report(NamedTuple):
    """The progress of a run: its step, the last measured values, and whether the worker itself writes them to the live file."""

    step: int
    steps: int
    values: Mapping[str, float]
    recorded: bool = False

    @property
    def share(self) -> float:
        """The part of the run that is done."""
        return self.step / max(self.steps, 1)


class Result(NamedTuple):
    """The result of a job: facts about the run, as JSON, and its table, as Parquet; or the reason why it failed."""

    facts: str
    table: bytes
    failed: str | None = None


@dataclass(frozen=True)
class Job:
    """A run, with everything that a worker needs to do it.

    Attributes:
        target: the absolute path of its files, without their suffix.
        save_every: seconds between two checkpoints.
        timeout: minutes after which it counts as hung.
        versions: of the software that the study was started with.
    """

    run: Run
    target: Path
    save_every: float = 60.0
    timeout: float = 120.0
    versions: Mapping[str, str] = field(default_factory=versions)

    @property
    def text(self) -> str:
        """The job as JSON, to be sent to a worker."""
        return json.dumps(vars(self) | {"run": self.run.model_dump(mode="json"), "target": str(self.target)})

    @property
    def timed_out(self) -> str:
        """The reason for stopping it when it hangs."""
        return f"took longer than timeout = {self.timeout:g} minutes and was stopped"

    @classmethod
    def read(cls, text: str) -> Job:
        """Return the job that a text stands for."""
        from perron.studies.run import Run

        content = json.loads(text)
        return cls(**(content | {"run": Run.model_validate(content["run"]), "target": Path(content["target"])}))


def perform(job: Job, on_progress: Callable[[Report], None], *, shared: bool = True) -> Result:
    """Do a job; an error becomes the reason why it failed.

    Args:
        on_progress: called now and then.
        shared: whether this process sees the study's directory, so that the run writes checkpoints and a live file there.
    """
    started = time.perf_counter()
    live: Records | None = None

    def progress(step: int, steps: int, values: Mapping[str, float]) -> None:
        if live is not None:
            live.steps = steps
            live(step)
        on_progress(Report(step, steps, {name: float(value) for name, value in values.items()}, live is not None))

    try:
        _check_versions(job.versions)
        prepare()
        checkpoint = job.target.with_suffix(PARTIAL) if shared else None
        live = Records(job.target.with_suffix(LIVE), {"run": str(job.run)}) if shared else None
        earlier = _seconds_before(checkpoint)
        table, warned = execute(job.run, progress, checkpoint, job.save_every, live)
        content = table.to_parquet(index=False)
        facts = {
            "run": job.run.model_dump(mode="json"),
            "seconds": round(earlier + time.perf_counter() - started, 3),
            "warnings": warned,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        return Result(json.dumps(facts, indent=2) + "\n", content)
    except PerronError as error:
        return Result("", b"", str(error))
    except MemoryError:
        return Result("", b"", "ran out of memory")
    except Exception as error:  # whatever it is, the other runs continue and this one is named
        return Result("", b"", own.describe(error, job.run.folder))
    finally:
        if live is not None:
            live.close()


def _seconds_before(checkpoint: Path | None) -> float:
    """Return how long a run took until its checkpoint; later steps are repeated."""
    try:
        saved = checkpoint is not None and checkpoint.exists()
        return float(tensorfile.latest(checkpoint)[1].get("seconds", 0.0)) if saved and checkpoint else 0.0
    except FileError:
        return 0.0  # damaged: the run starts from its first step


def write_result(target: Path, result: Result) -> str | None:
    """Write the files of a finished run; return the reason if the run or the writing failed."""
    if result.failed is not None:
        return result.failed
    try:
        write_bytes(target.with_suffix(".json"), result.facts.encode())
        write_bytes(target.with_suffix(".parquet"), result.table)  # last: it marks the run as finished
    except (FileError, OSError) as error:
        return str(error)
    for suffix in (PARTIAL, LIVE, BEFORE):
        with suppress(OSError):  # a file that stays only takes space
            target.with_suffix(suffix).unlink(missing_ok=True)
    return None


@lru_cache
def prepare() -> None:
    """Prepare a worker before its first job: imports, which take seconds and count for no run, and one thread.

    Small tensors are faster on one thread, workers share the cores, and the order of sums is the same everywhere.
    """
    import torch

    for module in ("studies.run", "simulation.simulator"):
        import_module(f"perron.{module}")
    torch.set_num_threads(1)
    threadpool_limits(1)
    versions()


def _check_versions(wanted: Mapping[str, str]) -> None:
    here = versions()
    differ = [
        f"{name} {here.get(name)} instead of {value}" for name, value in wanted.items() if here.get(name) != value
    ]
    if differ:
        raise PerronError(
            f"the machine {platform.node()} has {', '.join(differ)}, and would give other numbers; "
            "install the same versions on all machines"
        )


def execute(
    run: Run,
    progress: Callable[[int, int, Mapping[str, float]], None] | None = None,
    checkpoint: Path | None = None,
    save_every: float = 60.0,
    log: Callable[..., object] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Execute a run, from its checkpoint if there is one; return its table and its warnings."""
    import torch

    from perron.networks.facts import Network
    from perron.networks.repeat import repeat
    from perron.simulation.history import SECONDS
    from perron.simulation.simulator import simulate

    problem, algorithm, mixing = run.build()
    columns, run = run.columns, run.in_steps(algorithm)
    network = Network(repeat(mixing, run.rounds))
    lr, steps = run.rate(algorithm, network, problem.smoothness)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        history = simulate(
            problem, algorithm, mixing, steps=steps, lr=run.schedule(lr, steps), every=run.every, metrics=run.metrics,
            final_metrics=run.final_metrics, trials=run.trials, seed=run.seed, rounds=run.rounds, wire=run.wire,
            dtype=getattr(torch, run.precision) if run.precision else None, device=run.device, **run.links,
            progress=(lambda step, values: progress(step, steps, values)) if progress else False, log=log,
            checkpoint=checkpoint, save_every=save_every, until=run.until, clock=run.build_clock(),
        )  # fmt: skip
    if history.interrupted:
        raise KeyboardInterrupt  # a part of a run is not a result
    effective, floor = _predicted(problem, algorithm, network, lr)
    facts = _network_facts(network) | {"lr": lr, "steps": steps, "effective_step": effective}
    columns = columns | facts | {"predicted": floor if run.decay == "none" else float("nan")}
    timed = [] if history.seconds is None else [SECONDS]
    measured = list(dict.fromkeys(["step", "trial", *history.costs, *timed, *history.values]))
    table = history.frame()[measured].assign(**columns)
    return table[[*columns, *measured]], list(dict.fromkeys(str(warning.message) for warning in caught))


def _network_facts(network: Any) -> dict[str, float]:
    """Return the numbers of the network that theory refers to."""
    pull, push = network.mixing.has_pull, network.mixing.has_push
    return {
        "c": network.alignment if pull and push else float("nan"),
        "s_A": network.pull_sum if pull else float("nan"),
        "s_B": network.push_sum if push else float("nan"),
    }


def _predicted(problem: Any, algorithm: Any, network: Any, lr: float) -> tuple[float, float]:
    """Return the effective step, and the noise floor if theory knows it."""
    from perron.theory import effective_step, noise_floor

    step = lr * algorithm.effective_step(network)
    try:
        step = lr * effective_step(algorithm, network, problem)
        return step, noise_floor(problem, step)
    except PerronError:
        return step, float("nan")


def memory(run: Run) -> int:
    """Return a lower bound on the bytes that a run needs: its network, its problem (without images), x, y and two gradients."""
    options, kind = run.problem, run.problem["kind"]
    dim = int(options.get("dim") or 1)
    matrices = dim if kind == "quadratic" and not options.get("diagonal") and not options.get("same_hessian") else 1
    data = int(options.get("samples") or 0) * dim * 4 if kind == "logistic" else run.nodes * dim * matrices * 8
    size = 4 if run.precision == "float32" else 8
    return run.nodes * BYTES_PER_NODE + data + 4 * run.trials * run.nodes * dim * size


def cost(run: Run) -> float:
    """Return the work of a run, in gradients of one node."""
    longest = run.steps if run.horizon is None or isinstance(run.lr, str) else min(run.steps, run.horizon / run.lr)
    each = run.algorithm_options.get("local_steps", 1) if run.count == "steps" else 1
    return run.nodes * run.trials * longest * (each if isinstance(each, int) else 1) + 1
