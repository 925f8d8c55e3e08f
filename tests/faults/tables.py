"""A study in a folder that holds other results, stopped at any operation on its files.

    python tables.py    reads lines of JSON, (folder, how, when), and answers each with (what happened, how many operations)

It imports perron once and forks for each line. ``how`` is "kill" (the process ends before that operation, as by SIGKILL),
"interrupt" (Ctrl-C at that moment), "full" (from then on nothing can be written) or "none".
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

from perron.studies.executors import Executor
from perron.studies.job import perform, write_result
from perron.studies.results import run_name
from perron.studies.spec import Study

OTHER = "0ddc0de1"  # the hash of other code
STUDY = {
    "name": "small", "title": "Small", "conclusion": "topologies", "topologies": ["ring"], "nodes": [2, 3], "lr": 0.1, "steps": 6,
    "every": 1, "trials": 2, "problem": {"kind": "quadratic", "dim": 2, "noise_std": 0.5},
}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir"}


class Here(Executor):
    """Does the runs in this process."""

    def run(self, jobs, on_progress):  # noqa: ARG002
        for place, job in enumerate(jobs):
            yield place, write_result(job.target, perform(job, lambda report: None))


def disguise(folder: Path, study: Study = None) -> None:
    """Make the results in a folder those of other code."""
    for run in (study or Study.model_validate(STUDY)).runs:
        for suffix in (".parquet", ".json"):
            path = folder / "runs" / f"{run_name(run)}{suffix}"
            path.rename(folder / "runs" / f"{run_name(run, OTHER)}{suffix}")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"code": OTHER}))


def contents(folder: Path) -> dict:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def attempt(folder: str, how: str, when: int) -> tuple[str, int]:
    """Run the study; stop it at that operation."""
    from perron.errors import PerronError
    from perron.studies.runner import run_study

    count = 0

    def hook(event, arguments):
        nonlocal count
        if event not in EVENTS or not any(str(one).startswith(folder) for one in arguments[:2]):
            return
        if event == "open" and not (arguments[2] or 0) & WRITING:
            return
        count += 1
        if how == "full" and count >= when and event in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if count == when and how == "kill":
            os._exit(9)
        if count == when and how == "interrupt":
            raise KeyboardInterrupt

    sys.addaudithook(hook)
    try:
        outcome = run_study(Study.model_validate(STUDY), folder, executor=Here())
    except (PerronError, OSError, KeyboardInterrupt) as error:
        return type(error).__name__, count
    return "finished" if outcome.finished else "failed", count


def serve() -> None:
    import perron.studies.runner  # noqa: F401
    from perron.studies.job import prepare

    prepare()
    for line in sys.stdin:
        given = json.loads(line)
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            answer = attempt(*given)
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read() or b'["killed", 0]'
        os.waitpid(child, 0)
        sys.stdout.write(answer.decode() + "\n")
        sys.stdout.flush()


class Attempts:
    """The process that forks; `__call__` makes one attempt."""

    def __enter__(self):
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __call__(self, folder: Path, how: str = "none", when: int = 0) -> tuple[str, int]:
        self.process.stdin.write(json.dumps([str(folder), how, when]) + "\n")
        self.process.stdin.flush()
        return tuple(json.loads(self.process.stdout.readline()))

    def __exit__(self, *_):
        self.process.communicate()


if __name__ == "__main__":
    serve()
