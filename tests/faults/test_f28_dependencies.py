"""What perron rests on: every version is pinned, none has a known hole, and the linter's security rules are on."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
# Exceptions to the security rules in src, each for a reason: fixed commands, the user's own, escaped texts, mirrors.
ALLOWED = {"S310": 1, "S603": 6, "S704": 3}


def test_f28_all_versions_are_pinned(row):
    assert [line for line in PINS if not re.fullmatch(r"[\w.-]+==[\w.+!]+( *;.*)?( *#.*)?", line)] == []
    row.measured(f"{len(PINS)} versions pinned exactly", trials=len(PINS))


def test_f28_the_linters_security_rules(row):
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in rules["select"]
    assert not [rule for rule in rules["ignore"] if re.fullmatch(r"S\d*", rule)]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "S",
        "--ignore-noqa",
        "--output-format",
        "json",
        "src",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[str, int] = {}
    for one in json.loads(done.stdout):
        found[one["code"]] = found.get(one["code"], 0) + 1
    assert found == ALLOWED  # a new exception is looked at, and counted here
    row.measured(f"security rules on; {sum(found.values())} exceptions, each with its reason", trials=1)


def test_f28_known_holes(row, tmp_path):
    pytest.importorskip("pip_audit")
    plain = tmp_path / "pinned.txt"
    plain.write_text("\n".join(line.partition("+")[0] for line in PINS))  # databases know no builds, as torch's +cpu
    command = [sys.executable, "-m", "pip_audit", "-r", str(plain), "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False, timeout=250
    )
    if not done.stdout:
        pytest.skip(
            f"no database of known holes can be reached from here ({done.stderr.strip().splitlines()[-1][:80]})"
        )
    packages = json.loads(done.stdout)["dependencies"]
    known = [one for one in packages if "vulns" in one]
    if not known:
        pytest.skip(f"no database of known holes can be reached from here (none of {len(packages)} packages was found)")
    holes = {one["name"]: [hole["id"] for hole in one["vulns"]] for one in known if one["vulns"]}
    assert holes == {}
    row.measured(f"no known hole in {len(known)} of {len(packages)} packages", trials=len(known))
