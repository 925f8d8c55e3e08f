"""One process of the tests against torch's own table of optimizers. Started by test_contract.py."""

import re
import sys
import unittest
import warnings
from types import SimpleNamespace

import torch
from processes import run_group
from torch import nn

from perron import ALGORITHMS, Decentralized, PerronError, PushPull

sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # the table's module imports it
from torch.testing._internal.common_optimizers import (  # noqa: E402
    OptimizerErrorEnum,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

STEPS = 8
# Of torch's table, what Decentralized refuses, with a part of its error.
REFUSED = {
    "LBFGS": "evaluates the loss several times in a step",
    "SparseAdam": "takes sparse gradients only",
    "differentiable": "differentiable=True",
}


def configurations():
    """Every optimizer of torch with every configuration of its table, and the reason if it is refused."""
    for info in optim_db:
        for given in _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float64, info):
            flags = [name for name in REFUSED if given.kwargs.get(name)]
            reason = REFUSED[flags[0]] if flags else REFUSED.get(info.name, "")
            yield info, given, reason


def parameters(info, dtype, seed=0):
    """Parameters between 1 and 2: a step that changes a number by less than a factor of two is exact as a displacement."""
    random = torch.Generator().manual_seed(seed)
    shapes = [(3, 2), (2, 2)] if info.name == "Muon" else [(3, 2), (5,), (), (2, 1, 3)]
    if info.name not in ("Muon", "Adafactor"):  # torch's own take no empty ones
        shapes.insert(1, (0, 2))
    return [nn.Parameter(torch.rand(shape, generator=random, dtype=dtype) + 1) for shape in shapes]


def trained(optimizer, params, steps=STEPS, seed=1):
    """Steps with given gradients; the last parameter has one in every other step only."""
    random = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=random, dtype=torch.float64).to(param.dtype)
        if step % 2:
            params[-1].grad = None
        optimizer.step()
    return [param.detach().clone() for param in params]


def inner(info, given):
    return lambda groups: info.optim_cls(groups, **given.kwargs)


def values_equal(one, other):
    """Whether the states of a parameter in two optimizers are the same."""
    assert one.keys() == other.keys()
    return all(
        torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one if one[key] is not None
    )


def check_every_configuration_of_torch_is_equal_bit_for_bit():
    """With a direction that is the gradient: the only arithmetic between torch's optimizer and the model is exact."""
    count, refused = 0, set()
    for info, given, reason in configurations():
        for dtype in (torch.float64, torch.float32):
            theirs, ours = parameters(info, dtype), parameters(info, dtype)
            make = lambda: Decentralized(ours, ALGORITHMS["sgp"], "ring", inner=inner(info, given))  # noqa: B023, E731
            if reason:
                try:
                    make()
                except PerronError as error:
                    assert reason in str(error), error
                    refused.add(reason)
                    continue
                raise AssertionError(info.name)
            reference = info.optim_cls(theirs, **given.kwargs)
            wanted = trained(reference, theirs)
            optimizer = make()
            found = trained(optimizer, ours)
            off = [(a - b).abs().max().item() for a, b in zip(wanted, found, strict=True) if a.numel()]
            assert max(off) == 0, (info.name, given.desc, dtype, off)
            same = [values_equal(reference.state[a], optimizer.state[b]) for a, b in zip(theirs, ours, strict=True)]
            assert all(same), (info.name, given.desc, dtype)
            count += 1
            optimizer.close()
    assert count > 200, count
    assert refused == set(REFUSED.values())


def check_trackers_are_as_close_as_rounding():
    """The default algorithm and parameters of any sign: with one node, y = y + grad - grad_prev is the gradient, rounded."""
    for info, given, reason in configurations():
        if reason or info.name == "Rprop":  # which compares signs with zero
            continue
        theirs, ours = parameters(info, torch.float64), parameters(info, torch.float64)
        for param in (*theirs, *ours):
            param.data.sub_(1.5)
        wanted = trained(info.optim_cls(theirs, **given.kwargs), theirs)
        optimizer = Decentralized(ours, PushPull(), "ring", inner=inner(info, given))
        off = max(
            (a - b).abs().max().item() for a, b in zip(wanted, trained(optimizer, ours), strict=True) if a.numel()
        )
        assert off < 1e-12, (info.name, given.desc, off)
        optimizer.close()


def check_errors_of_torch_are_errors():
    """What torch refuses at construction or in the first step is refused with torch's error, or a PerronError."""
    seen = 0
    for info in optim_db:
        if info.name in REFUSED:
            continue
        for case in info.optim_error_inputs_func("cpu", torch.float64):
            given = case.optimizer_error_input
            params = [nn.Parameter(torch.ones(2, 2))] if given.params is None else given.params
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    optimizer = Decentralized(params, ALGORITHMS["sgp"], "ring", inner=inner(info, given))
                assert case.error_on == OptimizerErrorEnum.STEP_ERROR, (info.name, given.desc)
                optimizer.step()
            except PerronError:
                pass
            except case.error_type as error:
                assert re.search(case.error_regex, str(error)), (info.name, given.desc, error)
            else:
                raise AssertionError((info.name, given.desc))
            seen += 1
    assert seen > 60, seen


if __name__ == "__main__":
    run_group(globals())
