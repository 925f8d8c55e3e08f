"""Every code block of the documents runs, and so does every example; pages, links and the reference are complete."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import doc_blocks
import pytest
from markdown_it import MarkdownIt
from public_names import public_modules

import perron

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))
sphinx_perron = importlib.import_module("sphinx_perron")
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.rglob("*.rst"), *DOCS.rglob("*.ipynb")]
    if "auto_gallery" not in path.parts and path.parent != DOCS / "gallery"
)
MARKDOWN = [path for path in PAGES if path.suffix == ".md"]
WITH_CODE = [
    path for path in MARKDOWN if re.search(rf"^ *```({'|'.join(doc_blocks.PARSERS)})$", path.read_text(), re.M)
]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like the checkout, in which commands may write."""
    for name in ("benchmarks", "constraints.txt", "pyproject.toml", "scripts", "src", ".venv"):
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    for folder in ("examples", "docs"):
        (tmp_path / folder).mkdir()
        for path in (ROOT / folder).iterdir():
            if path.is_file():
                (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)


@pytest.mark.docs
@pytest.mark.usefixtures("checkout")
@pytest.mark.timeout(0 if doc_blocks.LONG else 1200)
@pytest.mark.parametrize("path", WITH_CODE, ids=name_of)
def test_code_blocks_run(path, capsys):
    for example in doc_blocks.examples(path):
        example.evaluate()


def test_commands_within_the_text_of_the_readme_exist():
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    found = [command for command in re.findall(r"`([^`]+)`", text) if command.startswith(("perron ", "torchrun "))]
    assert len(found) > 5
    for command in found:
        doc_blocks.parse(shlex.split(command))


