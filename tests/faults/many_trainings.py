"""Many elastic trainings, one after the other, from one process, as a program does that uses the launcher: what is left of them?

    many_trainings.py FOLDER COUNT      prints what the process has after the first training and after the last, as JSON

In each of them node 1 is killed and restarted.
"""

import gc
import json
import sys
import tempfile
from pathlib import Path

import psutil

from perron.distributed.launch.fork_server import ForkServer
from perron.distributed.launch.launcher import Launcher


def possessions():
    """What this process and its children have."""
    gc.collect()
    own = psutil.Process()
    listening = [one for one in own.net_connections() if one.status == psutil.CONN_LISTEN]
    return {
        "processes": len(own.children(recursive=True)), "threads": own.num_threads(), "files": own.num_fds(),
        "ports": len(listening), "temporary": len(list(Path(tempfile.gettempdir()).glob("perron-*"))),
        "files of the fork server": sum(child.num_fds() for child in own.children()),
    }  # fmt: skip


def main(folder, count):
    options = json.dumps({"steps": 10, "pause": 0, "dies": [1, "in join"]})
    command = [sys.executable, str(Path(__file__).with_name("elastic_trainee.py")), str(folder), options]
    server, found = ForkServer.for_command(command), []
    for number in range(count):
        said = []
        code = Launcher(command, nodes=3, elastic=True, restarts=1, say=said.append, fork_server=server).run()
        assert code == 0, said
        assert len(list(folder.glob("*.result"))) == 3, said
        for path in folder.iterdir():
            path.unlink()
        if number in (0, count - 1):
            found.append(possessions())
    server.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
