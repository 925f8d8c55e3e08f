"""A long time of faults: the stored summary of `scripts/soak`; where the engine has changed since, it is soaked again."""

import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "engine" / "soak.json"


def soak():
    spec = importlib.util.spec_from_file_location("soak", ROOT / "benchmarks" / "soak.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_f27_kills_and_stops_for_half_an_hour(row, tmp_path):
    module = soak()
    found = json.loads(STORED.read_text()).get("plain", {}) if STORED.exists() else {}
    stored = found.get("version") == module.version() and found["minutes"] >= module.LONG
    if not stored:
        found = module.soaked(tmp_path, 30.0, 0, lambda line: None)
    short = module.shortfalls(found)
    row.measured(
        module.told(found) + (" (stored by scripts/soak)" if stored else ""), trials=sum(found["faults"].values())
    )
    assert not short, short
