"""Conformance: one list of algorithms, crossed with everything that an algorithm must do."""

import re
import warnings
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from sampled import SampledQuadratic as Quadratic
from strategies import milder, network_for, single
from twins import TWINS

from perron import (
    ADDOPT,
    ALGORITHMS,
    DDNGT,
    DEXTRA,
    DSGD,
    EXTRA,
    FOCUS,
    FROST,
    FROZEN,
    NIDS,
    SGP,
    AcceleratedPushPull,
    CentralizedSGD,
    ConstrainedPushPull,
    ExactDiffusion,
    GradientTracking,
    Graph,
    LocalPushPull,
    Mixing,
    MixingError,
    Network,
    PerronError,
    PushDIGing,
    PushPull,
    RowExtra,
    Simulation,
    SubgradientPush,
    TreePushPull,
    simulate,
)
from perron._storage import tensorfile
from perron.algorithms.base import advance
from perron.algorithms.local_steps import OuterSteps
from perron.algorithms.states import saved_fields
from perron.algorithms.wrappers import Recording
from perron.networks import topologies  # fmt: skip
from perron.random import NOISE, Keyed
from perron.simulation import measure_traits
from perron.simulation.cost import zero_answer
from perron.simulation.metrics import distance_max, residual
from perron.simulation.node import SimulatedNode

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(on this network disagreement grows|needs weights that do not change)"
)

GRAPHS = {
    "exp16": topologies.exponential(16),
    "rdg12": topologies.random_digraph(12, probability=0.25, seed=3),
    "dring10": topologies.ring(10),
}
GOSSIP = ("push_sum", "pull_diag")
NAMES = [name for name in ALGORITHMS if name not in GOSSIP]
EXACT = [name for name in NAMES if ALGORITHMS[name].about.exact]
NOISY = [name for name in NAMES if not ALGORITHMS[name].about.samples]
BIASED = [name for name in NAMES if not ALGORITHMS[name].about.exact]


def run(name_or_algorithm, mixing, problem, steps, lr, **options):
    """The models after each step, ``(steps + 1, trials, n, d)``, and the last snapshot."""
    algorithm = ALGORITHMS[name_or_algorithm] if isinstance(name_or_algorithm, str) else name_or_algorithm
    snapshots = list(Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr, **options).iterates(steps))
    return torch.stack([now.state.x for now in snapshots]), snapshots[-1]


def small_lr(name):
    """A step at which everything stays bounded for a while, whatever the method."""
    return 0.05 / (12 if measure_traits(ALGORITHMS[name]).effective.startswith("n") else 1)


# ---- the recursions


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equals_its_literal_twin(name):
    """The recursion of the card in NumPy, with noise and from different starting points, step by step."""
    algorithm, graph, n = ALGORITHMS[name], GRAPHS["rdg12"], 12
    problem = Quadratic.random(n, 4, noise_std=0.3, seed=2)
    mixing = network_for(algorithm, graph)
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((n, 4)))
    lr = small_lr(name)
    models, _ = run(name, mixing, problem, 40, lr, seed=5, start=start)

    matrices = {key: np.asarray(m) for key, m in (("A", mixing.pull), ("B", mixing.push))}
    everything = matrices | {"W": matrices["A"], "R": matrices["A"], "C": matrices["B"]}
    everything["pi_B"] = Network(mixing).push_perron
    node = SimulatedNode(mixing, seed=5, trials=[0], samples=problem.sample_counts)

    def part(t):
        node.step = t
        return node.uniform()[0].numpy() < 0.3

    everything["part"] = part

    def drawn(t):
        node.step = t
        return node.samples.draw(1)[0, :, 0].tolist()

    def sample_grad(i, s, x):
        hessian, center, slope, bend = (
            part.numpy()
            for part in (problem.hessians[i], problem.centers[i], problem.slopes[i, s], problem.bends[i, s])
        )
        return hessian @ (x - center) + slope + bend * x

    everything |= {"m": problem.sample_counts.tolist(), "drawn": drawn, "sample_grad": sample_grad}
    noise, draw = Keyed(5, nodes=n, stream=NOISE), iter(range(10**9))

    def oracle(x):
        return problem.grad(torch.as_tensor(x), next(draw), noise).numpy()

    twin = TWINS[name](everything, oracle, start.numpy(), lr)
    scale = 1 + models.abs().max().item()
    for ours, theirs in zip(models[1:, 0].numpy(), twin, strict=False):
        assert np.abs(ours - theirs).max() <= 1e-12 * scale


