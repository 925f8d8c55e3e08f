"""One process of the tests of moves and inner optimizers: plain PyTorch code, check by check. Started by test_inner.py."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import torch
from processes import run_group
from strategies import milder
from worker_training import (
    FOLDER,
    LR,
    MIXING,
    PROBLEM,
    RANK,
    SEED,
    SIZE,
    STEPS,
    Loss,
    Model,
    close,
    refused,
    simulated,
    trained,
)

from perron import ALGORITHMS, AdamW, Clipped, Mixing, Momentum, PushPull, Simulation
from perron.algorithms.moves import Descent, Move, Moving
from perron.distributed.checkpoint import load, save
from perron.distributed.optimizer import Decentralized
from perron.networks import topologies

ADAMW = AdamW(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
MOVES = [Momentum(), Momentum(momentum=0.5, nesterov=True), ADAMW, Clipped(ADAMW, norm=0.4)]


def torch_adamw(groups):
    return torch.optim.AdamW(groups, lr=LR, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)


def network_for(algorithm):
    matrices, graph = algorithm.about.matrices, topologies.random_digraph(SIZE, seed=1)
    if matrices == "R C":
        return Mixing.spanning_trees(graph)
    if matrices.startswith("W"):
        return Mixing.metropolis(graph.symmetric())
    return MIXING


def stepped(optimizer, model, loss):
    """x before each step of the algorithm and at the end; a step may take several gradients."""
    seen = [model.x().detach().clone()]
    while optimizer.steps < STEPS:
        trained(optimizer, model, loss, 1)
        if optimizer.steps == len(seen):
            seen.append(model.x().detach().clone())
    return torch.stack(seen)


class PerNode(Move):
    """For the simulator: an optimizer of torch for every node."""

    scale_dependent, label = True, "torch"

    def __init__(self, make):
        self.make, self.optimizers = make, []

    def step(self, memory, x, u, _lr):
        rows, along = x.reshape(-1, x.shape[-1]), u.reshape(-1, x.shape[-1])
        if not self.optimizers:
            models = [Model(row) for row in rows]
            self.optimizers = [(model, self.make([{"params": list(model.parameters())}])) for model in models]
        moved = []
        for (model, optimizer), row, direction in zip(self.optimizers, rows, along, strict=True):
            model.first.data.copy_(row[:2].view(1, 2))
            model.second.data.copy_(row[2:])
            model.first.grad, model.second.grad = direction[:2].clone().view(1, 2), direction[2:].clone()
            optimizer.step()
            moved.append(model.x().detach() - row)
        return torch.stack(moved).view_as(x), memory


def check_moves_equal_the_simulator():
    """Every algorithm that takes a move, with every move, on fixed and time-varying networks."""
    varying = Mixing.random_integer([topologies.ring(SIZE), topologies.random_digraph(SIZE, seed=5)], seed=4)
    for name, algorithm in ALGORITHMS.items():
        if not isinstance(algorithm, Moving):
            continue
        fixed = network_for(algorithm)
        for mixing in [fixed, varying] if fixed is MIXING else [fixed]:
            for move in MOVES:
                moving, model = replace(milder(algorithm, outer_lr=0.1), move=move), Model()
                optimizer = Decentralized(model, moving, mixing, lr=LR, seed=SEED)
                seen = stepped(optimizer, model, Loss())
                optimizer.close()
                off = float((seen - simulated(moving, mixing=mixing)).abs().max())
                assert off <= 1e-12, (name, move, off)


def check_an_inner_optimizer_is_the_move_of_the_same_name():
    for order in ("cta", "pu", "atc"):
        model = Model()
        optimizer = Decentralized(model, PushPull(order=order), MIXING, inner=torch_adamw, seed=SEED)
        close(trained(optimizer, model, Loss()), simulated(PushPull(order=order, move=ADAMW)))
        optimizer.close()


def check_inner_optimizers_equal_the_simulator():
    """Any optimizer of torch: the simulator has an instance of it for every node."""
    makers = [
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        partial(torch.optim.NAdam, lr=0.02), partial(torch.optim.RMSprop, lr=0.02), partial(torch.optim.Adagrad, lr=0.02),
        partial(torch.optim.Adamax, lr=0.02), partial(torch.optim.RAdam, lr=0.02), partial(torch.optim.Rprop, lr=0.02),
        partial(torch.optim.Adadelta, lr=0.5), partial(torch.optim.AdamW, lr=0.02, amsgrad=True, foreach=True),
    ]  # fmt: skip
    for make in makers:
        for algorithm in (PushPull(), ALGORITHMS["add_opt"], ALGORITHMS["frost"], ALGORITHMS["sgp"]):
            model = Model()
            optimizer = Decentralized(model, algorithm, MIXING, inner=make, seed=SEED)
            assert optimizer.param_groups is optimizer.inner.param_groups
            seen = trained(optimizer, model, Loss())
            optimizer.close()
            off = float((seen - simulated(replace(algorithm, move=PerNode(make)))).abs().max())
            assert off <= 1e-12, (make, algorithm, off)


def check_rounds_equal_the_simulator():
    varying = Mixing.random_integer([topologies.ring(SIZE), topologies.random_digraph(SIZE, seed=5)], seed=4)
    for algorithm in (*(PushPull(order=order, move=ADAMW) for order in ("cta", "pu", "atc")), ALGORITHMS["add_opt"]):
        for mixing in (MIXING, varying):
            model = Model()
            optimizer = Decentralized(model, algorithm, mixing, lr=LR, seed=SEED, rounds=3)
            seen = trained(optimizer, model, Loss())
            assert optimizer.steps == STEPS
            optimizer.close()
            one = Simulation(problem=PROBLEM, algorithm=algorithm, mixing=mixing, lr=LR, seed=SEED, rounds=3)
            close(seen, torch.stack([now.state.x[0, RANK] for now in one.iterates(STEPS)]))
    refused(lambda: Decentralized(Model(), PushPull(), MIXING, lr=LR, rounds=0), "exchanges in a step")


def check_clip_limits_the_direction():
    for options, move in (
        ({"lr": LR, "clip": 0.1}, Clipped(Descent(), norm=0.1)),
        ({"inner": torch_adamw, "clip": 0.1}, Clipped(ADAMW, norm=0.1)),
    ):
        model = Model()
        optimizer = Decentralized(model, PushPull(), MIXING, seed=SEED, **options)
        close(trained(optimizer, model, Loss()), simulated(PushPull(move=move)))
        optimizer.close()


def check_groups_schedulers_and_gradients_of_an_inner_optimizer():
    """As torch users expect: per-group settings, a scheduler of torch, and p.grad is the user's."""
    model = Model()
    groups = [{"params": [model.first], "lr": 0.1, "weight_decay": 0.0}, {"params": [model.second]}]
    optimizer = Decentralized(groups, PushPull(), MIXING, inner=torch_adamw, seed=SEED)
    assert [one["lr"] for one in optimizer.param_groups] == [0.1, LR]
    assert [one["weight_decay"] for one in optimizer.param_groups] == [0.0, 0.1]
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.05], total_steps=STEPS + 1)
    loss = Loss()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model.x()).backward()
        before = [param.grad.clone() for param in model.parameters()]
        optimizer.step()
        assert all(torch.equal(param.grad, old) for param, old in zip(model.parameters(), before, strict=True))
        scheduler.step()
        loss.draw += 1

    def make(groups):
        params = list(groups[0]["params"])
        return torch.optim.AdamW(
            [{"params": params[:1], "lr": 0.1, "weight_decay": 0.0}, {"params": params[1:]}],
            lr=LR, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1,
        )  # fmt: skip

    class Scheduled(PerNode):
        def step(self, *args):
            result = super().step(*args)
            for one in self.schedulers:
                one.step()
            return result

    move = Scheduled(make)
    models = [Model() for _ in range(SIZE)]
    move.optimizers = [(one, make([{"params": list(one.parameters())}])) for one in models]
    schedule = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=[0.1, 0.05], total_steps=STEPS + 1)
    move.schedulers = [schedule(one) for _, one in move.optimizers]
    close(model.x().detach(), simulated(PushPull(move=move))[-1])
    optimizer.close()


