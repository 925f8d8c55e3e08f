"""Moves: the built-in ones are those of torch.optim, on one node and on every node of a network, and keep methods exact."""

import re
import warnings
from dataclasses import dataclass, replace
from inspect import signature

import numpy as np
import pytest
import torch
from strategies import network_for, single

from perron import (
    ADDOPT,
    ALGORITHMS,
    DSGD,
    EXTRA,
    FROST,
    SGP,
    AdamW,
    CentralizedSGD,
    Clipped,
    Descent,
    GradientPull,
    Mixing,
    MixingError,
    Momentum,
    Move,
    Network,
    PerronError,
    PushPull,
    PushPullDiLoCo,
    Simulation,
    TreePushPull,
    simulate,
)
from perron.algorithms.moves import Moving
from perron.networks import topologies
from perron.networks.builder import build_network
from perron.problems import Quadratic
from perron.random import NOISE, Keyed
from perron.simulation import _blockwise, measure_traits
from perron.simulation.simulator import Running

pytestmark = pytest.mark.filterwarnings("ignore:.*this network mixes slowly")
NAMES = [name for name, algorithm in ALGORITHMS.items() if isinstance(algorithm, Moving)]
EXACT = [name for name in NAMES if ALGORITHMS[name].about.exact]
TRACKERS = [name for name in EXACT if name != "centralized"]
ORDERS = ("cta", "pu", "atc")
GRAPHS = {
    "exp8": topologies.exponential(8),
    "rdg8": topologies.random_digraph(8, probability=0.4, seed=3),
    "ring8": topologies.ring(8),
}
ALONE = Mixing(pull=[[1.0]], push=[[1.0]])
ADAMW = AdamW(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
TORCH = {  # a move, and the optimizer of torch that it has to equal, with clipping of the gradient
    "descent": (Descent(), lambda p: torch.optim.SGD(p, lr=0.05), None),
    "momentum": (Momentum(), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), None),
    "nesterov": (
        Momentum(momentum=0.8, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True),
        None,
    ),
    "adamw": (ADAMW, lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1), None),
    "adamw's defaults": (AdamW(), lambda p: torch.optim.AdamW(p, lr=0.05), None),
    "clipped": (
        Clipped(Momentum(momentum=0.5), norm=0.7),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
        0.7,
    ),
}


def run(algorithm, mixing, problem, steps, lr, **options):
    """The models after each step, ``(steps + 1, trials, n, d)``, and the last snapshot."""
    one = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr, **options)
    snapshots = list(one.iterates(steps))
    return torch.stack([now.state.x for now in snapshots]), snapshots[-1]


class Replaced(Quadratic):
    """A quadratic with other gradients, ``gradients(x)``."""

    def __init__(self, problem, gradients):
        super().__init__(problem.hessians, problem.centers)
        self.gradients = gradients

    def to(self, **_):
        return self

    def grad(self, x, *_):
        return self.gradients(x)


@dataclass(frozen=True, eq=False)
class Instances(Move):
    """The move of an optimizer of torch: an instance for every node, each with a parameter of its own."""

    make: object
    clip: float | None
    scale_dependent: bool = False

    def __post_init__(self):
        object.__setattr__(self, "optimizers", [])

    def step(self, memory, x, u, _lr):
        rows, directions = x.reshape(-1, x.shape[-1]), u.reshape(-1, x.shape[-1])
        if not self.optimizers:
            for row in rows:
                # Two parameters of different shapes, as a model has them.
                params = [torch.nn.Parameter(row[:2].clone().view(2, 1)), torch.nn.Parameter(row[2:].clone())]
                self.optimizers.append((params, self.make(params)))
        moved = []
        for (params, optimizer), row, direction in zip(self.optimizers, rows, directions, strict=True):
            for param, part, along in zip(params, (row[:2], row[2:]), (direction[:2], direction[2:]), strict=True):
                param.data.copy_(part.view_as(param))
                param.grad = along.reshape(param.shape).clone()
            if self.clip:
                torch.nn.utils.clip_grad_norm_(params, self.clip)
            optimizer.step()
            moved.append(torch.cat([param.detach().reshape(-1) for param in params]) - row)
        return torch.stack(moved).view_as(x), memory