@pytest.mark.parametrize("name", NOISY)
def test_one_node_is_sgd(name):
    algorithm = ALGORITHMS[name]
    if algorithm.about.title.startswith(("AB", "APP", "FROZEN", "D-DNGT")):
        algorithm = {  # without momentum
            "abm": AcceleratedPushPull(heavy=0.0, nesterov=0.0), "abn": AcceleratedPushPull(heavy=0.0, nesterov=0.0),
            "app": AcceleratedPushPull(heavy=0.0, nesterov=0.0), "frozen": FROZEN(momentum=0), "d_dngt": DDNGT(momentum=0),
        }[name]  # fmt: skip
    if isinstance(algorithm, FOCUS):
        algorithm = FOCUS()
    algorithm = single(algorithm)
    problem = Quadratic.random(1, 4, noise_std=0.5, seed=3)
    models, _ = run(algorithm, Mixing(pull=[[1.0]], push=[[1.0]]), problem, 30, 0.1, start=torch.ones(1, 4))
    sgd, noise = [torch.ones(1, 4, dtype=torch.float64)], Keyed(0, nodes=1, stream=NOISE)
    for t in range(30):
        sgd.append(sgd[-1] - 0.1 * problem.grad(sgd[-1], t, noise))
    lag = 1 if name == "subgradient_push" else 0  # its model is the point of the last gradient
    for t in range(lag, 31):
        assert torch.allclose(models[t, 0], sgd[t - lag], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_relabelled_nodes_give_relabelled_results(name):
    if name == "focus_sampled" or ALGORITHMS[name].about.samples:
        pytest.skip("which clients take part, and which samples they choose, is drawn by their number")
    order = torch.as_tensor(np.random.default_rng(4).permutation(12))
    problem = Quadratic.random(12, 4, seed=2)
    moved = Quadratic(problem.hessians[order], problem.centers[order])
    mixing = network_for(ALGORITHMS[name], GRAPHS["rdg12"])
    rooted = "strongly" if mixing.is_strongly_connected else "rooted"
    turned = Mixing(mixing.pull[order][:, order], mixing.push[order][:, order], connected=rooted)
    start = torch.arange(48.0).view(12, 4)
    models, _ = run(name, mixing, problem, 30, small_lr(name), start=start)
    others, _ = run(name, turned, moved, 30, small_lr(name), start=start[order])
    assert torch.allclose(models[:, :, order], others, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_trials_in_a_batch_equal_single_trials(name):
    problem = Quadratic.random(12, 4, noise_std=1.0, seed=2)
    mixing = network_for(ALGORITHMS[name], GRAPHS["rdg12"])
    together, _ = run(name, mixing, problem, 20, small_lr(name), trials=4, seed=9)
    for trial in (0, 3):
        alone, _ = run(name, mixing, problem, 20, small_lr(name), trials=[trial], seed=9)
        assert torch.allclose(together[:, trial], alone[:, 0], rtol=1e-13, atol=1e-13)
    if name not in GOSSIP:
        assert not torch.allclose(together[-1, 0], together[-1, 1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_conserves_its_quantity_at_every_step(name):
    algorithm, mixing = ALGORITHMS[name], network_for(ALGORITHMS[name], GRAPHS["rdg12"])
    problem = Quadratic.random(12, 4, noise_std=1.0, seed=2)
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=small_lr(name), trials=2)
    for now in simulation.iterates(200):
        for what, value in algorithm.conserved(now.state, simulation.network).items():
            assert not value.numel() or value.abs().max() <= 1e-12, what
    tracked = {"y", "v", "q", "share"} & set(now.state._fields)
    assert not tracked or name == "gradient_pull" or algorithm.conserved(now.state, simulation.network)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_remembered_has_memory_of_its_own(name):
    """Nodes that join overwrite it with that of others."""
    algorithm, mixing = ALGORITHMS[name], network_for(ALGORITHMS[name], GRAPHS["rdg12"])
    node = SimulatedNode(mixing, samples=torch.full((12,), 2))
    state = algorithm.init(torch.ones(12, 3, dtype=torch.float64), node)
    others = {field: getattr(state, field).data_ptr() for field in state._fields if field not in algorithm.remembered}
    own = [getattr(state, field).data_ptr() for field in algorithm.remembered]
    assert len(set(own)) == len(own)
    assert not {*own} & {*others.values()}


def test_descriptions_are_equal_in_all_processes():
    class Longer:
        def __call__(self, _):
            return 2

    steps = [partial(max, 2), Longer()]
    for one in steps:
        text = replace(ALGORITHMS["push_pull_diloco"], local_steps=one).description
        assert " at 0x" not in text
        assert ("max(2)" in text) or ("Longer" in text)


# ---- what is promised about the exchanges

EXPECTED = {
    "centralized": "g mean:d", "diloco": "g g g g mean:d", "local_sgd": "g g g g mean:d",
    "push_pull": "pull:d push:d g", "push_pull_pu": "push:d g pull:d",
    "push_pull_atc": "g push:d pull:d", "abm": "pull:d push:d g", "abn": "pull:d push:d g", "app": "pull:d push:d g",
    "robust_push_pull": "pull:d push:d g", "local_push_pull": "g g g g push:d pull:d",
    "push_pull_diloco": "g g g g push:d pull:d",
    "constrained_push_pull": "pull:d push:d g", "push_sum": "push:d push:1", "subgradient_push": "push:d push:1 g",
    "sgp": "push:1 g push:d", "sgp_cta": "push:1 push:d g", "extra_push": "push:d push:1 g",
    "normalized_extra_push": "push:d g", "dextra": "push:d push:1 g", "add_opt": "push:d push:1 push:d g",
    "push_diging": "push:1 push:d g push:d", "pull_diag": "pull:d pull:n", "gradient_pull": "pull:d pull:n g",
    "frost": "pull:n pull:d pull:d g", "pull_diag_gt": "pull:n g pull:d pull:d", "frozen": "pull:d pull:d pull:n g",
    "d_dngt": "pull:d pull:d pull:n g", "row_extra": "pull:d pull:n g", "dsgd": "pull:d g", "dsgd_atc": "g pull:d",
    "exact_diffusion": "g pull:d", "nids": "g pull:d", "d2": "g pull:d", "extra": "pull:d g", "diging": "pull:d push:d g",
    "next": "push:d g pull:d", "aug_dgm": "g push:d pull:d", "btpp": "push:d g pull:d", "stpp": "push:d g pull:d",
    "focus": "g mean:d", "focus_sampled": "g g g mean:d", "ab_saga": "pull:d push:d g", "ab_svrg": "pull:d push:d g g",
    "push_saga": "push:d push:1 push:d g", "gt_saga": "pull:d push:d g",
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_verbs_come_in_the_promised_order(name):
    """Every node does the same verbs in the same order; what comes before g travels while the gradient is computed."""
    algorithm, mixing = ALGORITHMS[name], network_for(ALGORITHMS[name], GRAPHS["rdg12"])
    node = Recording(SimulatedNode(mixing, samples=torch.full((12,), 2)))
    x = torch.zeros(12, 5, dtype=torch.float64)
    state = algorithm.init(x, node)
    state = advance(algorithm, state, node, 0.1, torch.zeros_like, zero_answer)
    for node.step in range(1, 4):
        node.exchanges.clear()
        gradients = []

        def gradient(point, gradients=gradients):
            gradients.append(len(node.exchanges))
            return torch.zeros_like(point)

        def query(asked, gradient=gradient):
            gradient(asked.point)
            return zero_answer(asked)

        state = advance(algorithm, state, node, 0.1, gradient, query)
        size = {5: ":d", 12: ":n", 1: ":1"}
        verbs = [one.verb + size[one.sent.shape[-1]] for one in node.exchanges]
        for place in reversed(gradients):
            verbs.insert(place, "g")
        assert " ".join(verbs) == EXPECTED[name]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_traits_are_read_off_a_step(name):
    """What the table says of an algorithm follows from its verbs: how much travels, and what overlaps the gradient."""
    traits, verbs = measure_traits(ALGORITHMS[name]), EXPECTED[name].split()
    counts = {unit: sum(verb.endswith(f":{unit}") and not verb.startswith("mean") for verb in verbs) for unit in "dn1"}
    sends = " + ".join(unit if count == 1 else f"{count} {unit}" for unit, count in counts.items() if count)
    assert traits.sends == (sends or "all-reduce of d")
    before = verbs[: verbs.index("g")] if "g" in verbs else []
    if name == "subgradient_push":  # it starts before the gradient but must wait for the result
        before = []
    assert len(traits.overlap.split(", ")) == len(before) or (traits.overlap == "-" and not before)
    network = Network(network_for(ALGORITHMS[name], GRAPHS["rdg12"]))
    multiple, _, divisor = traits.effective.partition(" / ")
    number, _, unit = multiple.rpartition(" ")  # as in 4 c
    if unit not in ("n", "1", "c"):  # a number alone
        number, unit = unit, "1"
    factor = {"n": 12.0, "1": 1.0, "c": network.alignment if unit == "c" else 0.0}[unit]
    assert ALGORITHMS[name].effective_step(network) == pytest.approx(
        float(number or 1) * factor / float(divisor or 1), rel=1e-3
    )


# ---- convergence


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", EXACT)
def test_reaches_the_optimum_with_its_default_step(name, graph):
    """Constant step, heterogeneous quadratics, nodes starting apart; linear convergence to 1e-10 at every node."""
    if name in ("extra_push", "normalized_extra_push"):
        pytest.skip("works in an interval of steps only: see below")
    if ALGORITHMS[name].about.samples and graph != "exp16":
        pytest.skip("one network suffices to see that the method under it is exact with single samples too")
    algorithm = ALGORITHMS[name]
    if graph == "dring10":
        algorithm = {"dextra": DEXTRA(theta=0.02), "row_extra": RowExtra(theta=0.02)}.get(name, algorithm)
        if name in ("abm", "abn", "app", "frozen", "d_dngt"):
            less = {f.name: min(getattr(algorithm, f.name), 0.1) for f in fields(algorithm)}
            algorithm = replace(algorithm, **less)
    n = GRAPHS[graph].nodes
    problem = Quadratic.random(n, 5, seed=1)
    mixing = network_for(algorithm, GRAPHS[graph])
    start = torch.as_tensor(np.random.default_rng(3).standard_normal((n, 5)))
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, start=start)
    for now in simulation.iterates(30_000):
        if now.step % 100 == 0 and distance_max(now) < 1e-10:
            break
    assert distance_max(now) < 1e-10


@pytest.mark.parametrize(("theta", "lr", "converges"), [(0.5, 0.4, True), (0.5, 0.02, False), (0.1, 0.02, True)])
@pytest.mark.parametrize("normalized", [False, True])
def test_extra_push_needs_steps_that_are_not_small(theta, lr, converges, normalized):
    """On a directed exponential graph EXTRA-Push is unstable for small steps, where DEXTRA with a small theta is not."""
    problem, mixing = Quadratic.random(16, 5, seed=1), Mixing.random_integer(GRAPHS["exp16"], seed=1)
    algorithm = DEXTRA(theta=theta, normalized=normalized)
    models, _ = run(algorithm, mixing, problem, 4000, lr)
    error = (models[-1] - problem.optimum).abs().max()
    assert (error < 1e-8) == converges


def test_the_consensus_polynomial_tells_in_advance():
    problem, mixing = Quadratic.random(16, 5, seed=1), Mixing.random_integer(GRAPHS["exp16"], seed=1)
    with pytest.warns(
        UserWarning,
        match=r"EXTRA-Push: .* grows as lr -> 0, only for lr times curvature between 0\.\d+ and 0\.\d+ does.*theta=0\.",
    ):
        Simulation(problem=problem, algorithm=DEXTRA(theta=0.5), mixing=mixing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Simulation(problem=problem, algorithm=DEXTRA(theta=0.1), mixing=mixing)
    with pytest.raises(
        MixingError, match=r"ABm.*disagreement grows with momentum heavy=0.9.*dies out up to heavy=0\.\d"
    ):
        Simulation(problem=problem, algorithm=AcceleratedPushPull(heavy=0.9, nesterov=0), mixing=mixing)
    with pytest.raises(MixingError, match="D-DNGT"):
        Simulation(problem=problem, algorithm=DDNGT(momentum=0.45), mixing=mixing)


@pytest.mark.parametrize("heavy", [0.3, 0.9])
def test_the_momentum_check_agrees_with_runs(heavy):
    """Stable below the limit, unstable above it, with a tiny step and no gradient."""
    problem = Quadratic(torch.full((16, 1), 1e-9), torch.zeros(16, 1))
    mixing = Mixing.random_integer(GRAPHS["exp16"], seed=1)
    algorithm = AcceleratedPushPull(heavy=heavy, nesterov=0)
    node = SimulatedNode(mixing)
    state = algorithm.init(torch.arange(16.0, dtype=torch.float64)[:, None], node)
    for _ in range(2000):
        state = advance(algorithm, state, node, 0.0, problem.local_grads)
    spread = (state.x - state.x.mean()).abs().max()
    assert (spread < 1e-6) == (heavy == 0.3)


def bias(name, mixing, problem, lr):
    """The fixed point of a biased method, solved for: ``(n, d)``."""
    n, d = problem.nodes, problem.dim
    if name in ("push_pull_diloco", "diloco", "local_sgd"):  # the point at which the sum of pseudo-gradients is zero
        steps = np.linalg.matrix_power(np.eye(d) - lr * problem.hessians.numpy(), 4)
        curvatures, targets = (
            np.eye(d) - steps,
            np.linalg.solve(problem.hessians.numpy(), problem.offsets.numpy()[..., None]),
        )
        return np.tile(np.linalg.solve(curvatures.sum(0), (curvatures @ targets).sum(0))[:, 0], (n, 1))
    A, B = np.asarray(mixing.pull), np.asarray(mixing.push)
    network = Network(mixing)
    V = n * np.diag(network.push_perron)
    pull, gain = {  # x = pull x - lr gain grad(x)
        "subgradient_push": (np.linalg.inv(V) @ B @ V, np.linalg.inv(V) @ B),
        "sgp": (np.linalg.inv(V) @ B @ V, np.linalg.inv(V) @ B),
        "sgp_cta": (np.linalg.inv(V) @ B @ V, np.linalg.inv(V)),
        "gradient_pull": (A, np.diag(1 / network.pull_perron)),
        "dsgd": (A, np.eye(n)),
        "dsgd_atc": (A, A),
    }[name]
    hessian = torch.block_diag(*problem.hessians).numpy()  # (n d, n d)
    left = np.eye(n * d) - np.kron(pull, np.eye(d)) + lr * np.kron(gain, np.eye(d)) @ hessian
    right = lr * np.kron(gain, np.eye(d)) @ problem.offsets.numpy().ravel()
    return np.linalg.solve(left, right).reshape(n, d)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", BIASED)
def test_a_biased_method_ends_at_its_predicted_bias(name, graph):
    """At the solved fixed point; the bias falls in proportion to lr."""
    if (name, graph) == ("push_pull_diloco", "dring10"):
        pytest.skip("its outer step is refused: tests/algorithms/test_local_steps.py has a ring with a smaller one")
    n, problem = GRAPHS[graph].nodes, Quadratic.random(GRAPHS[graph].nodes, 3, seed=1)
    mixing = network_for(ALGORITHMS[name], GRAPHS[graph])
    errors = []
    for eta in (0.04, 0.01):
        lr = eta / n if name == "gradient_pull" else eta
        fixed = bias(name, mixing, problem, lr)
        algorithm = milder(ALGORITHMS[name])
        for now in Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr).iterates(40_000):
            if now.step % 100 == 0 and np.abs(now.state.x[0].numpy() - fixed).max() < 1e-9:
                break
        assert np.abs(now.state.x[0].numpy() - fixed).max() < 1e-9
        errors.append(np.abs(fixed - problem.optimum.numpy()).max())
    slope = np.log(errors[0] / errors[1]) / np.log(4)
    assert 0.75 < slope < 1.1


def test_subgradient_push_converges_with_a_falling_step():
    from perron import schedules as schedule

    problem, mixing = Quadratic.random(16, 3, seed=1), Mixing.random_integer(GRAPHS["exp16"], seed=1)
    history = simulate(
        problem, SubgradientPush(), mixing, steps=10_000, lr=schedule.power(0.5), every="log", metrics=["distance_max"]
    )
    error = history["distance_max"][:, 0]
    at = {step: error[np.searchsorted(history.steps, step)] for step in (100, 1000, 10_000)}
    assert at[100] > 2.5 * at[1000] > 6 * at[10_000]


# ---- the cards' equivalences


def same(first, second, *, mixing, lr, second_lr=None, second_mixing=None, steps=50, noise=0.5, tolerance=1e-11):
    problem = Quadratic.random(mixing.nodes, 4, noise_std=noise, seed=2)
    one, _ = run(first, mixing, problem, steps, lr)
    other, _ = run(second, second_mixing or mixing, problem, steps, second_lr or lr)
    return bool((one - other).abs().max() < tolerance)


@pytest.fixture(scope="module")
def directed():
    return Mixing.random_integer(GRAPHS["exp16"], seed=1)


@pytest.fixture(scope="module")
def doubly():
    return Mixing.metropolis(GRAPHS["exp16"].symmetric())


@pytest.mark.parametrize("order", ["cta", "pu", "atc"])
def test_push_pull_with_doubly_stochastic_weights_is_gradient_tracking(order, doubly):
    assert same(PushPull(order=order), GradientTracking(order=order), mixing=doubly, lr=0.1)
    assert not same(
        PushPull(order=order), GradientTracking(order={"cta": "pu"}.get(order, "cta")), mixing=doubly, lr=0.1
    )


def test_push_only_methods_with_doubly_stochastic_weights(doubly):
    assert same(ADDOPT(), GradientTracking(), mixing=doubly, lr=0.1)
    assert same(PushDIGing(), GradientTracking(order="pu"), mixing=doubly, lr=0.1)
    assert same(SGP(), DSGD(order="atc"), mixing=doubly, lr=0.1)
    assert same(SGP(order="cta"), DSGD(), mixing=doubly, lr=0.1)
    assert same(DEXTRA(theta=0.5), EXTRA(), mixing=doubly, lr=0.1)
    assert same(DEXTRA(theta=0.5), DEXTRA(theta=0.5, normalized=True), mixing=doubly, lr=0.1)


def test_momentum_zero(directed):
    assert same(AcceleratedPushPull(heavy=0, nesterov=0), PushPull(), mixing=directed, lr=0.1)
    assert same(FROZEN(momentum=0), FROST(), mixing=directed, lr=0.005)
    assert same(DDNGT(momentum=0), FROST(), mixing=directed, lr=0.005)


def test_add_opt_is_not_push_diging(directed):
    assert not same(ADDOPT(), PushDIGing(), mixing=directed, lr=0.1, tolerance=1e-2)


def test_exact_diffusion_is_nids_but_for_the_first_step(doubly):
    assert not same(ExactDiffusion(), NIDS(), mixing=doubly, lr=0.5)
    problem = Quadratic.random(16, 4, seed=2)
    first, _ = run(NIDS(), doubly, problem, 1, 0.5)
    assert torch.allclose(first[1, 0], -0.5 * problem.local_grads(torch.zeros(16, 4, dtype=torch.float64)))


def test_on_a_complete_graph_two_orders_of_push_pull_are_centralized_sgd():
    average = Mixing.uniform(topologies.complete(8))
    for order in ("pu", "atc"):
        assert same(PushPull(order=order), CentralizedSGD(), mixing=average, lr=0.3)
    assert not same(PushPull(), CentralizedSGD(), mixing=average, lr=0.3, tolerance=1e-3)


def test_focus_with_everybody_and_one_local_step_is_centralized_sgd(directed):
    assert same(FOCUS(), CentralizedSGD(), mixing=directed, lr=0.3 / 16, second_lr=0.3)


def test_add_opt_with_settled_weights_is_push_pull():
    """With v = n pi_B from the start, ADD-OPT is AB with A = V^-1 B V and steps lr / v_i."""
    mixing = Mixing.random_integer(GRAPHS["exp16"], seed=1)
    v = 16 * Network(mixing).push_perron
    B = mixing.push
    pair = Mixing(pull=B * v / v[:, None], push=B)
    problem, x0 = Quadratic.random(16, 4, seed=2), torch.ones(16, 4, dtype=torch.float64)
    node, algorithm = SimulatedNode(mixing), ADDOPT()
    weights = torch.as_tensor(v)[:, None]
    state = algorithm.init(x0, node)._replace(u=x0 * weights, v=weights)
    models, _ = run(PushPull(), pair, problem, 40, 0.05 / weights, start=x0)
    for t in range(1, 41):
        state = advance(algorithm, state, node, 0.05, problem.local_grads)
        assert torch.allclose(state.x, models[t, 0], atol=1e-12)


def test_frost_with_settled_weights_is_push_pull():
    """With D = pi_A from the start, FROST is AB with B = Pi A Pi^-1 and steps lr / pi_i."""
    mixing = Mixing.random_integer(GRAPHS["exp16"], seed=1)
    A, pi = mixing.pull, Network(mixing).pull_perron
    pair = Mixing(pull=A, push=pi[:, None] * A / pi)
    problem, x0 = Quadratic.random(16, 4, seed=2), torch.ones(16, 4, dtype=torch.float64)
    node, algorithm = SimulatedNode(mixing), FROST()
    state = algorithm.init(x0, node)._replace(v=torch.as_tensor(np.tile(pi, (16, 1))))
    models, _ = run(PushPull(), pair, problem, 40, 0.002 / torch.as_tensor(pi)[:, None], start=x0)
    for t in range(1, 41):
        state = advance(algorithm, state, node, 0.002, problem.local_grads)
        assert torch.allclose(state.x, models[t, 0], atol=1e-12)


def test_btpp_uses_the_b_ary_tree():
    mixing = Mixing.spanning_trees(topologies.tree(13, branching=3), root=0)
    parents = [(i - 1) // 3 if i else 0 for i in range(13)]
    assert np.array_equal(mixing.pull, np.eye(13)[parents])
    assert np.array_equal(mixing.push, np.eye(13)[parents].T)
    Simulation(problem=Quadratic.random(13), algorithm=TreePushPull(tree="B-ary"), mixing=mixing)


# ---- x-hat, the effective step and the residual


@pytest.mark.parametrize("name", NAMES)
def test_residual(name):
    """x-hat+ = x-hat - factor lr g-bar + eps with the eps that the cards state."""
    if name in (
        "abm",
        "abn",
        "app",
        "frozen",
        "d_dngt",
        "focus_sampled",
        "local_push_pull",
        "push_pull_diloco",
        "diloco",
        "local_sgd",
    ):
        pytest.skip("with momentum, sampling or local steps x-hat follows another recursion")
    algorithm, mixing = ALGORITHMS[name], network_for(ALGORITHMS[name], GRAPHS["rdg12"])
    network, lr = Network(mixing), small_lr(name)
    problem = Quadratic.random(12, 4, noise_std=1.0, seed=2)
    B_inf = torch.as_tensor(np.outer(network.push_perron, np.ones(12)))
    pi = torch.as_tensor(network.pull_perron)
    for now in Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr).iterates(60):
        if not now.step:
            continue
        eps, family = residual(now), algorithm.about.family
        if family in ("push-pull", "tree"):
            expected = -lr * pi @ (now.state.y - B_inf @ now.state.y)
        elif family == "pull-only":
            D = now.previous.v.diagonal()
            expected = lr * (torch.ones(12, dtype=torch.float64) - pi / D) @ now.grads[-1]
        else:
            expected = torch.zeros(1, 4, dtype=torch.float64)
        assert torch.allclose(eps, expected.to(eps), atol=1e-12 * (1 + now.state.x.abs().max().item()))
    if family == "push-pull":
        assert eps.abs().max() > 1e-4  # it does not vanish under noise


def test_the_residual_vanishes_identically_if_the_pull_matrix_is_doubly_stochastic():
    graph = GRAPHS["rdg12"]
    mixing = Mixing(pull=Mixing.balanced(graph).pull, push=Mixing.random_integer(graph, seed=1).push)
    problem = Quadratic.random(12, 4, noise_std=1.0, seed=2)
    for now in Simulation(problem=problem, algorithm=PushPull(), mixing=mixing, lr=0.05).iterates(50):
        assert residual(now).abs().max() < 1e-13


def test_per_node_steps():
    """Uncoordinated steps still reach the optimum; the effective one is n pi_A^T diag(lr) pi_B."""
    n, problem = 16, Quadratic.random(16, 5, seed=1)
    mixing = Mixing.random_integer(GRAPHS["exp16"], seed=1)
    lr = torch.as_tensor(np.random.default_rng(0).uniform(0.02, 0.15, (n, 1)))
    models, _ = run(PushPull(), mixing, problem, 6000, lr)
    assert (models[-1] - problem.optimum).abs().max() < 1e-10


# ---- wrong matrices do not pass


@pytest.mark.parametrize("wrong", ["swapped", "both row-stochastic", "both column-stochastic", "transposed"])
def test_wrong_matrices_give_wrong_answers(wrong):
    """What `Mixing` refuses really is wrong: run around its checks, plain Push-Pull ends elsewhere."""
    mixing, problem = Mixing.random_integer(GRAPHS["exp16"], seed=1), Quadratic.random(16, 5, seed=1)
    A, B = mixing.pull, mixing.push
    pull, push = {
        "swapped": (B, A), "both row-stochastic": (A, A), "both column-stochastic": (B, B), "transposed": (A.T, B.T),
    }[wrong]  # fmt: skip
    with pytest.raises(MixingError):
        Mixing(pull=pull, push=push)
    mixing._matrices = {"pull": (pull,), "push": (push,)}
    node = SimulatedNode(mixing)
    state = PushPull().init(torch.zeros(16, 5, dtype=torch.float64), node)
    for _ in range(3000):
        state = advance(PushPull(), state, node, 0.05, problem.local_grads)
    off = (state.x - problem.optimum).abs().max()
    assert not off < 0.01
    if wrong == "both row-stochastic":
        assert (state.x - state.x.mean(0)).abs().max() < 1e-9  # perfect consensus: the dangerous one


def test_pull_only_without_rescaling_minimises_the_wrong_sum():
    mixing, problem = Mixing.random_integer(GRAPHS["exp16"], seed=1), Quadratic.random(16, 5, seed=1)
    pi = torch.as_tensor(Network(mixing).pull_perron)
    models, _ = run(FROST(), mixing, problem, 4000, 0.003)
    assert (models[-1] - problem.optimum).abs().max() < 1e-8
    weighted = torch.linalg.solve((pi[:, None, None] * problem.hessians).sum(0), pi @ problem.offsets)
    assert (weighted - problem.optimum).abs().max() > 0.01


NEEDS = [
    ("dsgd", Mixing.random_integer(GRAPHS["exp16"]), "doubly stochastic weights.*Mixing.metropolis"),
    ("diging", Mixing.random_integer(GRAPHS["exp16"]), "DIGing needs doubly stochastic"),
    ("exact_diffusion", Mixing.balanced(GRAPHS["rdg12"]), "needs symmetric weights"),
    ("add_opt", Mixing(pull=[[0.5, 0.5], [0.5, 0.5]]), "needs a column-stochastic push matrix"),
    ("frost", Mixing(push=[[0.5, 0.5], [0.5, 0.5]]), "needs a row-stochastic pull matrix"),
    ("push_pull", Mixing(pull=[[0.5, 0.5], [0.5, 0.5]]), "needs a column-stochastic push matrix"),
    ("diging", Mixing(pull=[[0.5, 0.5], [0.5, 0.5]]), "DIGing needs a column-stochastic push matrix"),
    ("frost", Mixing.uniform(Graph(3, [(0, 1), (1, 2), (2, 0), (0, 0)], self_loops=False)), "FROST: .*no self-loop"),
    ("frost", Mixing.spanning_trees(GRAPHS["rdg12"]), "needs a strongly connected network"),
    ("sgp", Mixing.spanning_trees(GRAPHS["rdg12"]), "needs a strongly connected network"),
    ("stpp", Mixing.random_integer(GRAPHS["rdg12"]), "needs a spanning-tree pair.*Mixing.spanning_trees"),
    ("d2", Mixing(pull=[[0.2, 0.8], [0.8, 0.2]], push=[[0.2, 0.8], [0.8, 0.2]]), "eigenvalue of W above -1/3; it is -0.6"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mixing", "message"), NEEDS)
def test_a_network_that_lacks_something_is_refused(name, mixing, message):
    with pytest.raises(MixingError, match=message):
        Simulation(problem=Quadratic.random(mixing.nodes), algorithm=ALGORITHMS[name], mixing=mixing)


def test_push_pull_works_on_a_rooted_network():
    """A common root suffices: node 3 only listens, nobody hears it."""
    pull = Graph(4, [(0, 1), (1, 0), (1, 2), (2, 1), (0, 3)])
    push = Graph(4, [(0, 1), (1, 0), (1, 2), (2, 1), (3, 0)])
    A, B = pull.adjacency().toarray(), push.adjacency().toarray()
    mixing = Mixing(pull=A / A.sum(1, keepdims=True), push=B / B.sum(0), connected="rooted")
    problem = Quadratic.random(4, 3, seed=1)
    models, _ = run(PushPull(), mixing, problem, 4000, 0.05)
    assert (models[-1] - problem.optimum).abs().max() < 1e-10


@pytest.mark.parametrize(
    "make",
    [
        lambda: PushPull(order="abc"), lambda: SGP(order="pu"), lambda: FROST(order="pu"), lambda: DSGD(order="x"),
        lambda: DEXTRA(theta=0.6), lambda: RowExtra(theta=0), lambda: FOCUS(participation=0), lambda: FOCUS(local_steps=0),
        lambda: AcceleratedPushPull(heavy=0.7, nesterov=0.7), lambda: FROZEN(momentum=1), lambda: DDNGT(momentum=0.5),
    ],
)  # fmt: skip
def test_hyper_parameters_are_checked(make):
    with pytest.raises(ValueError, match="got"):
        make()


# ---- gossip and constraints


@pytest.mark.parametrize("name", GOSSIP)
def test_gossip_finds_the_average(name):
    mixing = Mixing.random_integer(GRAPHS["exp16"], seed=1)
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((16, 3)))
    models, _ = run(name, mixing, Quadratic.random(16, 3), 80, 0.0, start=start)
    error = (models[:, 0] - start.mean(0)).abs().amax((1, 2))
    assert error[80] < 1e-10
    assert error[40] < 1e-5 < error[5]
    matrix = torch.as_tensor(np.array(mixing.pull if name == "pull_diag" else mixing.push))
    plain = torch.linalg.matrix_power(matrix, 80) @ start
    assert (plain - start.mean(0)).abs().max() > 1e-2  # mixing alone, without the correction, ends elsewhere


def test_constrained_push_pull_agrees_with_a_solver():
    """min sum |x - b_i|^2_H/2 with sum_i (C_i x - e_i) <= 0 and x in a box, against scipy's SLSQP."""
    from scipy.optimize import minimize

    n, d, p = 12, 4, 2
    problem, rng = Quadratic.random(n, d, seed=4), np.random.default_rng(1)
    C, e = torch.as_tensor(rng.standard_normal((n, p, d))), torch.as_tensor(rng.standard_normal((n, p)) - 0.8)
    low = float(problem.optimum.min()) + 0.1

    def constraint(x, node):
        return (C @ x.unsqueeze(-1)).squeeze(-1) - e

    algorithm = ConstrainedPushPull(constraint=constraint, constraints=p, project=lambda x: x.clamp_min(low))
    mixing = Mixing.random_integer(GRAPHS["rdg12"], seed=1)
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=0.03)
    for now in simulation.iterates(6000):
        for value in algorithm.conserved(now.state, simulation.network).values():
            assert value.abs().max() < 1e-10
    total, limit = C.sum(0).numpy(), e.sum(0).numpy()
    solved = minimize(
        lambda x: n * float(problem.loss(torch.as_tensor(x))), np.zeros(d), method="SLSQP", bounds=[(low, None)] * d,
        jac=lambda x: n * problem.full_grad(torch.as_tensor(x)).numpy(),
        constraints={"type": "ineq", "fun": lambda x: limit - total @ x, "jac": lambda _: -total},
        options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    assert (now.state.x - torch.as_tensor(solved.x)).abs().max() < 1e-5
    assert (solved.x <= low + 1e-9).any()  # the box binds
    assert (np.abs(total @ solved.x - limit) < 1e-7).any()  # and so does a coupled constraint
    assert (problem.optimum - torch.as_tensor(solved.x)).abs().max() > 0.05


# ---- noise: linear speedup


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NOISY if ALGORITHMS[name].about.speedup])
def test_the_noise_floor_falls_as_one_over_n(name):
    """Stationary E|x-hat - x*|^2 at equal effective step, against the closed form of centralized SGD, for n = 4 and 16."""
    algorithm, d, eta = milder(ALGORITHMS[name]), 2, 0.05
    levels = []
    for n in (4, 16):
        mixing = network_for(algorithm, topologies.exponential(n))
        problem = Quadratic.random(
            n, d, strong_convexity=0.5, noise_std=1.0, same_hessian=True, heterogeneity=0, seed=1
        )
        factor = algorithm.effective_step(Network(mixing))
        history = simulate(
            problem, algorithm, mixing, lr=eta / factor, steps=1200, every=10, trials=120, metrics=["distance_sq"],
            start=problem.optimum.expand(n, d), seed=3,
        )  # fmt: skip
        h = torch.tensor([0.5, 1.0])
        exact = float((eta / n) * (1 / d) * (1 / (h * (2 - eta * h))).sum())
        level, error = history.tail("distance_sq", 0.8)
        if name == "focus_sampled":  # fewer gradients are fresh: (2 - p)/p, and K local steps
            levels.append((level / exact, error / exact))
            continue
        if isinstance(algorithm, LocalPushPull | OuterSteps):  # a step has the mean of four gradients
            exact /= algorithm.local_steps
        delay = 1.35 if algorithm.about.family == "tree" else 1.06  # trees act on old gradients at finite steps
        assert exact * 0.94 - 4 * error < level < exact * delay + 4 * error
        levels.append((level / exact, error / exact))
    slope = -1 + np.log(levels[1][0] / levels[0][0]) / np.log(4)
    standard_error = np.hypot(levels[0][1] / levels[0][0], levels[1][1] / levels[1][0]) / np.log(4)
    assert abs(slope + 1) < 0.1 + 3 * standard_error


@pytest.mark.parametrize(("make", "lr_scale"), [(DEXTRA, 1.0), (RowExtra, 16.0)])
def test_the_stable_interval_of_steps_brackets_what_runs_do(make, lr_scale):
    """Equal curvature 1: steps inside the interval converge, steps well below its lower and above its upper end do not."""
    mixing = Mixing.random_integer(GRAPHS["exp16"], seed=1)
    problem = Quadratic(torch.ones(16, 2), torch.as_tensor(np.random.default_rng(0).standard_normal((16, 2))))
    with pytest.warns(UserWarning, match="only for lr times curvature between") as told:
        make(theta=0.5).check(Network(mixing))
    low, high = (float(x) for x in re.findall(r"between ([\d.]+) and ([\d.]+)", str(told[0].message))[0])
    for step, converges in ((low * 1.3, True), (high * 0.85, True), (low * 0.6, False), (high * 1.2, False)):
        models, _ = run(make(theta=0.5), mixing, problem, 3000, step / lr_scale)
        assert bool((models[-1] - problem.optimum).abs().max() < 1e-3) == converges, (step, low, high)


@pytest.mark.parametrize("kind", ["one-peer", "random"])
@pytest.mark.parametrize(("heavy", "nesterov"), [(1.0, 0.0), (0.0, 1.0), (0.6, 0.4)])
def test_the_limit_of_momentum_on_a_network_that_varies_in_time(kind, heavy, nesterov):
    """`check` names the largest momentum: with 3 % less, models come together in a run without gradients; with 3 % more, not."""
    graphs = [topologies.ring(8), topologies.random_digraph(8, probability=0.3, seed=2), topologies.exponential(8)]
    mixing = (
        Mixing.uniform(topologies.one_peer_exponential(8))
        if kind == "one-peer"
        else Mixing.random_integer(graphs, seed=5)
    )

    def made(scale):
        return AcceleratedPushPull(heavy=scale * heavy, nesterov=scale * nesterov)

    with pytest.raises(MixingError, match="whatever the step") as refused:
        made(0.99).check(Network(mixing))
    at = [
        float(number)
        for number in re.findall(r"up to heavy=([\d.e-]+), nesterov=([\d.e-]+?)\.$", str(refused.value))[0]
    ]
    limit = sum(at)
    made(0.97 * limit).check(Network(mixing))
    with pytest.raises(MixingError):
        made(1.03 * limit).check(Network(mixing))
    apart = {}
    for scale in (0.97 * limit, 1.03 * limit):
        node, algorithm = SimulatedNode(mixing), made(scale)
        start = torch.as_tensor(np.random.default_rng(0).standard_normal((8, 4)))
        state = algorithm.init(start, node)
        for node.step in range(3000):
            state = advance(algorithm, state, node, 0.0, torch.zeros_like)
        apart[scale] = float((state.x - state.x.mean(-2, keepdim=True)).norm())
    assert apart[0.97 * limit] < 1e-6
    assert apart[1.03 * limit] > 1e6, apart


# ---- states that earlier versions saved


def test_states_without_begun_are_read_as_those_of_their_version():
    """The first step of a late tracker once was like all others: what it saved continues so, in either world."""
    node = SimulatedNode(network_for(PushPull(order="atc"), GRAPHS["exp16"]))
    state = PushPull(order="atc").init(torch.ones(16, 3, dtype=torch.float64), node)
    before = {name: value for name, value in state._asdict().items() if name != "begun"}
    assert not state.begun.any()
    found = saved_fields(state, before)
    assert tuple(found) == state._fields
    assert (found["begun"] == 1).all()
    with pytest.raises(PerronError, match="has the fields x, y, but the state of this algorithm has x, y, grad, begun"):
        saved_fields(state, {"x": state.x, "y": state.y})
    with pytest.raises(PerronError, match="of another algorithm, or of a version of perron that is not read"):
        saved_fields(state, state._asdict() | {"z": state.x})


def test_a_run_of_an_earlier_version_resumes(tmp_path):
    """Its file, from the present one without the field and with the tracker that it had: it goes on as its version would."""
    problem, path = Quadratic.random(16, 3, noise_std=0.1, seed=1), tmp_path / "run.safetensors"
    mixing = network_for(PushPull(order="atc"), GRAPHS["exp16"])
    options = {"lr": 0.05, "seed": 4, "progress": False, "checkpoint": path}
    simulate(problem, PushPull(order="atc"), mixing, steps=5, **options)
    tensors, facts = tensorfile.read(path)
    before = {name: value.clone() for name, value in tensors.items() if name != "state.begun"}
    assert len(before) == len(tensors) - 1
    tensorfile.write(path, before, facts)
    resumed = simulate(problem, PushPull(order="atc"), mixing, steps=9, **options)
    whole = simulate(problem, PushPull(order="atc"), mixing, steps=9, **{**options, "checkpoint": None})
    assert torch.equal(torch.as_tensor(resumed["grad_norm_sq"][-1]), torch.as_tensor(whole["grad_norm_sq"][-1]))
