"""One process of the tests of torch's contract: what users do with an optimizer of torch, done with `Decentralized`.

The docstring of a check is its row in docs/howto/optimizer_contract.md: what is done | "works" or "error" | a remark. Where it
works, the reference is torch's optimizer with the mean gradient of all nodes: Push-Pull in the order atc, with equal weights on a
complete graph, is that. Started by test_contract.py with two nodes.
"""

import copy
import pickle
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as torch_checkpoint
from processes import refused, run_group
from schedules import SCHEDULES, STEPS
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from perron import Decentralized, PushPull

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
adamw = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)
make = partial(Decentralized, algorithm=PushPull(order="atc"), graph="complete")


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def batch(step):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(100 * step + RANK), dtype=torch.float64)


def backward(model, step, scale=1.0):
    loss = model(batch(step)).square().mean() * scale
    loss.backward()
    return loss.detach()


class Pair:
    """A model of `Decentralized`, and a twin that torch trains with the mean gradient of all nodes."""

    def __init__(self, inner=sgd, build=network, given=lambda model: list(model.parameters()), **options):
        self.models = build(), build()
        groups = [given(model) for model in self.models]
        self.ours = make(groups[0], inner=inner, **options)
        self.theirs = inner(groups[1])

    def grads(self, step, backward=backward):
        """Gradients of both; those of the twin are averaged. Return its loss, averaged too."""
        for model, optimizer in zip(self.models, (self.ours, self.theirs), strict=True):
            optimizer.zero_grad()
            loss = backward(model, step)
        for param in self.models[1].parameters():
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= SIZE
        dist.all_reduce(loss)
        return loss / SIZE

    def step(self, step):
        loss = self.grads(step)
        self.ours.step()
        self.theirs.step()
        return loss

    def compare(self, tolerance=1e-12):
        for (name, ours), theirs in zip(self.models[0].named_parameters(), self.models[1].parameters(), strict=True):
            assert not ours.numel() or float((ours - theirs).abs().max()) <= tolerance, (name, ours, theirs)

    def finish(self, tolerance=1e-12):
        self.compare(tolerance)
        self.ours.close()

    def run(self, steps=STEPS, each=lambda step, loss: None):
        for step in range(steps):
            each(step, self.step(step))
        self.finish()


def after_a_step(change, *words, given=lambda model: model, build=network, **options):
    """Change something after the first step: the next one is an error that has these words."""
    model = build()
    optimizer = make(given(model), **options or {"lr": 0.1})
    backward(model, 0)
    optimizer.step()
    change(model, optimizer)
    refused(optimizer.step, *words)
    assert optimizer.steps == 1
    return model, optimizer


# ---- settings


def check_parameter_groups():
    """Parameter groups with options of their own | works | with `inner=`, all of that optimizer's options; else
    `lr` and `weight_decay`"""

    def groups(model):
        first, second = list(model[0].parameters()), list(model[2].parameters())
        return [{"params": first, "lr": 0.1, "betas": (0.5, 0.9)}, {"params": second, "weight_decay": 0.0}]

    Pair(adamw, given=groups).run()


def check_named_parameters():
    """`model.named_parameters()` instead of `model.parameters()` | works | errors then have the names"""
    Pair(given=lambda model: list(model.named_parameters())).run()


def check_learning_rate_by_hand():
    """Changing `param_groups[i]["lr"]`, or another option, by hand | works | on every node alike"""

    def change(pair, step, _):
        for optimizer in (pair.ours, pair.theirs):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.param_groups[0]["momentum"] = 0.5

    pair = Pair()
    pair.run(each=partial(change, pair))


def check_tensor_learning_rate():
    """A learning rate that is a tensor | works |"""
    Pair(partial(torch.optim.AdamW, lr=torch.tensor(0.02, dtype=torch.float64))).run()


