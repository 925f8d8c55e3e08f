"""Theory held against the simulator: levels, stable steps, rates, transients, horizons, sensitivities."""

import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from perron import ALGORITHMS, AdamW, Mixing, Momentum, Network, PushPull, Simulation, simulate, theory
from perron.algorithms.base import Algorithm
from perron.algorithms.centralized import CentralizedSGD, ModelState
from perron.algorithms.moves import Moving
from perron.errors import MixingError, PerronError
from perron.monitor.progress import waiting
from perron.networks import topologies
from perron.problems import Logistic, Quadratic
from perron.theory.horizon import Horizon, crossover
from perron.theory.recursion import recursion
from perron.theory.sensitivity import sensitivity

pytestmark = pytest.mark.filterwarnings("ignore:.*disagreement grows as lr")
GRAPH = topologies.random_digraph(5, probability=0.4, seed=3)
WEIGHTS = Mixing.random_integer(GRAPH, seed=1)
STOCHASTIC = {name: one for name, one in ALGORITHMS.items() if not one.about.samples}
EVERY = STOCHASTIC | {
    f"{name} with {move.label}": replace(one, move=move)
    for name, one in ALGORITHMS.items()
    if isinstance(one, Moving)
    for move in (Momentum(), Momentum(momentum=0.5, nesterov=True))
}
MINIMISERS = [name for name, one in EVERY.items() if one.about.family != "gossip"]


def network_for(algorithm: Algorithm) -> Mixing:
    """What an algorithm asks for, on five nodes."""
    if algorithm.about.matrices.startswith("W"):
        return Mixing.metropolis(GRAPH.symmetric())
    return Mixing.spanning_trees(GRAPH) if algorithm.about.matrices == "R C" else WEIGHTS


def still(nodes: int) -> Quadratic:
    """Differing Hessians, all minimised at zero: errors grow or shrink without a floor."""
    hessians = Quadratic.random(nodes, 3, strong_convexity=0.3, seed=2).hessians
    return Quadratic(hessians, torch.zeros(nodes, 3, dtype=torch.float64))


def growth(problem, algorithm, mixing, rates, steps):
    """The largest error of a node around the middle of a run, and around its end, for each step size."""
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((problem.nodes, problem.dim)))
    sizes = torch.as_tensor(rates, dtype=torch.float64)[:, None, None]
    simulation = Simulation(
        problem=problem, algorithm=algorithm, mixing=mixing, lr=sizes, trials=[0] * len(rates), start=start
    )
    middle = last = torch.zeros(len(rates), dtype=torch.float64)
    for now in simulation.iterates(steps):
        size = now.state.x.norm(dim=-1).amax(-1).nan_to_num(torch.inf)
        if 0.4 * steps < now.step <= 0.5 * steps:
            middle = torch.maximum(middle, size)
        if 0.9 * steps < now.step:
            last = torch.maximum(last, size)
    return middle.numpy(), last.numpy()


# ---- the recursion


@pytest.mark.parametrize("name", MINIMISERS)
def test_the_recursion_is_what_runs(name):
    """Ten steps of the algorithm with settled weights are ten products with M, from any state that runs reach."""
    algorithm = EVERY[name]
    if name == "focus_sampled":
        pytest.skip("random: its moments are tested below")
    mixing, problem = network_for(algorithm), Quadratic.random(5, 2, seed=1)
    lr = 0.01 / (algorithm.move.gain if isinstance(algorithm, Moving) else 1)
    problem = Quadratic(
        problem.hessians, problem.centers - problem.optimum
    )  # the optimum is zero, the local ones are not
    found, near = recursion(algorithm, mixing, lr), theory.linearize(problem)
    assert torch.allclose(found.conserved.T @ (found.stages[0].P @ found.free), torch.zeros(()).double(), atol=1e-9)
    M, N = found.stages[0].closed_loop(near.curvature)
    force = near.grads.reshape(-1, 1).repeat(N.shape[-1] // near.grads.numel(), 1)
    # A run that is long enough for push-sum weights and the like to settle, then followed by the matrices.
    start = torch.ones(5, 2, dtype=torch.float64)
    runs = list(Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr, start=start).iterates(210))

    def stacked(state):
        return torch.cat([getattr(state, field)[0] for field in found.fields]).reshape(-1, 1)

    S = stacked(runs[200].state)
    assert S.norm() > 0.01
    for _ in range(10):
        S = M[0] @ S + N[0] @ force
    assert torch.allclose(S, stacked(runs[210].state), atol=1e-6)
    assert torch.allclose(
        found.average @ S.reshape(-1, 2), algorithm.average(runs[210].state, Network(mixing))[0], atol=1e-6
    )