@pytest.mark.parametrize("path", MARKDOWN, ids=name_of)
def test_every_block_says_its_language(path):
    for token in MarkdownIt().parse(path.read_text()):
        assert token.type != "code_block", f"{path.name}:{token.map[0] + 1}: write ```LANGUAGE instead of indenting"
        if token.type == "fence":
            language = token.info.split(" ")[0]
            assert language in doc_blocks.LANGUAGES or re.fullmatch(r"\{[\w:-]+\}", language), (
                f"{path.name}:{token.map[0] + 1}: {language!r} is none of {', '.join(doc_blocks.LANGUAGES)}, and no directive"
            )


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("```console\n$ perron graph ring --nods 8\n```\n", "No such option"),
        ("<!-- long: x -->\n```console\n$ perron graph ring --nods 8\n```\n", "No such option"),
        ("<!-- unrun: x -->\n```console\n$ torchrun examples/nothing.py\n```\n", "there is no examples/nothing.py"),
        ('```console\n$ perron graph ring --nodes 5 --json\n{..."nodes": 6...}\n```\n', "and not"),
        ("```console\n$ perron graph nothing\n```\n", "nothing"),
        ("```python\n1 / 0\n```\n", "division"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the block printed"),
        ("<!-- long: x -->\n```python\n1 +\n```\n", "invalid syntax"),
        ('```toml\ntitel = "x"\n```\n', "titel"),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_a_wrong_block_is_found(block, wrong, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{block}")
    with pytest.raises(Exception, match=re.escape(wrong)):  # noqa: PT012
        for example in doc_blocks.examples(page):
            example.evaluate()


TORCHRUN = ("train_digits", "train_two_levels", "client_plain")


@pytest.mark.docs
@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    if example.stem == "train_gpt":
        pytest.skip("tests/cli/test_examples.py trains it")
    launcher, nodes = [], "2" if example.stem.startswith("client") else "4"  # clients take seconds to import
    if example.stem in TORCHRUN:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", nodes]
    elif "torchrun" in example.read_text():  # what perron launch starts takes less time to start
        launcher = ["-m", "perron", "launch", "--nodes", nodes]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    options = ["--out", str(tmp_path)] if "--out" in example.read_text() else []
    if "tinyshakespeare" not in example.read_text():
        environment["PERRON_DATA"] = ""  # they do without
    elif perron.data.find("tinyshakespeare") is None:
        pytest.skip("tiny-shakespeare is not here: perron data fetch tinyshakespeare")
    for client in set(re.findall("transformers|accelerate|lightning", example.read_text())):
        if find_spec(client) is None:
            pytest.skip("the extra 'clients' is not installed")
    command = [sys.executable, *launcher, str(example), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def heading_anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", MARKDOWN, ids=name_of)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file) if file else path
        assert found.exists(), f"{path.name} links to {target}, which is not there"
        if anchor and found.suffix == ".md":
            assert anchor in heading_anchors(found), f"{found.name} has no heading #{anchor}"


def listed_in(page: Path) -> set[Path]:
    """The pages in the tables of contents of a page."""
    found = set()
    for tree in re.findall(r"(?:```\{toctree\}|\.\. toctree::)(.*?)(?:```|\Z)", page.read_text(), re.DOTALL):
        for entry in re.findall(r"^\s*(?:.*<)?([\w./-]+)>?$", tree, re.MULTILINE):
            found |= {path for path in PAGES if path.with_suffix("") == (page.parent / entry).resolve()}
    return found


def test_every_page_is_in_a_table_of_contents():
    reached, new = {DOCS / "index.md"}, {DOCS / "index.md"}
    while new:
        new = {page for path in new for page in listed_in(path)} - reached
        reached |= new
    missing = {path for path in PAGES if DOCS in path.parents} - reached
    assert not missing, f"in no table of contents: {sorted(map(name_of, missing))}"


@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=name_of)
def test_notebooks_are_stored_without_output(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), f"{path.name}: clear all outputs"


def test_every_name_is_in_the_reference():
    directives = re.findall(
        r"^\.\. api:: (.*)$", "".join(path.read_text() for path in DOCS.glob("reference/*.rst")), re.M
    )
    assert len(directives) == len(set(directives))
    entries = [entry for arguments in directives for entry in sphinx_perron.entries(*arguments.split()).items()]
    assert len(entries) == len(dict(entries)), "an entry occurs twice"
    # By identity: perron.Graph and perron.networks.Graph are one entry.
    documented = {id(value) for _, value in entries}
    documented |= {id(importlib.import_module(arguments.split()[0])) for arguments in directives}
    wanted = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in public_modules()
        for name in getattr(module, "__all__", [])
    }
    missing = sorted(name for name, value in wanted.items() if id(value) not in documented)
    assert not missing, f"not in docs/reference: {missing}"


NAME = re.compile(r"(?<![\w/.-])perron(?:\.\w+)+")  # not a part of a file name or of an address


@pytest.mark.parametrize(
    "path",
    [path for path in [*PAGES, *ROOT.glob("examples/*.py"), *DOCS.glob("gallery/*.py")] if path.stem != "CHANGELOG"],
    ids=name_of,
)
def test_every_name_in_the_documents_exists(path):
    missing = sorted(name for name in set(NAME.findall(path.read_text())) if sphinx_perron.named(name) is None)
    assert not missing, f"{name_of(path)} mentions names that perron does not have: {missing}"


def test_names_of_earlier_versions_still_exist():
    """All that README, documentation and examples of version 0.1 mentioned."""
    names = Path(__file__).with_name("names_of_0_1.txt").read_text().split()
    assert [name for name in names if sphinx_perron.named(name) is None] == []


def test_every_algorithm_has_a_page_that_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pages = importlib.import_module("algorithm_pages").pages()
    assert {f"{name}.md" for name in perron.ALGORITHMS} <= set(pages)
    for name, text in pages.items():
        assert (DOCS / "algorithms" / name).read_text() == text, f"{name}: run benchmarks/algorithm_pages.py"
        assert name == "index.md" or (DOCS / "algorithms" / name).with_suffix(".svg").exists()


def test_every_figure_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    assert (DOCS / "figures.md").read_text() == importlib.import_module("studies").figures()
