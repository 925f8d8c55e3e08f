"""Run the studies that come with perron and write their pages: docs/studies/NAME.md with pictures.

    .venv/bin/python benchmarks/studies.py                   # all but the largest, some hours of two cores
    .venv/bin/python benchmarks/studies.py error-floor       # some of them
    .venv/bin/python benchmarks/studies.py --again           # only write the pages again, from the results that are there

Results go to results/NAME, and are not made again if they are there and the code is the same.
"""

import json
import shutil
import sys
from pathlib import Path

from perron import conclusions
from perron.experiment import read_study
from perron.study import Study, load, shipped
from perron.study_cli import run_with_progress

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "studies"
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
    study = f"[the study file](../../src/perron/studies/{name}.toml)"
    command = " ".join(["perron study run", name, *part_of(outcome.study, now)])
    (DOCS / f"{name}.md").write_text(f"{title}\n\n`{command}` ({cost}; {study})\n\n{rest}")


def part_of(done: Study, whole: Study) -> list[str]:
    """What was set to run a part of a study only."""
    topologies, nodes = [choice.label for choice in done.topologies], done.nodes.get("default")
    said = [f"--set 'topologies={json.dumps(topologies)}'"] if done.topologies != whole.topologies else []
    return said + ([f"--set nodes={json.dumps(nodes, separators=(',', ':'))}"] if done.nodes != whole.nodes else [])


def index() -> None:
    """The list of all pages that there are."""
    rows = [
        f"| [{name}]({name}.md) | {load(name).title} | {len(load(name).runs)} |"
        for name in shipped()
        if (DOCS / f"{name}.md").exists()
    ]
    lines = ["# The paper's studies, measured", "", "| study | what it shows | runs |", "|---|---|---|", *rows, ""]
    lines += ["Each page was written by `benchmarks/studies.py` from the study's own results. To run one yourself:", ""]
    lines += [
        "    perron study run synthetic-speedup",
        "    perron study run synthetic-speedup --set trials=5 --set steps=4000",
        "",
    ]
    (DOCS / "index.md").write_text("\n".join(lines))


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--again"] or [name for name in shipped() if name not in APART]
    for wanted in names:
        page(wanted, again="--again" in sys.argv)
        print(read_study(ROOT / "results" / wanted).study.title)
    index()