class PlainInstances(Instances, Descent):
    """The same for plain descent, with which late trackers start otherwise."""

    add = Move.add


# ---- equal to torch


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("name", NAMES)
def test_one_node_is_torch(name, kind):
    move, make, clip = TORCH[kind]
    problem = Quadratic.random(1, 4, noise_std=0.5, seed=3)
    models, _ = run(replace(single(ALGORITHMS[name]), move=move), ALONE, problem, 100, 0.05, start=torch.ones(1, 4))
    point = torch.nn.Parameter(torch.ones(1, 4, dtype=torch.float64))
    optimizer, noise = make([point]), Keyed(0, nodes=1, stream=NOISE)
    for t in range(100):
        point.grad = problem.grad(point.detach(), t, noise)
        if clip:
            torch.nn.utils.clip_grad_norm_([point], clip)
        optimizer.step()
        assert torch.allclose(models[t + 1, 0], point.detach(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("name", NAMES)
def test_on_a_network_every_node_has_the_optimizer_of_torch(name, kind):
    move, make, clip = TORCH[kind]
    algorithm, graph = ALGORITHMS[name], GRAPHS["rdg8"]
    problem = Quadratic.random(8, 5, noise_std=0.3, seed=2)
    mixing = network_for(algorithm, graph)
    theirs = (PlainInstances if kind == "descent" else Instances)(make, clip, move.scale_dependent)
    ours, _ = run(replace(algorithm, move=move), mixing, problem, 25, 0.05, trials=2)
    models, _ = run(replace(algorithm, move=theirs), mixing, problem, 25, 0.05, trials=2)
    assert torch.allclose(ours, models, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["push_pull_atc", "aug_dgm", "pull_diag_gt"])
def test_only_plain_descent_starts_from_a_tracker_that_was_not_mixed(name):
    """x_1 = A (x_0 - lr grad), as published; with a move that adds nothing to descent, x_1 = A (x_0 - lr M grad)."""
    algorithm, problem = ALGORITHMS[name], Quadratic.random(8, 4, seed=2)
    mixing = network_for(algorithm, GRAPHS["rdg8"])
    x = problem.start().double().numpy()
    grad = problem.local_grads(torch.as_tensor(x)).numpy()
    A, M = mixing.pull, mixing.push if name == "push_pull_atc" else mixing.pull
    for move, y in ((Descent(), grad), (Momentum(momentum=0.0), M @ grad)):
        models, _ = run(replace(algorithm, move=move), mixing, problem, 1, 0.1)
        assert np.abs(models[1, 0].numpy() - A @ (x - 0.1 * y)).max() < 1e-13


@pytest.mark.parametrize(
    ("order", "kind", "equal"),
    [(order, "momentum", order != "cta") for order in ORDERS] + [(order, "adamw", order == "atc") for order in ORDERS],
)
def test_complete_averaging_is_torch_on_the_mean_gradient(order, kind, equal):
    """Linear moves see the mean of the trackers once models are averaged after them; AdamW needs averaged trackers."""
    move, make, _ = TORCH[kind]
    problem = Quadratic.random(8, 5, seed=2)
    average = np.full((8, 8), 1 / 8)
    models, _ = run(PushPull(order=order, move=move), Mixing(average, average), problem, 80, 0.05)
    point = torch.nn.Parameter(problem.start()[0].double().clone())
    optimizer = make([point])
    for _ in range(80):
        point.grad = problem.local_grads(point.detach().expand(8, -1)).mean(-2)
        optimizer.step()
    off = (models[-1, 0] - point.detach()).abs().max().item()
    assert (off < 1e-12) is equal


def test_descent_is_the_default_and_leaves_no_trace():
    """States, descriptions in checkpoints, and rounding are those of versions without moves."""
    one = PushPull(order="pu")
    assert one == PushPull(order="pu", move=Descent())
    assert one.description == "PushPull(order='pu')"
    assert "AdamW(betas=(0.9, 0.999)" in PushPull(move=AdamW()).description
    assert PushPull().about.title == "Push-Pull (AB, SAB)"
    assert PushPull(move=AdamW(weight_decay=0.1)).about.title == "Push-Pull (AB, SAB) with AdamW(weight_decay=0.1)"
    mixing = Mixing.random_integer(GRAPHS["exp8"], seed=0)
    _, now = run(one, mixing, Quadratic.random(8, 3), 1, 0.1)
    assert now.state._fields == ("x", "y", "grad")
    assert measure_traits(one).sends == "2 d" == measure_traits(PushPull(order="pu", move=Momentum())).sends


# ---- trackers: the weight w, what is conserved, exactness


@pytest.mark.parametrize("move", [Momentum(), AdamW(), Clipped(Descent(), norm=0.3)], ids=lambda move: move.label)
@pytest.mark.parametrize("name", TRACKERS)
def test_sums_are_conserved_on_networks_that_vary_in_time(name, move):
    algorithm = replace(ALGORITHMS[name], move=move)
    graphs = [GRAPHS["rdg8"], topologies.random_digraph(8, probability=0.4, seed=9)]
    if algorithm.about.matrices == "R C" or isinstance(
        algorithm, FROST
    ):  # pi_A of a product is not that of its factors
        mixing = network_for(algorithm, graphs[0])
    else:
        parts = [network_for(algorithm, graph, seed=seed) for seed, graph in enumerate(graphs)]
        mixing = Mixing([np.asarray(part.pull) for part in parts], [np.asarray(part.push) for part in parts])
    one = Simulation(problem=Quadratic.random(8, 4, noise_std=1.0), algorithm=algorithm, mixing=mixing, lr=0.01)
    for now in one.iterates(50):
        found = algorithm.conserved(now.state, one.network)
        assert ("1'w - n" in found or "pi'w - pi'1/D" in found) == move.scale_dependent
        for name_of, value in found.items():
            assert value.abs().max() < 1e-12, (name_of, now.step)
    if move.scale_dependent and not isinstance(algorithm, FROST):
        assert float(now.state.w.sum()) == pytest.approx(8)


@pytest.mark.parametrize("order", ORDERS)
def test_the_weight_gives_the_tracker_the_scale_of_the_mean_gradient(order):
    """With constant gradients y / w is exactly the mean of equal gradients, at every step and with weights that vary."""
    mixing = build_network("one_peer_exponential", 8, weights="random_integer", seed=3)
    slope, directions = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), []

    def linear(x):
        return slope.expand_as(x)

    class Noted(AdamW):
        def step(self, memory, x, u, lr):
            directions.append(u)
            return super().step(memory, x, u, lr)

    run(PushPull(order=order, move=Noted()), mixing, Replaced(Quadratic.random(8, 3), linear), 30, 0.01)
    assert len(directions) == 30
    for u in directions:
        assert torch.allclose(u, slope.expand_as(u), rtol=1e-12)


def test_without_the_weight_adamw_remembers_how_the_scale_has_changed():
    problem = Quadratic.random(8, 5, seed=2, heterogeneity=0.0, same_hessian=True)
    mixing = Mixing.random_integer(GRAPHS["rdg8"], seed=1)
    theirs, _ = run(CentralizedSGD(move=AdamW()), mixing, problem, 300, 0.01)

    class Unweighted(AdamW):
        scale_dependent = False

    far = {}
    for move in (AdamW(), Unweighted()):
        models, _ = run(PushPull(order="pu", move=move), mixing, problem, 300, 0.01)
        far[type(move)] = float((models[-1] - theirs[-1]).abs().max())
    assert far[AdamW] < 0.2 * far[Unweighted], far


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    ("move", "lr"),
    [(Momentum(), None), (AdamW(eps=1e-2, weight_decay=0.0), 0.01)],
    ids=lambda one: getattr(one, "label", ""),
)
def test_different_data_end_at_the_optimum(name, graph, move, lr):
    problem = Quadratic.random(8, 5, seed=1)
    algorithm = replace(ALGORITHMS[name], move=move)
    if lr is not None and (name, graph) == ("local_push_pull", "ring8"):
        lr /= 8  # a ring has little room for local steps
    one = Simulation(problem=problem, algorithm=algorithm, mixing=network_for(algorithm, GRAPHS[graph]), lr=lr)
    assert float((problem.local_grads(problem.optimum.expand(8, -1))).norm()) > 0.5  # nodes differ
    for now in one.iterates(5000):
        if now.step % 500 == 0 and (error := float((now.state.x - problem.optimum).abs().max())) < 1e-10:
            break
    assert error < 1e-10


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_of_the_tracker_is_the_tracked_momentum(order, nesterov):
    """Linear filters commute: tracking each node's momentum, in NumPy, gives the same models while B is constant."""
    problem, mixing, lr, b = Quadratic.random(8, 4, seed=2), Mixing.random_integer(GRAPHS["rdg8"], seed=1), 0.02, 0.9
    move = Momentum(momentum=b, nesterov=nesterov)
    models, _ = run(PushPull(order=order, move=move), mixing, problem, 200, lr)
    A, B, x = mixing.pull, mixing.push, problem.start().double().numpy()
    y = m = before = np.zeros_like(x)
    for theirs in models[1:, 0].numpy():
        grad = problem.local_grads(torch.as_tensor(x)).numpy()
        m = b * m + grad
        sent = grad + b * m if nesterov else m  # this node's share of the direction
        y = B @ (y + sent - before) if order == "atc" else B @ y + sent - before
        before = sent
        x = A @ x - lr * y if order == "cta" else A @ (x - lr * y)
        assert np.abs(theirs - x).max() < 1e-12


