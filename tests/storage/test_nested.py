"""Nested values as JSON and tensors: what comes back is what was given, for every scheduler of torch."""

import json
from collections import Counter

import pytest
import torch
from schedules import SCHEDULES, STEPS

from perron._storage.nested import flatten, restore
from perron.errors import FileError


def there_and_back(value):
    tensors = {}
    text = json.dumps(flatten(value, tensors, "one"))
    assert all(name.startswith("one.") for name in tensors)
    return restore(json.loads(text), tensors)


def test_values_come_back_with_their_types():
    value = {
        "milestones": Counter([3, 3, 8]), 5: (1, [2.5, None]), (1, "a"): b"\x00\xff", "best": float("inf"),
        "kind": {"kind": "tensor", "items": []}, "flag": True, "": {},
    }  # fmt: skip
    found = there_and_back(value)
    assert found == value
    assert [type(one) for one in found.values()] == [type(one) for one in value.values()]
    tensors = {
        "a": [torch.arange(3, dtype=torch.uint8), torch.tensor(1.5, dtype=torch.float64)],
        "b": (torch.zeros(0, 2),),
    }
    found = there_and_back(tensors)
    pairs = zip([*found["a"], *found["b"]], [*tensors["a"], *tensors["b"]], strict=True)
    assert all(torch.equal(*both) for both in pairs)
    assert [one.dtype for one in found["a"]] == [torch.uint8, torch.float64]


def test_other_values_are_refused():
    for value in ({"x": object()}, [{1, 2}]):
        with pytest.raises(FileError, match=r"^sampler has a (object|set) in its state"):
            flatten(value, {}, "sampler")
    assert flatten({"function": len, "x": 1}, {}, "sampler") == {"kind": "dict", "items": [["x", 1]]}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_resume(name):
    def made():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
        return optimizer, SCHEDULES[name](optimizer)

    def rates(optimizer, schedule, steps):
        seen = []
        for step in range(steps):
            optimizer.step()
            schedule.step(*([float(step)] if name == "ReduceLROnPlateau" else []))
            seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        return seen

    first, again = made(), made()
    rates(*first, 3)
    again[0].load_state_dict(there_and_back(first[0].state_dict()))
    again[1].load_state_dict(there_and_back(first[1].state_dict()))
    assert rates(*again, STEPS - 3) == rates(*first, STEPS - 3)
