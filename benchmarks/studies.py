"""Run the studies that come with perron and write their pages: docs/studies/NAME.md with pictures.

    .venv/bin/python benchmarks/studies.py                   # all but the largest, some hours of two cores
    .venv/bin/python benchmarks/studies.py error-floor       # some of them
    .venv/bin/python benchmarks/studies.py --again           # only write the pages again, from the results that are there
    .venv/bin/python benchmarks/studies.py --index           # only the list of pages, and docs/figures.md, from the pages

Results go to results/NAME, and are not made again if they are there and the code is the same.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from perron.cli.study import run_with_progress
from perron.studies import conclusions
from perron.studies.runner import read_study
from perron.studies.spec import Study, load, shipped

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "studies"
FIGURES = {  # the studies that show them
    "Figure 1: the residual": ["error-floor"],
    "Figure 2: linear speedup on synthetic data": ["synthetic-speedup", "caption-settings"],
    "Figure 3: MNIST": ["mnist-speedup"],
    "Figure 4: CIFAR-10, small": ["cifar10-resnet18-small"],
    "Table 1, measured": ["table-1"],
    "The networks": ["topologies"],
    "Beyond the paper: families of algorithms, and a lesson": ["families", "mnist-families", "digits"],
    "Beyond the paper: links that lose messages": ["unreliable-links"],
    "Beyond the paper: single samples without a floor": ["variance-reduction"],
    "Beyond the paper: published comparisons, repeated": ["exact-methods", "loss-against-bytes"],
    "Beyond the paper: seconds on machines that are far apart": ["seconds"],
    "Beyond the paper: a hundred times fewer bytes": ["fewer-bytes", "fewer-bytes-gpt"],
    "Beyond the paper: momentum, AdamW, and a GPT": ["momentum-speedup", "adamw-speedup", "gpt"],
}
APART = ("demo", "cifar10-resnet18")  # a part of another, and one that takes days without a GPU


def page(name: str, again: bool) -> None:
    """Run a study if it was not run yet, and write its page."""
    folder = ROOT / "results" / name
    outcome = read_study(folder) if again else run_with_progress(load(name), folder)
    now = load(name)
    outcome.study = outcome.study.model_copy(update={"title": now.title, "about": now.about})
    if not outcome.finished:
        sys.exit("\n".join(outcome.failed.values()))
    conclusions.write(outcome, conclusions.conclude(outcome))
    manifest = json.loads((folder / "manifest.json").read_text())
    DOCS.mkdir(parents=True, exist_ok=True)
    text = (folder / "report.md").read_text()
    for picture in sorted(folder.glob("*.png")):
        shutil.copy(picture, DOCS / f"{name}-{picture.name}")
        text = text.replace(f"]({picture.name})", f"]({name}-{picture.name})")
    title, _, rest = text.partition("\n\n")
    cost = f"{len(outcome.study.runs)} runs, {manifest['core_seconds'] / 60:.0f} core-minutes"
    study = f"[the study file](../../src/perron/studies/shipped/{name}.toml)"
    command = " ".join(["perron study run", name, *part_of(outcome.study, now)])
    (DOCS / f"{name}.md").write_text(f"{title}\n\n`{command}` ({cost}; {study})\n\n{rest}")


def part_of(done: Study, whole: Study) -> list[str]:
    """What was set to run a part of a study only."""
    topologies, nodes = [choice.label for choice in done.topologies], done.nodes.get("default")
    said = [f"--set 'topologies={json.dumps(topologies)}'"] if done.topologies != whole.topologies else []
    return said + ([f"--set nodes={json.dumps(nodes, separators=(',', ':'))}"] if done.nodes != whole.nodes else [])


def index() -> None:
    """The list of all pages that there are."""
    names = [name for name in shipped() if (DOCS / f"{name}.md").exists()]
    rows = [f"| [{name}]({name}.md) | {load(name).title} | {head_of(name)[1]} |" for name in names]
    lines = ["# The paper's studies, measured", "", "| study | what it shows | cost |", "|---|---|---|", *rows, ""]
    lines += ["Each page was written by `benchmarks/studies.py` from the study's own results. To run one yourself:", ""]
    lines += [
        "<!-- long: more than 20 core-minutes -->",
        "```console",
        "$ perron study run synthetic-speedup",
        "$ perron study run synthetic-speedup --set trials=5 --set steps=4000",
        "```",
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *names,
        "```",
        "",
    ]
    (DOCS / "index.md").write_text("\n".join(lines))
    (DOCS.parent / "figures.md").write_text(figures())


def head_of(name: str) -> tuple[str, str]:
    """The command with which a page was made, and what it cost, as the page says."""
    found = re.search(r"^`(perron study run .*)` \((.*?); ", (DOCS / f"{name}.md").read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"docs/studies/{name}.md does not say how it was made. Write it again: benchmarks/studies.py {name}")
    return found[1], found[2].replace(", 0 core-minutes", ", less than a core-minute")


def figures() -> str:
    """The paper's figures, each with its picture, command and cost, from the pages of the studies."""
    lines = [
        "# The paper's figures, reproduced",
        "",
        "Each is made by one command from a study file that comes with perron: runs on all cores, a table, the figure, and a",
        "page that says what follows from it. *Core-minutes* are the times of all runs, added up, as the study's manifest",
        "recorded them; several cores share them. The pictures are those of the pages. MNIST and CIFAR-10 have to be there:",
        "[how to get them](training.md#datasets).",
        "",
    ]
    for figure, names in FIGURES.items():
        lines += [f"## {figure}", ""]
        for name in names:
            command, cost = head_of(name)
            picture = re.search(r"!\[.*?\]\((.*?)\)", (DOCS / f"{name}.md").read_text())
            lines += [f"**{load(name).title}.** [Tables, all pictures and what they mean](studies/{name}.md).", ""]
            lines += [f"<!-- long: {cost.split(', ')[1]} -->", "```console", f"$ {command}", "```", "", f"{cost}.", ""]
            lines += [f"![{load(name).title}](studies/{picture[1]})", ""] if picture else []
    lines += ["```{toctree}", ":hidden:", "", "studies/index", "paper", "```", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all but {' and '.join(APART)} if none is given")
    parser.add_argument("--again", action="store_true", help="write the pages from results that are there")
    parser.add_argument("--index", action="store_true", help="write the list of pages only")
    given = parser.parse_args()
    if unknown := set(given.names) - set(shipped()):
        parser.error(f"there is no study {', '.join(sorted(unknown))}; choose from {', '.join(shipped())}")
    for name in [] if given.index else given.names or [name for name in shipped() if name not in APART]:
        page(name, again=given.again)
        print(read_study(ROOT / "results" / name).study.title)
    index()


if __name__ == "__main__":
    main()