def check_schedulers():
    """Every scheduler of `torch.optim.lr_scheduler`, and `SWALR` | works | `OneCycleLR` and `CyclicLR` cycle the
    momentum of an `inner=` that has one; `ReduceLROnPlateau` needs the same loss on every node"""
    assert set(lr_scheduler.__all__) - {"LRScheduler"} == set(SCHEDULES) - {"SWALR"}
    for name, schedule in SCHEDULES.items():
        pair, changed = Pair(), set()
        schedulers = [schedule(one) for one in (pair.ours, pair.theirs)]
        for step in range(STEPS):
            loss = pair.step(step)
            for one in schedulers:
                one.step(*([float(loss)] if name == "ReduceLROnPlateau" else []))
            assert pair.ours.param_groups[0]["lr"] == pair.theirs.param_groups[0]["lr"], name
            assert pair.ours.param_groups[0]["momentum"] == pair.theirs.param_groups[0]["momentum"], name
            changed.add(pair.ours.param_groups[0]["lr"])
        assert len(changed) > 1, name
        pair.finish()


def check_cycled_momentum_without_inner():
    """`OneCycleLR` or `CyclicLR` with `cycle_momentum=True` and no `inner=` | error | torch's: the optimizer has no
    momentum"""
    optimizer = make(network(), lr=0.1)
    cycle = partial(lr_scheduler.OneCycleLR, optimizer, 0.1, total_steps=4)
    refused(cycle, "must support momentum or beta1", kind=ValueError)
    cycle(cycle_momentum=False)
    optimizer.close()


