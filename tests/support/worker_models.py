"""One process of the tests of frozen parameters, groups, types and files of models. Started by test_real_models.py."""

import logging
import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from processes import report_checks
from torch import nn
from worker_training import FOLDER, LR, RANK, SIZE, refused

from perron import PushPull
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE)
    report_checks(globals())
    sys.stdout.flush()
    os._exit(0)  # without waiting for operations that a failed check left in flight
