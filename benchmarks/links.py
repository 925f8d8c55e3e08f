"""Slow links on one machine, for `engine.py`: namespaces behind a bridge; and what is said of them.

Each node has a namespace with one device, and all of them are plugged into a bridge in one more. Nothing is left in the
machine's own network; namespaces of an earlier run that was killed are removed at the start.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from perron import Mixing
from perron.plots import BLUE, COLORS, GREY, INK, save

PREFIX, NETWORK = "perron-bench-", "10.213.7."
FAST, SLOW = 100, 20  # Mbit/s
SLOW_NODE, NEXT = 3, 4


@dataclass(frozen=True)
class Shape:
    """Every node's uplink at 100 Mbit/s; one at 20, or only its messages to one other node."""

    slow: tuple[int, int | None] | None = None


def tool(name: str) -> str | None:
    """Where a program of the system is; it need not be on the path of a user."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def unavailable() -> str | None:
    """Why there can be no namespaces here, or None."""
    for name in ("ip", "tc"):
        if tool(name) is None:
            return f"there is no program {name!r} (Linux has it in iproute2)."
    if os.geteuid():
        return "network namespaces need root."
    probe = subprocess.run(
        [str(tool("ip")), "netns", "add", f"{PREFIX}probe"], capture_output=True, text=True, check=False
    )
    Namespaces.clean()
    return f"network namespaces cannot be made here: {probe.stderr.strip()}" if probe.returncode else None


def run(*command: str) -> str:
    """A command of the system; its output, or an error with what it said."""
    found = subprocess.run([str(tool(command[0])), *command[1:]], capture_output=True, text=True, check=False)
    if found.returncode:
        raise OSError(f"{' '.join(command)}: {found.stderr.strip()}")
    return found.stdout


def run_workers(script: str, arguments: list[str], nodes: int, spaces: Any = None, ended: Any = None) -> None:
    """Run ``script worker ARGUMENTS RANK NODES`` once per node, each in its namespace if there are any; end all if one fails.

    ``ended(workers)``, if given, watches them until it returns.
    """
    device = "lo" if spaces is None else spaces.device
    settings = os.environ | {"GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(nodes):
            before = [] if spaces is None else spaces.within(rank)
            command = [*before, sys.executable, script, "worker", *arguments, str(rank), str(nodes)]
            workers.append(subprocess.Popen(command, env=settings))
        if ended is not None:
            ended(workers)
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() for worker in workers):  # the others would wait for it
                break
            time.sleep(0.2)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if any(worker.returncode for worker in workers):
        sys.exit(f"A worker failed: exit codes {[worker.returncode for worker in workers]}.")


def use_reno(spaces: Any) -> None:
    """Choose TCP's congestion control in all namespaces: BBR does not fill a link in short bursts."""
    for node in range(spaces.nodes):
        run(*spaces.within(node), str(tool("sysctl")), "-qw", "net.ipv4.tcp_congestion_control=reno")


class Namespaces:
    """Namespaces with one device each, joined by a bridge, for as long as the context lasts."""

    device = "eth0"

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def __enter__(self) -> "Namespaces":
        self.clean()
        switch = f"{PREFIX}switch"
        try:
            run("ip", "netns", "add", switch)
            run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", switch, "link", "set", "bridge", "up")
            for node in range(self.nodes):
                self._plug(switch, node)
        except BaseException:
            self.clean()
            raise
        return self

    def _plug(self, switch: str, node: int) -> None:
        space, port = f"{PREFIX}{node}", f"port{node}"
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "add", self.device, "type", "veth", "peer", "name", port, "netns", switch)
        run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", space, "addr", "add", f"{address(node)}/24", "dev", self.device)
        run("ip", "-n", space, "link", "set", self.device, "up")
        run("ip", "-n", space, "link", "set", "lo", "up")

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clean()

    @staticmethod
    def clean() -> None:
        """Remove all namespaces of this benchmark; devices go with them."""
        for line in run("ip", "netns", "list").splitlines():
            if line.startswith(PREFIX):
                run("ip", "netns", "del", line.split()[0])

    def within(self, node: int) -> list[str]:
        """What to put before a command so that it runs at a node."""
        return [str(tool("ip")), "netns", "exec", f"{PREFIX}{node}"]


