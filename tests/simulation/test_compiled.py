"""The compiled loop: equal to the text of every algorithm, wherever it is cut, and left out where it does not fit."""

import numpy as np
import pytest
import torch
from strategies import network_for

import perron
from perron import ADDOPT, FROST, AdamW, Mixing, PerronError, PushPull, Simulation, simulate, topologies
from perron import schedules as schedule
from perron.algorithms import ALGORITHMS, DiLoCo
from perron.algorithms.base import About, Algorithm
from perron.problems import LinearModel, LocalLoss, Logistic, Quadratic
from perron.random import NOISE, Keyed
from perron.simulation.running import Running

pytest.importorskip("numba")

N = 6
GRAPH = topologies.exponential(N)
CLOCK = perron.Clock(perron.Machines(latency=0.01, rate=1e6), compute=0.1)
MIXING = Mixing.random_integer(GRAPH, seed=1)
NOISY = Quadratic.random(N, 3, noise_std=0.5, seed=1)
TEXT = ("robust_push_pull", "focus", "focus_sampled")  # single messages, random participation
RECORDED = [name for name, one in ALGORITHMS.items() if name not in TEXT and not one.about.samples]


def started(compiled, problem=NOISY, algorithm=None, mixing=MIXING, **options):
    options = {"lr": 0.02, "trials": 3, "seed": 5} | options
    algorithm = algorithm or PushPull()
    return Running(Simulation(problem=problem, algorithm=algorithm, mixing=mixing, compiled=compiled, **options))


def assert_equal(one, other, tolerance=1e-12):
    """The same after some steps: states before and after, gradients, counts."""
    assert one.step == other.step
    assert (one.traffic, one.oracle.draws, one.oracle.evaluated) == (
        other.traffic,
        other.oracle.draws,
        other.oracle.evaluated,
    )
    pairs = [*zip(one.state, other.state, strict=True), *zip(one.oracle.grads, other.oracle.grads, strict=True)]
    if one.step:
        pairs += zip(one.previous, other.previous, strict=True)
    for found, expected in pairs:
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        torch.testing.assert_close(
            found, expected, rtol=tolerance, atol=tolerance * (1 + float(one.state.x.abs().max()))
        )


# ---- equal to the text


@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("name", RECORDED)
def test_it_does_what_the_text_does(name, trials):
    algorithm = ALGORITHMS[name]
    mixing = network_for(algorithm, GRAPH)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((trials, N, 3)))
    both = [
        started(on, algorithm=algorithm, mixing=mixing, trials=trials, start=start, lr=0.01) for on in (True, False)
    ]
    for steps in (1, 2, 30):
        for one in both:
            one.advance(steps)
        assert_equal(*both, tolerance=1e-11)


@pytest.mark.parametrize("name", [name for name in RECORDED if ALGORITHMS[name].about.varying])
def test_it_does_what_the_text_does_on_networks_that_vary(name):
    algorithm = ALGORITHMS[name]
    mixings = [network_for(algorithm, graph) for graph in (GRAPH, topologies.complete(N), topologies.exponential(N))]
    if algorithm.about.matrices in ("R C", "W sym"):
        pytest.skip("one tree, or one symmetric matrix")
    pulls, pushes = (
        [getattr(one, side) for one in mixings if getattr(one, f"has_{side}")] for side in ("pull", "push")
    )
    varying = Mixing(pull=pulls or None, push=pushes or None)
    assert varying.period == 3
    both = [started(on, algorithm=algorithm, mixing=varying, lr=0.01) for on in (True, False)]
    for steps in (1, 4, 10):
        for one in both:
            one.advance(steps)
        assert_equal(*both, tolerance=1e-11)


@pytest.mark.parametrize("trials", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 3, 4, 6, 17])
@pytest.mark.parametrize("diagonal", [True, False])
def test_quadratics_of_all_shapes(dim, diagonal, trials):
    for noise_std in (0.0, 0.7):
        problem = Quadratic.random(N, dim, noise_std=noise_std, diagonal=diagonal, seed=2)
        both = [started(on, problem=problem, trials=trials) for on in (True, False)]
        for one in both:
            one.advance(25)
        assert_equal(*both)


