"""A long time of faults: four nodes train on real data and are killed, stopped and started again, over and over.

    .venv/bin/python benchmarks/soak.py [MINUTES] [--mode plain|elastic] [--out docs/engine] [--seed 0]

Every 5 to 15 seconds, however far it has come, something happens to a training with checkpoints: one of the launcher's processes
is killed, mostly a node; or it is stopped, for less than the timeout or for more; several nodes are stopped together; the
launcher, and with it the store, is stopped for seconds, or killed and started anew (plain only). When the last steps have
begun, a node is killed once more. A plain training is then repeated without any fault, and the final states of all nodes are
compared bit for bit; in an elastic one all nodes have to end with the same averaged model, bit for bit. Goodput is the time that
the steps would have taken at their median pace, over the time that passed. Without --mode, both are done, for so many minutes
each. Prints a table for each, and writes soak.json and soak.md. Code 1 if one fell short.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

NODES, BATCH, EVERY = 4, 32, 25  # EVERY: steps between checkpoints
TIMEOUT = 4.0  # seconds after which a silent neighbour is given up
PAUSE, HANG = 0.5 * TIMEOUT, 2 * TIMEOUT
BETWEEN = (5.0, 15.0)  # seconds between faults
STALL = (3.0, 6.0)  # seconds for which a launcher is stopped
KINDS = {  # how often, relatively
    "plain": {"kill": 4, "pause": 2, "pauses": 1, "hang": 2, "launcher": 2, "stall": 1},
    "elastic": {"kill": 4, "pause": 2, "pauses": 1, "hang": 1, "stall": 2},
}
SLEEP = 0.02  # seconds that a step takes at least, under faults: there is time for them
AGE = 2.0  # seconds after its first step at which the memory and files of a process are looked at
HOST = 30.0  # seconds that a launcher must have lived for, to be asked whether its memory grows
GROWTHS = ("memory growth", "memory growth of launchers", "memory growth of the calm one")
LEAD = 400  # steps from the end of the faults to the end of the training
LONG = 29.0  # minutes of a soak that counts
BARS = {"faults": 100, "memory": 0.05, "gap": 60.0, "goodput": 0.9}  # goodput of elastic training only
ENGINE = [
    "_storage/atomic",
    "_storage/lockfile",
    "_storage/tensorfile",
    "distributed/checkpoint",
    "distributed/checkpoint_files",
    "distributed/checkpoint_inventory",
    "distributed/checkpoint_record",
    "distributed/consistency",
    "distributed/elastic/generation",
    "distributed/elastic/heartbeat",
    "distributed/elastic/membership",
    "distributed/elastic/protocol",
    "distributed/elastic/recovery",
    "distributed/elastic/rendezvous",
    "distributed/exchange",
    "distributed/finite",
    "distributed/flat_parameters",
    "distributed/launch/fork_server",
    "distributed/launch/handshake",
    "distributed/launch/launcher",
    "distributed/launch/worker",
    "distributed/node",
    "distributed/optimizer",
    "distributed/process_group",
    "distributed/store",
    "random",
]  # the modules that are soaked
HERE = Path(__file__).resolve()


def version() -> str:
    """A name of the program that was soaked, and of what was done to it; the same if only comments or docstrings differ."""
    import perron

    source = Path(perron.__file__).parent
    parts = [part for name in ENGINE for part in _program(source / f"{name}.py")]
    settings = (NODES, BATCH, EVERY, TIMEOUT, PAUSE, HANG, STALL, BETWEEN, KINDS, SLEEP)
    parts += [
        part for part in _program(HERE) if part.startswith(("FunctionDef(name='worker'", "FunctionDef(name='fault'"))
    ]
    return sha256("\n".join([repr(settings), *parts]).encode()).hexdigest()[:16]


def _program(path: Path) -> list[str]:
    """The statements of a module, without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return [ast.dump(statement) for statement in tree.body]


# ---- a node


