"""How a worker process behaves under the launcher: it ends with the launcher, and reports errors in one line and in a file."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from types import TracebackType
from typing import Any
from weakref import ReferenceType, ref

from perron.distributed.launch import error_files
from perron.errors import NetworkError, PerronError, TrainingFinishedError, strip_control

PR_SET_PDEATHSIG = 1

_optimizer: ReferenceType[Any] | None = None  # whose steps an error file names


def exit_with_launcher() -> None:
    """Have the kernel kill this worker when its launcher dies (Linux only), and print a PerronError as one line.

    Does nothing in a process that `perron launch` did not start.
    """
    launcher = os.environ.pop("PERRON_LAUNCHER", None)  # not inherited by processes that this one starts
    if launcher is None:
        return
    if os.environ.get("PERRON_DEBUG", "") in ("", "0"):
        sys.excepthook = _print_one_line
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        raise NetworkError("The launcher of this process is gone.")


def follow(optimizer: Any) -> None:
    """Have error files name the step of this optimizer."""
    global _optimizer  # noqa: PLW0603 - one for each process: an uncaught error ends all of it
    _optimizer = ref(optimizer)


class ErrorRecorder:
    """A hook for uncaught errors that writes them to this process's error file, and then calls the hook before it."""

    def __init__(self) -> None:
        self.before, self.node = sys.excepthook, int(os.environ.get("RANK", "0"))

    @classmethod
    def install(cls) -> None:
        """Record errors from now on, if the launcher has named a file for them."""
        if error_files.own_file() is not None and not isinstance(sys.excepthook, cls):
            sys.excepthook = cls()

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        path = error_files.own_file()
        if path is not None and issubclass(kind, Exception) and not issubclass(kind, TrainingFinishedError):
            optimizer = None if _optimizer is None else _optimizer()
            frames = "".join(traceback.format_exception(kind, error, trace))
            step = None if optimizer is None else optimizer.steps
            error_files.write(path, f"{kind.__name__}: {error}", frames, node=self.node, step=step)
        self.before(kind, error, trace)


def _print_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, PerronError):
        sys.stderr.write(f"perron: {strip_control(str(error))}\n")
        gc.freeze()  # the collection at the interpreter's exit takes most of a second, since torch is large
        if issubclass(kind, TrainingFinishedError):  # nothing is left to do, and nothing went wrong
            sys.exit(0)
    else:
        sys.__excepthook__(kind, error, trace)
