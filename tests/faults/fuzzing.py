"""Input that nobody meant: near what is valid, and far from it. Strategies for the fuzz tests of F19."""

from __future__ import annotations

import json
import math
import resource
import signal
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import typer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from perron.cli import main as cli
from perron.cli import study as study_cli
from perron.studies.spec import shipped

pd.Index(["x"])  # with its first array, Arrow reserves a gigabyte of addresses, which is not what `in_time` is about
SECONDS = 60  # a piece of input that takes longer hangs
STUDIES = [*shipped().values(), study_cli.TEMPLATE]
WORDS = [
    "ring", "exponential", "grid", "random", "push_pull", "dsgd", "default", "log", "authors", "uniform",
    "spanning_trees", "speedup", "quadratic", "logistic", "images", "digits", "all", "float32", "cuda",
    "grad_norm_sq", "residual_block_sq_20", "nan", "none", "../../outside/x", "/etc/passwd", "..", ".", "a/b",
    "<script>", "{nodes}", "%s", "null", "True", "-1", "1e999",
]  # fmt: skip
WORDS += ["", " ", "x" * 300, "\u202e\u0000", "\x1b[31m", "r\u0131ng", "\U0001f600", "$(touch x)"]
NUMBERS = [
    0, 1, 2, 3, 4, 5, 8, -1, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.0, 0.1, 0.5, 1.0, 1.5, -0.5, 1e-300, 1e300, 1e308, -1e308,
    math.inf, -math.inf, math.nan,
]  # fmt: skip


def examples(many: int) -> Any:
    """How the fuzz tests run: always the same examples, as many as asked for, and no deadline but the alarm."""
    return settings(
        max_examples=many, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


@contextmanager
def in_time(seconds: int = SECONDS) -> Any:
    """What hangs, or takes more than a gigabyte, is an error."""

    def late(_number: int, _frame: Any) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**30, limit[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limit)
        signal.signal(signal.SIGALRM, before)


# ---- values


scalars = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.booleans(), st.text(max_size=8), st.integers(), st.floats()
)
keys = st.sampled_from(["name", "kind", "default", "ring", "nodes", "lr", "ring/uniform", "batch", "", "a.b", "\u00e9"])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=5,
)


@st.composite
def typos(draw: st.DrawFn, word: str) -> str:
    """A word with a slip: a letter lost, doubled, changed or two swapped; another case; a dash for an underscore."""
    at = draw(st.integers(0, max(0, len(word) - 1)))
    slips = [word[:at] + word[at + 1 :], word[:at] + word[at : at + 1] + word[at:], word[:at] + "x" + word[at + 1 :]]
    slips += [
        word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :],
        word.upper(),
        word + "s",
        " " + word,
    ]
    slips += [word.replace("_", "-")]
    return draw(st.sampled_from(slips))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all that is in nested tables and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in inside for place in [(*path, key), *places(inner, (*path, key))]]


@st.composite
def changed(draw: st.DrawFn, content: Any, most: int = 3) -> Any:
    """Tables and lists of which some parts are missing, of another type, called otherwise, or extreme."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, most))):
        here = places(content)
        if not here:
            return draw(values)
        *path, last = draw(st.sampled_from(here))
        holder = content
        for key in path:
            holder = holder[key]
        doing = draw(st.sampled_from(["replace", "replace", "delete", "rename", "wrap", "add"]))
        if doing == "delete":
            del holder[last]
        elif doing == "rename" and isinstance(holder, dict):
            holder[draw(typos(last))] = holder.pop(last)
        elif doing == "add" and isinstance(holder, dict):
            holder[draw(st.one_of(keys, st.text(max_size=5)))] = draw(values)
        elif doing == "wrap":
            holder[last] = draw(
                st.sampled_from([[holder[last]], {"default": holder[last]}, {"name": holder[last]}, [], {}])
            )
        else:
            holder[last] = draw(values)
    return content


# ---- texts and bytes


PIECES = [
    b"nan",
    b"-1",
    b"\0",
    b"999999999999",
    b"\n",
    b"# nodes: 2\n",
    b"\xff",
    b"\xef\xbb\xbf",
    b"1e999",
    b"null",
    b"true",
]
PIECES += [b"inf", b"\\u0000", b"[[", b"'''", b"\r", b"../", *(bytes([one]) for one in b'<"[]{}=,-')]


@st.composite
def damaged(draw: st.DrawFn, content: bytes, most: int = 4) -> bytes:
    """Bytes changed, cut out, doubled, put in or cut off."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        kind = draw(st.sampled_from(["change", "flip", "cut", "double", "insert", "end"]))
        if kind == "insert" or not found:
            found[at:at] = draw(st.sampled_from(PIECES))
        elif kind == "change":
            found[at] = draw(st.integers(0, 255))
        elif kind == "flip":
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del found[at : at + draw(st.integers(1, 40))]
        elif kind == "double":
            found[at:at] = found[at : at + draw(st.integers(1, 40))]
        else:
            del found[at:]
    return bytes(found)


