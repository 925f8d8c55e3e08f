"""How objects show themselves: drawings in notebooks, short text in a terminal, public names under the tab key."""

from xml.etree import ElementTree

import numpy as np
import pytest
from public_names import public_modules

from perron import Graph, Mixing, topologies
from perron.networks.layout import layout
from perron.studies import Outcome, Study

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text):
    return ElementTree.fromstring(text)  # noqa: S314 - our own


@pytest.mark.parametrize(
    "graph", [topologies.exponential(8), topologies.grid(9), topologies.star(7), Graph(1), Graph(2, [(0, 1)])], ids=str
)
def test_a_graph_is_drawn_with_its_nodes_links_and_arrows(graph):
    picture = drawn(graph._repr_svg_())
    pairs = {frozenset(edge) for edge in graph.edges.tolist()}
    assert len(picture.findall(f"{SVG}circle")) == graph.nodes
    assert len(picture.findall(f"{SVG}path")) == len(pairs)
    assert len(picture.findall(f"{SVG}polygon")) == (0 if graph.is_symmetric else len(graph.edges))
    width, height = float(picture.get("width")), float(picture.get("height"))
    for circle in picture.findall(f"{SVG}circle"):
        assert 0 < float(circle.get("cx")) < width
        assert 0 < float(circle.get("cy")) < height


def test_arrows_point_at_the_node_that_receives():
    graph = topologies.ring(5)
    picture = drawn(graph._repr_svg_())
    circles = np.array([[float(one.get("cx")), float(one.get("cy"))] for one in picture.findall(f"{SVG}circle")])
    tips = np.array(
        [[float(x) for x in one.get("points").split()[0].split(",")] for one in picture.findall(f"{SVG}polygon")]
    )
    nearest = np.linalg.norm(tips[:, None] - circles, axis=2).argmin(axis=1)
    assert sorted(nearest.tolist()) == list(range(5))  # each node receives from one
    assert np.sign(circles[0, 1] - circles[2, 1]) == -np.sign(layout(graph)[0, 1] - layout(graph)[2, 1])  # y downwards


def test_labels_are_escaped_and_large_graphs_are_text():
    named = Graph(2, [(0, 1), (1, 0)], labels=["<script>", "b & c"], name="<b>")
    texts = [one.text for one in drawn(named._repr_svg_()).findall(f"{SVG}text")]
    assert texts == ["<script>", "b & c"]
    assert topologies.ring(500)._repr_svg_() is None
    assert Mixing.uniform(topologies.ring(500))._repr_html_().count("<svg") == 0


def test_a_mixing_draws_the_graphs_of_its_matrices():
    ring, other = topologies.ring(5), topologies.exponential(5)
    assert Mixing.uniform(ring)._repr_html_().count("<svg") == 1
    both = Mixing.uniform(ring, other)._repr_html_()
    assert both.count("<svg") == 2
    assert "<figcaption>push</figcaption>" in both
    assert "&lt;Mixing of 5 nodes" in both
    assert Mixing(push=Mixing.uniform(ring).push)._repr_html_().count("<svg") == 1


def test_studies_and_their_results_are_short():
    study = Study(name="mine", topologies="ring", nodes=4, algorithms=["push_pull", "dsgd"])
    assert repr(study) == "<Study 'mine': push_pull, dsgd; conclusion 'speedup'>"
    import pandas as pd

    assert (
        repr(Outcome(study, "results/mine", pd.DataFrame(), 0.0)) == "<Outcome of 'mine': 0 of 2 runs, in results/mine>"
    )


@pytest.mark.parametrize("module", public_modules(), ids=lambda module: module.__name__)
def test_modules_list_public_names_only(module):
    names = dir(module)
    assert names
    for name in names:
        value = getattr(module, name)  # all of them exist
        assert not name.startswith("_") or name == "__version__"
        assert getattr(value, "__name__", "perron").split(".")[0] not in {"numpy", "torch", "scipy", "pandas"}
        assert name not in {"annotations", "Any", "Callable", "Mapping", "Sequence", "Tensor", "dataclass", "Path"}