def check_averaged_copies():
    """`swa_utils.AveragedModel`, as SWA or with `get_ema_multi_avg_fn` | works | it averages this node's model over
    time"""
    for options in ({}, {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.5)}):
        pair = Pair()
        averages = [swa_utils.AveragedModel(model, **options) for model in pair.models]
        for step in range(STEPS):
            pair.step(step)
            for average, model in zip(averages, pair.models, strict=True):
                average.update_parameters(model)
        for ours, theirs in zip(*(average.parameters() for average in averages), strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
        pair.finish()


def check_implementations():
    """`foreach=`, `fused=`, `maximize=` of an `inner=` | works | `capturable=` needs a GPU, as in torch"""
    for options in ({"foreach": True}, {"fused": True}, {"maximize": True}):
        Pair(partial(adamw, **options)).run()
    model = network()
    optimizer = make(model, inner=partial(adamw, capturable=True, foreach=False))
    backward(model, 0)
    refused(optimizer.step, "capturable=True", kind=(AssertionError, RuntimeError))
    refused(optimizer.step, "ended with an error")


def check_differentiable():
    """`differentiable=True` of an `inner=` | error |"""
    refused(lambda: make(network(), inner=partial(adamw, differentiable=True)), "differentiable=True")


def check_other_optimizers():
    """`Adagrad`, `ASGD`, `Muon`, ... as `inner=` | works | all of torch's but `LBFGS` and `SparseAdam`, in every
    configuration of torch's own tests"""
    for inner in (torch.optim.ASGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adafactor):
        Pair(partial(inner, lr=0.01)).run()
    Pair(
        partial(torch.optim.Muon, lr=0.01), build=lambda: nn.Sequential(network()[0]).requires_grad_(), given=matrices
    ).run()


def matrices(model):
    model[0].bias.requires_grad_(False)
    return [model[0].weight]


def check_closures_inside():
    """`LBFGS` as `inner=` | error | it evaluates the loss several times in a step"""
    refused(lambda: make(network(), inner=torch.optim.LBFGS), "evaluates the loss several times")
    refused(lambda: make(network(), inner=torch.optim.SparseAdam), "sparse gradients only")


# ---- steps


def check_closures():
    """`step(closure)` | works | the closure is called once, and its loss returned"""
    pair = Pair()
    for step in range(STEPS):
        pair.grads(step)

        def closure(step=step):
            pair.ours.zero_grad()
            return backward(pair.models[0], step)

        assert pair.ours.step(closure).ndim == 0
        pair.theirs.step()
    pair.finish()


def check_zero_grad():
    """`zero_grad(set_to_none=True or False)` | works |"""
    for to_none in (True, False):
        pair = Pair()
        pair.step(0)
        pair.ours.zero_grad(set_to_none=to_none)
        assert all((param.grad is None) == to_none for param in pair.models[0].parameters())
        assert to_none or not any(param.grad.any() for param in pair.models[0].parameters())
        pair.run()


def check_accumulation():
    """Gradient accumulation: several `backward()` before a step | works |"""
    pair = Pair()
    for step in range(STEPS):
        pair.grads(step, lambda model, step: backward(model, step, 0.5) + backward(model, step + 50, 0.5))
        pair.ours.step()
        pair.theirs.step()
    pair.finish()


def check_clipping():
    """`clip_grad_norm_` before `step()` | works | what is tracked are clipped gradients, biased where data differ, and a
    warning in the log says so; `clip=` clips the direction"""

    def clipped(model, step):
        loss = backward(model, step)
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
        return loss

    pair = Pair()
    for step in range(STEPS):
        pair.grads(step, clipped)
        pair.ours.step()
        pair.theirs.step()
    pair.finish()


def check_grad_scaler():
    """`GradScaler`, with or without `unscale_` | works | each node has its own; a node with an overflow steps with
    its last gradient"""
    for unscale in (False, True):
        pair = Pair()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for step in range(STEPS):
            pair.grads(step)
            pair.ours.zero_grad()
            scaler.scale(pair.models[0](batch(step)).square().mean()).backward()
            if unscale:
                scaler.unscale_(pair.ours)
            scaler.step(pair.ours)
            scaler.update()
            pair.theirs.step()
        assert scaler.get_scale() == 1024.0 * 2 ** (STEPS // 2)
        pair.compare()
        before = [param.detach().clone() for param in pair.models[0].parameters()]
        pair.ours.zero_grad()
        scaler.scale(pair.models[0](batch(0)).square().mean() * (float("inf") if RANK == 0 else 1.0)).backward()
        scaler.step(pair.ours)
        scaler.update()
        assert pair.ours.skipped == (RANK == 0)
        assert (scaler.get_scale() == 1024.0 * 2 ** (STEPS // 2 - 1)) == (RANK == 0)
        assert all(torch.isfinite(param).all() for param in pair.models[0].parameters())
        assert not torch.equal(before[0], next(pair.models[0].parameters()))
        pair.ours.close()


def check_autocast():
    """`torch.autocast` | works |"""

    def cast(model, step):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch(step).float()).float().square().mean()
        loss.backward()
        return loss.detach()

    pair = Pair(build=lambda: network().float())
    for step in range(STEPS):
        pair.grads(step, cast)
        pair.ours.step()
        pair.theirs.step()
    pair.finish(1e-5)


def check_step_hooks():
    """`register_step_pre_hook`, `register_step_post_hook` | works | hooks of all optimizers
    (`register_optimizer_step_pre_hook`) run for the `inner=` one, too"""
    pair, calls = Pair(), []
    pair.ours.register_step_pre_hook(lambda one, args, kwargs: calls.append(("before", one.steps)))
    pair.ours.register_step_post_hook(lambda one, args, kwargs: calls.append(("after", one.steps)))
    pair.run(2)
    assert calls == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]


def check_two_optimizers():
    """Two optimizers in a process, as of a GAN | works | step them in the same order on every node"""
    one, two = Pair(), Pair(adamw)
    for step in range(STEPS):
        one.step(step)
        two.step(step)
    one.finish()
    two.finish()


def check_an_error_in_a_step():
    """An exception inside `inner=` during a step | error | this and every later step; neighbors time out"""

    class Broken(torch.optim.SGD):
        def step(self, _closure=None):
            raise ZeroDivisionError

    model = network()
    optimizer = make(model, inner=partial(Broken, lr=0.1))
    backward(model, 0)
    refused(optimizer.step, kind=ZeroDivisionError)
    refused(optimizer.step, "ended with an error", "ZeroDivisionError")


# ---- states


def check_state_dict():
    """`state_dict()`, `load_state_dict()` | works | bit for bit; each node has its own, so save one for each
    (`perron.distributed.checkpoint` does)"""
    pair = Pair(adamw)
    pair.step(0)
    path = FOLDER / f"{RANK}.pt"
    torch.save(pair.ours.state_dict(), path)
    weights = copy.deepcopy(pair.models[0].state_dict())
    pair.step(1)
    model = network(5)
    optimizer = make(list(model.parameters()), inner=partial(adamw, lr=1.0))
    optimizer.load_state_dict(torch.load(path, weights_only=True))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    backward(model, 1)
    optimizer.step()
    assert all(torch.equal(*both) for both in zip(model.parameters(), pair.models[0].parameters(), strict=True))
    optimizer.close()
    pair.run()


def check_state_dict_hooks():
    """`register_state_dict_pre_hook`, `..._post_hook`, `register_load_state_dict_pre_hook`, `..._post_hook` | works
    | they see the entry `perron`"""
    for options in ({"lr": 0.1}, {"inner": adamw}):
        optimizer, calls = make(network(), **options), []
        optimizer.register_state_dict_pre_hook(lambda one: calls.append("saving"))  # noqa: B023
        optimizer.register_state_dict_post_hook(lambda one, state: state | {"saved": "perron" in state})
        optimizer.register_load_state_dict_pre_hook(
            lambda one, state: calls.append(("perron" in state, state["saved"]))  # noqa: B023
        )
        optimizer.register_load_state_dict_pre_hook(lambda one, state: renamed(state))
        optimizer.register_load_state_dict_post_hook(lambda one: calls.append(one.param_groups[0]["lr"]))  # noqa: B023
        optimizer.load_state_dict(optimizer.state_dict())
        assert calls == ["saving", (True, True), 0.5], calls
        optimizer.close()


def renamed(state):
    state["param_groups"][0]["lr"] = 0.5
    return state


def check_copies():
    """`copy.deepcopy(optimizer)`, `pickle`, `torch.save(optimizer)` | error | it has connections; use `state_dict()`"""
    optimizer = make(network(), lr=0.1)
    for action in (copy.deepcopy, copy.copy, pickle.dumps, lambda one: torch.save(one, FOLDER / f"{RANK}.pt")):
        refused(lambda: action(optimizer), "state_dict()")  # noqa: B023
    optimizer.close()


def check_torch_checkpoints():
    """`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`, `get_state_dict`, `set_...` | error | use
    `perron.distributed.checkpoint`"""
    for options in ({"lr": 0.1}, {"inner": adamw}):
        for steps in (0, 1):
            model = network()
            optimizer = make(model, **options)
            if steps:
                backward(model, 0)
                optimizer.step()
            for get in (torch_checkpoint.get_optimizer_state_dict, torch_checkpoint.get_state_dict):
                refused(lambda: get(model, optimizer), "perron.distributed.checkpoint")  # noqa: B023
            state = {"state": {}, "param_groups": []}
            set_state = partial(torch_checkpoint.set_optimizer_state_dict, model, optimizer)
            refused(lambda: set_state(optim_state_dict=state), "perron.distributed.checkpoint")  # noqa: B023
            assert optimizer.steps == steps
            optimizer.close()


# ---- parameters


def check_add_param_group():
    """`add_param_group`, or editing the parameters of `param_groups` | error | make a new optimizer"""
    optimizer = make(network(), lr=0.1)
    refused(lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}), "make a new one")
    optimizer.close()
    after_a_step(lambda _, one: one.param_groups[0]["params"].pop(), "other parameters than")