def test_local_adamw_is_biased_however_small_the_step_becomes():
    """SGP and Gradient-Pull with AdamW are baselines: the mean of the nodes' directions is not the direction of the mean."""
    problem = Quadratic.random(8, 5, seed=1)
    errors = {}
    for algorithm in (SGP(), GradientPull(), DSGD(), PushPull(order="atc")):
        mixing = network_for(algorithm, GRAPHS["exp8"])
        falling = [0.02 * (1 - t / 2500) for t in range(2500)]
        moving = replace(algorithm, move=AdamW(weight_decay=0.0))
        models, _ = run(moving, mixing, problem, 2500, lambda t, falling=falling: falling[t])
        errors[type(algorithm).__name__] = float((models[-1] - problem.optimum).abs().max())
    assert errors["PushPull"] < 1e-12
    assert all(errors[name] > 0.1 for name in ("SGP", "GradientPull", "DSGD")), errors


def test_adamw_with_gossip_of_equal_losses_is_adamw():
    """Card T6: where all losses are equal, pulling averages equal models."""
    problem = Quadratic.random(8, 5, seed=2, heterogeneity=0.0, same_hessian=True)
    mixing = Mixing.random_integer(GRAPHS["rdg8"], seed=1)
    theirs, _ = run(CentralizedSGD(move=AdamW()), mixing, problem, 100, 0.02)
    ours, _ = run(GradientPull(move=AdamW()), mixing, problem, 100, 0.02)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-13)


