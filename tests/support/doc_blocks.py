"""Runs the code blocks of a page, in their order: ```python, ```console, ```toml and ```json.

Python blocks of a page share their names; a ```text block right below one is what it prints, other ```text is not code. Commands
run in a folder that looks like the checkout, with what earlier blocks of the page left there; what a block prints below a
command has to be printed (doctest's ``...`` may stand for anything). A comment on the line above a block says what is
special about it:

    <!-- long: 9 minutes -->               run only with PERRON_LONG=1 (scripts/test --long); else parsed
    <!-- unrun: needs four machines -->    never run, but parsed; it has to say why
    <!-- nodes: 2 -->                      a script: run by torchrun with so many processes
"""

import ast
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import typer
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser
from torch.distributed.run import parse_args
from typer.testing import CliRunner

from perron.cli.main import app
from perron.studies.spec import Study

ROOT = Path(__file__).parents[2]
LONG = bool(os.environ.get("PERRON_LONG"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
MARK = re.compile(r"<!-- (long|unrun|nodes): (.+?) -->\n\s*\Z")
BELOW = re.compile(r"[\s`]*?\n\n```text\n(.*?)```", re.DOTALL)  # what a block prints, right below it
LANGUAGES = ("python", "console", "toml", "json", "text")


def marks(example: Example) -> dict[str, str]:
    """What the comment above a block says."""
    found = MARK.search(example.document.text[: example.region.start])
    return {found[1]: found[2]} if found else {}


def runs(example: Example) -> bool:
    """Whether a block is to be run now; otherwise it is only parsed."""
    said = marks(example)
    return "unrun" not in said and (LONG or "long" not in said)


def python(example: Example) -> None:
    """Run a block with the names of those before it; or as a script with several processes."""
    nodes = marks(example).get("nodes")
    if nodes:
        script = Path("block.py")
        script.write_text(example.parsed)
        run([*TORCHRUN, "--standalone", "--nproc-per-node", nodes, str(script)])
    elif runs(example):
        printed = StringIO()
        with redirect_stdout(printed):
            PythonEvaluator()(example)
        below = BELOW.match(example.document.text[example.region.end :])
        if below:
            compare("the block", below[1], printed.getvalue())
    else:
        ast.parse(example.parsed)


def console(example: Example) -> None:
    """Run the commands of a block, one after the other; or see that they could be."""
    for words, expected in commands(example.parsed):
        if not runs(example):
            parse(words)
            continue
        printed = execute(words)
        if expected:
            compare(shlex.join(words), expected, printed)


def compare(what: str, expected: str, printed: str) -> None:
    """Whether it printed what the page says."""
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not checker.check_output(expected, printed, flags):
        raise AssertionError(f"{what} printed\n{printed}\nand not\n{expected}")


def commands(block: str) -> Iterator[tuple[list[str], str]]:
    """The commands after ``$``, in words, each with the output that is written below it."""
    block = block.replace("\\\n", " ")
    for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = command.partition("\n")
        yield shlex.split(line, comments=True), expected.strip() and expected


def plain(words: list[str]) -> list[str]:
    """The command without the folder of the environment."""
    return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def execute(words: list[str]) -> str:
    """Run a command for real; what it printed."""
    name, *rest = plain(words)
    if name == "perron" and rest[:1] != ["launch"]:
        result = CliRunner().invoke(app, rest, env={"COLUMNS": "100"})
        if result.exit_code:
            raise AssertionError(f"{shlex.join(words)} failed: {result.exception!r}\n{result.output}")
        return result.stdout
    started = {"perron": [sys.executable, "-m", "perron"], "python": [sys.executable], "torchrun": TORCHRUN}
    return run([*started.get(name, [name]), *rest])


def run(command: list[str]) -> str:
    """The output of a process that has to succeed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise AssertionError(f"{shlex.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def parse(words: list[str]) -> None:
    """See that a command could be run: perron and torchrun know its options, and its files are there."""
    name, *rest = plain(words)
    if name == "perron":
        parse_options(typer.main.get_command(app), rest)
    if name == "torchrun":
        parse_args(rest)
    for word in words:
        if word.startswith(("examples/", "benchmarks/", "scripts/")) and not (ROOT / word).exists():
            raise AssertionError(f"{shlex.join(words)}: there is no {word}.")


def parse_options(command, arguments: list[str]) -> None:
    context = command.make_context(command.name or "perron", list(arguments))
    if hasattr(command, "resolve_command"):
        left = [*context._protected_args, *context.args]
        _, inner, inner_arguments = command.resolve_command(context, left)
        parse_options(inner, inner_arguments)


def toml(example: Example) -> None:
    """A study file: every key is known."""
    content = tomllib.loads(example.parsed)
    if runs(example):
        Study.model_validate(content)


PARSERS: dict[str, Callable[[Example], object]] = {
    "python": python,
    "console": console,
    "toml": toml,
    "json": lambda example: json.loads(example.parsed),
}
SYBIL = Sybil([CodeBlockParser(language, evaluator) for language, evaluator in PARSERS.items()])


def examples(path: Path) -> list[Example]:
    """The code blocks of a page."""
    return list(SYBIL.parse(path).examples())