def worker(folder: Path, sleep: float) -> None:
    """Plain training that goes on from its last checkpoint, and ends after the step that a file names."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    import perron
    from perron._storage import tensorfile as saved
    from perron.distributed import checkpoint
    from perron.random import NOISE, Keyed

    torch.set_num_threads(1)
    rank, size = perron.init()
    elastic = os.environ["PERRON_ELASTIC"] == "1"
    data = perron.data.load("digits")
    images, labels = data.images[rank::size].flatten(1) / 255.0, data.labels[rank::size].long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(images.shape[1], 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = perron.Decentralized(model, perron.PushPull(), "exponential", lr=0.02, timeout=TIMEOUT)
    checkpoint.load(folder / "saved", optimizer)
    (folder / f"begun-{os.getpid()}").write_text(str(rank))
    draws, last = Keyed(0, node=rank, stream=NOISE), folder / "last"
    goal = int(last.read_text()) if last.exists() else None
    while goal is None or optimizer.steps < goal:
        batch = draws.integers(optimizer.steps, BATCH, len(images))  # by the step: the same when it is done again
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        time.sleep(sleep)
        if optimizer.steps % EVERY == 0:
            checkpoint.save(folder / "saved", optimizer)
            _write(folder / f"step-{rank}", str(optimizer.steps))
            goal = int(last.read_text()) if last.exists() else None
    state = [*optimizer.algorithm_state, *model.state_dict().values()]
    if elastic:
        with optimizer.averaged_model():
            state = [value.clone() for value in model.state_dict().values()]
    _write(folder / f"end-{rank}", f"{optimizer.steps} {saved.digest(state)}")
    optimizer.close()
    perron.shutdown()


def _write(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").replace(path)


# ---- a training


@dataclass
class Look:
    """What a process has, at a certain age."""

    at: float
    memory: int
    files: int


@dataclass
class Training:
    """Processes that train in a directory, and what was seen of them."""

    folder: Path
    sleep: float
    mode: str = "plain"
    began: float = field(default_factory=time.monotonic)
    starts: int = 0
    step: int = 0
    moved: float = field(default_factory=time.monotonic)  # when it came further than ever
    gap: float = 0.0
    paces: list[float] = field(default_factory=list)  # seconds from one checkpoint to the next
    looks: dict[int, Look] = field(default_factory=dict)  # by process
    long: dict[int, list[int]] = field(default_factory=dict)  # memory of each process as it goes
    hosts: dict[int, list[Look]] = field(default_factory=dict)  # of launchers, which live longer than nodes
    since: dict[int, float] = field(default_factory=dict)
    launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the launcher."""
        command = [sys.executable, "-m", "perron", "launch", "--nodes", str(NODES), "--restarts", "100000"]
        command += ["--elastic"] * (self.mode == "elastic")
        with (self.folder / "log").open("a") as log:
            words = [str(HERE), "worker", str(self.folder), str(self.sleep)]
            self.launcher = subprocess.Popen([*command, *words], stderr=log, stdout=log)
        self.starts += 1

    def ended(self) -> bool:
        """Whether all nodes came to the end; a launcher that ended before is started anew."""
        if self.launcher is None or self.launcher.poll() is not None:
            if self.launcher is not None and self.launcher.returncode == 0:
                return True
            self.start()
        return False

    def nodes(self, *, begun: bool = True) -> list[psutil.Process]:
        """The nodes' processes; only those that have begun to train, or all."""
        if self.launcher is None or self.launcher.poll() is not None:
            return []
        with suppress(psutil.Error):
            children = psutil.Process(self.launcher.pid).children()
            return [one for one in children if not begun or (self.folder / f"begun-{one.pid}").exists()]
        return []

    def look(self) -> None:
        """How far it is, and what its processes have."""
        now = time.monotonic()
        for path in self.folder.glob("step-*"):
            if path.suffix != ".part" and (step := int(path.read_text() or 0)) > self.step:
                self.gap = max(self.gap, now - self.moved) if self.step else self.gap
                if self.step and step == self.step + EVERY:
                    self.paces.append(now - self.moved)
                self.step, self.moved = step, now
        nodes = self.nodes()
        if nodes and self.launcher is not None:
            with suppress(psutil.Error):
                host = psutil.Process(self.launcher.pid)
                look = Look(now - self.began, host.memory_info().rss, host.num_fds())
                self.hosts.setdefault(host.pid, []).append(look)
        for one in nodes:
            with suppress(psutil.Error):
                age, memory = now - self.since.setdefault(one.pid, now), one.memory_info().rss
                self.long.setdefault(one.pid, []).append(memory)
                if age >= AGE and one.pid not in self.looks:
                    self.looks[one.pid] = Look(now - self.began, memory, one.num_fds())

    def run(self, seconds: float) -> bool:
        """Let it run; whether it has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            if self.ended():
                return True
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        """Leave nothing running."""
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(30)

    def ends(self) -> list[str]:
        """The final states' names, by node. An elastic node that was killed at the very end has none."""
        paths = [self.folder / f"end-{rank}" for rank in range(NODES)]
        return [path.read_text() for path in paths if path.exists() or self.mode == "plain"]