def test_clipping_the_direction_is_exact_and_clipping_gradients_is_not():
    problem, mixing = Quadratic.random(8, 5, seed=1), Mixing.random_integer(GRAPHS["exp8"], seed=1)
    models, _ = run(PushPull(move=Clipped(Descent(), norm=0.2)), mixing, problem, 4000, 0.05)
    assert float((models[-1] - problem.optimum).abs().max()) < 1e-12

    def clipped(x):
        local = problem.local_grads(x)
        return local * (0.2 / local.norm(dim=-1, keepdim=True)).clamp_max(1.0)

    models, _ = run(PushPull(), mixing, Replaced(problem, clipped), 4000, 0.05)
    assert float((models[-1] - models[-2]).abs().max()) < 1e-7  # it converges, elsewhere
    assert float((models[-1] - problem.optimum).abs().max()) > 0.1


def test_only_the_root_of_a_tree_moves_by_itself():
    problem = Quadratic.random(8, 5, seed=1)
    mixing = Mixing.spanning_trees(GRAPHS["exp8"])
    _, now = run(TreePushPull(move=AdamW(weight_decay=0.0)), mixing, problem, 40, 0.01)
    assert sorted(now.state.w.flatten().tolist()) == [0.0] * 7 + [8.0]


# ---- states: blocks, checkpoints, restarts


