"""
The six topologies, and who counts in them
==========================================

The paper measures Push-Pull on six digraphs. Here they are with 16 nodes and its random weights 1..9. The size of a node is
its entry of the Perron vector :math:`\\pi_A`, where :math:`\\pi_A^\\top A = \\pi_A^\\top`: how much its model counts in the
common one. Its colour is its entry of :math:`\\pi_B`, where :math:`B \\pi_B = \\pi_B`: how much of all gradients it holds.
"""

import matplotlib.pyplot as plt
import networkx as nx

import perron

names = ["exponential", "grid", "ring", "random", "geometric", "nearest_neighbor"]
figure, axes = plt.subplots(2, 3, figsize=(10, 7), layout="constrained")
for name, axis in zip(names, axes.flat, strict=True):
    graph = perron.topologies.NAMES[name](16)
    mixing = perron.Mixing.random_integer(graph, seed=0)
    network = perron.Network(mixing)
    drawn = nx.DiGraph(graph.edges.tolist())
    places = nx.circular_layout(range(16)) if name != "grid" else {i: divmod(i, 4) for i in range(16)}
    nx.draw_networkx_edges(drawn, places, ax=axis, edge_color="0.7", node_size=200, arrowsize=7)
    nx.draw_networkx_nodes(
        drawn,
        places,
        nodelist=range(16),
        ax=axis,
        node_size=16 * 150 * network.pull_perron,
        node_color=16 * network.push_perron,
        cmap="viridis",
        vmin=0,
        vmax=2,
    )
    axis.set_title(f"{name.replace('_', ' ')}: c = {network.alignment:.2f}")
    axis.set_axis_off()

# %%
# A large node with a light colour is heard by all, and holds much of the gradients, too. The product of the two is
# :math:`c = n\,\pi_A^\top \pi_B`, the factor by which the network stretches the step: near 1 where the weights are balanced.
