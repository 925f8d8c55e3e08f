"""``perron launch``: train with one process for each node."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from perron.cli.app import ExitCode, print_status
from perron.cli.options import flag, option
from perron.errors import PerronError

SCRIPT_OPTIONS = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}  # those after the script are its own


def launch(
    script: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]", help="A Python script and its options.")
    ] = None,
    nodes: Annotated[int, option("--nodes -n", "N", "How many nodes to run on this machine.")] = 4,
    elastic: Annotated[bool, flag("--elastic", "Continue when nodes die, and let others join.")] = False,
    min_nodes: Annotated[
        int, option("--min-nodes", "N", "With --elastic: save and end if fewer than N nodes are left.")
    ] = 1,
    restarts: Annotated[
        int, option("--restarts", "N", "How often to restart after a death: all nodes, with --elastic the dead one.")
    ] = 0,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module.")] = False,
    size: Annotated[int | None, option("--size", "N", "Nodes on all machines, if there are several.")] = None,
    first: Annotated[int, option("--first", "NODE", "The number of the first node on this machine.")] = 0,
    store: Annotated[
        str | None, option("--store", "HOST:PORT", "Address of the store, on the machine with node 0.")
    ] = None,
    grace: Annotated[float, option("--grace", "SECONDS", "Time for nodes to save and exit after a signal.")] = 30.0,
    log_dir: Annotated[
        Path | None,
        option("--log-dir", "DIR", "Where failing nodes write their errors; a temporary folder if not given."),
    ] = None,
    secret_file: Annotated[
        Path | None, option("--secret-file", "FILE", "A secret shared by all launchers (or PERRON_SECRET).")
    ] = None,
    measure: Annotated[
        Path | None,
        option("--measure", "FILE", "Instead of a script: measure latency and rate of all links, and write them."),
    ] = None,
    measure_size: Annotated[
        int, option("--measure-size", "BYTES", "Size of the messages that measure rates; best that of real ones.")
    ] = 4_000_000,
) -> None:
    """Train with one process for each node.

    Runs the same scripts as torchrun; options of the script follow it. When a node dies, all end; with --restarts they are
    restarted and resume from the last checkpoint; with --elastic the others continue without it. After Ctrl-C, scripts with a
    perron.Keeper save before they end. After a failure, the last line names the first node to fail, and a file with its error.

    perron launch --nodes 4 examples/train_mnist.py
    perron launch --nodes 4 --restarts 3 examples/train_mnist.py
    perron launch --nodes 5 --elastic --restarts 3 examples/train_mnist.py
    perron launch --nodes 4 --measure links.csv
    """
    if measure is not None:
        if script or elastic or restarts or module:
            raise PerronError(
                "--measure runs no script, once: leave out the script, --module, --elastic and --restarts."
            )
        script, module = _measuring(measure, measure_size, size or nodes, host=first == 0), True
    if not script:
        raise typer.BadParameter("give a script, or --measure FILE.", param_hint="SCRIPT")
    if not module and not Path(script[0]).is_file():
        raise PerronError(f"There is no script {script[0]}.")
    if not 0 < grace < float("inf"):
        raise PerronError(f"--grace is a number of seconds, more than 0; got {grace:g}.")
    from perron.distributed.launch.fork_server import ForkServer

    command = [sys.executable, *(["-m"] if module else []), *script]
    fork_server = ForkServer.for_command(command)  # imports PyTorch while this process does
    from perron.distributed.launch.handshake import read_secret
    from perron.distributed.launch.launcher import Launcher

    try:
        code = Launcher(
            command,
            nodes=nodes,
            size=size,
            first=first,
            store=store,
            elastic=elastic,
            min_nodes=min_nodes,
            restarts=restarts,
            secret=read_secret(secret_file),
            grace=grace,
            log_dir=log_dir,
            say=lambda text: print_status(f"perron: {text}"),
            fork_server=fork_server,
        ).run()
    finally:
        if fork_server is not None:
            fork_server.close()
    gc.freeze()  # the collection at the interpreter's exit takes most of a second, since torch is large
    raise typer.Exit(ExitCode.FAILED if code == 1 else code)


def _measuring(path: Path, size: int, nodes: int, *, host: bool) -> list[str]:
    """The module that measures links, with its arguments, after checks of them."""
    from perron.clock.files import check_target
    from perron.distributed.measure import check_size

    check_size(size, nodes)
    if host:  # node 0 writes
        check_target(path)
        print_status(
            f"perron: {nodes} nodes start, to measure {nodes * (nodes - 1)} links with messages of {size:,} bytes"
        )
    return ["perron.distributed.measure", str(path.resolve()), str(size)]