@pytest.mark.parametrize("name", ["push_pull", "push_pull_atc", "add_opt", "frost", "sgp", "centralized"])
@pytest.mark.parametrize("move", [Momentum(), AdamW(), Clipped(AdamW(), norm=0.3)], ids=lambda move: move.label)
def test_block_by_block_is_the_same(monkeypatch, name, move):
    monkeypatch.setattr(_blockwise, "LARGE", 0)
    monkeypatch.setattr(_blockwise, "NUMBERS", 8 * 3)
    monkeypatch.setattr(_blockwise, "NARROWEST", 1)
    algorithm = replace(ALGORITHMS[name], move=move)
    mixing, problem = network_for(algorithm, GRAPHS["rdg8"]), Quadratic.random(8, 11, noise_std=0.3, seed=2)
    one = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=0.05)
    running = Running(one)
    assert len(running.blockwise.blocks) == (1 if isinstance(move, Clipped) else 4)  # norms are over whole vectors
    for _ in range(20):
        running.advance()
    monkeypatch.setattr(_blockwise, "LARGE", 2**40)
    plain = Running(one)
    assert plain.blockwise is None
    for _ in range(20):
        plain.advance()
    for field, value in plain.state._asdict().items():
        assert torch.allclose(getattr(running.state, field), value, rtol=1e-13, atol=1e-13), field


