"""One process of the optimizer's tests: plain PyTorch code, check by check. Started by test_optimizer.py."""

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import worker_parity
from processes import refused, run_group
from torch import nn

import perron
from perron import ALGORITHMS, Mixing, Simulation
from perron.distributed import exchange
from perron.distributed.optimizer import Decentralized
from perron.networks import topologies
from perron.problems import Quadratic
from perron.random import NOISE, Keyed
from perron.simulation import measure_traits

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
PROBLEM = Quadratic.random(SIZE, 3, noise_std=0.3, seed=2)
MIXING = Mixing.random_integer(topologies.random_digraph(SIZE, seed=1), seed=1)
STEPS, SEED, LR = 12, 3, 0.05


class Model(nn.Module):
    """The vector x in two parameters of different shapes."""

    def __init__(self, start=None):
        super().__init__()
        start = torch.zeros(3, dtype=torch.float64) if start is None else start
        self.first = nn.Parameter(start[:2].clone().view(1, 2))
        self.second = nn.Parameter(start[2:].clone())

    def x(self):
        return torch.cat([self.first.reshape(-1), self.second])


class Loss:
    """The loss of this node, with the simulator's noise, for one draw after the other."""

    def __init__(self, problem=PROBLEM):
        self.hessian, self.center = problem.hessians[RANK], problem.centers[RANK]
        self.random, self.draw = Keyed(SEED, node=RANK, stream=NOISE), 0
        self.noise_std = problem.noise_std

    def __call__(self, x, share=1.0):
        noise = self.noise_std / 3**0.5 * self.random.normal(self.draw, 3)
        apart = x - self.center
        return share * (apart @ self.hessian @ apart / 2 + noise @ x)


def trained(optimizer, model, loss, steps=STEPS):
    """The usual loop; x before each step and at the end."""
    seen = [model.x().detach().clone()]
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model.x()).backward()
        optimizer.step()
        loss.draw += 1
        seen.append(model.x().detach().clone())
    return torch.stack(seen)


def simulated(algorithm, *, mixing=MIXING, lr=LR, problem=PROBLEM, steps=STEPS):
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr, seed=SEED)
    return torch.stack([now.state.x[0, RANK] for now in simulation.iterates(steps)])


def close(ours, theirs, tolerance=1e-12):
    off = float((ours - theirs).abs().max())
    assert off <= tolerance, off


def check_equals_the_simulator():
    """Every algorithm that uses gradients, at every step, on every network of the parity test that suits it."""
    names = set()
    for case, algorithm, mixing, problem, lr in worker_parity.cases(SIZE):
        name = case.partition(",")[0]
        if not isinstance(problem, Quadratic) or algorithm.about.family == "gossip":
            continue
        if algorithm.about.samples:
            refused(
                lambda one=algorithm, net=mixing: Decentralized(Model(), one, net, lr=LR), "chosen samples", "PushPull"
            )
            names.add(name)
            continue
        model, loss = Model(), Loss(problem)
        optimizer = Decentralized(model, algorithm, mixing, lr=lr, seed=SEED)
        seen = [optimizer.algorithm_state.x]
        while optimizer.steps < STEPS:
            trained(optimizer, model, loss, 1)
            if optimizer.steps == len(seen):  # a step may take several gradients
                seen.append(optimizer.algorithm_state.x)
        optimizer.close()
        off = float((torch.stack(seen) - simulated(algorithm, mixing=mixing, lr=lr, problem=problem)).abs().max())
        assert off <= 1e-12, (case, off)
        names.add(name)
    assert set(ALGORITHMS) - names == {"push_sum", "pull_diag"}  # these average; they are no optimizers


def check_graphs_of_networkx_and_scipy():
    graph = topologies.random_digraph(SIZE, seed=1)
    expected = simulated(perron.PushPull(), mixing=Mixing.uniform(graph))
    for given in (graph, graph.to_networkx(), graph.adjacency(), [graph.to_networkx(), graph]):
        model = Model()
        optimizer = Decentralized(model, perron.PushPull(), given, lr=LR)
        close(trained(optimizer, model, Loss()), expected)
        optimizer.close()


def check_points_that_are_not_the_model():
    algorithm = ALGORITHMS["abn"]  # the gradient is taken ahead of x
    model = Model()
    optimizer = Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED)
    trained(optimizer, model, Loss())
    close(optimizer.algorithm_state.x, simulated(algorithm)[-1])
    close(model.x().detach(), optimizer.algorithm_state.ahead)
    optimizer.close()


