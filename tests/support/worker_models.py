"""One process of the tests of frozen parameters, groups, types and files of models. Started by test_real_models.py."""

import logging
from copy import deepcopy
from functools import partial

import safetensors.torch
import torch
from processes import run_group
from torch import nn
from worker_inner import ADAMW, torch_adamw
from worker_training import FOLDER, LR, MIXING, RANK, SEED, Loss, close, refused, simulated, trained

from perron import PushPull
from perron.distributed.checkpoint import load, save
from perron.distributed.optimizer import Decentralized


def network(seed=RANK):
    """Two layers with different weights on every node, the first with a frozen weight."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    return model


def backward(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).square().sum().backward()


def as_model(model):
    return model


def as_list(model):
    return list(model.parameters())


def check_frozen_parameters_are_those_of_rank_0():
    for given in (as_model, as_list):
        model = network()
        optimizer = Decentralized(given(model), PushPull(), "ring", lr=LR)
        assert torch.equal(model[0].weight, network(0)[0].weight), given
        backward(model, optimizer)
        optimizer.step()
        assert torch.equal(model[0].weight, network(0)[0].weight), given
        optimizer.close()
        model = network()
        optimizer = Decentralized(given(model), PushPull(), "ring", lr=LR, broadcast=False)
        assert torch.equal(model[0].weight, network()[0].weight), given
        optimizer.close()
    model = network()
    model[0].weight.requires_grad_(RANK == 1)
    refused(lambda: Decentralized(model, PushPull(), "ring", lr=LR), "do not agree on the parameters' shapes")
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[RANK % 2].weight.requires_grad_(False)
    refused(lambda: Decentralized(model, PushPull(), "ring", lr=LR), "the frozen parameters", "rank 1: [['1.weight'")


def check_freezing_and_unfreezing_later_is_refused():
    for given, names in ((as_model, ("1.bias", "0.weight")), (as_list, ("parameter 3", "parameter 0"))):
        for (layer, kind), name in zip(((1, "bias"), (0, "weight")), names, strict=True):
            model = network()
            optimizer = Decentralized(given(model), PushPull(), "ring", lr=LR)
            backward(model, optimizer)
            optimizer.step()
            param = getattr(model[layer], kind)
            param.requires_grad_(not param.requires_grad)
            backward(model, optimizer)
            refused(
                optimizer.step, f"requires_grad was changed after the optimizer was made: {name}.", "make a new one"
            )
            param.requires_grad_(not param.requires_grad)
            optimizer.step()
            assert optimizer.steps == 2
            optimizer.close()


def check_sparse_gradients_are_refused():
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 1))
    for given, name in ((model, "0.weight"), (list(model.parameters()), "parameter 0")):
        optimizer = Decentralized(given, PushPull(), "ring", lr=LR)
        model(torch.tensor([1])).sum().backward()
        refused(optimizer.step, f"a sparse one of {name}.", "sparse=False")
        optimizer.close()


def check_unknown_keys_of_groups_are_refused():
    def groups(**options):
        return [{"params": list(network().parameters()), **options}]

    make = partial(Decentralized, algorithm=PushPull(), graph="ring")
    refused(lambda: make(groups(weight_deacy=0.1), lr=LR), "'weight_deacy'", "lr, params, weight_decay")
    refused(lambda: make(groups(betas=(0.9, 0.99)), lr=LR), "'betas'")
    adamw = partial(torch.optim.AdamW, lr=LR)
    refused(lambda: make(groups(beta=(0.9, 0.99)), inner=adamw), "'beta'", "amsgrad, betas")
    make(groups(betas=(0.9, 0.99)), inner=adamw).close()
    optimizer = make(groups(weight_decay=0.1), lr=LR)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LR, total_steps=3, cycle_momentum=False)
    optimizer.close()
    make([{**optimizer.param_groups[0]}], lr=LR).close()  # with the keys of a scheduler


def check_learning_rates_that_differ_are_noticed():
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logging.getLogger("perron").addHandler(handler)
    model = network()
    optimizer = Decentralized(model, PushPull(), "ring", lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        with optimizer.averaged_model():
            pass
        assert not seen, seen
        backward(model, optimizer)
        optimizer.step()
        scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.002 if RANK == 1 else 0.001
    with optimizer.averaged_model():
        pass
    assert len(seen) == (RANK in (0, 1)), seen
    assert not seen or "node 0: 0.001, node 1: 0.002)" in seen[0], seen
    optimizer.close()
    logging.getLogger("perron").removeHandler(handler)


def convolutions():
    torch.manual_seed(RANK)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 64, 3), nn.Flatten(), nn.LazyLinear(3)
    )
    model(torch.zeros(2, 3, 7, 7))
    return model.to(memory_format=torch.channels_last)


def image_steps(model, optimizer, steps=3):
    random = torch.Generator().manual_seed(RANK)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 7, 7, generator=random)).square().mean().backward()
        optimizer.step()


def check_files_hold_what_belongs_to_them():
    for options in ({"lr": LR}, {"inner": partial(torch.optim.AdamW, lr=LR)}):
        model = convolutions()
        optimizer = Decentralized(model, PushPull(), "ring", **options)
        image_steps(model, optimizer)
        path, size = FOLDER / f"model-{RANK}", sum(p.nbytes for p in model[0].state_dict().values())
        state = {name: value.clone() for name, value in model.state_dict().items()}
        torch.save(model[0].state_dict(), path)
        assert size < path.stat().st_size < size + 3000 < sum(p.nbytes for p in state.values()), path.stat().st_size
        torch.save(model[0], path)
        assert path.stat().st_size < size + 5000, path.stat().st_size
        contiguous = {name: value.contiguous() for name, value in model.state_dict().items()}
        safetensors.torch.save_file(contiguous, path)
        read = safetensors.torch.load_file(path)
        assert all(torch.equal(read[name], value) for name, value in state.items())
        path.unlink()
        model.to(memory_format=torch.contiguous_format)
        safetensors.torch.save_model(model, path)
        other = convolutions()
        safetensors.torch.load_model(other, path)
        assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())
        optimizer.close()


def check_channels_last_is_kept():
    """The memory format is the user's, and changes nothing but the order of sums."""
    final = []
    for memory_format in (torch.channels_last, torch.contiguous_format):
        model = convolutions().double().to(memory_format=memory_format)
        strides = [param.stride() for param in model.parameters()]
        optimizer = Decentralized(model, PushPull(), "ring", inner=partial(torch.optim.AdamW, lr=LR))
        random = torch.Generator().manual_seed(RANK)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 7, 7, generator=random, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        with optimizer.averaged_model():
            pass
        assert [param.stride() for param in model.parameters()] == strides
        final.append(torch.cat([param.detach().reshape(-1) for param in model.parameters()]))
        optimizer.close()
    assert model[0].weight.is_contiguous()
    close(*final, 1e-9)


