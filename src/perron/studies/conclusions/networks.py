"""The networks themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perron.networks.graph import Graph
from perron.plots import Drawing, Picture
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Conclusion

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.run import Run

COLUMNS = ("topology", "nodes", "weights", "c", "s_A", "s_B")


def networks(outcome: Outcome) -> Conclusion:
    """The topologies drawn, with the numbers that decide how they mix."""
    first = outcome.table.drop_duplicates("run")
    rows = first[list(COLUMNS)].to_dict("records")
    cells = [
        {key: f"{value:.3g}" if isinstance(value, float) else text.readable(str(value)) for key, value in row.items()}
        for row in rows
    ]
    runs = [run for run in outcome.study.runs if run.key in set(first.run)]  # those whose networks could be built
    slow = max(rows, key=lambda row: row["s_A"])
    return Conclusion(
        tables={"Networks": text.table(cells)},
        sentences=[
            "An arrow from j to i means that node i hears node j; links that go both ways are plain lines. s_A adds up all "
            f"disagreement that a network leaves behind; the slowest here is {text.readable(slow['topology'])} at "
            f"n={slow['nodes']} with s_A = {slow['s_A']:.3g}."
        ],
        figures=_drawings(runs),
        summary={"networks": rows},
    )


def _drawings(runs: list[Run]) -> dict[str, Picture]:
    """Return a figure for each weight rule: every topology with 16 nodes, as in the paper, or the nearest number."""
    figures: dict[str, Picture] = {}
    rules = dict.fromkeys(run.weights for run in runs)
    for weights in rules:
        graphs: dict[str, Graph] = {}
        own = [run for run in runs if run.weights == weights]
        for topology in dict.fromkeys(run.topology for run in own):
            sizes = {run.nodes for run in own if run.topology == topology}
            nodes = min(sizes, key=lambda n: abs(n - 16))
            for run in (run for run in own if (run.topology, run.nodes) == (topology, nodes)):
                title, graph = f"{text.readable(run.columns['topology'])}, n = {nodes}", run.graph()
                steps = {f"{title}, step {i}": one for i, one in enumerate(graph)} if isinstance(graph, tuple) else {}
                graphs |= {title: graph} if isinstance(graph, Graph) else steps
        figures[text.file_name("topologies", {"weights": weights} if len(rules) > 1 else {})] = Drawing(graphs)
    return figures
