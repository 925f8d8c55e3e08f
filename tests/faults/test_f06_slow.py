"""A slow node slows the others down, and is named."""

import json
import subprocess
import sys

from trainings import NODES, unfaulted


def test_f06_a_slow_node(training, row):
    options = {"steps": 150, "graph": "ring"}
    slow = NODES - 1
    one = training(pause=0.01, slow=slow, **options)
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(**options)
    waited = [one.steps(node)[-1][2] for node in range(NODES)]
    assert all(set(each) <= {str((node - 1) % NODES), str((node + 1) % NODES)} for node, each in enumerate(waited))
    totals = [sum(each.values()) for each in waited]
    assert min(totals[:slow]) > 2 * totals[slow]
    watch = [sys.executable, "-m", "perron", "watch", str(one.folder / "log"), "--json"]
    told = json.loads(subprocess.run(watch, capture_output=True, text=True, check=True).stdout)
    assert told["slow"].startswith(f"node {slow} is slow: it waited")
    edges = [said for _, said in told["events"]]
    assert any(said.startswith("Node 0 waited") and f"s for node {slow}" in said for said in edges), edges
    row.measured(f"same bits; perron watch: {told['slow']}; waiting by edge in its events", trials=1)