def check_state_dict_has_the_inner_state_and_resumes_bit_for_bit():
    def made(model):
        return Decentralized(model, PushPull(), MIXING, inner=torch_adamw, seed=SEED)

    model, loss = Model(), Loss()
    optimizer = made(model)
    trained(optimizer, model, loss, 5)
    state = optimizer.state_dict()
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert state["param_groups"][0]["betas"] == (0.8, 0.95)
    state = torch.load(_written(state), weights_only=True)
    wanted = trained(optimizer, model, loss, 5)
    optimizer.close()
    model, loss.draw = Model(), 5
    other = made(model)
    other.load_state_dict(state)
    assert other.param_groups is other.inner.param_groups
    assert other.state is other.inner.state
    assert torch.equal(trained(other, model, loss, 5), wanted)
    other.close()


def _written(state):
    path = FOLDER / f"state-{RANK}.pt"
    torch.save(state, path)
    return path


def check_checkpoints_have_the_moments():
    for case, options in (
        ("inner", {"inner": partial(torch.optim.AdamW, lr=LR)}),
        ("plain values", {"inner": partial(Counted, lr=LR)}),
        ("built in", {"lr": LR}),
    ):
        algorithm = PushPull() if "inner" in options else PushPull(move=Clipped(AdamW(), norm=0.5))
        model, loss, folder = Model(), Loss(), FOLDER / case
        optimizer = Decentralized(model, algorithm, MIXING, seed=SEED, **options)
        trained(optimizer, model, loss, 5)
        save(folder, optimizer)
        wanted = trained(optimizer, model, loss, 5)
        optimizer.close()
        model, loss.draw = Model(), 5
        other = Decentralized(model, algorithm, MIXING, seed=SEED, **options)
        assert load(folder, other).step == 5
        assert torch.equal(trained(other, model, loss, 5), wanted), case
        other.close()


