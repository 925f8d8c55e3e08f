"""Every Python block of the documents runs."""

import re
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