@pytest.mark.parametrize("name", ["push_pull", "push_pull_pu", "extra_push", "frost", "exact_diffusion", "focus"])
def test_the_unit_of_the_loss_does_not_matter(name):
    """Losses times 1e12 and lr over 1e12: the same run. So are limits and levels, down to tiny steps."""
    algorithm = EVERY[name]
    mixing = network_for(algorithm)
    one = theory.stable_lr(algorithm, mixing, 1.0)
    for scale in (1e-12, 1e12):
        assert theory.stable_lr(algorithm, mixing, scale).upper * scale == pytest.approx(one.upper, rel=1e-6)
    problem, network = Quadratic.random(5, 2, noise_std=0.5, seed=1), Network(mixing)
    if one.lower == 0:
        tiny = 1e-9 / algorithm.effective_step(network)
        simple = theory.noise_floor(problem, 1e-9)
        assert theory.stationary(problem, algorithm, network, tiny).grad_norm_sq == pytest.approx(simple, rel=1e-3)


def test_lr_that_does_more_than_multiply_gradients_is_refused():
    class Shrinking(CentralizedSGD):
        def step(self, state, node, lr):
            grad = yield state.x
            return ModelState((1 - lr * 0.5) * state.x - lr * node.mean(grad).wait())

    with pytest.raises(PerronError, match="does more with lr than multiply gradients"):
        theory.stable_lr(Shrinking(), WEIGHTS, 1.0)


def test_periods_of_pull_and_push_may_differ():
    """Two pulls and three pushes are a period of six, the same as both written out."""
    made = [np.array(Mixing.random_integer(GRAPH, seed=seed).pull) for seed in range(2)]
    pushed = [np.array(Mixing.random_integer(GRAPH, seed=seed).push) for seed in range(3)]
    short, long = Mixing(made, pushed), Mixing(made * 3, pushed * 2)
    assert short.period == long.period == 6
    for order in ("cta", "pu"):
        limits = [theory.stable_lr(PushPull(order=order), mixing, 1.0).upper for mixing in (short, long)]
        assert limits[0] == pytest.approx(limits[1], rel=1e-6)


def test_threads_are_given_back():
    from perron.theory.recursion import single_threaded

    before = torch.get_num_threads()
    first, second = single_threaded(), single_threaded()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_num_threads() == 1
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == before


def test_what_is_not_linear_is_refused():
    class Clipped(CentralizedSGD):
        def step(self, state, node, lr):
            grad = yield state.x
            return ModelState(state.x - lr * node.mean(grad.clamp(-0.1, 0.1)).wait())

    with pytest.raises(PerronError, match="not linear given the gradients"):
        recursion(Clipped(), WEIGHTS, 0.1)
    for order in ("cta", "pu", "atc"):
        with pytest.raises(PerronError, match="with AdamW is not linear given the gradients"):
            theory.stable_lr(PushPull(order=order, move=AdamW()), WEIGHTS, 1.0)


def test_large_networks_and_gossip_are_refused():
    with pytest.raises(PerronError, match="up to 1000 nodes; this network has 2000"):
        recursion(PushPull(), Mixing.uniform(topologies.ring(2000)), 0.1)
    with pytest.raises(PerronError, match="asks for no gradients"):
        theory.stable_lr(ALGORITHMS["push_sum"], WEIGHTS, 1.0)
    for name in ALGORITHMS.keys() - STOCHASTIC.keys():
        with pytest.raises(PerronError, match="asks for gradients of chosen samples, which are not available here"):
            theory.stable_lr(ALGORITHMS[name], network_for(ALGORITHMS[name]), 1.0)


# ---- levels


