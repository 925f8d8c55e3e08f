"""The networks themselves."""

from __future__ import annotations

from perron import plots
from perron.networks.graph import Graph
from perron.studies.conclusions.base import (
    Conclusion,
    file_name,
    spoken,
    strings,
)
from perron.studies.run import Run
from perron.studies.runner import Outcome


def networks(outcome: Outcome) -> Conclusion:
    """The topologies drawn, with the numbers that decide how they mix."""
    found = Conclusion()
    first = outcome.table.drop_duplicates("run")
    rows = [
        {
            "topology": row.topology,
            "nodes": int(row.nodes),
            "weights": row.weights,
            "c": row.c,
            "s_A": row.s_A,
            "s_B": row.s_B,
        }
        for row in first.itertuples()
    ]
    found.tables["Networks"] = strings(
        [
            {key: f"{value:.3g}" if isinstance(value, float) else spoken(str(value)) for key, value in row.items()}
            for row in rows
        ]
    )
    found.summary["networks"] = rows
    runs = [run for run in outcome.study.runs if run.key in set(first.run)]  # what could be built
    for weights in dict.fromkeys(run.weights for run in runs):
        drawn: dict[str, Graph] = {}
        for run in runs:
            if run.weights == weights and run.nodes == _drawn_at(runs, run.topology, weights):
                title, graph = f"{spoken(run.columns['topology'])}, n = {run.nodes}", run.graph()
                several = {f"{title}, step {i}": one for i, one in enumerate(graph)} if isinstance(graph, tuple) else {}
                drawn |= several or {title: graph}  # type: ignore[dict-item]
        name = file_name("topologies", {"weights": weights} if len({run.weights for run in runs}) > 1 else {})
        found.figures[name] = lambda path, drawn=drawn: plots.draw_all(drawn, path)
    slow = max(rows, key=lambda row: row["s_A"])
    found.sentences = [
        "An arrow from j to i means that node i hears node j; links that go both ways are plain lines. s_A adds up all "
        f"disagreement that a network leaves behind; the slowest here is {spoken(slow['topology'])} at n={slow['nodes']} with "
        f"s_A = {slow['s_A']:.3g}."
    ]
    return found


def _drawn_at(runs: list[Run], topology: str, weights: str) -> int:
    """16 nodes, as in the paper's figure, or the nearest there is."""
    counts = {run.nodes for run in runs if (run.topology, run.weights) == (topology, weights)}
    return min(counts, key=lambda n: abs(n - 16))
