"""How a worker process behaves under the launcher: it ends with the launcher, and reports errors in one line."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from types import TracebackType

from perron.errors import NetworkError, PerronError, TrainingFinishedError, strip_control

PR_SET_PDEATHSIG = 1


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


def _print_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, PerronError):
        sys.stderr.write(f"perron: {strip_control(str(error))}\n")
        gc.freeze()  # the collection at the interpreter's exit takes most of a second, since torch is large
        if issubclass(kind, TrainingFinishedError):  # nothing is left to do, and nothing went wrong
            sys.exit(0)
    else:
        sys.__excepthook__(kind, error, trace)
