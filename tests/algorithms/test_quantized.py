"""Quantized messages: exact where the algorithm is, whatever the codec; against a slow twin; the memory is part of the state."""

import numpy as np
import pytest
import torch

import perron
from perron import LocalPushPull, Mixing, PushPull, PushPullDiLoCo, Simulation, simulate, topologies
from perron.algorithms import ALGORITHMS
from perron.algorithms import quantized as module
from perron.algorithms.base import advance
from perron.algorithms.codecs import CODECS
from perron.algorithms.quantized import exchanges_of, quantized
from perron.errors import PerronError
from perron.networks import samplers
from perron.networks.facts import Network
from perron.problems import Quadratic
from perron.simulation.node import SimulatedNode

DIM = 300  # more than a block
PROBLEM = Quadratic.random(8, DIM, seed=1)
SMALL = Quadratic.random(8, 10, seed=1)
MIXING = Mixing.random_integer(topologies.exponential(8), seed=0)
RING = Mixing.uniform(topologies.ring(8))
DECAY = perron.AdamW(weight_decay=0.1, eps=1.0, betas=(0.5, 0.9))
EXACT = ("push_pull", "push_pull_pu", "push_pull_atc", "add_opt", "push_diging", "abm", "local_push_pull")


def run(algorithm, wire, *, mixing=MIXING, lr=0.1, steps=800, **options):
    return simulate(
        PROBLEM, algorithm, mixing, lr=lr, steps=steps, wire=wire, every=10, metrics=["distance_max"], **options
    )


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_at_the_speed_of_full_precision(name, wire):
    algorithm = ALGORITHMS[name]
    lr = 0.1 / 4 if isinstance(algorithm, LocalPushPull) else 0.1
    full, few = (run(algorithm, one, lr=lr)["distance_max"][:, 0] for one in (None, wire))
    assert few[-1] < 1e-10
    reached = [int(np.argmax(one < 1e-10)) for one in (full, few)]
    assert reached[1] <= 1.05 * reached[0] + 1


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("algorithm", [
    PushPull(move=DECAY), PushPull(move=perron.Clipped(DECAY, norm=10.0)), perron.FROST(move=DECAY), LocalPushPull(move=DECAY),
    PushPullDiLoCo(move=DECAY, outer_lr=0.3), PushPull(order="atc", move=perron.algorithms.Proximal(l1=0.3)),
], ids=lambda one: one.about.title)  # fmt: skip
def test_limits_where_trackers_do_not_vanish(algorithm, wire):
    """With weight decay or a proximal move the sum of gradients is not zero in the limit, which is kept nevertheless."""

    rate = 0.05 if isinstance(algorithm, LocalPushPull) else 0.1

    def end(wire):
        *_, now = Simulation(problem=SMALL, algorithm=algorithm, mixing=MIXING, lr=rate, wire=wire).iterates(1500)
        return now.state.x

    full = end(None)
    assert (full[0].mean(0) - SMALL.optimum).abs().max() > 1e-3  # another limit than that of the losses
    assert (end(wire) - full).abs().max() < 1e-10


@pytest.mark.parametrize("wire", CODECS)
def test_on_a_ring(wire):
    full, few = (run(PushPull(), one, mixing=RING, lr=0.02, steps=3000)["distance_max"][:, 0] for one in (None, wire))
    assert few[-1] < max(1e-10, 1.1 * full[-1])


@pytest.mark.parametrize("wire", CODECS)
def test_numbers_of_local_steps_that_differ(wire):
    algorithm = PushPullDiLoCo(local_steps=(1, 2, 3, 4, 5, 6, 7, 8), outer_lr=0.3)
    full, few = (
        list(Simulation(problem=SMALL, algorithm=algorithm, mixing=MIXING, lr=0.1, wire=one).iterates(800))[-1].state.x
        for one in (None, wire)
    )
    assert (full - few).abs().max() < 1e-10
    assert perron.simulation.measure_traits(algorithm).sends == "2 d"