@pytest.mark.parametrize("name", MINIMISERS)
def test_levels_are_those_of_the_simulator(name):
    algorithm = EVERY[name]
    mixing = network_for(algorithm)
    problem = Quadratic.random(5, 3, strong_convexity=0.3, noise_std=0.5, seed=1)
    stable = theory.StableRange(0.0, 0.08) if name == "focus_sampled" else theory.stable_lr(algorithm, mixing, problem)
    lr = (stable.lower + stable.upper) / 2
    level = theory.stationary(problem, algorithm, mixing, lr)
    metrics = ["grad_norm_sq", "grad_norm_sq_mean", "grad_norm_sq_local", "distance_sq", "distance_sq_local"]
    rate = theory.rate(algorithm, mixing, lr, problem)
    memory = 1 / -np.log(rate)
    warm, long = int(12 * memory) + 20, int(6 * memory) + 40
    history = simulate(
        problem, algorithm, mixing, lr=lr, steps=warm + long, every=1 + int(memory / 3), trials=300, seed=3, metrics=metrics,
        progress=False,
    )  # fmt: skip
    for metric in metrics:
        measured, error = history.tail(metric, long / (warm + long))
        assert error < 0.04 * measured
        assert measured == pytest.approx(getattr(level, metric), abs=4.5 * error), metric


def test_centralized_level_is_the_closed_form():
    problem = Quadratic.random(5, 3, noise_std=0.5, same_hessian=True, seed=1)
    curvature = torch.linalg.eigvalsh(problem.hessians[0])
    for lr in (0.01, 1.0):
        expected = lr / 5 * (0.25 / 3) * float((1 / (curvature * (2 - lr * curvature))).sum())
        for algorithm in (CentralizedSGD(), PushPull(order="pu"), PushPull(order="atc")):
            mixing = Mixing.uniform(topologies.complete(5))  # on which Push-Pull but for cta is centralized SGD
            found = theory.stationary(problem, algorithm, mixing, lr)
            assert found.distance_sq == pytest.approx(expected, rel=1e-9)


def test_simple_formulas_are_the_limit_of_small_steps():
    problem = Quadratic.random(5, 3, noise_std=0.5, seed=1)
    network = Network(WEIGHTS)
    for name in ("push_pull", "add_opt", "frost"):
        factor = EVERY[name].effective_step(network)
        found = theory.stationary(problem, EVERY[name], network, 1e-4 / factor)
        assert found.grad_norm_sq == pytest.approx(theory.noise_floor(problem, 1e-4), rel=2e-3)
        assert found.distance_sq == pytest.approx(theory.distance_floor(problem, 1e-4), rel=2e-3)


@pytest.mark.parametrize("name", ["sgp", "sgp_cta", "gradient_pull", "dsgd", "dsgd_atc", "subgradient_push"])
def test_bias_is_that_of_a_run_without_noise(name):
    algorithm, problem = EVERY[name], Quadratic.random(5, 3, strong_convexity=0.3, seed=1)
    mixing = network_for(algorithm)
    lr = 0.1 / algorithm.effective_step(Network(mixing))
    found = theory.stationary(problem, algorithm, mixing, lr)
    history = simulate(
        problem, algorithm, mixing, lr=lr, steps=2000, metrics=["grad_norm_sq", "distance_sq_local"], progress=False
    )
    assert found.bias.grad_norm_sq == pytest.approx(float(history.mean("grad_norm_sq")[-1]), rel=1e-6)
    assert found.distance_sq_local == pytest.approx(float(history.mean("distance_sq_local")[-1]), rel=1e-6)
    assert theory.stationary(problem, PushPull(), WEIGHTS, 0.05).bias.grad_norm_sq < 1e-20


def test_level_of_a_network_that_varies_in_time():
    mixing = Mixing.uniform(topologies.one_peer_exponential(8))
    problem = Quadratic.random(8, 2, strong_convexity=0.3, noise_std=0.5, seed=1)
    assert mixing.period == 3
    found = theory.stationary(problem, PushPull(), mixing, 0.1)
    history = simulate(
        problem, PushPull(), mixing, lr=0.1, steps=720, every=3, trials=300, metrics=["grad_norm_sq"], progress=False
    )
    measured, error = history.tail("grad_norm_sq", 0.7)
    assert measured == pytest.approx(found.grad_norm_sq, abs=4 * error)
    assert error < 0.02 * measured


