"""The same 200 runs with processes of this machine and on a Ray cluster of it: the same bytes, and what each takes.

    .venv/bin/python benchmarks/pools.py              # needs ray
    .venv/bin/python benchmarks/pools.py --slurm      # on Slurm too, where there is an sbatch

The pools take turns, REPEATS times; a time is the shortest, from the call to the table. It has the start of the workers in it,
which import PyTorch, and for Ray the start of a cluster: for runs this short that is most of it.
"""

import sys
import tempfile
import time
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perron.studies.executors import Executor, Local, Ray, Slurm, cores
from perron.studies.runner import run_study
from perron.studies.spec import Study

REPEATS = 2
STUDY = Study.model_validate(
    {
        "conclusion": "topologies",
        "topologies": ["ring", "exponential"],
        "nodes": [2, 4, 6, 8, 12],
        "algorithms": ["push_pull", "centralized", "sgp", "frost", "gradient_pull"],
        "lr": 0.02,
        "steps": 200,
        "every": 10,
        "trials": 4,
        "seeds": [0, 1, 2, 3],
        "problem": {"kind": "quadratic", "noise_std": 0.3},
    }
)


def main() -> None:
    pools: dict[str, Executor] = {"processes of this machine": Local(), "a Ray cluster on it": Ray()}
    if "--slurm" in sys.argv:
        pools["Slurm"] = Slurm(options={"time": 5})
    seconds, bytes_of = defaultdict(list), defaultdict(set)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(REPEATS):
            for name, pool in pools.items():
                out = Path(folder) / f"{name}-{turn}"
                started = time.monotonic()
                outcome = run_study(STUDY, out, executor=pool)
                seconds[name].append(time.monotonic() - started)
                if not outcome.finished:
                    raise SystemExit(
                        f"{name}: {len(outcome.failed)} runs failed: {next(iter(outcome.failed.values()))}"
                    )
                bytes_of[name].add(sha256((out / "results.parquet").read_bytes()).hexdigest())
    table = Table("pool", "seconds", "sha256 of results.parquet", title=f"{len(STUDY.runs)} runs, {cores()} cores")
    for name in pools:
        table.add_row(name, f"{min(seconds[name]):.1f}", ", ".join(one[:16] for one in bytes_of[name]))
    Console().print(table)
    same = len(set.union(*bytes_of.values())) == 1
    print("The tables are the same, byte for byte." if same else "THE TABLES DIFFER.")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