def check_parameters_that_share_memory_are_refused():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight.data = model[0].weight.data
    refused(lambda: Decentralized(model, PushPull(), "ring", lr=LR), "0.weight and 1.weight share memory")
    model[1].weight = model[0].weight
    Decentralized(model, PushPull(), "ring", lr=LR).close()


class Mixed(nn.Module):
    """The vector x in two parameters of different types, with a loss in float64."""

    def __init__(self, *types):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2, dtype=types[0]))
        self.second = nn.Parameter(torch.zeros(1, dtype=types[1]))

    def x(self):
        return torch.cat([self.first.double(), self.second.double()])


def check_masters_of_parameters_of_16_bits():
    """The master moves by steps that are lost in bfloat16, and the parameters are the master, rounded."""
    for types in ((torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.bfloat16)):
        for options in ({"lr": 1e-5}, {"inner": partial(torch.optim.SGD, lr=1e-5)}):
            model = Mixed(*types)
            optimizer = Decentralized(model, PushPull(), "ring", **options)  # all directions are 1
            optimizer.set_parameters(torch.ones(3))
            for _ in range(50):
                optimizer.zero_grad()
                model.x().sum().backward()  # the gradient is 1 everywhere
                optimizer.step()
            master = optimizer.algorithm_state.x
            assert master.dtype == torch.float32
            with optimizer.averaged_model():
                assert [param.dtype for param in model.parameters()] == list(types)
            close(master.double(), torch.full((3,), 1 - 50e-5, dtype=torch.float64), 3e-6)
            assert torch.equal(model.first, master[:2].to(types[0])), types
            assert torch.equal(model.second, master[2:].to(types[1]))
            optimizer.close()


def check_several_types_equal_the_simulator():
    """With float64 as the widest type: the iterates are the simulator's up to the gradients' rounding."""
    for options, algorithm in (({"lr": LR}, PushPull()), ({"inner": torch_adamw}, PushPull(move=ADAMW))):
        model, loss = Mixed(torch.float32, torch.float64), Loss()
        optimizer = Decentralized(model, PushPull(), MIXING, seed=SEED, **options)
        trained(optimizer, model, loss)
        assert optimizer.algorithm_state.x.dtype == torch.float64
        close(optimizer.algorithm_state.x, simulated(algorithm)[-1], 1e-5)
        optimizer.close()


def check_masters_and_moments_are_saved():
    def made():
        model = Mixed(torch.bfloat16, torch.float32)
        return model, Decentralized(model, PushPull(), MIXING, inner=partial(torch.optim.AdamW, lr=1e-3), seed=SEED)

    for way in ("state_dict", "checkpoint"):
        model, optimizer = made()
        loss = Loss()
        trained(optimizer, model, loss, 5)
        if way == "state_dict":
            saved = deepcopy(optimizer.state_dict())
            assert {value.dtype for value in saved["state"][0].values()} == {torch.float32}
        else:
            save(FOLDER / "masters", optimizer)
        wanted = trained(optimizer, model, loss, 5)
        master = optimizer.algorithm_state.x
        optimizer.close()
        (model, optimizer), loss.draw = made(), 5
        if way == "state_dict":
            optimizer.load_state_dict(saved)
        else:
            assert load(FOLDER / "masters", optimizer).step == 5
        assert optimizer.state[model.first]["exp_avg"].dtype == torch.float32
        assert torch.equal(trained(optimizer, model, loss, 5), wanted), way
        assert torch.equal(optimizer.algorithm_state.x, master), way
        optimizer.close()


if __name__ == "__main__":
    run_group(globals())