def check_freezing():
    """Freezing or unfreezing parameters (`requires_grad_`) after construction | error | make a new optimizer;
    frozen before is fine"""
    after_a_step(lambda model, _: model[0].requires_grad_(False), "requires_grad was changed", "0.weight")
    pair = Pair(build=lambda: frozen(network()))
    pair.run()


def frozen(model):
    model[0].weight.requires_grad_(False)
    return model


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def check_tied_parameters():
    """Tied parameters: one `Parameter` in two layers | works | two parameters that share memory are refused"""
    torch.manual_seed(0)
    start = Tied().double()
    Pair(build=lambda: copy.deepcopy(start)).run()
    start.second.weight = nn.Parameter(start.first.weight.data)
    refused(lambda: make(start, lr=0.1), "share memory")
    refused(lambda: make([*Tied().parameters()] * 2, lr=0.1), "twice")


def check_parameters_without_gradient():
    """Parameters without gradient | works | as in torch, not moved if it never has one on any node; otherwise it
    counts as zero"""

    def unused(model, step):
        loss = backward(model, step)
        model[0].weight.grad = None
        return loss

    pair = Pair(adamw)
    start = pair.models[0][0].weight.detach().clone()
    for step in range(STEPS):
        pair.grads(step, unused)
        pair.ours.step()
        pair.theirs.step()
    assert torch.equal(pair.models[0][0].weight, start)
    assert pair.models[0][0].weight not in pair.ours.state or not pair.ours.state[pair.models[0][0].weight]
    pair.finish()


