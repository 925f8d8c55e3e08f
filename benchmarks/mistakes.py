"""Print the tables of docs/howto/mistakes.md: network files as archives have them, and mistakes with what perron says to each.

    .venv/bin/python benchmarks/mistakes.py             # print them
    .venv/bin/python benchmarks/mistakes.py --write     # write the page

The files and mistakes are those of tests/networks/test_formats.py and tests/simulation/test_mistakes.py.
"""

import gzip
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("networks", "simulation", "support")]

import test_formats  # noqa: E402
import test_mistakes  # noqa: E402

from perron.errors import PerronError  # noqa: E402
from perron.networks import read_graph  # noqa: E402

PAGE = ROOT / "docs" / "howto" / "mistakes.md"


def read(name: str, text: str, folder: Path) -> str:
    """What reading a file gives: its size and notes, plain and gzipped alike, or the error."""
    path, packed = folder / name, folder / f"{name}.gz"
    path.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    try:
        graph, other = read_graph(path), read_graph(packed)
    except PerronError as error:
        return str(error).replace(f"{folder}/", "")
    if (graph.adjacency() != other.adjacency()).nnz:
        raise AssertionError(f"{name} gives another graph when it is gzipped")
    return f"{graph.nodes} nodes, {len(graph.edges)} edges{f'; {graph.note}' if graph.note else ''}"


def said(wrong) -> str:
    """What a mistake is told."""
    try:
        wrong()
    except PerronError as error:
        return str(error)
    raise AssertionError("it was accepted")


def rows(found: dict[str, str]) -> list[str]:
    return [f"| {name} | {answer} |".replace("\n", " ") for name, answer in found.items()]


def table(first: str, second: str, found: dict[str, str]) -> list[str]:
    clean = {key.replace("|", "\\|"): value.replace("|", "\\|").replace("<", "&lt;") for key, value in found.items()}
    return [f"| {first} | {second} |", "|---|---|", *rows(clean), ""]


def page() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = {file: read(file, content[0], folder) for file, content in test_formats.FILES.items()}
        bad = {
            file: read(file, content[0], folder)
            for file, content in test_formats.REFUSED.items()
            if file != "deep.json"
        }
    mistakes = {name: said(wrong) for name, (wrong, _) in test_mistakes.REFUSED.items()}
    return "\n".join([
        "# What perron says to mistakes", "",
        "Written by `benchmarks/mistakes.py` from the files and mistakes that the tests try.", "",
        f"## {len(good)} network files as archives and tools write them, plain and gzipped", "",
        *table("file", "is read as", good),
        f"## {len(bad)} files that cannot be read", "", *table("file", "what is said", bad),
        f"## {len(mistakes)} mistakes in Python", "", *table("mistake", "what is said", mistakes),
    ])  # fmt: skip


if __name__ == "__main__":
    text = page()
    if "--write" in sys.argv:
        PAGE.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    else:
        print(text)
