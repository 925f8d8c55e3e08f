"""One run of a study as a job: text in, bytes out, so that it can be done by any process on any machine.

What is handed to a worker is text (JSON), and what comes back is text and bytes (JSON and Parquet), whatever carries it. A worker
whose perron, PyTorch or NumPy is another one than that of the study refuses: it would give other numbers, silently.
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

from perron._storage.atomic import write_bytes
from perron.errors import FileError, PerronError
from perron.monitor.records import LIVE, Records
from perron.networks.graph import BYTES_PER_NODE
from perron.studies.provenance import versions

if TYPE_CHECKING:
    import pandas as pd

    from perron.studies.run import Run

PARTIAL = ".partial"
BEFORE = f"{PARTIAL}.before"


class Report(NamedTuple):
    """How far a run is, and what was measured last."""

    step: int
    steps: int
    values: Mapping[str, float]

    @property
    def share(self) -> float:
        """The part of the run that is done."""
        return self.step / max(self.steps, 1)


class Result(NamedTuple):
    """What a job leaves: what the run says of itself, as JSON, and its table, as Parquet; or what went wrong."""

    facts: str
    table: bytes
    failed: str | None = None


@dataclass(frozen=True)
class Job:
    """A run, and what a worker must know to do it.

    Attributes:
        target: its files, but for their suffix; absolute.
        save_every: seconds between two times that it is saved.
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
        """All of it, to be handed to a worker."""
        return json.dumps(
            {
                "run": self.run.model_dump(mode="json"),
                "target": str(self.target),
                "save_every": self.save_every,
                "timeout": self.timeout,
                "versions": dict(self.versions),
            }
        )

    @classmethod
    def read(cls, text: str) -> Job:
        """The job that a text stands for."""
        from perron.studies.run import Run

        found = json.loads(text)
        return cls(**(found | {"run": Run.model_validate(found["run"]), "target": Path(found["target"])}))