@pytest.mark.parametrize("wire", CODECS)
def test_a_change_of_members_sets_the_memory_up_in_full_precision(wire):
    """Models differ then, and a number near the edge of a multiple of the scale would jump by all of it."""
    algorithm = quantized(PushPull(), wire, MIXING)
    node, random = SimulatedNode(MIXING, dtype=torch.float64), np.random.default_rng(0)
    x = torch.as_tensor(random.standard_normal((8, DIM)))
    state = algorithm.resume(algorithm.init(x, node), x, node)
    after = advance(algorithm, state, node, 0.0, torch.zeros_like)
    assert torch.allclose(after.x, torch.as_tensor(np.array(MIXING.pull)) @ x, rtol=0, atol=1e-15)
    fresh = advance(algorithm, algorithm.init(x, node), node, 0.0, torch.zeros_like)
    assert (fresh.x - after.x).abs().max() > 1e-3


@pytest.mark.parametrize("wire", CODECS)
def test_messages_without_memory_would_stall(wire, monkeypatch):
    """The claim behind the memory: rounded models stop at the error of the rounding."""
    plain = [one._replace(kind="rounded") for one in exchanges_of(PushPull())]
    monkeypatch.setattr(module, "exchanges_of", lambda _: tuple(plain))
    assert run(PushPull(), wire)["distance_max"][-1, 0] > 1e-5


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("algorithm", [PushPull(), PushPull(order="atc"), LocalPushPull(), PushPullDiLoCo(outer_lr=0.3),
                                       PushPull(move=perron.AdamW())], ids=lambda one: one.description)  # fmt: skip
def test_mass_is_conserved(algorithm, wire):
    problem = Quadratic.random(8, DIM, noise_std=0.5, seed=1)
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=MIXING, lr=0.02, wire=wire)
    network = Network(MIXING)
    scale = 0.0
    for now in simulation.iterates(60):
        scale = max(scale, float(now.state.y.abs().max()))
        for value in algorithm.conserved(now.state, network).values():
            assert float(value.abs().max()) <= 1e-12 * max(scale, 1.0)


def test_the_sum_of_what_is_pulled_is_conserved():
    """pi_A^T x with the step 0: the pulls of quantized models keep it."""
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((8, DIM)))
    weights = torch.as_tensor(Network(MIXING).pull_perron)
    *_, now = Simulation(
        problem=PROBLEM, algorithm=PushPull(), mixing=MIXING, lr=1e-300, wire="int4", start=start
    ).iterates(50)
    assert torch.allclose(weights @ now.state.x[0], weights @ start, atol=1e-13)
    assert now.state.x[0].std(0).max() < 1e-5  # and they agree


@pytest.mark.parametrize("wire", CODECS)
def test_a_slow_twin(wire):
    """The recursion of the module's docstring in NumPy, with a memory of every neighbor."""
    codec, A, B = CODECS[wire], np.asarray(MIXING.pull), np.asarray(MIXING.push)

    def C(x):
        return codec.encode(torch.as_tensor(x)).values.numpy()

    grad = lambda x: PROBLEM.grad(torch.as_tensor(x)[None], 0, None)[0].numpy()  # noqa: E731
    start = np.random.default_rng(3).standard_normal((8, DIM))
    x, y, g = start, np.zeros_like(start), np.zeros_like(start)
    known = np.zeros((8, 8, DIM))  # node i knows x_j of node j
    for _ in range(40):
        changes = np.stack([C(x[j] - known[j, j]) for j in range(8)])
        known = known + changes[None]
        pulled = np.stack([sum(A[i, j] * known[i, j] for j in range(8)) + x[i] - known[i, i] for i in range(8)])
        sent = np.stack([C(y[j]) for j in range(8)])
        new = grad(x)
        y = B @ sent + (y - sent) + new - g
        x, g = pulled - 0.1 * y, new
    options = {"mixing": MIXING, "lr": 0.1, "wire": wire, "start": torch.as_tensor(start)}
    *_, now = Simulation(problem=PROBLEM, algorithm=PushPull(), **options).iterates(40)
    assert np.abs(now.state.x[0].numpy() - x).max() < 1e-11


def test_averages_are_in_full_precision():
    with pytest.raises(PerronError, match=r"averages over all nodes, in full precision.*Pass wire=None"):
        run(ALGORITHMS["diloco"], "int8", steps=1)


@pytest.mark.parametrize("wire", CODECS)
def test_matrices_in_turn(wire):
    """Each has a memory of its own."""
    one_peer = Mixing.uniform(topologies.one_peer_exponential(8))
    assert run(PushPull(), wire, mixing=one_peer)["distance_max"][-1, 0] < 1e-10
    *_, now = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=one_peer, lr=0.1, wire=wire).iterates(5)
    assert {"sent_0_0", "mixed_0_2"} <= set(now.state._fields)


def test_networks_that_never_repeat():
    drawn = samplers.link_failures(MIXING, probability=0.3)
    for wire in ("int8", "int4"):
        with pytest.raises(PerronError, match="never repeats"):
            run(PushPull(), wire, mixing=drawn, steps=1)
    assert run(PushPull(), "bf16", mixing=drawn)["distance_max"][-1, 0] < 0.1  # without memory


def test_rounding_errors_of_long_runs_do_not_add_up(monkeypatch):
    """In single precision the memory is a long sum; it is set up again every REFRESH exchanges."""
    monkeypatch.setattr(module, "REFRESH", 50)
    few, full = (run(PushPull(), wire, steps=2000, dtype=torch.float32) for wire in ("int8", None))
    assert few["distance_max"][-1, 0] < 20 * full["distance_max"][-1, 0]
    counts = np.diff(few.costs["bytes"])
    assert len(set(counts.tolist())) == 2  # most are quantized; one in 50 exchanges is in full precision


def test_what_is_sent_how():
    """Found by trial: models as changes, trackers rounded if they vanish in the limit, weights in full precision."""
    assert [(one.side, one.kind) for one in exchanges_of(PushPull(move=perron.AdamW()))] == [
        ("pull", "memory"), ("push", "memory"), ("push", "full"),
    ]  # fmt: skip
    assert [one.kind for one in exchanges_of(PushPull(move=perron.AdamW(weight_decay=0.0)))] == [
        "memory",
        "rounded",
        "full",
    ]
    for move in (perron.AdamW(weight_decay=0.1), perron.algorithms.Descent()):
        assert [one.kind for one in exchanges_of(PushPullDiLoCo(move=move))] == ["rounded", "memory"]
    kinds = {name: {one.kind for one in exchanges_of(one)} for name, one in ALGORITHMS.items() if not one.about.robust}
    assert kinds["sgp"] == {"memory", "full"}
    assert kinds["centralized"] == set()
    assert kinds["frost"] == {"memory", "rounded", "full"}


def test_the_memory_is_saved_and_resumed(tmp_path):
    whole = run(PushPull(), "int4", steps=90)
    run(PushPull(), "int4", steps=47, checkpoint=tmp_path / "run")
    again = run(PushPull(), "int4", steps=90, checkpoint=tmp_path / "run")
    assert again["distance_max"][-1, 0] == whole["distance_max"][-1, 0]
    with pytest.raises(PerronError, match="differs in wire"):
        run(PushPull(), "int8", steps=90, checkpoint=tmp_path / "run")


def test_wrong_settings_are_refused():
    with pytest.raises(PerronError, match="There are: bf16, int8, int4"):
        run(PushPull(), "int2", steps=1)
    for faults in ({"loss": 0.1}, {"delay": 2}):
        with pytest.raises(PerronError, match="needs reliable links"):
            run(PushPull(), "int8", steps=1, **faults)
    with pytest.raises(PerronError, match="rounds=2 needs"):
        run(PushPull(), "int8", steps=1, rounds=2)
    with pytest.raises(PerronError, match="in full precision"):
        run(perron.RobustPushPull(), "int8", steps=1)
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(PerronError, match="quantizes numbers of 32 or 64 bits"):
            run(PushPull(), "int8", steps=1, dtype=dtype)
    weights = torch.randn(8, 1, DIM, dtype=torch.float64)
    constrained = perron.ConstrainedPushPull(
        constraint=lambda x, node: (node.unit @ weights[:, 0] * x).sum(-1, keepdim=True), constraints=1
    )
    with pytest.raises(PerronError, match="cannot be tried on a single node"):
        run(constrained, "int8", steps=1)
    assert quantized(PushPull(), None, MIXING) == PushPull()


def test_bytes_are_counted_as_sent():
    history = run(PushPull(), "int4", steps=100)
    per_message = CODECS["int4"].nbytes(DIM)
    links = len(MIXING.pull_graph.edges) + len(MIXING.push_graph.edges)
    assert history.costs["bytes"][-1] == 100 * links * per_message
