"""Every Python block of the documents runs, and so does every example."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(block, capsys):
    exec(compile(block, "a block of the documents", "exec"), {})  # noqa: S102


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_example_runs(example):
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        if "torchrun" in example.read_text()
        else []
    )
    environment = os.environ | {"PERRON_DATA": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout
