"""Trainings of trainee.py under `perron launch` that tests of faults start, disturb and judge."""

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psutil
from table import FULL

NODES = 4 if FULL else 3  # most of the time goes into starting processes
LONG = 600  # seconds; a training without a fault takes 5 to 20
SLACK = (
    1 if FULL else 30
)  # the bars of the table are for a machine that has nothing else to do: scripts/faults measures them
TOKEN = "PERRON_FAULTS_TOKEN"  # noqa: S105 - by which processes of one training are found


class Training:
    """A training in a folder: each `start` goes on from its checkpoints."""

    def __init__(self, folder, *launch, nodes=NODES, **options):
        self.folder, self.launch, self.nodes, self.options = Path(folder), launch, nodes, options
        self.token, self.process, self.environment = uuid4().hex, None, {}

    def start(self, *, wait=True, command=(), said=subprocess.PIPE):
        """Start it, and wait until every node has made a step more than before."""
        before = [len(self.steps(node)) for node in range(self.nodes)]
        command = list(command) or [sys.executable, "-m", "perron", "launch", "-n", str(self.nodes), *self.launch]
        command += [str(Path(__file__).with_name("trainee.py")), str(self.folder), json.dumps(self.options)]
        environment = os.environ | {TOKEN: self.token} | self.environment
        self.process = subprocess.Popen(command, stderr=said, text=True, env=environment)
        if wait:
            self.until(lambda: all(len(self.steps(node)) > before[node] for node in range(self.nodes)), "no steps")
        return self

    def until(self, happened, what):
        deadline = time.monotonic() + LONG
        while not happened():
            assert self.process.poll() is None, f"it ended: {self.process.communicate()[1]}"
            assert time.monotonic() < deadline, what
            time.sleep(0.005)

    def steps(self, node):
        """What a node has told after each of its steps, over all starts."""
        path = self.folder / f"{node}.steps"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def step(self, node=0):
        found = self.steps(node)
        return found[-1][0] if found else 0

    def further(self, steps, node=0):
        """Wait until a node has made so many steps more."""
        goal = len(self.steps(node)) + steps
        self.until(lambda: len(self.steps(node)) >= goal, f"not {steps} steps more")

    def lost(self):
        """What nodes noted when they lost somebody, and forget it: node, time, whether its state was finite, the error."""
        found = [(int(path.stem), *json.loads(path.read_text())) for path in sorted(self.folder.glob("*.lost"))]
        for path in self.folder.glob("*.lost"):
            path.unlink()
        return found

    def saved(self):
        """The steps of which every node has saved its part."""
        places = self.folder.glob("checkpoints/*/step-*")
        return sorted(int(one.name[5:]) for one in places if len(list(one.glob("node-*.safetensors"))) == self.nodes)

    def pids(self):
        """Of the nodes' processes, in their order."""
        return [int((self.folder / f"{node}.pid").read_text() or 0) for node in range(self.nodes)]

    def workers(self):
        """The nodes' processes."""
        return [psutil.Process(pid) for pid in self.pids()]

    def ended(self, timeout=LONG):
        """Exit code and what it said."""
        _, said = self.process.communicate(timeout=timeout)
        return self.process.returncode, said

    def left_over(self):
        """Processes of this training that are still there."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TOKEN) == self.token:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def result(self):
        """The states at the end, as digests."""
        return [(self.folder / f"{node}.sha256").read_text() for node in range(self.nodes)]

    def end(self):
        """Whatever is left of it."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        for process in self.left_over():
            process.kill()


@cache
def unfaulted(**options):
    """The result of the same training without a fault."""
    with TemporaryDirectory() as folder:
        training = Training(folder, **options)
        code, said = training.start(wait=False).ended()
        assert code == 0, said
        return training.result()
