"""
10. Which network is fastest in seconds?
========================================

**At the end** you have compared networks and algorithms by the seconds that they take on real links, you know which link sets the
pace, and you have a graph that was searched for these links.

**You need** :doc:`plot_1_first_digraph`. The runs take about a quarter of a minute.
"""

# %%
# Machines and links
# ------------------
#
# Ten AWS regions, with the latencies and rates that were measured between them. A file of your own links has the same form; see
# :doc:`/howto/links`.

import warnings

import matplotlib.pyplot as plt
import numpy as np

import perron
from perron.clock import overlays

machines = perron.Machines.read("aws-10")
print(machines)
slowest = np.unravel_index(machines.latency_matrix.argmax(), (10, 10))
print(
    "longest way:",
    " to ".join(machines.label(node) for node in slowest[::-1]),
    f"{machines.latency_matrix.max():.3f} s",
)

# %%
# A clock knows the links, the seconds of a gradient, and the bytes of a model. Here a small problem stands for a model of 1.4
# million parameters:

clock = perron.Clock(machines, compute=0.1, size=5_620_000)

# %%
# Seconds per step
# ----------------
#
# What a node sends before it computes its gradient travels meanwhile. What is left is set by a cycle of nodes that wait for each
# other, and the clock names it:

by_number = perron.Mixing.uniform(perron.topologies.exponential(10))
tour = overlays.ring(machines)
directed_tour = perron.Mixing.uniform(tour)
both_ways = perron.Mixing.metropolis(tour.symmetric())

candidates = {
    "Push-Pull cta, exponential": (perron.PushPull(), by_number),
    "Push-Pull pu, exponential": (perron.PushPull(order="pu"), by_number),
    "Push-Pull cta, shortest tour": (perron.PushPull(), directed_tour),
    "exact diffusion, tour both ways": (perron.ALGORITHMS["exact_diffusion"], both_ways),
    "all-reduce": (perron.ALGORITHMS["centralized"], by_number),
}
for name, (algorithm, mixing) in candidates.items():
    time = clock.cycle_time(algorithm, mixing)
    print(f"{name:32} {time.seconds:6.3f} s per step  {time.describe(machines.label)}")

# %%
# Seconds to a target
# -------------------
#
# Few seconds per step are worth little if a network needs many steps. So run them, each at the best of ten learning rates,
# with the clock beside: the values are the same as without it, and each record has its seconds.

problem = perron.problems.Quadratic.random(10, 4, strong_convexity=0.05, seed=1)
TARGET = 1e-8


def fastest(algorithm, mixing, clock):
    """The run that reaches the target first, with its seconds and learning rate."""
    runs = []
    for lr in np.geomspace(0.02, 2, 10) / problem.smoothness:
        history = perron.simulate(
            problem, algorithm, mixing, lr=lr, steps=1500, every=1, until={"grad_norm_sq": TARGET}, clock=clock
        )
        runs.append((np.nan_to_num(history.time_to("grad_norm_sq", TARGET)[0], nan=np.inf), lr, history))
    return min(runs, key=lambda run: run[0])


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some learning rates diverge
    found = {name: fastest(*candidate, clock) for name, candidate in candidates.items()}
for name, (seconds, lr, history) in found.items():
    print(f"{name:32} {history.steps[-1]:5} steps  {seconds:7.1f} s  lr {lr:.3f}")

# %%
# The same runs against steps and against seconds. All-reduce needs the fewest steps, and is among the slowest:

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for name, (_, _, history) in found.items():
    left.loglog(history.steps[1:], history.mean("grad_norm_sq")[1:], label=name)
    right.loglog(history.seconds[1:, 0], history.mean("grad_norm_sq")[1:])
left.set(xlabel="steps", ylabel="squared gradient norm", ylim=(TARGET, None))
right.set(xlabel="seconds on the links of ten AWS regions")
left.legend(fontsize=7)
plt.show()

# %%
# A graph for these links
# -----------------------
#
# ``fastest_graph`` searches digraphs and undirected graphs with equal effort, by seconds that theory predicts, and reports the
# winner whatever it is. On the command line: ``perron design --goal time --links aws-10 --size 5620000 --compute 0.1``. Here each
# gradient is exchanged; by default ``local_push_pull``, with four gradients for one exchange, is considered too.

condition = problem.smoothness / problem.strong_convexity
settings = {
    "algorithms": ["push_pull", "push_pull_pu", "push_pull_atc", "exact_diffusion", "extra"],
    "condition": condition, "target": TARGET, "tries": 40, "weights": False,
}  # fmt: skip
search = perron.design.fastest_graph(clock, **settings)
print(search)

# %%
# These links are as fast one way as the other, and there an undirected method that sends one vector wins over Push-Pull, which
# sends two. Now let one direction of every pair be ten times slower, as with uplinks of homes and ships:

slow = np.triu(np.ones((10, 10), dtype=bool), 1)
one_way = machines.changed(
    rate=np.where(slow, machines.rate_matrix / 10, machines.rate_matrix), latency=machines.latency_matrix
)
search = perron.design.fastest_graph(clock.changed(machines=one_way), **settings)
print(search)

# %%
# :doc:`/engine/clock` compares predictions with the measured seconds of real processes. The links between your own machines
# are measured by ``perron launch --nodes 4 --measure links.csv``, see :doc:`/howto/links`.