# ---- TOML


def toml(content: dict[str, Any]) -> str:
    """A table as TOML, all in one line for each key."""
    return "".join(f"{_value(key)} = {_value(value)}\n" for key, value in content.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(repr(value), repr(value))
    if isinstance(value, str):
        return (
            '"' + "".join(char if char.isalnum() or char in " /.-_" else f"\\U{ord(char):08x}" for char in value) + '"'
        )
    return "true" if value is True else "false" if value is False else '"none"' if value is None else str(value)


@st.composite
def study_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """How it was made, and a study file."""
    text = draw(st.sampled_from(STUDIES)).read_text(encoding="utf-8")
    how = draw(st.sampled_from(["tables", "tables", "tables", "bytes", "doubled", "text", "binary"]))
    if how == "tables":
        return how, toml(draw(changed(tomllib.loads(text)))).encode("utf-8", "replace")
    if how == "bytes":
        return how, draw(damaged(text.encode()))
    if how == "doubled":
        lines = text.splitlines()
        return how, "\n".join([*lines, draw(st.sampled_from(lines))]).encode()
    return how, draw(st.text(max_size=60)).encode("utf-8", "replace") if how == "text" else draw(st.binary(max_size=60))


def one_line(said: str) -> None:
    """An error as people see it: some words, on one line."""
    assert said.strip()
    assert "\n" not in said, said
    assert "Traceback" not in said
    assert len(said) < 3000, said[:300]


def files_in(folder: Path) -> set[Path]:
    """All files below a directory."""
    return {path for path in folder.rglob("*") if not path.is_dir()}


# ---- command lines


ROOT: Any = typer.main.get_command(cli.app)
OUTPUTS = ("--out", "--draw", "--write", "--to")  # options that name what is written, wherever that is
FILES = [
    "good.edges", "good.csv", "good.npz", "mixing.npz", "bad.csv", "islands.graphml", "mine.toml", "bad.toml",
    "done", "watched", "script.py",
]  # fmt: skip
PLAIN = [
    "ring", "grid", "exponential", "random", "one_peer_exponential", "uniform", "authors", "file", "spanning-trees",
    "push_pull", "dsgd", "quadratic", "rate", "leaf", "level", "balanced", "symmetric", "mnist", "digits",
    "cifar10", "demo", "7h", "99", "quick", "full", "local", "ray", "slurm", "probability=0.5", "lr=0.1",
    "steps=20", "trials=1", "name=../../outside/x", "nodes=[2]", "problem.dim=2", "a=", "=b", "a.b.c=1", "lr.x=1",
    "127.0.0.1:1", "1", "2", "3", "4", "0", "-1", "0.5", "1e-3", "1e400", "nan", "inf", "99999999999999999999",
    "x.png", "x.npz", "x.graphml", "x.md", "x.html", "sub/x.npz", "nowhere/x", "here", "-", "--", "-n", "-h", "-m",
    "--help", "--version", "--debug",
]  # fmt: skip
TOPOLOGIES = ["ring", "grid", "exponential", "random", "one_peer_exponential"]
NETWORKS = [*TOPOLOGIES, *FILES]
FITTING = {  # what an option, or what follows the name of a command, may be
    "graph": NETWORKS, "design": NETWORKS, "advise": NETWORKS, "theorem": NETWORKS, "links": FILES, "report": ["done", "watched"],
    "watch": ["done", "watched"], "show": ["done"], "plot": ["done"], "new": ["mine", "yours", "done"],
    "fetch": ["mnist", "digits"], "launch": ["script.py"],
    "--nodes": ["1", "2", "3", "4", "0"], "-n": ["4"],
    "--weights": ["uniform", "lazy", "metropolis", "authors", "file", "spanning_trees"],
    "--set": ["probability=0.5", "lr=0.1", "steps=20", "trials=1", "nodes=[2]", "topologies=[\"grid\"]", "seeds=[1,2]"],
    "--push": FILES, "--goal": ["rate", "fastest", "sum", "alignment", "level", "balanced", "symmetric", "leaf"],
    "--algorithm": ["push_pull", "dsgd", "frost", "push_sum"], "--problem": ["quadratic", "logistic"], "--metric": ["loss"],
    "--draw": ["x.png", "x.svg", "x.txt"], "--out": ["x.npz", "x.edges", "here", "x.html"], "--on": ["local", "ray", "slurm"],
    "--slurm": ["time=60", "partition=short"], "--address": ["auto"], "--from": ["done", "demo", "mine.toml"], "--to": ["here"],
    "--only": ["99", "7h"], "--effort": ["quick"], "--write": ["x.md"], "--store": ["127.0.0.1:0"],
    "--steps": ["1", "100", "1e6"],
}  # fmt: skip
FITTING |= {command: ["mine.toml", "bad.toml", "demo"] for command in ("check", "run")}
FIGURES = ["0", "1", "2", "0.5", "1e-3", "10", "-1", "1e400", "nan", "99999999999999999999"]
LONG = {("demo",), ("paper", "check")}  # commands that are only called wrongly


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """All commands, with the words that call them."""
    inner = getattr(group, "commands", None)
    return (
        [(path, group)]
        if inner is None
        else [one for name, each in inner.items() for one in commands(each, (*path, name))]
    )


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Words after ``perron``: mostly a command that there is, with options that it has, and values that fit now and then."""
    anything = st.one_of(st.sampled_from([*PLAIN, *FILES, *WORDS]), st.text(max_size=5))

    def fitting(name: str) -> str:
        known = st.sampled_from(FITTING.get(name, FIGURES))
        return draw(anything if draw(st.integers(0, 5)) == 0 else known)

    path, command = draw(st.sampled_from(commands()))
    words = [draw(typos(word)) if draw(st.integers(0, 30)) == 0 else word for word in path]
    options = [one for one in command.params if one.opts[0].startswith("-")]
    if len(options) < len(command.params):
        words += [fitting(path[-1]) for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2])))]
    for one in draw(st.lists(st.sampled_from(options), max_size=4)) if options else []:
        name = one.opts[0]
        words.append(draw(typos(name)) if draw(st.integers(0, 20)) == 0 else name)
        if not one.is_flag:
            words.append(fitting(name))
    words += [draw(anything)] if draw(st.integers(0, 15)) == 0 else []
    if path in LONG:
        words += ["--only", "99"]
    elif path[-1] == "launch" or set(words) & set(TOPOLOGIES):
        words[len(path) : len(path)] = ["--nodes", "4"]  # whatever is valid is short
    if path == ("design",):
        words += ["--starts", "1"]
    return [word.replace("\0", "") for word in words]  # no system passes a zero byte on


# ---- what a study or a training leaves


READERS = {  # commands, and the files that they read, as patterns
    ("study", "show", "done"): ["done/manifest.json", "done/results.parquet"],
    ("study", "show", "done", "--json"): ["done/manifest.json", "done/results.parquet"],
    ("report", "done"): ["done/manifest.json", "done/results.parquet"],
    ("study", "run", "mine.toml", "--out", "done"): ["done/runs/*", "done/live.jsonl"],
    ("watch", "done", "--once"): ["done/live.jsonl", "done/runs/*"],
    ("watch", "done", "--json"): ["done/live.jsonl", "done/runs/*"],
    ("watch", "done", "--web"): ["done/live.jsonl", "done/runs/*"],
    ("watch", "watched", "--once"): ["watched/node-0.jsonl"],
    ("watch", "watched", "--json"): ["watched/node-0.jsonl"],
    ("watch", "watched", "--web"): ["watched/node-0.jsonl"],
}


@st.composite
def damaged_states(draw: st.DrawFn, folder: Path) -> tuple[list[str], Path, bytes]:
    """A command, a file that it reads, and what the file holds instead: damaged, or well-formed with other values."""
    words, patterns = draw(st.sampled_from(sorted(READERS.items())))
    path = draw(st.sampled_from(sorted(path for one in patterns for path in folder.glob(one))))
    content = path.read_bytes()
    if path.suffix == ".json" and draw(st.booleans()):
        return list(words), path, json.dumps(draw(changed(json.loads(content)))).encode("utf-8", "replace")
    if path.suffix == ".jsonl" and draw(st.booleans()):
        lines = content.splitlines()
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = json.dumps(draw(changed(json.loads(lines[at])))).encode("utf-8", "replace")
        return list(words), path, b"\n".join([*lines, b""])
    return list(words), path, draw(damaged(content))
