"""Nodes that were given different things are refused before the first tensor."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from trainings import SLACK

HERE = Path(__file__).parent
# How a message calls a field, where that is another word.
GROUPS = "the parameter groups"
CALLED = {"lr": GROUPS, "weight_decay": GROUPS, "an option of it": "the algorithm", "weights": "(the network|weights)"}


def test_f16_every_field(row, tmp_path):
    command = [sys.executable, "-m", "perron", "launch", "-n", "2", str(HERE / "differing.py"), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for told in both:
        for field, (_, said) in told.items():
            name = CALLED.get(field, field)
            assert re.search(rf"do not agree on {name} \(rank 0: .+; rank 1: .+\)", said), (field, said)
    took = max(seconds for told in both for seconds, _ in told.values())
    assert took <= 5 * SLACK
    row.measured(
        f"{len(both[0])} fields refused on both nodes with field, values and nodes, in {took:.2f} s at most",
        trials=len(both[0]),
    )


def test_f16_what_no_group_can_be_formed_with(training, row):
    took = []
    for odd, said_of in [
        ({"size": 3}, r"the number of nodes \(rank 0: 2; rank 1: 3\)"),
        ({"torch": "9.9"}, r"the version of torch"),
    ]:
        one = training(nodes=2, odd={"1": odd}, timeout=60)
        one.start(wait=False)
        one.until(lambda one=one: len(list(one.folder.glob("*.pid"))) == 2, "not started")
        began = time.monotonic()
        code, said = one.ended()
        took.append(time.monotonic() - began)
        assert code == 3, said
        assert re.search(f"do not agree on {said_of}", said), said
        assert list(one.folder.glob("*.ready")) in ([], [one.folder / "0.ready"])
    assert max(took) <= 5 * SLACK
    row.measured(
        f"number of nodes and version, before there is a group: all ended in {max(took):.1f} s at most", trials=2
    )