def address(node: int) -> str:
    """Of a node, in its namespace."""
    return f"{NETWORK}{node + 1}"


def shaped(
    rank: int, slow: tuple[int, int | None] | None, rates: tuple[int, int] = (FAST, SLOW), burst: str = "64kb"
) -> None:
    """Limit this node's uplink, from within its namespace, to the first of two rates in Mbit/s; what is slow to the second.

    After a pause, ``burst`` bytes pass without a limit.
    """
    device, (fast, slower) = Namespaces.device, rates
    subprocess.run([str(tool("tc")), "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
    mine = slow is not None and slow[0] == rank
    if slow is None or not mine or slow[1] is None:
        rate = slower if mine else fast
        run(
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            f"{rate}mbit",
            "burst",
            burst,
            "latency",
            "200ms",
        )
        return
    run("tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "10")
    run("tc", "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", f"{fast}mbit")
    for name, rate in (("1:10", fast), ("1:20", slower)):
        run("tc", "class", "add", "dev", device, "parent", "1:1", "classid", name, "htb", "rate", f"{rate}mbit")
    to = f"{address(slow[1])}/32"
    run("tc", "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "u32",
        "match", "ip", "dst", to, "flowid", "1:20")  # fmt: skip


# ---- networks that make room for what is slow


def avoiding(nodes: int) -> Mixing:
    """A directed ring without the link from 3 to 4: it goes round by even numbers, then by odd ones."""
    order = [*range(0, nodes, 2), *range(1, nodes, 2)]
    return _on_ring(order, nodes, leaf=None)


def leaf(nodes: int) -> Mixing:
    """A ring of the fast nodes; the slow one pulls models from one of them, and pushes gradients to it. Nobody pulls "
    "from it."""
    return _on_ring([node for node in range(nodes) if node != SLOW_NODE], nodes, leaf=SLOW_NODE)


def _on_ring(order: list[int], nodes: int, leaf: int | None) -> Mixing:
    half = np.eye(nodes) / 2
    for source, target in zip(order, [*order[1:], order[0]], strict=True):
        half[target, source] = 0.5
    pull, push = half, half.copy()
    if leaf is not None:
        pull[leaf, NEXT] = push[NEXT, leaf] = 0.5
    return Mixing(pull=pull, push=push, connected="rooted")


# ---- what is said of them

Rows = dict[str, dict[str, float]]
NAMES = {"ring": "Push-Pull, ring", "one_peer_exponential": "Push-Pull, one-peer", "one-peer": "Push-Pull, one-peer",
         "exponential": "Push-Pull, exponential", "ring around it": "Push-Pull, ring around it",
         "slow node a leaf": "Push-Pull, slow node a leaf", "ring, bf16": "Push-Pull, ring, bf16"}  # fmt: skip


def pictures(out: Path, part: str, figures: dict[str, Any]) -> None:
    """Ratios to all-reduce as bars, a panel for each setting."""
    if part == "links":
        bars(out / part, figures)
    elif part == "overhead":
        cells = [cell for cell in figures["given"] if cell["nodes"] > 2]
        bars(out / part, {f"{cell['nodes']} nodes, {cell['parameters']} parameters": cell["rows"] for cell in cells})


def bars(path: Path, panels: dict[str, Rows]) -> None:
    """Two to three panels in a row, all-reduce a line at 1; as PNG and SVG."""
    from matplotlib.figure import Figure

    rows = -(-len(panels) // 3)
    figure = Figure(figsize=(11, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    for panel, (title, found) in zip(axes, panels.items(), strict=False):
        names = [name for name in found if not name.startswith(("plain SGD", "bare"))][::-1]
        ratios = [found[name]["ratio"] for name in names]
        colours = [BLUE if name in NAMES else COLORS[1] for name in names]
        panel.barh([NAMES.get(name, name) for name in names], ratios, color=colours, height=0.65)
        for place, ratio in enumerate(ratios):
            panel.text(ratio, place, f" {ratio:.2f}", va="center", fontsize=8, color=INK)
        panel.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        panel.set_xlim(0, 1.18 * max(ratios))
        panel.set_title(title, fontsize=10)
        panel.tick_params(labelsize=8)
    figure.supxlabel("time per step, relative to all-reduce", fontsize=9)
    for kind in (".png", ".svg"):
        save(figure, path.with_suffix(kind))


def table(header: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def text_page(out: Path) -> str:
    """The page, from the figures that are there."""
    found = {part: json.loads(file.read_text()) for part in ("overhead", "overlap", "links", "faults")
             if (file := out / f"{part}.json").exists()}  # fmt: skip
    loads = ", ".join(f"{part} {one['load']:.1f}" for part, one in found.items())
    busy = (
        f"Load of the two cores by others when a part began: {loads}. Well above zero, what needs more of the "
        "processor looks "
        "slower than it is on a machine of one's own."
    )
    parts = {"overhead": _overhead_text, "overlap": _overlap_text, "links": _links_text, "faults": _faults_text}
    head = (
        "# What the engine costs\n\n"
        "Measured by `benchmarks/engine.py` with real processes on one machine with two cores, PyTorch's gloo on the "
        "CPU, and "
        "written from its figures. Contenders take turns in the same processes, and ratios are medians over rounds: "
        "trust "
        "them rather than the milliseconds. Every contender does its whole work: exchange, mixing and update. Not "
        "measured: "
        "GPUs with NCCL, real networks between machines, latency."
    )
    return "\n\n".join([head, busy, *(parts[part](one["figures"]) for part, one in found.items())]) + "\n"


def times_of(ratio: float) -> str:
    """A ratio in words."""
    return "as long as all-reduce" if 0.95 <= ratio <= 1.05 else f"{ratio:.2f} times as long as all-reduce"


def _met(ratio: float, bar: float) -> str:
    return "held" if ratio <= bar else "missed"


def _overhead_text(figures: dict[str, Any]) -> str:
    def ratio(nodes: int, size: str, name: str) -> float:
        cells = [one for one in figures["given"] if (one["nodes"], one["parameters"]) == (nodes, size)]
        return cells[0]["rows"][name]["ratio"]

    small, large = (ratio(4, size, "ring") for size in ("1e3", "1.86e6"))

    def over(size: str) -> float:
        return next(one for one in figures["backprop"] if one["parameters"] == size)["rows"]["ring"]["overhead"]

    bare = next(one for one in figures["given"] if (one["nodes"], one["parameters"]) == (4, "1.86e6"))["rows"]
    given = {size: cell["rows"]["ring"]["overhead"] for cell in figures["given"] if cell["nodes"] == 4
             for size in [cell["parameters"]]}  # fmt: skip
    lines = [
        "## A step of the optimizer",
        "First with a gradient that is there already, so that what is timed is exchange and update, beside one all-reduce "
        "of the flat gradient with SGD, and DDP with SGD: nothing can overlap. Then with real backpropagation.",
        f"On four nodes a ring takes {times_of(small)} with a thousand parameters, and {times_of(large)} with 1.86 "
        "million. "
        "A small step is all waiting, and a node of Push-Pull waits for its neighbours only. A large one is all bytes: "
        "Push-Pull sends two vectors to each neighbour where all-reduce sends 2 (n-1)/n in all, and it mixes two. "
        f"So denser graphs cost more: the exponential one {ratio(8, '1.86e6', 'exponential'):.2f} on eight nodes. All "
        "nodes "
        "share two cores and their memory, which large models feel most; the milliseconds of processor time show it.",
        f"What a step takes beyond the local work, in all-reduce's, on four nodes: {given['1e3']:.2f} for the small model "
        f"and {given['1.86e6']:.2f} for the large one with the gradient for free; {over('1e3'):.2f} and {over('1.86e6'):.2f} "
        "with backpropagation (a small difference of large times: for the large model an earlier run, with one pass more over "
        "memory, had 2.1). "
        f"We had set ourselves 0.35 ({_met(over('1e3'), 0.35)}) and 1.3 ({_met(over('1.86e6'), 1.3)} with backpropagation, "
        f"{_met(given['1.86e6'], 1.3)} with the gradient for free). The bare messages of a ring take "
        f"{bare['bare exchange, ring']['to bare']:.2f} of a bare all-reduce; the rest is that two vectors are mixed and three "
        "updated where SGD updates one, by the same two cores that carry the messages.",
        "![Time per step relative to all-reduce](overhead.png)",
    ]
    header = [
        "nodes",
        "parameters",
        "",
        "ms / step",
        "processor ms / node",
        "ratio to all-reduce",
        "ms over plain SGD",
        "ratio",
    ]
    for kind, title in (("given", "### Gradient for free"), ("backprop", "### With backpropagation")):
        rows = [
            [str(cell["nodes"]), cell["parameters"], NAMES.get(name, name), f"{row['ms']:.2f}", f"{row['cpu ms']:.2f}",
             f"{row['ratio']:.2f}", f"{row['over local ms']:.2f}", f"{row['overhead']:.2f}"]
            for cell in figures[kind] for name, row in cell["rows"].items()
        ]  # fmt: skip
        lines += [title, table(header, rows)]
    return "\n\n".join(lines)


def _overlap_text(figures: dict[str, Any]) -> str:
    rows = []
    for compute in ("sleep", "backprop"):
        names = (
            "exchange alone",
            *(f"{compute}{what}" for what in (" alone", ", one after the other", ", overlapped")),
        )
        rows.append([compute, *(f"{figures['ms'][name]:.0f}" for name in names),
                     f"{figures[f'hidden behind {compute}']:.0%}"])  # fmt: skip
    header = ["compute", "exchange ms", "compute ms", "one after the other ms", "overlapped ms", "hidden"]
    sleep, backprop = (figures[f"hidden behind {compute}"] for compute in ("sleep", "backprop"))
    return "\n\n".join(
        [
            "## Behind compute",
            "Four nodes, each in a network namespace with 100 Mbit/s, Push-Pull on a ring, 1.86 million parameters. "
            "Hidden is "
            "the time saved by computing while messages travel, as a share of the shorter of the two.",
            table(header, rows),
            f"While the node sleeps, as it does when a GPU computes, {sleep:.0%} is hidden. With backpropagation on "
            "the same two "
            f"cores that also carry the messages of all four nodes it is {backprop:.0%}.",
            *["More than 100 % means that compute took longer within steps than alone, or noise."]
            * (max(sleep, backprop) > 1),
        ]
    )


def _links_text(figures: dict[str, Rows]) -> str:
    def ratio(cell: str, name: str) -> float:
        return figures[cell][name]["ratio"]

    rows = [
        [cell, NAMES.get(name, name), f"{row['ms']:.0f}", f"{row['ratio']:.2f}"]
        for cell, found in figures.items() for name, row in found.items()
    ]  # fmt: skip
    equal = ratio("equal links", "ring")
    return "\n\n".join(
        [
            "## Slow links and stragglers",
            f"Eight nodes in network namespaces with {FAST} Mbit/s each, half a million parameters, no compute. A "
            "slow link has "
            f"{SLOW} Mbit/s: from one node to one other, or all that node 3 sends. Stragglers: no limit, a thousand "
            "parameters, "
            "each node computes for 20 ms, and with probability 0.1 for 200 ms more.",
            "![Time per step relative to all-reduce](links.png)",
            table(["links", "", "ms / step", "ratio to all-reduce"], rows),
            f"- **Equal links{': no gain' if equal > 1 else ''}.** Push-Pull on a ring takes {times_of(equal)} (two "
            "vectors to one neighbour; all-reduce "
            f"sends 2 (n-1)/n vectors), the exponential graph {ratio('equal links', 'exponential'):.2f}. Half the "
            "bits help "
            f"both: {ratio('equal links', 'ring, bf16'):.2f}, and {ratio('equal links', 'all-reduce, bf16'):.2f} for "
            "all-reduce, which then sums in few bits.",
            f"- **One slow link.** gloo's all-reduce runs from i to i-1 (so these two runs say), so the link from 4 "
            "to 3 slows it and the ring from i to "
            f"i+1 does not use it: {ratio('slow link 4 to 3', 'ring'):.2f}. From 3 to 4 it is the other way round: "
            f"{ratio('slow link 3 to 4', 'ring'):.2f}, but {ratio('slow link 3 to 4', 'ring around it'):.2f} on a "
            "ring that goes "
            "round it. All-reduce could be spared one link by numbering the nodes otherwise; what is shown is that the "
            "digraph is free to choose, so bad links can be left out.",
            f"- **A slow uplink.** No ring can avoid it: {ratio('slow uplink of 3', 'ring'):.2f}. With the slow node "
            "as a leaf, "
            f"which pulls models from a fast node, pushes gradients to it and sends nothing else, "
            f"{ratio('slow uplink of 3', 'slow node a leaf'):.2f}: half of the bytes leave it.",
            f"- **Stragglers.** A node waits for its neighbours only, so delays of different nodes overlap: "
            f"{ratio('stragglers', 'ring'):.2f} on a ring, {ratio('stragglers', 'one-peer'):.2f} one-peer, "
            f"{ratio('stragglers', 'exponential'):.2f} exponential. Part of that is the time that all-reduce itself "
            "takes with "
            "eight processes on two cores. A node that is always slow holds up every synchronous method.",
            "This is time per step; how many steps a graph needs is another matter, and sparse rings need more.",
        ]
    )


def _faults_text(runs: list[dict[str, Any]]) -> str:
    """Of benchmarks/faults.py."""
    rows = []
    for name in dict.fromkeys(run["name"] for run in runs):
        mine = [run for run in runs if run["name"] == name]
        right = [100 * run["accuracy"] for run in mine]
        spread = statistics.stdev(right) if len(right) > 1 else float("nan")
        rows.append([name, str(len(mine)), f"{statistics.mean(right):.2f}", f"{spread:.2f}",
                     str(sum(len(run["faults"]) for run in mine)), ", ".join(str(run["members"]) for run in mine)])  # fmt: skip
    times = {
        kind: [one["recovered"] for run in runs for one in run["faults"] if one["kind"] == kind and one["recovered"]]
        for kind in ("kill", "stop")
    }
    recovery = [
        [{"kill": "SIGKILL", "stop": "SIGSTOP"}[kind], str(len(found)), f"{statistics.median(found):.2f}", f"{max(found):.2f}"]
        for kind, found in times.items() if found
    ]  # fmt: skip
    return "\n\n".join(
        [
            "## Faults",
            "`benchmarks/faults.py`: five nodes train on MNIST with `perron launch --elastic`. Two of five are killed at random "
            "steps, and one of them is started again; or, as chaos, every few seconds a random node is killed and started again, "
            "or stopped for five seconds.",
            table(["training", "runs", "accuracy, %", "s.d.", "faults", "members at the end"], rows),
            "From the fault until all survivors have done their next step, seconds:",
            table(["fault", "how many", "median", "largest"], recovery),
            "A killed process is noticed at once by its neighbours' connections and by the launcher; a stopped one only by its "
            "silence, for which two seconds are allowed. Then a quarter of a second passes in which others may register, "
            "and the new connections are made.",
        ]
    )