def check_several_gradients_in_a_step():
    algorithm = ALGORITHMS["focus_sampled"]  # three local steps in a round
    model = Model()
    optimizer = Decentralized(model, algorithm, MIXING, lr=LR / SIZE, seed=SEED)
    loss = Loss()
    trained(optimizer, model, loss, 3 * STEPS)
    assert optimizer.steps == STEPS
    close(optimizer.algorithm_state.x, simulated(algorithm, lr=LR / SIZE)[-1])
    trained(optimizer, model, loss, 1)
    refused(optimizer.state_dict, "in the middle of a step (1 of")
    trained(optimizer, model, loss, 2)
    optimizer.close()


def check_schedulers():
    model = Model()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    loss = Loss()
    for _ in range(STEPS):
        trained(optimizer, model, loss, 1)
        scheduler.step()
    close(model.x().detach(), simulated(perron.PushPull(), lr=lambda step: LR * 0.5 ** (step // 3))[-1])
    optimizer.close()


def check_parameter_groups():
    model = Model()
    groups = [{"params": [model.first], "lr": 0.02}, {"params": [model.second], "lr": 0.08}]
    optimizer = Decentralized(groups, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    rates = torch.tensor([0.02, 0.02, 0.08], dtype=torch.float64)
    close(trained(optimizer, model, Loss()), simulated(perron.PushPull(), lr=rates))
    refused(lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}), "make a new one")
    optimizer.close()


def check_weight_decay_is_tracked():
    model = Model()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, weight_decay=0.3, seed=SEED)
    hessians = PROBLEM.hessians + 0.3 * torch.eye(3, dtype=torch.float64)
    centers = torch.linalg.solve(hessians, PROBLEM.offsets)
    decayed = Quadratic(hessians, centers, noise_std=0.3)
    close(trained(optimizer, model, Loss()), simulated(perron.PushPull(), problem=decayed))
    optimizer.close()


def check_accumulation_and_closures():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            loss(model.x(), share=0.5).backward()
        optimizer.step()
        loss.draw += 1

    def closure():
        optimizer.zero_grad(set_to_none=False)
        value = loss(model.x())
        value.backward()
        return value

    for _ in range(6):
        assert optimizer.step(closure).ndim == 0
        loss.draw += 1
    close(model.x().detach(), simulated(perron.PushPull())[-1])
    optimizer.close()


def check_large_models_travel_unfused():
    exchange.FUSE_BELOW, before = 8, exchange.FUSE_BELOW
    model = Model()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    close(trained(optimizer, model, Loss()), simulated(perron.PushPull()))
    optimizer.close()
    exchange.FUSE_BELOW = before


def check_quantized_messages():
    for wire in ("bf16", "int8", "int4"):
        model = Model()
        optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED, wire=wire)
        given = {"problem": PROBLEM, "algorithm": perron.PushPull(), "mixing": MIXING}
        simulation = Simulation(**given, lr=LR, seed=SEED, wire=wire)
        theirs = torch.stack([now.state.x[0, RANK] for now in simulation.iterates(STEPS)])
        close(trained(optimizer, model, Loss()), theirs)
        y, grad = optimizer.algorithm_state.y, optimizer.algorithm_state.grad
        total = torch.stack([y, grad])
        dist.all_reduce(total)
        close(total[0], total[1])  # no mass is lost
        optimizer.close()


def check_state_dict_resumes_bit_for_bit():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    trained(optimizer, model, loss, 5)
    saved, drawn = optimizer.state_dict(), loss.draw
    whole = trained(optimizer, model, loss, 7)
    optimizer.close()
    other, loss = Model(), Loss()
    again = Decentralized(other, perron.PushPull(), MIXING, lr=0.9, seed=SEED)
    trained(again, other, loss, 2)  # loading in the middle of another training
    again.load_state_dict(saved)
    loss.draw = drawn
    assert torch.equal(trained(again, other, loss, 7), whole)
    assert again.param_groups[0]["lr"] == LR
    saved["perron"]["node"] = 99
    refused(lambda: again.load_state_dict(saved), "node 99")
    refused(lambda: again.load_state_dict({"state": {}}), "no entry 'perron'")
    wider = Decentralized(nn.Linear(3, 3).double(), perron.PushPull(), MIXING, lr=0.9, seed=SEED)
    saved["perron"]["node"] = RANK
    refused(lambda: wider.load_state_dict(saved), "does not fit this model")
    again.close()