def test_level_of_logistic_regression():
    """Not a quadratic, but at a small step nearly one."""
    problem = Logistic.synthetic(5, samples=4000, batch=20)
    lr = 0.3
    found = theory.stationary(problem, PushPull(), WEIGHTS, lr)
    history = simulate(
        problem, PushPull(), WEIGHTS, lr=lr, steps=1500, every=10, trials=60, start=problem.optimum.expand(5, 10),
        metrics=["grad_norm_sq"], progress=False,
    )  # fmt: skip
    measured, error = history.tail("grad_norm_sq", 0.7)
    assert measured == pytest.approx(found.grad_norm_sq, rel=0.03, abs=4 * error)


def test_unknown_things_are_said():
    plain = Quadratic.random(4, 2, noise_std=0.1)
    with pytest.raises(PerronError, match="The problem has 4 nodes, the network 5"):
        theory.stationary(plain, PushPull(), WEIGHTS, 0.1)
    with pytest.raises(PerronError, match=r"unstable: its spectral radius is .*stable_lr"):
        theory.stationary(Quadratic.random(5, 2, noise_std=0.1), PushPull(), WEIGHTS, 5.0)
    for curvature in (-1.0, "steep", torch.empty(0), torch.ones(5, 2, 3), torch.ones(4, 2, 2)):
        with pytest.raises(PerronError, match="curvature is a positive number"):
            theory.stable_lr(PushPull(), WEIGHTS, curvature)
    with pytest.raises(PerronError, match="The problem has 4 nodes, the network 5"):
        theory.stable_lr(PushPull(), WEIGHTS, plain)
    for lr in (0.0, -1.0, float("nan")):
        with pytest.raises(PerronError, match="lr must be a positive number"):
            theory.rate(PushPull(), WEIGHTS, lr, 1.0)
        with pytest.raises(PerronError, match="lr must be a positive number"):
            theory.stationary(Quadratic.random(5, 2, noise_std=0.1), PushPull(), WEIGHTS, lr)
    with pytest.raises(PerronError, match="effective step is a positive number; got -1"):
        theory.noise_floor(plain, -1.0)
    with pytest.raises(PerronError, match="no push matrix"):
        theory.stable_lr(PushPull(), Mixing(pull=WEIGHTS.pull), 1.0)
    with pytest.raises(PerronError, match="A network is a Mixing or a Network; got 5"):
        theory.stable_lr(PushPull(), 5, 1.0)
    # What has no curvature does not count.
    flat = theory.stable_lr(PushPull(), WEIGHTS, torch.tensor([1.0, 1e-12, 0.0]))
    assert flat == theory.stable_lr(PushPull(), WEIGHTS, 1.0)


# ---- stability


@pytest.mark.parametrize("name", [name for name in MINIMISERS if name != "focus_sampled"])
def test_errors_grow_beyond_the_largest_stable_step_only(name):
    algorithm, problem = EVERY[name], still(5)
    mixing = network_for(algorithm)
    stable = theory.stable_lr(algorithm, mixing, problem)
    rates = [0.97 * stable.upper, 1.03 * stable.upper]
    middle, last = growth(problem, algorithm, mixing, rates, 2000)
    assert last[0] < middle[0] or last[0] < 1e-10  # rounding leaves 1e-16
    assert last[1] > middle[1] or last[1] == np.inf
    assert theory.rate(algorithm, mixing, rates[0], problem) < 1 < theory.rate(algorithm, mixing, rates[1], problem)


def test_extra_push_has_a_lower_end_and_none_on_a_ring():
    algorithm = ALGORITHMS["extra_push"]
    mixing = Mixing.random_integer(topologies.exponential(16), seed=0)
    problem = Quadratic(torch.linspace(0.3, 1, 3).double().expand(16, 3), torch.zeros(16, 3).double())
    stable = theory.stable_lr(algorithm, mixing, problem)
    assert stable.lower > 0.05
    middle, last = growth(problem, algorithm, mixing, [0.97 * stable.lower, 1.03 * stable.lower], 6000)
    assert last[0] > middle[0]
    assert last[1] < middle[1]
    ring, wide = Mixing.random_integer(topologies.ring(10), seed=0), torch.linspace(0.05, 1, 5)
    assert theory.stable_lr(algorithm, ring, wide) is None  # curvatures as different as that leave no step
    assert theory.best_lr(algorithm, ring, wide) is None