@pytest.mark.parametrize("move", [Momentum(), Clipped(AdamW(), norm=0.5)], ids=lambda move: move.label)
def test_a_run_resumes_with_what_the_move_remembers(tmp_path, move):
    options = {"lr": 0.05, "metrics": ["grad_norm_sq"], "every": 5, "progress": False}
    problem, mixing = Quadratic.random(8, 4, noise_std=0.5), Mixing.random_integer(GRAPHS["exp8"], seed=0)
    whole = simulate(problem, PushPull(move=move), mixing, steps=40, **options)
    simulate(problem, PushPull(move=move), mixing, steps=20, checkpoint=tmp_path / "run", **options)
    resumed = simulate(problem, PushPull(move=move), mixing, steps=40, checkpoint=tmp_path / "run", **options)
    assert (resumed["grad_norm_sq"][-4:] == whole["grad_norm_sq"][-4:]).all()
    with pytest.raises(PerronError, match="it differs in algorithm"):
        simulate(problem, PushPull(), mixing, steps=40, checkpoint=tmp_path / "run", **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_keeps_what_the_move_remembers_and_nothing_else(name):
    algorithm = replace(ALGORITHMS[name], move=AdamW())
    mixing = network_for(algorithm, GRAPHS["rdg8"])
    running = Running(Simulation(problem=Quadratic.random(8, 4), algorithm=algorithm, mixing=mixing, lr=0.01))
    for _ in range(5):
        running.advance()
    fresh = algorithm.init(running.state.x, running.node)
    resumed = algorithm.resume(running.state, running.state.x, running.node)
    for field, value in resumed._asdict().items():
        kept = field in ("exp_avg", "exp_avg_sq", "updates", "velocity")
        assert torch.equal(value, getattr(running.state if kept else fresh, field)), field
        assert not kept or value.any()


def test_an_extended_state_counts_steps_beyond_bfloat16():
    x = torch.zeros(3, dtype=torch.bfloat16)
    memory = AdamW().init(x)
    for _ in range(300):
        _, memory = AdamW().step(memory, x, x + 1, 0.1)
    assert memory["updates"].tolist() == [300]


# ---- what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Momentum(momentum=1.0), r"0 <= momentum < 1; got 1.0"),
        (lambda: AdamW(betas=(0.9, 1.0)), r"betas in \[0, 1\)"),
        (lambda: AdamW(weight_decay=-1.0), "weight_decay >= 0"),
        (lambda: Clipped(AdamW(), norm=0.0), "norm > 0"),
        (lambda: Clipped("adamw", norm=1.0), "Clipped needs a move"),
        (lambda: PushPull(move="adamw"), r"move of PushPull is a move such as Momentum\(\) or AdamW\(\); got 'adamw'"),
        (lambda: PushPull(move=AdamW()).default_lr(Network(ALONE), 1.0), "AdamW has no default step"),
        (lambda: SGP(move=Clipped(AdamW(), norm=1.0)).default_lr(Network(ALONE), 1.0), "AdamW has no default step"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(PerronError, match=message):
        make()


def test_methods_whose_step_is_no_direction_take_no_move():
    taking = {type(one) for one in ALGORITHMS.values() if "move" in signature(type(one)).parameters}
    others = {type(one) for one in ALGORITHMS.values()} - taking
    assert PushPull in taking
    assert EXTRA in others
    for kind in others:
        with pytest.raises(
            PerronError, match=rf"^{kind.__name__} takes no move: .* These do: ADDOPT, .*, PushPull"
        ) as caught:
            kind(move=AdamW())
        assert not any(re.search(rf"\b{one.__name__}\b", str(caught.value).partition("These do")[2]) for one in others)
    assert [kind(move=AdamW()).move for kind in taking] == [AdamW()] * len(taking)
    with pytest.raises(TypeError, match="mov"):
        EXTRA(mov=AdamW())


@pytest.mark.parametrize(
    ("algorithm", "effective"),
    [
        (PushPull(move=Momentum()), "c / 0.1"),
        (PushPull(move=AdamW()), "1"),
        (FROST(move=Momentum(momentum=0.5)), "n / 0.5"),
        (SGP(move=Momentum()), "1 / 0.1"),
        (CentralizedSGD(move=Momentum()), "1 / 0.1"),
        (ADDOPT(move=Clipped(Momentum(), norm=1.0)), "1 / 0.1"),
    ],
)
def test_the_effective_step_includes_the_move(algorithm, effective):
    assert measure_traits(algorithm).effective == effective


# ---- no pair of a method and a network that is accepted diverges


def accepted(algorithm, mixing):
    """The algorithm, or if its outer step is refused, that with the largest outer step that is said to be stable."""
    try:
        algorithm.check(Network(mixing))
    except MixingError as error:
        most = float(re.search(r"stable up to outer_lr=(.*)\.$", str(error))[1])
        return replace(algorithm, outer_lr=most)
    return algorithm


@pytest.mark.filterwarnings("ignore:.*needs weights that do not change")
@pytest.mark.parametrize("topology", topologies.NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_is_accepted_diverges(name, topology):
    """Momentum 0.9 at its default step and AdamW at its defaults, with noise, on every topology."""
    n = 9 if topology in ("grid", "undirected_grid", "torus") else 8
    graph = build_network(topology, n, weights="random_integer", seed=0)
    problem = Quadratic.random(n, 4, noise_std=0.1, seed=2)
    for move, lr in ((Momentum(), None), (AdamW(), 1e-2)):
        algorithm = replace(ALGORITHMS[name], move=move)
        mixing = graph
        if algorithm.about.matrices in ("W", "R C"):
            if graph.period > 1:
                pytest.skip("balanced weights of single steps, or trees, do not exist")
            mixing = network_for(algorithm, graph.pull_graph)
        if isinstance(algorithm, PushPullDiLoCo):
            algorithm = accepted(algorithm, mixing)
        models, _ = run(algorithm, mixing, problem, 300, lr)
        error = (models[:, 0] - problem.optimum).norm(dim=-1).max(-1).values
        assert error[-100:].max() < 2 * error[0], (move.label, float(error[0]), float(error[-1]))


@pytest.mark.parametrize(
    ("algorithm", "topology", "second"),
    [
        (PushPull(move=AdamW()), "ring", True),
        (PushPull(move=Clipped(Momentum(), norm=1.0)), "ring", True),
        (ADDOPT(move=AdamW()), "ring", True),
        (PushPull(move=AdamW()), "exponential", False),
        (PushPull(move=AdamW()), "one_peer_exponential", False),
        (PushPull(move=Momentum()), "ring", False),
        (SGP(move=AdamW()), "ring", False),
    ],
)
def test_trackers_that_mix_too_slowly_for_adamw_are_warned_of(algorithm, topology, second):
    """The second eigenvalue of a ring of 8 is |1 + exp(i pi / 4)| / 2 = cos(pi / 8); its fourth power is below 3/4."""
    network = Network(build_network(topology, 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        algorithm.check(network)
    texts = [str(one.message) for one in caught]
    assert bool(texts) is second
    assert not second or ("0.924 in modulus" in texts[0] and "rounds=4 suffices" in texts[0])
