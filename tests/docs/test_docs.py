"""Every code block of the documents runs, and so does every example; pages, links and the reference are complete."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import doc_blocks
import pytest
from markdown_it import MarkdownIt

import perron

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
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


@pytest.mark.usefixtures("checkout")
@pytest.mark.timeout(0 if doc_blocks.LONG else 300)
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


def test_every_name_is_in_the_reference(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    entries = importlib.import_module("sphinx_perron").entries
    said = re.findall(r"^\.\. api:: (.*)$", "".join(path.read_text() for path in DOCS.glob("reference/*.rst")), re.M)
    assert len(said) == len(set(said))
    documented = {name for arguments in said for name in entries(*arguments.split())}
    modules = {arguments.split()[0] for arguments in said}
    wanted = {f"perron.{name}" for name in perron.__all__ if name != "__version__"}
    assert wanted <= documented | modules, f"not in docs/reference: {sorted(wanted - documented - modules)}"


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