def test_the_rate_is_measured_and_the_best_step_is_not_beaten():
    problem = still(5)
    best = theory.best_lr(PushPull(), WEIGHTS, problem)
    for factor in (0.9, 0.97, 1.03, 1.1):
        assert theory.rate(PushPull(), WEIGHTS, factor * best.lr, problem) >= best.rate - 1e-5
    rates = [0.5 * best.lr, 1.3 * best.lr]
    middle, last = growth(problem, PushPull(), WEIGHTS, rates, 200)
    for k, lr in enumerate(rates):
        predicted = theory.rate(PushPull(), WEIGHTS, lr, problem)
        assert (last[k] / middle[k]) ** (1 / 100) == pytest.approx(predicted, rel=0.01)


def test_random_participation_is_stable_in_mean_square():
    algorithm, problem = ALGORITHMS["focus_sampled"], still(5)
    lr = 0.2 / 5
    predicted = theory.rate(algorithm, WEIGHTS, lr, problem)
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((5, 3)))
    history = simulate(
        problem,
        algorithm,
        WEIGHTS,
        lr=lr,
        steps=30,
        every=1,
        trials=4000,
        start=start,
        metrics=["distance_sq"],
        progress=False,
    )
    mean = history.mean("distance_sq")
    assert (mean[30] / mean[15]) ** (1 / 30) == pytest.approx(predicted, rel=0.02)


def test_transient_ends_where_the_curve_is_twice_its_level():
    problem = Quadratic.random(5, 3, strong_convexity=0.3, noise_std=0.3, seed=1)
    steps = theory.transient(problem, PushPull(), WEIGHTS, 0.05)
    level = theory.stationary(problem, PushPull(), WEIGHTS, 0.05).grad_norm_sq
    history = simulate(
        problem,
        PushPull(),
        WEIGHTS,
        lr=0.05,
        steps=steps,
        every=steps,
        trials=1500,
        metrics=["grad_norm_sq"],
        progress=False,
    )
    assert 50 < steps < 2000
    assert float(history.mean("grad_norm_sq")[-1]) == pytest.approx(2 * level, rel=0.12)
    assert theory.transient(problem, PushPull(), WEIGHTS, 0.05, most=steps - 1) is None


# ---- horizons


def test_the_bound_holds_and_nodes_stop_helping_where_it_says():
    """Simulated at the best step: the mean of |grad f|^2 over T steps is below the bound, and falls up to n* nodes only."""
    steps, measured = 300, {}
    for nodes in (1, 4, 64, 256):
        problem = Quadratic.random(nodes, 3, heterogeneity=0, same_hessian=True, noise_std=0.15, seed=1)
        gap = float(problem.loss(problem.start()[0]) - problem.loss(problem.optimum))
        horizon = Horizon(nodes=nodes, smoothness=1.0, noise_var=0.0225, gap=gap, most=1.0)
        history = simulate(
            problem, CentralizedSGD(), Mixing.uniform(topologies.complete(nodes)), lr=horizon.best_step(steps),
            steps=steps, every=1, trials=30, metrics=["grad_norm_sq"], progress=False,
        )  # fmt: skip
        measured[nodes] = float(history.mean("grad_norm_sq")[:-1].mean())
        assert measured[nodes] < horizon.error(steps)
        assert horizon.error(steps) <= min(horizon.error(steps, step) for step in np.geomspace(1e-3, 1, 200))
    assert 8 < horizon.saturation(steps) < 64
    assert measured[1] / measured[4] > 1.5  # below n*: as 1/sqrt(n), 2
    assert measured[64] / measured[256] < 1.15  # above n*: hardly


