"""Small real studies for the tests of the report."""

import json
from html.parser import HTMLParser

import pandas as pd
from plotly.offline import get_plotlyjs

from perron.studies.job import execute
from perron.studies.spec import Study

SPEEDUP = {
    "name": "small", "title": "A small study", "about": "Two topologies.\n\nThree node counts.", "conclusion": "speedup",
    "topologies": ["ring", "exponential"], "nodes": [2, 4, 8], "lr": 0.1, "steps": 600, "every": 10, "trials": 4,
    "metrics": ["grad_norm_sq", "consensus_error_sq", "bytes_sent"],
    "problem": {"kind": "quadratic", "dim": 3, "noise_std": 0.5},
}  # fmt: skip
TRAINING = {
    "name": "tiny-digits", "title": "Tiny digits", "conclusion": "training", "topologies": ["ring"], "nodes": [1, 4],
    "lr": 0.05, "steps": 30, "every": 10, "trials": 2, "metrics": ["loss_mean", "test_accuracy"],
    "problem": {"kind": "images", "data": "digits", "model": "mlp", "width": 8, "depth": 1, "batch": 2, "samples": 200},
}  # fmt: skip
OTHERS = {
    "time_to_accuracy": {
        "conclusion": "time_to_accuracy", "topologies": ["ring"], "nodes": [1, 4], "lr": [0.05, 0.2], "steps": 300,
        "algorithms": ["centralized", "push_pull"], "equal_effective_step": True, "trials": 3, "accuracies": [1e-2],
        "problem": {"kind": "quadratic", "dim": 2, "noise_std": 0.1, "same_hessian": True, "heterogeneity": 0},
    },
    "comparison": {
        "conclusion": "comparison", "topologies": ["ring"], "nodes": 4, "lr": 0.05, "steps": 400, "every": 10, "trials": 4,
        "algorithms": ["centralized", "push_pull", {"name": "dsgd", "weights": "balanced"}], "equal_effective_step": True,
        "problem": {"kind": "quadratic", "dim": 2, "noise_std": 0.5},
    },
    "residual": {
        "conclusion": "residual", "topologies": ["ring"], "nodes": [3, 4], "lr": 0.05, "steps": 200, "every": 5, "trials": 4,
        "metrics": ["residual_sq", "residual_block_sq_1", "residual_block_sq_10"],
        "problem": {"kind": "quadratic", "dim": 2, "noise_std": 0.5},
    },
    "topologies": {
        "conclusion": "topologies", "topologies": ["ring", "exponential"], "nodes": [4], "steps": 0, "trials": 1,
        "problem": {"kind": "quadratic", "dim": 1},
    },
}  # fmt: skip


def run_here(content, folder, **said):
    """Run a study in this process and leave what `run_study` would, but for the machine."""
    study = Study.model_validate(content)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {run.key: execute(run)[0] for run in study.runs if run.key not in said.get("without", ())}
    table = pd.concat(tables.values(), ignore_index=True) if tables else pd.DataFrame()
    table.to_parquet(folder / "results.parquet", index=False)
    manifest = {"study": study.model_dump(mode="json"), "seconds": 1.5, "reused": 0, "failed": {}, "warned": {}}
    manifest |= {"perron": "0.1.0", "started": "2026-11-16T00:38:01+00:00", "runs": dict.fromkeys(tables, 3.0)}
    manifest |= {key: value for key, value in said.items() if key != "without"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


PLOTLY = get_plotlyjs()


class Page(HTMLParser):
    """What a page consists of: tables by caption, scripts, attributes, headings, text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.scripts, self.tags, self.headings, self.words = {}, [], [], [], []
        self._inside, self._cells, self._caption, self._rows = "", None, None, []
        self.feed(text.replace(PLOTLY, "PLOTLY"))  # five megabytes of it would take seconds

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._rows, self._caption = [], None
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append([tag, ""])
        self._inside = tag

    def handle_endtag(self, tag):
        if tag == "table":
            self.tables[self._caption] = self._rows
        self._inside = ""

    def handle_data(self, data):
        if self._inside in ("td", "th"):
            self._rows[-1][-1] += data
        elif self._inside == "caption":
            self._caption = data
        elif self._inside == "script":
            self.scripts[-1][1] += data
        elif self._inside in ("h1", "h2", "h3", "h4"):
            self.headings[-1][1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def data(self):
        """What the script draws."""
        return next(json.loads(text) for attrs, text in self.scripts if attrs.get("id") == "data")["studies"]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())
