"""
3. Compare algorithms fairly
============================

**At the end** you know three ways in which a comparison of decentralized algorithms goes wrong, you have seen each of
them mislead you, and you know the cure.

**You need** :doc:`plot_2_linear_speedup`. The runs take about a quarter of a minute.
"""

# %%
# First trap: the same learning rate
# ----------------------------------
#
# Take a random digraph with 12 nodes, and one algorithm of each family at the same learning rate.

import matplotlib.pyplot as plt
import torch

import perron
from perron import theory
from perron.studies import statistics

mixing = perron.Mixing.random_integer(perron.topologies.random_digraph(12, probability=0.15, seed=4), seed=4)
network = perron.Network(mixing)
problem = perron.problems.Quadratic.random(12, strong_convexity=0.3, noise_std=1.0, same_hessian=True, seed=1)
algorithms = {name: perron.ALGORITHMS[name] for name in ("centralized", "push_pull", "add_opt", "frost")}


def run(name, lr, steps):
    """20 trials; all algorithms see the same noise, for the seed is the same."""
    return perron.simulate(problem, algorithms[name], mixing, lr=lr, steps=steps, trials=20, seed=0)


def report(histories):
    for name, history in histories.items():
        found = statistics.level(history.steps, history["grad_norm_sq"])
        verdict = "stationary" if found.stationary else found.why
        print(f"{name:12} lr={history.about['lr']:.4f}  level {found.mean:.2e} +- {found.error:.0e}  {verdict}")


same = {name: run(name, 0.005, 2500) for name in algorithms}
report(same)

# %%
# Push-Pull looks four times worse than ADD-OPT, and FROST twice. Neither is. With the same number, these algorithms
# make steps of different length. Each has an average :math:`\hat x` of its nodes' models that moves by
#
# .. math:: \hat x^{+} = \hat x - (\text{factor} \cdot \eta)\,\bar g + \epsilon,
#
# and the factor is c for Push-Pull, 1 for push-only methods, n for pull-only ones. The product is the *effective
# step*.

for name, algorithm in algorithms.items():
    print(f"{name:12} effective step of lr=0.005: {0.005 * algorithm.effective_step(network):.4f}")

# %%
# Who makes long steps gets down fast and stays high; who makes short steps is slow and gets low. That holds for one
# algorithm as it does for another. So give each the learning rate with which all effective steps are equal:

STEP = 0.02
fair = {name: run(name, STEP / algorithm.effective_step(network), 2500) for name, algorithm in algorithms.items()}
report(fair)
print("predicted for all of them:", f"{theory.noise_floor(problem, STEP):.2e}")

# %%
# Now they agree but for a few percent. What is left is real: Push-Pull's residual :math:`\epsilon` does not vanish
# (see :doc:`/studies/error-floor`), and costs it something on this skewed network. Whether a difference is real, the
# standard errors tell. They are over trials, and because all algorithms see the same noise, compare them trial by
# trial:

base = statistics.level(fair["centralized"].steps, fair["centralized"]["grad_norm_sq"]).each
for name in ("push_pull", "add_opt", "frost"):
    ratio = statistics.level(fair[name].steps, fair[name]["grad_norm_sq"]).each / base
    print(f"{name:12} / centralized: {ratio.mean():.3f} +- {ratio.std(ddof=1) / len(ratio) ** 0.5:.3f}")

# %%
# Where they do differ is in the largest step that they bear. Compare like with like here, too: the first three hide
# all exchanges behind the gradient, the last three (adapt-then-combine) wait for them.

for name in ("push_pull", "add_opt", "frost", "push_pull_atc", "push_diging", "pull_diag_gt"):
    algorithm = perron.ALGORITHMS[name]
    stable = theory.stable_lr(algorithm, mixing, problem)
    print(f"{name:13} bears effective steps up to {stable.upper * algorithm.effective_step(network):.3f}")

# %%
# Here Push-Pull earns its two matrices: it divides by nothing, and so it bears several times longer steps on a skewed
# network than its push-only and pull-only relatives. (Waiting for the exchanges allows longer ones still; what that
# costs is time, not steps.) And these are the curves of the two comparisons:

figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
for axes, title, histories in ((panels[0], "the same lr", same), (panels[1], "the same effective step", fair)):
    for name, history in histories.items():
        axes.semilogy(history.steps, history.mean("grad_norm_sq"), linewidth=1, label=name)
    axes.set(title=title, xlabel="step", ylabel="squared gradient norm")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)

# %%
# Second trap: the transient
# --------------------------
#
# On the left three of the curves have not arrived; ``level`` says *still falling*. Whatever is compared there, it is
# not a noise floor. A short run shows who starts faster, a long one who ends lower. Decide which you ask, and for the
# second do not trust your eyes, but ask ``statistics.level``: it refuses to call a falling curve a level.
#
# Third trap: scattered starts
# ----------------------------
#
# Here is a linear speedup without any noise. Let every node start at a point of its own, at random about the optimum,
# and look at the curves after 200 steps. There is *no noise at all* in these gradients:


def after_200_steps(nodes, scattered):
    quiet = perron.problems.Quadratic.random(nodes, same_hessian=True, heterogeneity=0.0, seed=1)
    network = perron.Mixing.random_integer(perron.topologies.exponential(nodes), seed=0)
    random = torch.Generator().manual_seed(nodes)
    apart = torch.randn(20, nodes if scattered else 1, 5, generator=random, dtype=torch.float64)
    start = (quiet.optimum + 10 * apart).expand(20, nodes, 5)
    history = perron.simulate(quiet, perron.PushPull(), network, lr=0.02, steps=200, trials=20, start=start, every=5)
    last = history["grad_norm_sq"][-1]
    return (
        last.mean(),
        last.std(ddof=1) / len(last) ** 0.5,
        statistics.level(history.steps, history["grad_norm_sq"]).why,
    )


for scattered in (True, False):
    found = {n: after_200_steps(n, scattered) for n in (4, 8, 16, 32)}
    print("each node starts at a point of its own" if scattered else "all nodes start at the same point")
    for n, (value, error, why) in found.items():
        print(f"  n={n:2}  {value:.2f} +- {error:.2f}  {why}")
    print(
        "  slope", statistics.power_law(list(found), *zip(*[one[:2] for one in found.values()], strict=True), trials=20)
    )

# %%
# The slope is close to -1, its interval holds -1, and it has nothing to do with noise. The average of n scattered
# points is n times closer to the optimum (in square), so more nodes *start* lower. With a common start the slope is
# zero. The settings in the paper's caption fall into this trap, and perron refuses to call that a speedup:
# :doc:`/studies/caption-settings`.
#
# **In short.** Equal effective step; noise floor, not transient; a common start; standard errors over trials, with
# the same noise for all. In a study file that is ``equal_effective_step = true`` and ``conclusion = "comparison"``,
# and perron sees to the rest: :doc:`/studies`.
#
# **Try next.** ``perron study run families`` does this for seven algorithms on the paper's six topologies
# (:doc:`result </studies/families>`). Put your own algorithm among them: :doc:`/tutorials/own_algorithm`.
