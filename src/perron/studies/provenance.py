"""The software that decides the numbers of a run: the code of perron, and the versions of the libraries below it."""

from __future__ import annotations

import ast
import hashlib
import io
import subprocess
import tokenize
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# The modules and subpackages that a run computes with. Everything else reads results, reports progress, stores files or moves
# runs to where they are computed. The architecture test compares this list with what a run imports.
DECISIVE = (
    "_modules.py", "_threads.py", "_typing.py", "algorithms", "clock", "data", "networks", "problems", "random.py",
    "schedules.py", "simulation", "studies/clocks.py", "studies/job.py", "studies/own.py", "studies/run.py", "theory",
)  # fmt: skip


@lru_cache
def code() -> str:
    """Return a hash of the code that decides numbers; comments, docstrings and blank lines do not count."""
    digest = hashlib.sha256()
    files = [path for part in DECISIVE for path in sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / part]]
    for path in files:
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + bare(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:8]


def bare(source: str) -> str:
    """Return source code without comments, docstrings and blank lines.

    >>> bare("x = 1  # one\\n\\ndef f():\\n    'Return one.'\\n    return x\\n")
    'x = 1\\ndef f():\\n    return x'
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            for row in range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno):
                lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def versions() -> dict[str, str]:
    """Return the versions of the software that decides numbers."""
    import numpy as np
    import torch

    from perron import __version__

    return {"perron": __version__, "its code": code(), "torch": torch.__version__, "numpy": np.__version__}


def commit() -> str | None:
    """Return the commit of the checkout that perron runs from, with a plus if files have changed since; None if installed."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # an environment may lie within another project's repository
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
