"""A process that has imported PyTorch and perron, and forks the launcher's workers.

These imports take some seconds of processor time in every process; a fork takes milliseconds, and shares their memory. So nodes
start and restart sooner, the more so the more of them share a machine.

A worker is forked twice, and the process in between exits, so that the launcher becomes the worker's parent and waits for it like
for any child. (The launcher is a child subreaper during the fork only: it does not adopt children that a worker leaves behind.)
The worker behaves as if started by ``python SCRIPT``: arguments, path, ``__main__``, environment, exit handlers, its own session
and random numbers. (A worker of multiprocessing's fork server differs: exit handlers do not run, and its parent is the server.)
Only environment variables that a script sets *before* it imports torch have no effect on torch.

Workers are not forked where this is impossible or risky: on other systems than Linux; with ``-m``; with builds of PyTorch for
GPUs, whose drivers must not be initialized before a fork; with libraries that started threads, as with OMP_NUM_THREADS=2; or with
PERRON_FORK_SERVER=0 in the environment.

    launcher -> fork server    a line of JSON: the environment of a worker
    fork server -> launcher    a line of JSON: the worker's process id, or 0 if it cannot be forked
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

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IMPORT_TIMEOUT, FORK_TIMEOUT = 120.0, 5.0  # seconds for the first fork, with imports, and for later ones
IMPORTS = (
    "torch.distributed",
    "torch._dynamo",
    "perron.distributed.checkpoint_manager",
    "perron.monitor.logger",
    "perron.data.datasets",
    "perron.algorithms",
    "perron.networks.mixing",
)
SWITCHES = ("PERRON_FORK_SERVER", "PERRON_ZYGOTE")  # the second is the name in version 0.1
CONTROL = "PERRON_FORK_SERVER_CONTROL"
SAFE_PATH = "PYTHONSAFEPATH"  # the fork server imports nothing from the current directory
DEFAULTS = {"OMP_NUM_THREADS": "1"}  # of every worker's environment: the nodes of one machine share its cores


class ForkedProcess:
    """A child of this process that `subprocess` did not start, with the methods of Popen that the launcher uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, the negative number of the signal that killed it, or None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # other code in this process waited for it
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The launcher's side: made once for a command; `fork` starts each worker, `close` ends the server."""

    @classmethod
    def for_command(cls, command: Sequence[str]) -> ForkServer | None:
        """Return a fork server for a command; None if its processes cannot be forked."""
        script = len(command) > 1 and command[0] == sys.executable and not command[1].startswith("-")
        enabled = all(os.environ.get(switch) != "0" for switch in SWITCHES)
        return cls(command) if script and enabled and sys.platform == "linux" else None

    def __init__(self, command: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(IMPORT_TIMEOUT)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                # The arguments make a list of processes show the script.
                [sys.executable, "-m", "perron.distributed.launch.fork_server", *command[1:]],
                env=DEFAULTS | os.environ | {SAFE_PATH: "1", CONTROL: f"{theirs.fileno()} {os.getpid()}"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._replies = self._control.makefile("rb")

    def fork(self, environment: Mapping[str, str]) -> ForkedProcess | None:
        """Return a worker with this environment; None if the server cannot fork, now or later, and was closed."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._control.sendall(json.dumps(dict(environment)).encode() + b"\n")
            if (pid := json.loads(self._replies.readline())) > 0:
                self._control.settimeout(FORK_TIMEOUT)
                return ForkedProcess(pid)
        except (OSError, ValueError):
            pass
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)
        self.close()
        return None

    def close(self) -> None:
        """End the server; workers are not its children, and continue."""
        self._replies.close()
        self._control.close()
        self._process.kill()
        self._process.wait()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _serve(control: socket.socket) -> dict[str, str] | None:
    """Fork a worker for each line; return its environment in the worker, and None in the server after the last line."""
    import torch

    for name in IMPORTS:
        import_module(name)
    gpus = torch.version.cuda or torch.version.hip
    safe = not gpus and len(list(Path("/proc/self/task").iterdir())) == 1
    gc.collect()
    gc.freeze()  # pages that are never written to stay shared
    with control, control.makefile("rb") as requests:
        for request in requests:
            read, write = os.pipe()
            if safe and (middle := os.fork()) == 0:
                if (worker := os.fork()) == 0:
                    os.close(read)
                    os.close(write)
                    return json.loads(request)
                os.write(write, str(worker).encode())
                os._exit(0)
            os.close(write)
            if safe:
                os.waitpid(middle, 0)  # from now on the launcher is the worker's parent
            with os.fdopen(read, "rb") as pipe:
                control.sendall((pipe.read() or b"0") + b"\n")
    return None


def _run_script(environment: dict[str, str], launcher: int) -> None:
    """In a worker, run the script as ``python SCRIPT`` does; tracebacks omit the frames of this file."""
    os.setsid()
    deadline = time.monotonic() + FORK_TIMEOUT
    while os.getppid() != launcher and time.monotonic() < deadline:  # the process in between has not exited yet
        time.sleep(0.001)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # the launcher has exited meanwhile
        os._exit(1)
    os.environ.clear()
    os.environ.update(environment)
    import_module("torch").default_generator.seed()  # Python reseeds its own generator after a fork
    import_module("numpy").random.seed()
    sys.argv = sys.argv[1:]
    script = sys.argv[0]
    if not environment.get(SAFE_PATH):
        sys.path.insert(0, str(Path(script).resolve().parent))
    gc.unfreeze()
    import_module("perron.distributed.launch.worker").ErrorRecorder.install()
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    descriptor, parent = map(int, os.environ.pop(CONTROL).split())
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if (variables := _serve(socket.socket(fileno=descriptor))) is not None:
        _run_script(variables, parent)
