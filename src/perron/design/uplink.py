"""Graphs for a node with a slow uplink: the messages that it must send, and those that it need not."""

from __future__ import annotations

import numpy as np

from perron._typing import IntArray
from perron.errors import GraphError, listed
from perron.networks.graph import Graph


def spare_uplink(graph: Graph, push_graph: Graph, leaf: int) -> tuple[Graph, list[Graph]]:
    """Return the pull graph without the leaf's out-edges, and the push graphs in which it keeps a single one.

    A message from node j to node i travels over the UPLINK of j, in both matrices: A[i, j] > 0 means that i waits for the model
    of j, B[i, j] > 0 that j sends i a share of its gradient tracker. A node that sent neither would be cut off, and its data
    ignored. It has to send one of the two:

    * No models: column j of A is zero off the diagonal, pi_A[j] = 0. Push-Pull needs only a common root, a node that reaches all
      along A and is reached by all along B; any other node can be it. The gradients of j reach the root along B, so that its
      data counts in full, and it receives the models over its downlink. One out-edge in B suffices. This is the choice here: one
      message in a step, instead of two for each of its out-edges.
    * No gradients: column j of B is zero off the diagonal, so that all of 1^T y accumulates at j, pi_B[j] = 1. Then j is the only
      possible root, and must send its MODELS to all others: worse for a slow uplink. (For a slow DOWNLINK the same argument,
      reversed, leaves out the messages y TO the node: its row of B is zero off the diagonal.)

    The weight of the remaining edge B[i, j] does not change the traffic; a small one only delays the gradients of j.
    """
    for which in (graph, push_graph):
        which.check_node(leaf)
    pulled = _without(graph, graph.edges[:, 0] == leaf, f"{graph.name} without the models of node {leaf}")
    roots = np.setdiff1d(pulled.roots(), [leaf])
    if not len(roots):
        raise GraphError(
            f"{graph.name} needs the models of node {leaf}: without them no other node reaches all the rest. Nodes that hear "
            f"node {leaf}: {{{listed(graph.targets(leaf))}}}; give them another source, or choose another leaf."
        )
    candidates = []
    for target in push_graph.targets(leaf):
        dropped = (push_graph.edges[:, 0] == leaf) & (push_graph.edges[:, 1] != target)
        pushed = _without(push_graph, dropped, f"{push_graph.name}, node {leaf} pushing to node {target} alone")
        if len(np.intersect1d(roots, pushed.reverse().roots())):
            candidates.append(pushed)
    if not candidates:
        raise GraphError(
            f"{push_graph.name}: with a single out-edge of node {leaf} no common root is left that all others reach along push "
            f"and that reaches all others along pull (roots along pull: {{{listed(roots)}}}). Add push edges between the others."
        )
    return pulled, candidates


def _without(graph: Graph, dropped: IntArray, name: str) -> Graph:
    # With a self-loop at every node: the leaf must keep its own.
    return Graph(graph.nodes, graph.edges[~dropped], name=name, labels=graph.labels, positions=graph.positions)