def test_hessians_that_are_symmetric_to_rounding_of_floats_only():
    problem = Quadratic.random(N, 5, seed=2)
    uneven = problem.hessians + 1e-6 * torch.randn(
        N, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    problem = Quadratic(uneven, problem.centers)
    both = [started(on, problem=problem, trials=1) for on in (True, False)]
    for one in both:
        one.advance(25)
    assert_equal(*both)


@pytest.mark.parametrize("batch", [None, 7, 40])
def test_logistic_regression(batch):
    problem = Logistic.synthetic(N, samples=40 * N, dim=7, batch=batch, compiled=True)
    both = [started(on, problem=problem) for on in (True, False)]
    for one in both:
        one.advance(25)
    assert_equal(*both, tolerance=1e-5 if batch is None else 1e-6)  # sums are in float32


@pytest.mark.parametrize("algorithm", [PushPull(), ADDOPT(), FROST(), DiLoCo(local_steps=3)])
@pytest.mark.parametrize(
    "lr",
    [schedule.power(0.05), torch.linspace(0.01, 0.03, N, dtype=torch.float64)[:, None]],
    ids=["schedule", "per node"],
)
def test_learning_rates(algorithm, lr):
    both = [started(on, algorithm=algorithm, mixing=network_for(algorithm, GRAPH), lr=lr) for on in (True, False)]
    for steps in (1, 20):
        for one in both:
            one.advance(steps)
        assert_equal(*both)
        assert torch.equal(torch.as_tensor(both[0].lr), torch.as_tensor(both[1].lr))


@pytest.mark.parametrize("algorithm", [PushPull(order="atc"), ADDOPT()])
def test_several_rounds(algorithm):
    both = [started(on, algorithm=algorithm, rounds=3) for on in (True, False)]
    for one in both:
        one.advance(20)
    assert_equal(*both)


@pytest.mark.parametrize("batch", [None, 7, 40])
@pytest.mark.parametrize("dim", [1, 9, 70])
def test_logistic_regression_in_double_precision(batch, dim):
    problem = Logistic.synthetic(N, samples=40 * N, dim=dim, batch=batch, compiled=False)
    assert problem.rows.dtype == torch.float32
    wide = Logistic(problem.rows.flatten(0, 1).double(), torch.ones(40 * N), nodes=N, batch=batch, compiled=False)
    for one in (problem, wide):
        both = [started(on, problem=one) for on in (True, False)]
        for running in both:
            running.advance(15)
        assert_equal(*both)


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_linear_models(kind, batch):
    options = {"scale": "rows", "l2": 0.1, "nonconvex": 0.05}
    problem = LinearModel.from_data(N, kind=kind, data="synthetic", samples=301, dim=6, batch=batch, seed=1, **options)
    assert len(set(problem.sample_counts.tolist())) > 1
    both = [started(on, problem=problem) for on in (True, False)]
    for one in both:
        one.advance(25)
    assert_equal(*both)


# ---- random numbers


@pytest.mark.parametrize(("trials", "dim"), [([0], 1), ([3, 1], 40), ([0, 1, 2], 700)])
def test_normal_numbers_are_those_of_their_keys(trials, dim):
    from perron.problems._normals import normals

    keyed, count = Keyed(9, trials=trials, nodes=4, stream=NOISE), len(trials) * 4 * dim
    out, scratch = np.empty(count), (np.empty(count), np.empty(count + 1, dtype=np.uint64), np.empty(count + 1))
    for draw in (0, 17):
        normals(keyed.keys, draw, dim, *scratch, out)
        expected = keyed.normal(draw, dim).transpose(0, 1).reshape(-1).numpy()
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-15)


# ---- a whole run


def test_all_that_a_run_records_is_the_same():
    metrics = [
        "grad_norm_sq",
        "residual_sq",
        "residual_block_sq_7",
        "tracking_error_sq",
        "messages",
        "bytes_sent",
        "loss",
    ]
    options = {
        "lr": 0.02,
        "steps": 60,
        "trials": 2,
        "every": 7,
        "metrics": metrics,
        "clock": CLOCK,
    }
    one, other = (simulate(NOISY, PushPull(), MIXING, compiled=on, **options) for on in (True, False))
    assert one.about["loop"] == {"compiled": True}
    assert other.about["loop"] == {"compiled": False, "reason": "compiled=False"}
    assert one.steps.tolist() == other.steps.tolist()
    for name in metrics:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-9, atol=1e-18)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    for name, spent in one.costs.items():
        np.testing.assert_array_equal(spent, other.costs[name])


def test_it_is_the_default_and_iterates_gives_its_steps():
    simulation = Simulation(problem=NOISY, algorithm=PushPull(), mixing=MIXING, lr=0.02)
    states = [now.state.x for now in simulation.iterates(12)]
    together = started(True, trials=1, seed=0)
    together.advance(12)
    assert torch.equal(states[-1], together.state.x)
    assert not torch.equal(states[-1], states[-2])  # snapshots do not share memory
    assert simulate(NOISY, PushPull(), MIXING, lr=0.02, steps=3).about["loop"] == {"compiled": True}


def test_it_resumes_bit_for_bit_wherever_it_is_cut(tmp_path):
    mixing = Mixing(pull=[MIXING.pull, np.full((N, N), 1 / N)], push=MIXING.push)
    options = {"lr": schedule.power(0.05), "trials": 2, "every": 10, "compiled": True}
    whole = simulate(NOISY, ADDOPT(), mixing, steps=61, **options)
    for cut in (1, 10, 33):
        file = tmp_path / f"{cut}.run"
        simulate(NOISY, ADDOPT(), mixing, steps=cut, checkpoint=file, **(options | {"every": 61}))
        resumed = simulate(NOISY, ADDOPT(), mixing, steps=61, checkpoint=file, **(options | {"every": 61}))
        assert resumed["grad_norm_sq"][-1].tolist() == whole["grad_norm_sq"][-1].tolist()


