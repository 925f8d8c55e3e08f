"""
1. Your first digraph
=====================

**At the end** you have a directed network of five sites, you know which of them count most and why, and you have seen
an algorithm agree on the right point over it.

**You need** perron installed (``scripts/demo`` does that on first use) and ten minutes. No knowledge of graphs.
"""

# %%
# Who speaks to whom
# ------------------
#
# Five sites. The base station 0 has a strong transmitter and is heard by all others. The four sensors 1 to 4 have
# weak ones: each is heard by the next only, and the last one reaches the base again.
#
# An edge is a pair ``(source, target)``: the source speaks, the target hears.

import perron

graph = perron.Graph(5, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 0)], name="five sites")
print(graph)
print("node 0 speaks to", graph.targets(0).tolist(), "and hears", graph.sources(0).tolist())
print("every node reaches every other:", graph.is_strongly_connected)

# %%
# *Strongly connected* is all that is asked of a network: from every node there is a way to every other one, along the
# arrows. Every node also hears itself; such self-loops are there unless you say ``self_loops=False``.
#
# Weights
# -------
#
# Nodes mix what they hear. In the *pull* matrix A a listener divides its attention, so rows sum to one. In the *push*
# matrix B a speaker divides what it has, so columns sum to one. Entry ``[i, j]`` is what node i takes from node j, in
# both.

mixing = perron.Mixing.uniform(graph)
print("A, pull\n", mixing.pull.round(2))
print("B, push\n", mixing.push.round(2))

# %%
# Who counts
# ----------
#
# Let the nodes average with A again and again: x, A x, A A x, ... They agree in the end, but not on the average. They
# agree on a *weighted* average, and its weights are the Perron vector of A. It is the same for B: if the nodes push a
# quantity around, it settles in the proportions of the Perron vector of B.

pull_weights = perron.spectral.perron(mixing.pull)
push_weights = perron.spectral.perron(mixing.push)
print("A:", pull_weights.round(3))
print("B:", push_weights.round(3))

# %%
# All nodes listen to node 0, so it counts 41 % in A. Draw it, with each node as large as it counts:

import matplotlib.pyplot as plt
import networkx as nx

arrows = graph.to_networkx()
arrows.remove_edges_from(list(nx.selfloop_edges(arrows)))
places = nx.circular_layout(arrows)
figure, panels = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
for axes, title, weights in (
    (panels[0], "pull: whose model counts", pull_weights),
    (panels[1], "push: where gradients gather", push_weights),
):
    sizes = 9000 * weights
    nx.draw_networkx(
        arrows, places, ax=axes, node_size=sizes, node_color="#E6F1F8", edgecolors="#0072B2", edge_color="#888888",
        arrowsize=16, connectionstyle="arc3,rad=0.1",
        labels={node: f"{node}\n{weights[node]:.0%}" for node in range(5)}, font_size=9,
    )  # fmt: skip
    axes.set_title(title)
    axes.set_axis_off()
    axes.margins(0.25)

# %%
# All numbers of a network at once, and what they mean in words:

print(perron.spectral.describe(mixing))

# %%
# ``rho_2`` is the one to look at first: the share of the disagreement that is left after each step, in the long run.
# ``c`` says how well the two matrices agree on who counts; :doc:`/concepts/perron_vectors` defines them all.
#
# Let them work
# -------------
#
# Each site has a measurement, and they want the average: site i minimises :math:`f_i(x) = (x - b_i)^2 / 2`, and all
# of them together the mean of these, which is least at the mean of the :math:`b_i`.

import torch

measured = torch.tensor([[70.0], [20.0], [30.0], [40.0], [10.0]], dtype=torch.float64)
problem = perron.problems.Quadratic(torch.ones(5, 1, 1, dtype=torch.float64), measured)
history = perron.simulate(problem, perron.PushPull(), mixing, steps=400, metrics=["distance_max", "consensus_error_sq"])
print("the mean is", problem.optimum.item())
print("farthest site from it, at the start and at the end:", history["distance_max"][[0, -1], 0])

# %%
# All five sites know the mean, 34, to a dozen digits; a mean weighted with A would be 41.3. Push-Pull is right
# although neither matrix treats the nodes alike. :doc:`/why` shows what happens with one matrix only.

print("weighted with A:", round(float(pull_weights @ measured.numpy()[:, 0]), 1))
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
axes.semilogy(history.steps, history.mean("distance_max"))
axes.set(xlabel="step", ylabel="distance of the farthest site from 34")
axes.grid(alpha=0.25)

# %%
# **Try next.** Add the edge ``(4, 2)`` and see rho_2 fall or rise. Take away ``(4, 0)`` and read the error. On the
# command line, ``perron graph exponential --nodes 16 --draw graph.png`` does all this for a named topology, and
# :doc:`/tutorials/own_network` for a file of yours. Then: :doc:`plot_2_linear_speedup`.