def check_types():
    """Parameters of `float64`, `float32`, `bfloat16`, `float16`, or several of them | works | those of 16 bits have
    a master copy of 32 bits"""
    for first, second in (
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
    ):
        model = nn.ParameterList([nn.Parameter(torch.ones(n, dtype=one)) for n, one in ((5000, first), (2, second))])
        optimizer = make(model, inner=partial(torch.optim.SGD, lr=2**-12))
        for _ in range(16):  # steps of 1/4096 are lost in bfloat16, their sum is not
            for param in model:
                param.grad = torch.ones_like(param)
            optimizer.step()
        for param, dtype in zip(model, (first, second), strict=True):
            assert param.dtype == dtype
            assert torch.equal(param, torch.full_like(param, 1 - 16 * 2**-12))
        optimizer.close()


def check_complex_parameters():
    """Complex parameters | error | keep real and imaginary part in two"""
    refused(lambda: make([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=0.1), "real floating types")


def check_channels_last():
    """Parameters in `channels_last` | works | the memory format is kept"""

    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Unflatten(1, (3, 1, 1)), nn.Conv2d(3, 8, 1), nn.Flatten()).double()

    pair = Pair(build=lambda: build().to(memory_format=torch.channels_last))
    strides = pair.models[0][1].weight.stride()
    pair.run()
    assert pair.models[0][1].weight.stride() == strides != build()[1].weight.contiguous().stride()


def check_sparse_gradients():
    """Sparse gradients | error | `nn.Embedding(..., sparse=False)`"""
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = make(model, lr=0.1)
    model(torch.tensor([1])).sum().backward()
    refused(optimizer.step, "a sparse one of weight")
    optimizer.close()


def check_empty_parameters():
    """Parameters of size zero | works |"""

    def build():
        model = network()
        model.register_parameter("empty", nn.Parameter(torch.zeros(0, 3, dtype=torch.float64)))
        return model

    Pair(build=build).run()


def check_meta_parameters():
    """Parameters on the `meta` device, or on several devices | error | materialize the model first"""
    refused(lambda: make(nn.Linear(2, 2, device="meta"), lr=0.1), "device that has memory", "meta")
    mixed = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, device="meta"))]
    refused(lambda: make(mixed, lr=0.1), "one device")


def check_moving_the_model():
    """`model.to(device)` or `model.to(dtype)` after construction | error | make the optimizer last"""
    after_a_step(lambda model, _: model.float(), "Make the optimizer last")
    after_a_step(lambda model, _: model.to("meta"), "ake")