def perform(job: Job, report: Callable[[Report], None], *, seen: bool = True) -> Result:
    """Do a job. Whatever goes wrong comes back as a sentence.

    Args:
        report: is told now and then how far the run is.
        seen: whether the study's directory can be seen from here, so that the run is saved there and goes on from there.
    """

    live: Records | None = None

    def tell(step: int, steps: int, values: Mapping[str, float]) -> None:
        # The one place where a run under way says where it is.
        if live is not None:
            live.steps = steps
            live(step)
        report(Report(step, steps, {name: float(value) for name, value in values.items()}))

    started = time.perf_counter()
    try:
        _same(job.versions)
        prepare()
        live = Records(job.target.with_suffix(LIVE), {"run": str(job.run)}) if seen else None
        kept = job.target.with_suffix(PARTIAL) if seen else None
        earlier = _seconds(kept)
        table, warned = do(job.run, tell, kept, job.save_every, live)
        content = table.to_parquet(index=False)
        said = {
            "run": job.run.model_dump(mode="json"),
            "seconds": round(earlier + time.perf_counter() - started, 3),
            "warnings": warned,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        return Result(json.dumps(said, indent=2) + "\n", content)
    except PerronError as error:
        return Result("", b"", str(error))
    except MemoryError:
        return Result("", b"", "ran out of memory")
    except Exception as error:  # whatever it is, the other runs go on and this one is named
        return Result("", b"", f"{type(error).__name__}: {error}")
    finally:
        if live is not None:
            live.close()


def _seconds(kept: Path | None) -> float:
    """How long a run took until it was saved; its later steps are done again."""
    from perron._storage import tensorfile as saved

    try:
        return 0.0 if kept is None or not kept.exists() else float(saved.latest(kept)[1].get("seconds", 0.0))
    except FileError:
        return 0.0  # damaged: it starts anew


def keep(target: Path, result: Result) -> str | None:
    """Write the files of a finished run; what went wrong, if it did."""
    if result.failed is not None:
        return result.failed
    try:
        write_bytes(target.with_suffix(".json"), result.facts.encode())
        write_bytes(target.with_suffix(".parquet"), result.table)  # last: now it is finished
    except (FileError, OSError) as error:
        return str(error)
    for suffix in (PARTIAL, LIVE, BEFORE):
        with suppress(OSError):  # what is left of it takes space, and no more
            target.with_suffix(suffix).unlink(missing_ok=True)
    return None


@lru_cache
def prepare() -> None:
    """What a worker does once, before its first job: imports, which take seconds and count for no run, and one thread.

    Small tensors are faster on one thread, workers share the cores, and the order of sums is the same everywhere.
    """
    import torch

    for module in ("studies.run", "simulation.simulator"):
        import_module(f"perron.{module}")
    torch.set_num_threads(1)
    threadpool_limits(1)
    versions()


def _same(wanted: Mapping[str, str]) -> None:
    here = versions()
    if other := [
        f"{name} {here.get(name)} instead of {value}" for name, value in wanted.items() if here.get(name) != value
    ]:
        raise PerronError(
            f"the machine {platform.node()} has {', '.join(other)}, and would give other numbers; "
            "install the same versions on all machines"
        )


def do(
    run: Run,
    tell: Callable[[int, int, Mapping[str, float]], None] | None = None,
    kept: Path | None = None,
    save_every: float = 60.0,
    log: Callable[..., object] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """One run: its table, and the warnings it gave. It is kept in a file, if given, and goes on from it."""
    import torch

    from perron.networks.facts import Network
    from perron.simulation.simulator import simulate

    problem, algorithm, mixing = run.build()
    network = Network(mixing)
    lr, steps = run.rate(algorithm, network, problem.smoothness)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        history = simulate(
            problem,
            algorithm,
            mixing,
            steps=steps,
            lr=lr,
            every=run.every,
            metrics=run.metrics,
            final_metrics=run.final_metrics,
            trials=run.trials,
            seed=run.seed,
            dtype=getattr(torch, run.precision) if run.precision else None,
            device=run.device,
            **run.links,
            progress=(lambda step, values: tell(step, steps, values)) if tell else False,
            log=log,
            checkpoint=kept,
            save_every=save_every,
        )
    if history.interrupted:
        raise KeyboardInterrupt  # half a run is none
    facts = _facts(network) | {"lr": lr, "steps": steps, "effective_step": lr * algorithm.effective_step(network)}
    facts["predicted"] = _predicted(problem, facts["effective_step"])
    table = history.frame().drop(columns=["algorithm", "network", "nodes", "lr", "seed"])
    measured = list(history.values)
    table = table.assign(**run.columns, **facts)
    first = [*run.columns, *facts]
    return table[[*first, "step", "trial", *measured]], [str(warning.message) for warning in caught]


def _facts(network: Any) -> dict[str, float]:
    """The network's numbers that theory speaks of."""
    both = network.mixing.has_pull and network.mixing.has_push
    return {
        "c": network.alignment if both else float("nan"),
        "s_A": network.pull_sum if network.mixing.has_pull else float("nan"),
        "s_B": network.push_sum if network.mixing.has_push else float("nan"),
    }


def _predicted(problem: Any, step: float) -> float:
    from perron.theory import noise_floor

    try:
        return noise_floor(problem, step)
    except PerronError:
        return float("nan")


def memory(run: Run) -> int:
    """How many bytes a run needs at least: its network, its problem (of images: not counted), and x, y and two gradients."""
    options, kind = run.problem, run.problem["kind"]
    dim = int(options.get("dim") or 1)
    matrices = dim if kind == "quadratic" and not options.get("diagonal") and not options.get("same_hessian") else 1
    data = int(options.get("samples") or 0) * dim * 4 if kind == "logistic" else run.nodes * dim * matrices * 8
    size = 4 if run.precision == "float32" else 8
    return run.nodes * BYTES_PER_NODE + data + 4 * run.trials * run.nodes * dim * size


def cost(run: Run) -> float:
    """How much work a run is, in gradients of one node."""
    longest = run.steps if run.horizon is None or isinstance(run.lr, str) else min(run.steps, run.horizon / run.lr)
    return run.nodes * run.trials * longest + 1
