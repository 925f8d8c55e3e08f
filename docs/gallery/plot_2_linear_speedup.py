"""
2. Linear speedup, seen
=======================

**At the end** you have measured that 32 nodes settle eight times lower than 4, you know the level that theory predicted before
the run, and you know a network on which it fails.

**You need** :doc:`plot_1_first_digraph`. The runs take about a quarter of a minute.
"""

# %%
# The question
# ------------
#
# Each node computes gradients from few samples, so they are noisy. With a constant step an algorithm does not arrive
# at the optimum, then: it settles at a *noise floor*, a level around which it keeps fluctuating. Averaging n noisy
# gradients makes the noise n times smaller. *Linear speedup* says that a network without a centre gets all of that:
# with the same step, n nodes settle n times lower.
#
# The problem: every node has the same curvature but another minimum, and its gradients have noise of variance 1.
# Everything is known about it, so that theory can be exact.

import matplotlib.pyplot as plt

import perron
from perron import theory
from perron.studies import statistics

LR = 0.05


def measured(topology, nodes):
    """Push-Pull on a topology with the paper's random weights: 20 independent trials of 4,000 steps."""
    mixing = perron.Mixing.random_integer(topology(nodes), seed=0)
    problem = perron.problems.Quadratic.random(nodes, noise_std=1.0, same_hessian=True, seed=1)
    history = perron.simulate(problem, perron.PushPull(), mixing, lr=LR, steps=4000, trials=20, seed=0)
    c = perron.Network(mixing).alignment
    return history, c, theory.noise_floor(problem, step=c * LR)


# %%
# The prediction needs no run. It is
#
# .. math:: \mathbb{E}\,\|\nabla f(\hat x)\|^2 \;\to\; \frac{c\,\eta\,\mathrm{tr}(H \Sigma)}{2n},
#
# with the step :math:`\eta`, the Hessian H, the covariance Sigma of one node's gradient, and :math:`c = n\,\pi_A^\top
# \pi_B` from the Perron vectors of the network. :doc:`/concepts/noise_floor` derives it in half a page.
#
# The measurement
# ---------------

runs = {n: measured(perron.topologies.exponential, n) for n in (4, 8, 16, 32)}
levels = {}
for n, (history, c, predicted) in runs.items():
    levels[n] = found = statistics.level(history.steps, history["grad_norm_sq"])
    print(
        f"n={n:2}  c={c:.3f}  level {found.mean:.2e} +- {found.error:.0e}  predicted {predicted:.2e}"
        f"  ratio {found.mean / predicted:.2f}  stationary: {found.stationary}"
    )

# %%
# ``statistics.level`` is careful: it takes the mean over the last half of the run, but calls it stationary only if its
# two halves agree within their standard errors, so that a curve that still falls is not taken for a floor.
#
# The levels are close to the prediction, a little above it: the formula is the first term for small steps, and what
# it leaves out is a share of the order of :math:`\eta L`, a few percent here. Now the slope of log(level / c) against
# log n, with its 95 % interval:

nodes = list(levels)
per_step = [levels[n].mean / runs[n][1] for n in nodes]
errors = [levels[n].error / runs[n][1] for n in nodes]
print("slope", statistics.power_law(nodes, per_step, errors, trials=20), "  (-1 is linear speedup)")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for colour, (n, (history, _, predicted)) in zip(("C0", "C1", "C2", "C3"), runs.items(), strict=True):
    left.semilogy(history.steps, history.mean("grad_norm_sq"), color=colour, linewidth=1, label=f"n = {n}")
    left.axhline(predicted, color=colour, linestyle="--", linewidth=1)
left.set(xlabel="step", ylabel="squared gradient norm", title="dashed: predicted before the run")
left.legend(frameon=False)
right.errorbar(nodes, per_step, [2 * e for e in errors], fmt="o", label="measured, two standard errors")
right.plot(nodes, [per_step[0] * nodes[0] / n for n in nodes], color="0.6", linewidth=1, label="slope -1")
right.set(xscale="log", yscale="log", xlabel="nodes", ylabel="level / c", title="linear speedup")
right.set_xticks(nodes, [str(n) for n in nodes])
right.set_yticks([5e-4, 1e-3, 2e-3, 4e-3], ["0.0005", "0.001", "0.002", "0.004"])
right.minorticks_off()
right.legend(frameon=False)
for axes in (left, right):
    axes.grid(alpha=0.25)

# %%
# Where it ends
# -------------
#
# The paper proves this for every strongly connected digraph. But the step must be one that the network bears, and a
# slow network bears small steps only. On a directed ring of 16 nodes a message needs 15 steps to reach the last node:

ring = perron.Mixing.random_integer(perron.topologies.ring(16), seed=0)
fast = perron.Mixing.random_integer(perron.topologies.exponential(16), seed=0)
problem = perron.problems.Quadratic.random(16, noise_std=1.0, same_hessian=True, seed=1)
for name, mixing in (("exponential", fast), ("ring", ring)):
    stable = theory.stable_lr(perron.PushPull(), mixing, problem)
    print(f"{name:12} bears lr up to {stable.upper:.4f}")

history, _, _ = measured(perron.topologies.ring, 16)
found = statistics.level(history.steps, history["grad_norm_sq"])
print(f"ring with lr={LR}: {history['grad_norm_sq'][-1].mean():.0e}, {found.why}")

# %%
# There :math:`\eta = 0.05` is too large, and the run blows up, as ``stable_lr`` said it would. With a step that the
# ring bears, there is less noise to average in the first place: speedup needs a step that is limited by noise and not
# by the network.
#
# **Try next.** Run the ring with ``lr=0.005``. Ask ``perron advise ring --nodes 16`` from how many steps on more
# nodes help. See the :doc:`paper's figure 2 </studies/synthetic-speedup>`: twelve networks, logistic regression.
# Then: :doc:`plot_3_fair_comparison`.