def check_changing_values():
    """Changing values of parameters: in place, by `p.data.clamp_()`, `p.data = ...`, `model.load_state_dict()` |
    error | `optimizer.reset()` on every node makes them the new start"""

    def data(model, _):
        model[0].weight.data.view(-1)[3] += 1e-9

    def in_place(model, _):
        with torch.no_grad():
            model[0].weight.mul_(1.5)

    def loaded(model, _):
        model.load_state_dict(network(3).state_dict())

    def replaced(model, _):
        model[0].weight.data = model[0].weight.data.clone()

    def assigned(model, _):
        model.load_state_dict(network(3).state_dict(), assign=True)

    for change in (data, in_place, loaded):
        for given in (lambda model: model, lambda model: list(model.parameters())):
            model, optimizer = after_a_step(change, "was changed by something other", "optimizer.reset()", given=given)
            wanted = [param.detach().clone() for param in model.parameters()]
            optimizer.reset()
            assert all(torch.equal(*both) for both in zip(wanted, model.parameters(), strict=True))
            optimizer.zero_grad()
            backward(model, 1)
            optimizer.step()
            optimizer.close()
    after_a_step(data, "was changed by something other", build=lambda: nn.Sequential(nn.Linear(3, 2000)).double())
    after_a_step(replaced, "no longer where it was")
    after_a_step(assigned, "other parameters than")


def check_parametrizations():
    """`nn.utils.parametrize`, `weight_norm` | works | before the optimizer is made; afterwards an error, if it was
    given the model"""

    def normed():
        model = network()
        nn.utils.parametrizations.weight_norm(model[0])
        return model

    Pair(build=normed).run()
    after_a_step(lambda model, _: nn.utils.parametrizations.weight_norm(model[0]), "other parameters than")


def check_compiled_models():
    """`torch.compile(model)`, given before or after compiling | works |"""
    pair = Pair()
    compiled = torch.compile(pair.models[0], backend="eager")
    pair.models = compiled, pair.models[1]
    pair.run()
    model = torch.compile(network(), backend="eager")
    optimizer = make(model, lr=0.1)
    backward(model, 0)
    optimizer.step()
    optimizer.close()


def check_data_parallel():
    """`DistributedDataParallel` within a node | works | make the DDP module first; see examples/train_two_levels.py"""
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    pair = Pair()
    pair.ours.close()
    model = nn.parallel.DistributedDataParallel(network(), process_group=alone)
    pair.models = model, pair.models[1]
    pair.ours = make(model, inner=sgd)
    pair.run()


def check_data_parallel_over_nodes():
    """`DistributedDataParallel` over the nodes, as tools wrap models | error | `perron.init(isolate=True)`; see
    [training tools](clients.md)"""
    for first in (True, False):
        model = network()
        optimizer = None if first else make(model, inner=sgd)
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = optimizer or make(model, inner=sgd)
        backward(wrapped, 0)
        refused(optimizer.step, "averages the gradients of nodes 0, 1", "isolate=True")
        optimizer.close()


def check_sharded_parameters():
    """FSDP (`fully_shard`), tensor parallelism, any `DTensor` | error | each process needs its whole model"""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = DeviceMesh("cpu", list(range(SIZE)))
    refused(lambda: make(fully_shard(network(), mesh=mesh), lr=0.1), "whole, plain parameters", "FSDP")
    sharded = fully_shard(network(), mesh=mesh)
    refused(lambda: make(list(sharded.parameters()), lr=0.1), "DTensor")
    parallel = parallelize_module(network(), mesh, {"0": ColwiseParallel()})
    for given in (parallel, list(parallel.parameters())):
        refused(lambda: make(given, inner=adamw), "DTensor")  # noqa: B023
    after_a_step(lambda model, _: fully_shard(model, mesh=mesh), "other parameters than")


if __name__ == "__main__":
    run_group(globals())
