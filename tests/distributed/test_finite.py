"""Numbers that are not finite: found in one pass, and their sender by name."""

from types import SimpleNamespace

import pytest
import torch

from perron.distributed.exchange import Exchange, Gather, Message
from perron.distributed.finite import is_finite

KINDS = [float("nan"), float("inf"), -float("inf")]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.complex64]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_entry_is_found_wherever_it_is(dtype):
    for value in KINDS:
        for place in (0, 17, 9_999):
            x = torch.ones(10_000)
            x[place] = value
            assert not is_finite(x.to(dtype))
    assert is_finite(torch.ones(10_000).to(dtype))
    assert is_finite(torch.empty(0).to(dtype))


def test_infinities_that_cancel_are_found():
    assert not is_finite(torch.tensor([torch.inf, 1.0, -torch.inf]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sum_that_overflows_is_no_false_alarm(dtype):
    x = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert torch.isinf(x.sum())  # in this type
    assert is_finite(x)
    x[500] = torch.nan
    assert not is_finite(x)


def test_integers_are_finite():
    assert all(is_finite(torch.arange(3).to(dtype)) for dtype in (torch.int64, torch.uint8, torch.bool))


class Stand:
    """All that an exchange needs of its node: names and neighbours."""

    step, name = 7, 10
    peers = SimpleNamespace(node_ids=[10, 11, 12, 13])

    def neighbors(self, _side, _step):
        return SimpleNamespace(own=0.4)


def told(tensors, *, own=None, kind=Exchange, weights=(0.3, 0.2, 0.1)):
    """The error of an exchange with these messages of nodes 11, 12, 13; empty if there is none."""
    exchange = kind(Stand(), "pull", torch.ones(5) if own is None else own)
    exchange.finish([Message(k + 1, weights[k], tensor) for k, tensor in enumerate(tensors)])
    return str(exchange.error or "")


@pytest.mark.parametrize("kind", [Exchange, Gather])
@pytest.mark.parametrize("weights", [(0.3, 0.2, 0.1), (0.6, 0.2, 0.1)], ids=["sum", "lerp"])
def test_the_sender_is_named(kind, weights):
    """Whether or not the result is in the memory of its message, and by whichever formula."""
    for value in KINDS:
        for sender in range(3):
            tensors = [torch.randn(5) for _ in range(3)]
            assert told([one.clone() for one in tensors], kind=kind, weights=weights) == ""
            tensors[sender][2] = value
            assert told(tensors, kind=kind, weights=weights).startswith(
                f"Node 10 received numbers that are not finite from node {11 + sender} in step 7 "
                f"(edge node {11 + sender} -> node 10, pull of 5 numbers)."
            )


def test_two_senders_and_oneself():
    nan = torch.full((5,), torch.nan)
    both = told([torch.ones(5), nan.clone(), nan.clone()])
    assert "from node 12, 13 in step 7 (edge node 12 -> node 10, edge node 13 -> node 10" in both
    assert told([torch.ones(5)], own=nan.clone()).startswith(
        "Node 10 has diverged: its own part of the pull of 5 numbers in step 7 is not finite."
    )


def test_finite_messages_whose_sum_overflows_accuse_nobody():
    large = torch.full((5,), torch.finfo(torch.float32).max)
    error = told([large.clone(), large.clone()], own=large.clone(), weights=(0.9, 0.9))
    assert error.startswith("Node 10 has diverged: the weighted sum of the pull of 5 numbers in step 7 overflows.")