def test_horizons_are_consistent():
    horizon = Horizon(nodes=8, smoothness=2.0, noise_var=3.0, gap=0.5, most=0.05)
    assert horizon.best_step(horizon.transient) == pytest.approx(horizon.cap)
    assert horizon.saturation(horizon.transient) == pytest.approx(8)
    assert horizon.saturation_at(horizon.cap, 1000) == pytest.approx(horizon.saturation(1000))
    later = 100 * horizon.transient
    assert horizon.error(later) == pytest.approx(2 * (2 * 0.5 * 2.0 * 3.0 / (8 * later)) ** 0.5)
    # A family whose cap falls as 1/n^2, as that of a ring: somewhere more nodes are worse.
    ring = [Horizon(nodes=n, smoothness=1.0, noise_var=1.0, gap=1.0, most=2 / n**2) for n in (2, 4, 8, 16, 32)]
    errors = [one.error(5000) for one in ring]
    assert crossover(ring, 5000) == ring[int(np.argmin(errors))].nodes
    assert crossover(ring[:2], 1e9) is None
    with pytest.raises(PerronError, match="gap must be positive; got 0"):
        Horizon(nodes=2, smoothness=1.0, noise_var=1.0, gap=0.0, most=1.0)
    for bad in (lambda: horizon.error(0), lambda: horizon.best_step(-1), lambda: horizon.error(10, 0.0)):
        with pytest.raises(PerronError, match="must be positive"):
            bad()
    with pytest.raises(PerronError, match="at least one network"):
        crossover([], 10)


# ---- sensitivities


@pytest.mark.parametrize("side", ["pull", "push"])
def test_sensitivities_are_derivatives(side):
    from perron.networks.spectral import describe

    def numbers(matrix):
        changed = Mixing(pull=matrix, push=WEIGHTS.push) if side == "pull" else Mixing(pull=WEIGHTS.pull, push=matrix)
        metrics = describe(changed)
        return np.array([getattr(metrics, side).rho_2, getattr(metrics, side).s, metrics.c])

    matrix = np.array(WEIGHTS.pull if side == "pull" else WEIGHTS.push)
    slopes = sensitivity(WEIGHTS, side)
    assert np.isnan(slopes.rho_2[matrix == 0]).all()
    axis = 1 if side == "pull" else 0
    for i, j in np.argwhere(matrix > 0)[::4]:
        ends = []
        for size in (1e-6, -1e-6):
            moved = matrix.copy()
            moved[i, j] += size
            ends.append(numbers(moved / moved.sum(axis, keepdims=True)))
        expected = (ends[0] - ends[1]) / 2e-6
        assert [slopes.rho_2[i, j], slopes.s[i, j], slopes.c[i, j]] == pytest.approx(
            expected.tolist(), rel=1e-4, abs=1e-6
        )
    source, target, slope = slopes.steepest("c")
    assert slopes.c[target, source] == slope == np.nanmax(np.abs(slopes.c)) * np.sign(slope)
    assert slopes.of_nodes("s").shape == (5,)


def test_sensitivity_refuses_what_it_cannot_do():
    with pytest.raises(PerronError, match="varies in time"):
        sensitivity(Mixing.uniform(topologies.one_peer_exponential(8)), "pull")
    with pytest.raises(PerronError, match="no push matrix"):
        sensitivity(Mixing(pull=WEIGHTS.pull), "push")
    with pytest.raises(PerronError, match="'pull' or 'push'; got 'both'"):
        sensitivity(WEIGHTS, "both")
    with pytest.raises(PerronError, match="rho_2, s and c; got 'kappa'"):
        sensitivity(WEIGHTS, "pull").steepest("kappa")
    with pytest.raises(PerronError, match="no derivative"):
        sensitivity(Mixing.uniform(topologies.exponential(4)), "pull").steepest()
    assert sensitivity(Mixing.random_integer(topologies.ring(64), seed=0), "pull").s is None  # too slow to sum


def test_checks_and_theory_agree_on_momentum():
    """Where `check` refuses momentum, small steps are unstable in theory too."""
    mixing = Mixing.random_integer(topologies.ring(10), seed=0)
    with pytest.raises(MixingError, match="disagreement grows with momentum"):
        ALGORITHMS["app"].check(Network(mixing))
    assert theory.rate(ALGORITHMS["app"], mixing, 1e-4, 1.0) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theory.rate(PushPull(), mixing, 1e-4, 1.0)


def test_a_long_search_says_what_it_does():
    """After the time that is given, and only then."""
    said = []
    with waiting("thinking", said.append, after=0.01):
        time.sleep(0.3)
    with waiting("resting", said.append, after=100.0):
        pass
    assert said == ["perron: thinking ..."]
