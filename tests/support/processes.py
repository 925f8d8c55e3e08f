"""Scripts of this folder, run in several processes, and functions of a script that are tests of their own."""

import ast
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from perron import PerronError

HERE = Path(__file__).parent
HANG = 600.0  # seconds that nothing takes unless it hangs, not even on a machine with much else to do


def started(script, n, folder, *arguments):
    """A script in n processes, with rank, size and folder as arguments."""
    command = [sys.executable, str(HERE / script)]
    return [
        subprocess.Popen(
            [*command, str(rank), str(n), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]


def launched(script, n, folder, *arguments, timeout=HANG):
    """Run it to its end; outputs, errors and exit codes. Processes are forked from one that has imported torch and perron."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["perron.distributed.optimizer", "perron.simulation.simulator", "perron.studies.run"]
    )
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as said:
        files = [(Path(said) / f"{rank}.out", Path(said) / f"{rank}.err") for rank in range(n)]
        commands = [[str(HERE / script), str(rank), str(n), str(folder), *arguments] for rank in range(n)]
        processes = [
            context.Process(target=_run_script, args=(command, *files[rank], dict(os.environ)))
            for rank, command in enumerate(commands)
        ]
        for one in processes:
            one.start()
        try:
            for one in processes:
                one.join(max(0, deadline - time.monotonic()))
            hung = [rank for rank, one in enumerate(processes) if one.is_alive()]
            assert not hung, f"{script}: processes {hung} still run after {timeout} s"
            return [
                (out.read_text(), error.read_text(), one.exitcode)
                for one, (out, error) in zip(processes, files, strict=True)
            ]
        finally:
            for one in processes:
                one.kill()


def _run_script(command, out, error, environment):
    """In a forked process: run a script as Python does."""
    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((out, 1), (error, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    sys.argv, sys.path[0:0] = command, [str(HERE)]
    runpy.run_path(command[0], run_name="__main__")


# ---- functions named check_... of a script, which all processes of a group run together


def checks_of(script):
    """The names of the checks of a script, without importing it."""
    tree = ast.parse((HERE / script).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name.removeprefix("check_") for name in names if name.startswith("check_")]


def selected(request, test):
    """The checks that a parametrized test is to report in this session (-k may leave some out)."""
    items = [item for item in request.session.items if getattr(item, "originalname", "") == test]
    return [item.callspec.params["check"] for item in items]


def run_checks(script, n, folder, names):
    """Run checks in one group of n processes; for each of them what went wrong, "" if nothing did.

    The processes stop at the first check that fails, because some of them may wait for others then. What is left is run by
    new processes, so that every check has a result of its own.
    """
    results, left = {}, list(names)
    while left:
        (folder / "store").unlink(missing_ok=True)
        outputs = launched(script, n, folder, *left)
        lines = [path.read_text().splitlines() if path.exists() else [] for path in _results(folder, n)]
        for path in _results(folder, n):
            path.unlink(missing_ok=True)
        told = [dict(map(json.loads, each)) for each in lines]
        for name in list(left):
            wrong = [f"rank {rank}:\n{each[name]}" for rank, each in enumerate(told) if each.get(name)]
            silent = [f"rank {rank} ended:\n{outputs[rank][1]}" for rank, each in enumerate(told) if name not in each]
            results[name] = "\n".join(wrong + silent)
            left.remove(name)
            if results[name]:
                break
    return results


def run_group(namespace):
    """The main of a script of checks: join the others, run the checks, and exit."""
    rank, n, folder = sys.argv[1:4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(n))
    report_checks(namespace)
    sys.stdout.flush()
    os._exit(0)  # without waiting for operations that a failed check left in flight


def report_checks(namespace):
    """In a process of the group: run the checks that are named after rank, size and folder, up to the first that fails."""
    rank, n, folder, *names = sys.argv[1:]
    with _results(Path(folder), int(n))[int(rank)].open("w", buffering=1) as file:
        for name in names:
            wrong = ""
            try:
                namespace[f"check_{name}"]()
            except Exception:
                wrong = traceback.format_exc()
            file.write(json.dumps([name, wrong]) + "\n")
            if wrong:
                break


def refused(action, *words, kind=PerronError):
    """The action raises an error that has these words."""
    try:
        action()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in {error}"
    else:
        raise AssertionError("not refused")


def _results(folder, n):
    return [folder / f"checks-{rank}.jsonl" for rank in range(n)]