def fault(training: Training, kind: str, dice: random.Random) -> bool:
    """Do it; whether there was somebody to do it to."""
    while not (nodes := training.nodes(begun=False)):
        training.run(0.1)
        if time.monotonic() - training.moved > 5 * BARS["gap"]:
            raise SystemExit(f"The training came to a stand:\n{(training.folder / 'log').read_text()[-3000:]}")
    if training.launcher is None:
        return False
    if kind == "launcher":
        training.launcher.kill()
        training.launcher.wait()
        return True
    nodes = sorted(nodes, key=lambda node: node.pid)
    chosen = dice.sample(nodes, min(len(nodes), dice.randint(2, NODES))) if kind == "pauses" else [dice.choice(nodes)]
    seconds = {"kill": 0.0, "hang": HANG, "stall": dice.uniform(*STALL)}.get(kind, PAUSE)
    try:
        chosen = [psutil.Process(training.launcher.pid)] if kind == "stall" else chosen
        for one in chosen:
            one.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    except psutil.Error:  # it was about to end
        return False
    finally:
        training.run(seconds)
        for one in chosen:
            with suppress(psutil.Error):  # its launcher may have ended it meanwhile
                one.send_signal(signal.SIGCONT)
    return True


def soaked(folder: Path, minutes: float, seed: int, say: Any, mode: str = "plain") -> dict[str, Any]:
    """Train under faults, and without; what was seen."""
    kinds = KINDS[mode]
    dice, done = random.Random(seed), Counter[str]()  # noqa: S311 - reproducible, not secret
    for name in ("faults", "calm"):
        (folder / name).mkdir()
    training = Training(folder / "faults", SLEEP, mode)
    try:
        training.ended()
        while time.monotonic() - training.began < 60 * minutes:
            training.run(dice.uniform(*BETWEEN))
            kind = dice.choices(list(kinds), list(kinds.values()))[0]
            if fault(training, kind, dice):
                done[kind] += 1
                say(f"{time.monotonic() - training.began:5.0f} s: {kind}; step {training.step}")
        seconds, steps = time.monotonic() - training.began, training.step
        goal = -(-(training.step + LEAD) // EVERY) * EVERY
        _write(training.folder / "last", str(goal))
        while training.step < goal and time.monotonic() - training.began < seconds + 300 and not training.run(0.05):
            pass
        done["end"] += fault(training, "kill", dice)
        if not training.run(300):
            raise SystemExit(f"The training did not end:\n{(training.folder / 'log').read_text()[-3000:]}")
    finally:
        training.stop()
    say(f"{sum(done.values())} faults; now {goal} steps without")
    calm = Training(folder / "calm", 0.0)
    _write(calm.folder / "last", str(goal))
    try:
        if not calm.run(60 * max(minutes, 5)):
            raise SystemExit(f"The calm training did not end:\n{(calm.folder / 'log').read_text()[-3000:]}")
    finally:
        calm.stop()
    found = figures(training, calm, done, seconds)
    return found | {"goodput": round(statistics.median(training.paces) / EVERY * steps / seconds, 3)}


def figures(training: Training, calm: Training, done: Counter[str], seconds: float) -> dict[str, Any]:
    """The numbers of the table."""
    same = training.ends() == calm.ends()
    if training.mode == "elastic":  # the members were others in between: the same model on all nodes
        same = len(set(training.ends())) == 1 and len(training.ends()) >= NODES - 1
    looks = sorted(training.looks.values(), key=lambda look: look.at)
    few = max(NODES, len(looks) // 10)
    first, last = looks[:few], looks[-few:]
    memory = [statistics.median(look.memory for look in part) for part in (first, last)]
    longest = [part for part in calm.long.values() if len(part) >= 20]
    grown = [
        statistics.median(part[-len(part) // 10 :]) / statistics.median(part[2 : 2 + len(part) // 10]) - 1
        for part in longest
    ]
    hosts = [looks for looks in training.hosts.values() if looks[-1].at - looks[0].at > HOST]
    return {
        "version": version(),
        "mode": training.mode,
        "minutes": round(seconds / 60, 1),
        "faults": dict(done),
        "launchers": training.starts,
        "processes": len(training.since),
        "steps": training.ends()[0].split()[0],
        "same bits": same,
        "states": sorted(set(training.ends())),
        "memory at the same age": [round(one / 1e6, 1) for one in memory],
        "memory growth": round(memory[1] / memory[0] - 1, 4),
        "memory growth of the calm one": round(max(grown, default=0.0), 4),
        "memory growth of launchers": round(max((one[-1].memory / one[0].memory - 1 for one in hosts), default=0.0), 4),
        "open files of launchers": max((one[-1].files - one[0].files for one in hosts), default=0),
        "open files": [sorted({look.files for look in part}) for part in (first, last)],
        "gap": round(training.gap, 1),
        "load of the machine": round(os.getloadavg()[1], 1),
    }


def shortfalls(found: dict[str, Any]) -> list[str]:
    """Where it falls short of the bars."""
    many = sum(found["faults"].values())
    wanted = BARS["faults"] if found["minutes"] >= LONG else found["minutes"]  # of a short one, one a minute
    files = found["open files"]
    checks = {
        f"{many} faults in {found['minutes']} minutes": many >= wanted,
        "other bits": found["same bits"],
        **{f"{kind} {found[kind]:.1%}": found[kind] < BARS["memory"] for kind in GROWTHS},
        f"launchers have {found['open files of launchers']} files more": found["open files of launchers"] <= 0,
        f"open files: {files[0]} to {files[1]}": max(files[1]) <= max(files[0]),
        f"a gap of {found['gap']} s": found["gap"] <= BARS["gap"],
        f"goodput {found['goodput']}": found["mode"] == "plain" or found["goodput"] >= BARS["goodput"],
    }
    return [what for what, good in checks.items() if not good]


def told(found: dict[str, Any]) -> str:
    """The figures in a sentence."""
    kinds = ", ".join(f"{many} {kind}" for kind, many in sorted(found["faults"].items()))
    other = "undisturbed" if found["mode"] == "plain" else "on the other nodes"
    bits = f"the same bits as {other}" if found["same bits"] else f"OTHER BITS than {other}"
    return (
        f"{sum(found['faults'].values())} faults in {found['minutes']} minutes ({kinds}), {found['steps']} steps, {bits}; "
        f"memory {found['memory growth']:+.1%} at the same age (launchers {found['memory growth of launchers']:+.1%}), open "
        f"files {found['open files'][0]} to {found['open files'][1]}, "
        f"longest time without progress {found['gap']} s"
        + (f", goodput {found['goodput']:.1%}" if found["goodput"] else "")
    )


PAGE = """# A long time of faults

Written by `scripts/soak`, which takes an hour. Four nodes train on the bundled digits with checkpoints every {every} steps, under
`perron launch --restarts`, and then the same with `--elastic`. Every 5 to 15 seconds, however far they have come, one of the
processes (the nodes, and the one from which they are forked) is killed (kill) or stopped, for less than the timeout of
{timeout:g} s (pause) or for more (hang); several are stopped together (pauses); or the launcher, which has the store, is stopped
(stall) or, without `--elastic`, killed and restarted (launcher). In the last steps a node is killed once more (end).

The bars: {faults} faults or more in half an hour; the same bits, plain as without faults, elastic on all nodes; memory that grows
by less than {memory:.0%}; as many open files in the end; no more than {gap:g} s without progress; goodput of {goodput:.0%}, if
elastic. Goodput is the time that the steps would have taken at their median pace, over the time that passed. Each fault costs
a plain training the restart of all nodes and the steps since the last checkpoint, so that its goodput says how often there was
a fault.

{parts}
"""


def part(found: dict[str, Any]) -> str:
    """A section of the page."""
    short = shortfalls(found)
    verdict = f"**It falls short:** {'; '.join(short)}." if short else "That meets all bars."
    if found["minutes"] < LONG:
        verdict += f" **Too short to count:** less than {LONG:g} minutes."
    if found["version"] != version():
        verdict += " **Measured on earlier code**, with the kinds of faults that the table has."
    rows = "\n".join(f"| {name} | {value} |" for name, value in found.items())
    return f"## {found['mode'].capitalize()}\n\n{told(found)}. {verdict}\n\n| | |\n|---|---|\n{rows}"


def main() -> None:
    """Soak, print the tables, and write the files."""
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=30.0)
    parser.add_argument("--mode", choices=list(KINDS), help="one of them only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write soak.json and soak.md")
    options = parser.parse_args()
    console, short = Console(), []
    stored = options.out / "soak.json" if options.out else None
    found = json.loads(stored.read_text()) if stored and stored.exists() else {}
    for mode in [options.mode] if options.mode else KINDS:
        with tempfile.TemporaryDirectory() as place:
            say = partial(console.print, style="dim")
            found[mode] = soaked(Path(place), options.minutes, options.seed, say, mode)
        table = Table("", "", title=mode)
        for name, value in found[mode].items():
            table.add_row(name, str(value))
        console.print(table)
        short += [f"{mode}: {what}" for what in shortfalls(found[mode])]
    if stored:
        parts = "\n\n".join(part(found[mode]) for mode in KINDS if mode in found)
        stored.write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "soak.md").write_text(PAGE.format(every=EVERY, timeout=TIMEOUT, parts=parts, **BARS))
    if short:
        sys.exit(f"It fell short: {'; '.join(short)}.")


if __name__ == "__main__":
    main()