class Counted(torch.optim.Optimizer):
    """An optimizer with a state that is no tensor: sign descent with a step that falls with its count."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, _closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                count = self.state[param].get("count", 0) + 1
                self.state[param]["count"] = count
                param.sub_(group["lr"] / count * param.grad.sign())


def check_reset_forgets_the_moments():
    for options in ({"inner": torch_adamw}, {"lr": LR}):
        algorithm = PushPull() if "inner" in options else PushPull(move=ADAMW)
        model, loss = Model(), Loss()
        optimizer = Decentralized(model, algorithm, MIXING, seed=SEED, **options)
        trained(optimizer, model, loss, 5)
        optimizer.set_parameters(torch.zeros(3, dtype=torch.float64))
        optimizer.node.step = loss.draw = 0
        close(trained(optimizer, model, loss), simulated(PushPull(move=ADAMW)))
        optimizer.close()


def check_what_is_refused():
    make = partial(Decentralized, graph=MIXING)
    refused(lambda: make(Model()), "pass lr=, or an optimizer of torch as inner=")
    refused(lambda: make(Model(), inner=torch_adamw, lr=0.1), "give lr and weight_decay to that optimizer")
    refused(lambda: make(Model(), inner=partial(torch.optim.LBFGS, lr=0.1)), "LBFGS evaluates the loss several times")
    refused(lambda: make(Model(), inner=torch.optim.SGD(Model().parameters(), lr=0.1)), "inner= is a function", "SGD")
    refused(lambda: make(Model(), inner=lambda _: torch.optim.SGD(Model().parameters(), lr=0.1)), "other parameters")
    refused(lambda: make(Model(), inner=lambda _: 3), "it returned int")
    refused(lambda: make(Model(), ALGORITHMS["extra"], inner=torch_adamw), "EXTRA does not", "PushPull")
    refused(lambda: make(Model(), ALGORITHMS["abm"], lr=0.1, clip=1.0), "clip= needs an algorithm")
    refused(lambda: make(Model(), PushPull(move=Momentum()), inner=torch_adamw), "either inner= or move=")
    refused(lambda: make(Model(), PushPull(move=AdamW()), lr=0.1, weight_decay=0.1), "move=AdamW(weight_decay=0.1)")
    refused(lambda: make(Model(), lr=0.1, clip=-1.0), "norm > 0")
    model = Model()
    groups = [{"params": [model.first], "weight_decay": 0.1}, {"params": [model.second]}]
    refused(lambda: make(groups, PushPull(move=Clipped(AdamW(), norm=1.0)), lr=0.1), "move=AdamW(weight_decay=0.1)")
    refused(lambda: make(Model(), lr=0.1, rounds=2, wire="bf16"), "wire=None")


def check_nodes_with_different_settings_are_refused():
    rate = 0.1 if RANK else 0.2
    refused(
        lambda: Decentralized(Model(), PushPull(), MIXING, inner=partial(torch.optim.AdamW, lr=rate)),
        "do not agree on the parameter groups", "lr",
    )  # fmt: skip
    kind = torch.optim.AdamW if RANK else torch.optim.NAdam
    refused(
        lambda: Decentralized(Model(), PushPull(), MIXING, inner=partial(kind, lr=0.1)), "do not agree on the algorithm"
    )


def check_inner_optimizers_that_are_freed():
    """Nothing keeps an optimizer and its model alive after both are dropped."""
    model = Model()
    optimizer = Decentralized(model, PushPull(), MIXING, inner=torch_adamw, clip=1.0, seed=SEED)
    trained(optimizer, model, Loss(), 2)
    optimizer.close()
    dropped = weakref.ref(optimizer.inner), weakref.ref(model)
    del optimizer, model
    gc.collect()
    assert [one() for one in dropped] == [None, None]


if __name__ == "__main__":
    run_group(globals())
