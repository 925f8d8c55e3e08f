"""A process that has imported PyTorch and perron, from which the launcher's nodes are forked.

Importing them takes some seconds of a processor for every process; a fork takes milliseconds, and what was imported is in memory
once. So nodes start and restart sooner, the more so the more of them share a machine.

A node is forked twice, and the process in between ends: the node's parent is then the launcher, which waits for it as for any
child of its own. (PR_SET_CHILD_SUBREAPER sees to that, for as long as it takes: children that a node leaves behind are not the
launcher's.) It looks as if it had been started by ``python SCRIPT``: arguments, path, ``__main__``, environment, a session of its
own, other random numbers. Only environment variables that a script sets *before* it imports torch, for torch to see, come too
late.

Nodes are started in the plain way where that cannot be done or would be a risk: elsewhere than on Linux; modules (``-m``);
builds of PyTorch for GPUs, whose drivers must not have been touched before a fork; libraries that have started threads, as
OMP_NUM_THREADS=2 makes them. PERRON_FORK_SERVER=0 in the environment always does.

    launcher -> fork_server     a line of JSON: the environment of a node
    fork_server -> launcher     a line of JSON: the number of its process, or why there is none
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

PDEATHSIG, CHILD_SUBREAPER = 1, 36  # of prctl
IMPORT_TIMEOUT, FORK_TIMEOUT = (
    60.0,
    5.0,
)  # seconds for the imports, and for a fork later; after that, nodes import for themselves
IMPORTS = (
    "torch.distributed",
    "torch._dynamo",
    "perron.distributed.checkpoint_manager",
    "perron.monitor.logger",
    "perron.data.datasets",
    "perron.algorithms",
    "perron.networks.mixing",
)
SWITCH, CONTROL = "PERRON_FORK_SERVER", "PERRON_FORK_SERVER_CONTROL"
SAFE = "PYTHONSAFEPATH"  # for the fork_server: what lies about in the current directory is not imported
DEFAULTS = {"OMP_NUM_THREADS": "1"}  # of every node's environment: nodes on one machine share its cores


class ForkedProcess:
    """A child that was not started by `subprocess`; what the launcher needs of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs; negative: the signal that killed it."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else in this process waited for it
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the process, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The launcher's side: made once for a command, `fork` for each node, `close` when no more are needed."""

    @classmethod
    def for_command(cls, command: Sequence[str]) -> ForkServer | None:
        """One for a command; None if its processes cannot be forked."""
        script = len(command) > 1 and command[0] == sys.executable and not command[1].startswith("-")
        return cls(command) if script and sys.platform == "linux" and os.environ.get(SWITCH, "1") != "0" else None

    def __init__(self, command: Sequence[str]) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(IMPORT_TIMEOUT)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                # The arguments make a list of processes show the script.
                [sys.executable, "-m", "perron.distributed.launch.fork_server", *command[1:]],
                env=DEFAULTS | os.environ | {SAFE: "1", CONTROL: f"{theirs.fileno()} {os.getpid()}"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._told = self._ours.makefile("rb")

    def fork(self, environment: Mapping[str, str]) -> ForkedProcess | None:
        """A node with this environment; None if it must be started in another way, now and later."""
        _prctl(CHILD_SUBREAPER, 1)
        try:
            self._ours.sendall(json.dumps(dict(environment)).encode() + b"\n")
            if (pid := json.loads(self._told.readline())) > 0:
                self._ours.settimeout(FORK_TIMEOUT)
                return ForkedProcess(pid)
        except (OSError, ValueError):
            pass
        finally:
            _prctl(CHILD_SUBREAPER, 0)
        self.close()
        return None

    def close(self) -> None:
        """End it; nodes are not its children, and go on."""
        self._told.close()
        self._ours.close()
        self._process.kill()
        self._process.wait()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _serve(control: socket.socket) -> dict[str, str] | None:
    """Fork a node for each line; returns its environment in the node, and None here when there are no more lines."""
    import torch

    for name in IMPORTS:
        import_module(name)
    gpus = torch.version.cuda or torch.version.hip
    safe = not gpus and len(list(Path("/proc/self/task").iterdir())) == 1
    gc.collect()
    gc.freeze()  # pages that are never written to stay shared
    with control, control.makefile("rb") as orders:
        for order in orders:
            read, write = os.pipe()
            if safe and (middle := os.fork()) == 0:
                if (node := os.fork()) == 0:
                    os.close(read)
                    os.close(write)
                    return json.loads(order)
                os.write(write, str(node).encode())
                os._exit(0)
            os.close(write)
            if safe:
                os.waitpid(middle, 0)  # from now on the launcher is the node's parent
            with os.fdopen(read, "rb") as told:
                control.sendall(told.read() or b"0")
            control.sendall(b"\n")
    return None


def _run(environment: dict[str, str], launcher: int) -> None:
    """In the forked process: run the script as if started by ``python SCRIPT``; its errors are shown without this file."""
    os.setsid()
    deadline = time.monotonic() + FORK_TIMEOUT
    while os.getppid() != launcher and time.monotonic() < deadline:  # the process in between has not ended yet
        time.sleep(0.001)
    _prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it has gone meanwhile
        os._exit(1)
    os.environ.clear()
    os.environ.update(environment)
    import_module("torch").default_generator.seed()  # Python's own random numbers see to it themselves
    import_module("numpy").random.seed()
    sys.argv = sys.argv[1:]
    script = sys.argv[0]
    if not environment.get(SAFE):
        sys.path.insert(0, str(Path(script).resolve().parent))
    gc.unfreeze()
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    number, parent = os.environ.pop(CONTROL).split()
    _prctl(PDEATHSIG, signal.SIGKILL)
    found = _serve(socket.socket(fileno=int(number)))
    if found is not None:
        _run(found, int(parent))