def check_resuming_where_the_gradient_is_taken_elsewhere():
    for name in ("abn", "subgradient_push", "d_dngt"):
        algorithm, lr = (
            ALGORITHMS[name],
            LR / (SIZE if measure_traits(ALGORITHMS[name]).effective.startswith("n") else 1),
        )
        model, loss = Model(), Loss()
        optimizer = Decentralized(model, algorithm, MIXING, lr=lr, seed=SEED)
        trained(optimizer, model, loss, 5)
        saved, drawn = optimizer.state_dict(), loss.draw
        whole = trained(optimizer, model, loss, 4)
        optimizer.close()
        other, loss = Model(), Loss()
        again = Decentralized(other, algorithm, MIXING, lr=lr, seed=SEED)
        again.load_state_dict(saved)
        loss.draw = drawn
        assert torch.equal(trained(again, other, loss, 4), whole), name
        again.close()


def check_an_optimizer_that_is_dropped():
    """Without close(), as in a notebook: its messages in flight must not stall those of the next one."""
    for size in (3, 200_000):  # large messages are sent only when their receive has been posted
        for _ in range(3):
            model = nn.Linear(size, 1, bias=False)
            optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=1e-6, timeout=20)
            for step in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, size)).sum().backward()
                if step == 2 and RANK % 2 == 0:
                    time.sleep(0.5)  # the others drop theirs before the messages of this step arrive
                optimizer.step()
            del model, optimizer
            gc.collect()
        model, optimizer = Model(), None
        gc.collect()
        optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED, timeout=20)
        close(trained(optimizer, model, Loss()), simulated(perron.PushPull()))
        optimizer.close()


def check_buffers_go_at_once():
    model = nn.Linear(100, 100)
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=0.01)
    gc.disable()
    counts = []
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        counts.append(sum(isinstance(one, torch.Tensor) and one.numel() == 10_100 for one in gc.get_objects()))
    gc.enable()
    assert counts[-1] <= counts[4] + 1, counts
    optimizer.close()


def check_averaged_statistics_of_large_means():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = Decentralized(model, perron.PushPull(), "exponential", lr=0.1)
    model[1].running_mean.fill_(1234.57)
    model[1].running_var.fill_(0.001)
    with optimizer.averaged_model():
        close(model[1].running_var, torch.full((2,), 0.001), 1e-6)
    optimizer.close()


def check_what_averaged_model_refuses():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    trained(optimizer, model, loss, 3)
    own = model.x().detach().clone()
    with optimizer.averaged_model():
        refused(optimizer.step, "leave averaged_model()")
        refused(optimizer.state_dict, "leave averaged_model()")
    try:
        with optimizer.averaged_model():
            raise KeyError("in the middle")
    except KeyError:
        pass
    assert torch.equal(model.x(), own)
    trained(optimizer, model, loss, 2)
    optimizer.close()


def check_frozen_parameters_stay():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].weight.requires_grad_(False)
    optimizer = Decentralized(model, perron.PushPull(), "exponential", lr=0.1, weight_decay=0.5)
    before = model[0].weight.clone()
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert torch.equal(model[0].weight, before)
    optimizer.close()


def check_join_with_several_gradients_in_a_step():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, ALGORITHMS["focus_sampled"], MIXING, lr=LR / SIZE, seed=SEED)
    with optimizer.join(6):
        trained(optimizer, model, loss, 6)
    assert optimizer.steps == 2
    optimizer.close()


def check_an_old_graph_is_an_error():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    value = (model.second * model.second).sum()
    trained(optimizer, model, loss, 1)
    try:
        value.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        raise AssertionError
    optimizer.close()


def check_averaged_model():
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = Decentralized(model, perron.PushPull(), "exponential", lr=0.1)
    data = [torch.randn(32, 4) * (1 + RANK) + RANK for _ in range(4)]
    for batch in data:
        optimizer.zero_grad()
        (model(batch) ** 2).mean().backward()
        optimizer.step()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with optimizer.averaged_model():
        averaged = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(torch.equal(own[name], value) for name, value in model.state_dict().items())
    everybody = [torch.empty_like(own["1.running_mean"]) for _ in range(SIZE)]
    variances = [torch.empty_like(own["1.running_var"]) for _ in range(SIZE)]
    dist.all_gather(everybody, own["1.running_mean"])
    dist.all_gather(variances, own["1.running_var"])
    means, variances = torch.stack(everybody), torch.stack(variances)
    close(averaged["1.running_mean"], means.mean(0), 1e-5)
    close(averaged["1.running_var"], variances.mean(0) + means.var(0, correction=0), 1e-3)  # of a mixture
    total = own["0.weight"].clone()
    dist.all_reduce(total)
    close(averaged["0.weight"], total / SIZE, 1e-6)
    trained_on = model(data[0]).detach()
    assert torch.isfinite(trained_on).all()
    optimizer.close()


