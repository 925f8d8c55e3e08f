"""Compare what ``perron launch --measure`` finds with rates that were set, on one machine (Linux, root).

    python benchmarks/measure_links.py [--nodes 4] [--size 1000000]

Every node has a network namespace of its own (`links.py`), as if it were a machine: a launcher for each, uplinks limited by tc. A
message has 1448 bytes of payload in 1514 on the wire. TCP is Reno, as in `clock.py`: BBR does not fill a link in short bursts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import links
import numpy as np

from perron.clock import Machines

PAYLOAD = 1448 / 1514
PORT = 29_731
CASES = {  # Mbit/s of uplinks, by node; the last one's rate is that of all others
    "all uplinks 20 Mbit/s": [20],
    "uplink of node 1: 4 Mbit/s": [20, 4, 20],
    "all uplinks 100 Mbit/s": [100],
}


def limit(spaces: links.Namespaces, node: int, rate: float) -> None:
    """Limit the uplink of a node, and let TCP be Reno there."""
    within = spaces.within(node)
    device = spaces.device
    tc = str(links.tool("tc"))
    subprocess.run([*within, tc, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
    shape = ["tbf", "rate", f"{rate}mbit", "burst", "16kb", "latency", "200ms"]
    subprocess.run([*within, tc, "qdisc", "add", "dev", device, "root", *shape], check=True)
    subprocess.run([*within, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"], check=False)


def measured(spaces: links.Namespaces, nodes: int, size: int, path: Path) -> Machines:
    """Run a launcher in every namespace."""
    command = [sys.executable, "-m", "perron", "launch", "--nodes", "1", "--size", str(nodes), "--measure", str(path)]
    options = ["--measure-size", str(size), "--store", f"{links.address(0)}:{PORT}"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": spaces.device}
    launchers = [
        subprocess.Popen(
            [*spaces.within(node), *command, *options, "--first", str(node)],
            env=environment,
            stderr=None if node == 0 else subprocess.DEVNULL,
        )
        for node in range(nodes)
    ]
    codes = [one.wait() for one in launchers]
    if any(codes):
        raise SystemExit(f"launchers ended with {codes}")
    return Machines.read(path)


def compare(title: str, machines: Machines, uplinks: list[float]) -> None:
    """Print what was set and what was found."""
    n = len(uplinks)
    found = 8e-6 * machines.rate_matrix
    print(f"\n{title}; Mbit/s of payload; latency {1e3 * np.median(machines.latency_matrix):.2f} ms (median)")
    print(f"{'':8}{'set':>8}{'links: least':>15}{'largest':>10}{'error':>16}{'up':>8}{'error':>8}{'down':>8}")
    for node in range(n):
        here = np.delete(found[:, node], node)
        truth = PAYLOAD * uplinks[node]
        up, down = 8e-6 * machines.up[node], 8e-6 * machines.down[node]
        spread = f"{here.min() / truth - 1:+.1%} {here.max() / truth - 1:+.1%}"
        links_found = f"{here.min():15.2f}{here.max():10.2f}{spread:>16}"
        print(f"node {node:<3}{truth:8.2f}{links_found}{up:8.2f}{up / truth - 1:+8.1%}{down:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--only", type=int, help="one of the cases, by its place", default=None)
    options = parser.parse_args()
    links.PREFIX = "perron-measure-"  # other benchmarks may run at the same time
    if why := links.unavailable():
        raise SystemExit(f"Nothing is measured: {why}")
    with tempfile.TemporaryDirectory() as folder, links.Namespaces(options.nodes) as spaces:
        for place, (title, rates) in enumerate(CASES.items()):
            if options.only not in (None, place):
                continue
            uplinks = [*rates, *[rates[-1]] * options.nodes][: options.nodes]
            for node, rate in enumerate(uplinks):
                limit(spaces, node, rate)
            path = Path(folder) / f"{place}.csv"
            compare(title, measured(spaces, options.nodes, options.size, path), uplinks)


if __name__ == "__main__":
    main()