def test_a_run_saves_at_every_step_if_asked(tmp_path):
    file = tmp_path / "run"
    saved = []
    simulate(NOISY, PushPull(), MIXING, lr=0.02, steps=9, every=9, checkpoint=file, save_every=0, metrics=[
        "grad_norm_sq"], log=lambda step, **_: saved.append(step))  # fmt: skip
    assert saved == [0, 9]
    assert file.exists()


def test_calls_stay_short():
    """The number of steps in one call follows the time that a step takes."""
    running = started(True)
    assert running.together(1000) == 1  # whose gradients are checked
    running.advance()
    running._pace = 0.03
    assert running.together(1000) == 3
    running._pace = 1.0
    assert running.together(1000) == 1
    running._pace = 1e-9
    assert running.together(1000) == 1000


def test_gradients_that_are_not_finite_are_refused():
    problem = Quadratic.random(N, 3)
    problem.offsets = problem.offsets.clone()
    problem.offsets[2] = torch.nan
    with pytest.raises(PerronError, match=r"gradients of nodes \{2\}"):
        simulate(problem, PushPull(), MIXING, lr=0.01, steps=5, compiled=True)


def test_a_run_that_diverges_ends():
    with pytest.warns(UserWarning, match="diverged"):
        history = simulate(NOISY, PushPull(), MIXING, lr=50.0, steps=100_000, every=100, compiled=True)
    assert history.steps[-1] < 100_000


# ---- where it does not fit


class Own(Algorithm):
    """Gradient descent with a step that the norm of the gradient limits, or that changes with time."""

    def __init__(self, how):
        self.how = how

    __setattr__ = object.__setattr__

    def __post_init__(self):
        pass

    @property
    def about(self):
        return About(title="own", family="centralized", matrices="-", exact=False, reference="-")

    def init(self, x, node):  # noqa: ARG002
        return perron.algorithms.centralized.ModelState(x)

    def step(self, state, node, lr):
        grad = yield state.x
        if self.how == "norm":
            grad = grad / grad.norm(dim=-1, keepdim=True)
        elif self.how == "branch":
            grad = grad if bool((grad > 0).all()) else 2 * grad
        elif self.how == "step":
            grad = grad / (node.step + 1)
        elif self.how == "random":
            grad = grad * torch.rand(1, dtype=grad.dtype)
        elif self.how == "product":
            grad = grad * state.x
        elif self.how == "in place":
            grad.mul_(0.5)
        elif self.how == "diagonal":
            grad = grad + (node.unit * node.unit) @ grad
        elif self.how == "twice":
            self.count = getattr(self, "count", 0) + 1
            grad = grad * self.count
        return perron.algorithms.centralized.ModelState(state.x - lr * node.mean(grad).wait())


@pytest.mark.parametrize("how", ["norm", "branch", "step", "random", "product", "in place", "diagonal", "twice"])
def test_a_step_that_is_not_recorded_runs_as_text(how):
    running = started(None, algorithm=Own(how))
    assert running.loop is None
    with pytest.raises(PerronError, match="no compiled loop, since"):
        started(True, algorithm=Own(how))


def test_an_algorithm_of_ones_own_is_compiled():
    both = [started(on, algorithm=Own("plain")) for on in (True, False)]
    for one in both:
        one.advance(9)
    assert_equal(*both)


class Bent(Quadratic):
    """Other gradients than those of the base."""

    def local_grads(self, x):
        return super().local_grads(x) + x**3


class Helped(Quadratic):
    """Another helper of the gradients."""

    def _times(self, x):
        return 2 * super()._times(x)


class Renamed(Quadratic):
    """The same gradients."""

    def loss(self, x):
        return super().loss(x) + 1


def test_what_does_not_fit_runs_as_text():
    bent, helped = (kind(NOISY.hessians, NOISY.centers) for kind in (Bent, Helped))
    patched = Quadratic(NOISY.hessians, NOISY.centers)
    patched.grad = lambda x, draw, random: x
    own = LocalLoss(lambda x, data: (x - data).square().sum(), [torch.zeros(N, 3, dtype=torch.float64)], dim=3)
    sampled = Mixing.random_integer(GRAPH, seed=1)
    for options in (
        {"problem": bent}, {"problem": helped}, {"problem": patched}, {"problem": own}, {"dtype": torch.float32},
        {"algorithm": PushPull(move=AdamW())}, {"algorithm": ALGORITHMS["robust_push_pull"]}, {"wire": "int8"},
        {"algorithm": ALGORITHMS["robust_push_pull"], "loss": 0.1}, {"algorithm": ALGORITHMS["focus"]}, {"compiled": False},
    ):  # fmt: skip
        running = started(options.pop("compiled", None), **({"mixing": sampled} | options))
        assert running.loop is None
        assert running.about()["loop"]["reason"]
        running.advance(3)
        assert running.step == 3
    assert started(True, problem=Renamed(NOISY.hessians, NOISY.centers)).loop is not None


def test_threads_are_restored():
    threads = torch.get_num_threads()
    seen = []

    def failing(now):
        seen.append(torch.get_num_threads())
        raise ValueError("no")

    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="no"):
            simulate(NOISY, PushPull(), MIXING, lr=0.02, steps=3, metrics=[failing])
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
