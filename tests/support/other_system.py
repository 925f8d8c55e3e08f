"""Imports perron as on another system, and does something with it: other_system.py darwin|win32 simulate|refuse|study."""

import builtins
import ctypes
import errno
import importlib
import os
import pkgutil
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import perron

MODULES = {
    "darwin": [],
    "win32": ["fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty"],
}
# What Python's documentation says is not there.
NAMES = {
    "darwin": {
        os: "O_PATH eventfd memfd_create pidfd_open sched_getaffinity sched_setaffinity",
        signal: "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT sigtimedwait sigwaitinfo",
        socket: "AF_NETLINK AF_PACKET SO_PEERCRED TCP_KEEPIDLE TCP_USER_TIMEOUT",
    },
    "win32": {
        os: """
            O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH WNOHANG chown chroot confstr eventfd fchdir fchown fork forkpty
            getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getsid getuid initgroups killpg lchown major
            memfd_create mkfifo mknod nice openpty pidfd_open pipe2 posix_fallocate posix_spawn pread pwrite sched_getaffinity
            sched_setaffinity sendfile setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp uname wait wait3 wait4
        """,
        signal: """
            SIGALRM SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPOLL SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSTKFLT
            SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 SIGWINCH alarm pause pthread_kill pthread_sigmask setitimer
            siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
        """,
        socket: "AF_NETLINK AF_PACKET AF_UNIX CMSG_LEN SCM_RIGHTS SO_PEERCRED TCP_USER_TIMEOUT recv_fds send_fds",
    },
}


def import_all() -> int:
    """Import every module of perron, and return their number."""
    found = [one.name for one in pkgutil.walk_packages(perron.__path__, "perron.")]
    names = [name for name in found if not name.startswith(("perron.examples", "perron.__main__"))]
    for name in names:
        importlib.import_module(name)
    return len(names)


def become(system: str) -> None:
    """Hide from now on what the system lacks, from all modules but those that are imported already."""
    copies = {module: SimpleNamespace(**vars(module)) for module in NAMES[system]}
    for other in [module for name, module in sys.modules.items() if name != "__main__"]:
        for name, value in list(vars(other).items()):
            if type(value) is ModuleType and value in copies and other not in copies:
                vars(other)[name] = copies[value]
    for module, names in NAMES[system].items():
        for name in names.split():
            vars(module).pop(name, None)
    for module in [name for name in sys.modules if name == "perron" or name.startswith("perron.")]:
        del sys.modules[module]
    sys.platform = system
    real_import = builtins.__import__

    def hidden_import(name, globals=None, *rest, **options):  # noqa: A002
        if name in MODULES[system] and (globals or {}).get("__name__", "").startswith("perron"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real_import(name, globals, *rest, **options)

    def load_library(name, *_rest, **_options):
        raise OSError(f"{name}: there is no glibc")

    builtins.__import__, ctypes.CDLL = hidden_import, load_library
    if system == "win32":
        os.open, os.kill = open_file, kill


def open_file(path, *rest, _open=os.open, **options):
    if Path(path).is_dir():
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return _open(path, *rest, **options)


def kill(process, number, _kill=os.kill):
    assert number, "os.kill(process, 0) sends Ctrl-C on Windows"
    _kill(process, number)


def simulate(count: int) -> None:
    graph = perron.topologies.exponential(8)
    mixing = perron.Mixing.random_integer(graph, seed=0)
    problem = perron.problems.Quadratic.random(8, noise_std=0.1)
    with perron.Log("records") as log:
        log(1, loss=0.5)
    history = perron.simulate(problem, perron.PushPull(), mixing, steps=50, lr=0.05, seed=0, checkpoint="run.partial")
    history.save("history.npz")
    perron.write_mixing(mixing, "network.npz")
    again = perron.read_mixing("network.npz")
    loaded = perron.History.load("history.npz")
    same = (loaded.values["grad_norm_sq"] == history.values["grad_norm_sq"]).all() and (again.pull == mixing.pull).all()
    sys.stdout.write(f"{count} {same}\n")


def refuse(_count: int) -> None:
    from perron.cli.main import _run

    Path("train.py").write_text("")
    Path("node-0.jsonl").write_text('{"began": 1.0, "format": 1, "steps": 9}\n{"time": 2.0, "step": 1, "loss": 0.5}\n')
    sys.stderr = sys.stdout
    assert _run(["launch", "train.py"], debug=False) == 1
    assert _run(["watch", "."], debug=False) == 0


def study(_count: int) -> None:
    from perron.studies import Study, run_study

    spec = Study(
        title="Small",
        conclusion="topologies",
        topologies=["ring"],
        nodes=[2, 3],
        algorithms=["push_pull"],
        lr=0.05,
        steps=20,
        problem={"kind": "quadratic", "dim": 3, "noise_std": 0.5},
    )
    outcome = run_study(spec, Path("out"))
    sys.stdout.write(f"{outcome.table['run'].nunique()} runs\n")


if __name__ == "__main__":
    system, part = sys.argv[1:]
    import_all()
    become(system)
    import perron  # again

    {"simulate": simulate, "refuse": refuse, "study": study}[part](import_all())