def check_join_for_uneven_data():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    mine = 4 + 2 * RANK
    with optimizer.join(mine):
        trained(optimizer, model, loss, mine)
    assert optimizer.steps == 4 + 2 * (SIZE - 1)
    total = torch.stack([optimizer.algorithm_state.y, optimizer.algorithm_state.grad])
    dist.all_reduce(total)
    close(total[0], total[1])
    optimizer.close()


def check_guards():
    model = Model()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    before = model.first.data
    model.first.data = before.clone()
    refused(optimizer.step, "first is no longer where it was")
    model.first.data = before
    model.load_state_dict(Model(torch.ones(3, dtype=torch.float64)).state_dict())
    refused(optimizer.step, "optimizer.reset()")
    optimizer.reset()
    trained(optimizer, model, Loss(), 2)
    optimizer.close()
    refused(
        lambda: Decentralized(Model(), perron.PushPull(), Mixing.uniform(topologies.ring(SIZE + 1)), lr=LR),
        "nodes but the",
    )
    refused(lambda: Decentralized(Model(), perron.PushPull(), "rign", lr=LR), "no topology 'rign'")
    refused(lambda: Decentralized(Model(), perron.PushPull(), "ring", lr=LR, weights="even"), "no weight rule")
    refused(lambda: Decentralized(Model(), perron.PushPull(), "ring", lr=0.0), "lr > 0")
    refused(lambda: Decentralized(Model(), perron.PushPull(), "ring", lr=LR, wire="int2"), "'bf16', 'int8' or 'int4'")
    refused(lambda: Decentralized(Model(), ALGORITHMS["dsgd"], MIXING, lr=LR), "doubly stochastic")
    mixed = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.complex64))]
    refused(lambda: Decentralized(mixed, perron.PushPull(), "ring", lr=LR), "floating types", "complex64 on cpu")
    refused(lambda: Decentralized(Model(), ALGORITHMS["push_sum"], MIXING, lr=LR), "uses no gradients")


def check_processes_that_disagree():
    refused(
        lambda: Decentralized(Model(), perron.PushPull(order="pu" if RANK == 1 else "cta"), MIXING, lr=LR),
        "do not agree on the algorithm", "rank 1: PushPull(order='pu')",
    )  # fmt: skip
    odd = nn.Linear(3, 3) if RANK == SIZE - 1 else nn.Linear(3, 2)
    refused(
        lambda: Decentralized(odd, perron.PushPull(), "ring", lr=LR),
        "the parameters' shapes",
        f"rank {SIZE - 1}: [[3, 3]",
    )
    refused(
        lambda: Decentralized(Model(), perron.PushPull(), "random_digraph", lr=LR, seed=RANK),
        "do not agree on the network",
    )
    refused(lambda: Decentralized(Model(), perron.PushPull(), MIXING, lr=LR * (1 + RANK)), "the parameter groups")
    norm = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False, track_running_stats=RANK > 0))
    refused(lambda: Decentralized(norm, perron.PushPull(), "ring", lr=LR), "the buffers")
    half = nn.Linear(3, 2).to(torch.float64 if RANK else torch.float32)
    refused(lambda: Decentralized(half, perron.PushPull(), "ring", lr=LR), "the parameters' type")


def check_gradients_that_are_not_finite():
    model = Model()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    loss = Loss()
    trained(optimizer, model, loss, 2)
    for parameter in model.parameters():
        parameter.grad.fill_(float("nan"))
    refused(optimizer.step, f"Node {RANK}: the gradient of step 2 is not finite")
    optimizer.close()
    model = Model()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED, nonfinite="skip")
    for step in range(10):
        optimizer.zero_grad()
        loss(model.x() * (float("nan") if step == 4 and RANK == 0 else 1)).backward()
        optimizer.step()
    assert torch.isfinite(model.x()).all()
    optimizer.close()


def check_mixed_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = Decentralized(model, perron.PushPull(), "exponential", lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(RANK))
    target = data.sum(1, keepdim=True)
    first = last = 0.0
    for step in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = ((model(data) - target).float() ** 2).mean()
        scaler.scale(loss * (float("inf") if step in (7, 30) and RANK == 1 else 1.0)).backward()
        if step > 20:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 100.0, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
        first, last = first or loss.item(), loss.item()
    assert last < first / 4, (first, last)
    assert optimizer.steps == 60
    optimizer.close()


def check_clipping():
    model, loss = Model(), Loss()
    optimizer = Decentralized(model, perron.PushPull(), MIXING, lr=LR, seed=SEED)
    for _ in range(5):
        optimizer.zero_grad()
        loss(model.x()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    assert float(optimizer.last.norm()) <= 0.01 + 1e-9
    optimizer.close()


if __name__ == "__main__":
    run_group(globals())
