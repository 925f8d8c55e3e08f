"""Random networks for the property tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from perron import Graph, Mixing


@st.composite
def digraphs(draw: st.DrawFn, max_nodes: int = 10, self_loops: bool | None = True) -> Graph:
    """Strongly connected digraphs: a cycle through all nodes in random order, and any edges on top."""
    nodes = draw(st.integers(2, max_nodes))
    order = draw(st.permutations(range(nodes)))
    cycle = [(order[i - 1], order[i]) for i in range(nodes)]
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    extra = draw(st.lists(pairs, max_size=3 * nodes))
    every = draw(st.booleans()) if self_loops is None else self_loops
    return Graph(nodes, cycle + extra, self_loops=every)


@st.composite
def mixings(draw: st.DrawFn, max_nodes: int = 10, self_loops: bool | None = True) -> Mixing:
    """Networks with one or two graphs, shared or independent integer weights."""
    graph = draw(digraphs(max_nodes, self_loops))
    if not len(graph.self_loops):
        graph = Graph(graph.nodes, [*graph.edges.tolist(), (0, 0)], self_loops=False)
    seed, shared = draw(st.integers(0, 10_000)), draw(st.booleans())
    return Mixing.random_integer(graph, seed=seed, high=draw(st.sampled_from([1, 2, 9, 100])), shared=shared)


def random_mixing(nodes: int, seed: int, high: int = 9) -> Mixing:
    """A network on a random digraph, plainly."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(nodes)
    edges = np.stack([order, np.roll(order, 1)], axis=1)
    extra = rng.integers(0, nodes, size=(2 * nodes, 2))
    return Mixing.random_integer(Graph(nodes, np.concatenate([edges, extra])), high=high, seed=seed)


def network_for(algorithm, graph, seed=1):
    """The kind of network that an algorithm asks for, on (the undirected version of) a graph."""
    matrices = algorithm.about.matrices
    if matrices.startswith("W"):
        return Mixing.metropolis(graph.symmetric())
    return Mixing.spanning_trees(graph) if matrices == "R C" else Mixing.random_integer(graph, seed=seed)


def single(algorithm):
    """An algorithm with local steps as one with a single step in a round, and an outer step that adds nothing to it."""
    from perron.algorithms.local_steps import (
        LocalPushPull,
        OuterSteps,
    )  # imports torch, which tests of networks do without

    if isinstance(algorithm, OuterSteps):
        return replace(algorithm, local_steps=1, outer_lr=1.0, outer_momentum=0.0)
    return replace(algorithm, local_steps=1) if isinstance(algorithm, LocalPushPull) else algorithm


def milder(algorithm, outer_lr=0.4):
    """An algorithm whose outer step, if it has one, suits more networks."""
    from perron.algorithms.local_steps import OuterSteps

    return replace(algorithm, outer_lr=outer_lr) if isinstance(algorithm, OuterSteps) else algorithm
