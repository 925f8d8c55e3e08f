"""Elastic trainings of elastic_trainee.py that tests of faults start, disturb and judge."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from trainings import LONG


class ElasticTraining:
    """A training under one or more launchers, each a command."""

    def __init__(self, folder, **options):
        self.folder, self.options, self.launchers = Path(folder), options, []

    def start(self, *launch, prefix=(), environment=None):
        """Start a launcher with these options."""
        script = [str(Path(__file__).with_name("elastic_trainee.py")), str(self.folder), json.dumps(self.options)]
        command = [*prefix, sys.executable, "-m", "perron", "launch", "--elastic", *map(str, launch), *script]
        environment = os.environ | (environment or {})
        self.launchers.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return self

    def until(self, happened, what):
        deadline = time.monotonic() + LONG
        while not happened():
            assert any(one.poll() is None for one in self.launchers), [one.communicate()[1] for one in self.launchers]
            assert time.monotonic() < deadline, what
            time.sleep(0.01)

    def steps(self, name):
        """How many steps were done when this process told so the last time."""
        path = self.folder / f"{name}.steps"
        lines = (
            [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            if path.exists()
            else []
        )
        return json.loads(lines[-1])[0] if lines else 0

    def further(self, steps, *names):
        """Wait until these processes have made so many steps more."""
        goals = {name: self.steps(name) + steps for name in names}
        self.until(lambda: all(self.steps(name) >= goal for name, goal in goals.items()), f"not {steps} steps more")

    def process(self, name):
        self.until((self.folder / f"{name}.pid").exists, f"no process {name}")
        return psutil.Process(int((self.folder / f"{name}.pid").read_text()))

    def ended(self):
        """Exit codes and messages of the launchers."""
        said = [one.communicate(timeout=LONG)[1] for one in self.launchers]
        return [one.returncode for one in self.launchers], "".join(said)

    def results(self):
        return {int(path.stem): json.loads(path.read_text()) for path in self.folder.glob("*.result")}

    def end(self):
        for one in self.launchers:
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.kill()
            one.communicate()
