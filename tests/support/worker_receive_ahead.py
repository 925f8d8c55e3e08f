"""Receives that are posted ahead, in four processes. Started by test_receive_ahead.py."""

import gc
import sys
import time
from functools import cache, partial
from itertools import pairwise

import torch
import torch.distributed as dist
from processes import refused, run_group
from torch import nn

import perron
from perron import ALGORITHMS, Mixing
from perron.distributed import exchange, process_group
from perron.distributed.node import DistributedNode, iterates
from perron.distributed.optimizer import Decentralized
from perron.networks import samplers, topologies
from perron.problems import Quadratic

RANK, SIZE = int(sys.argv[1]), int(sys.argv[2])
STEPS, LR, SEED = 9, 0.02, 4
AHEAD = (0, 1, 2, 3)


@cache
def networks():
    fixed = Mixing.random_integer(topologies.random_digraph(SIZE, seed=1), seed=1)
    return {
        "fixed": fixed,
        "one-peer": Mixing.uniform(topologies.one_peer_exponential(SIZE)),
        "drawn": samplers.link_failures(fixed, probability=0.4),
    }


def same_for_all(run):
    """What a function of the number of steps ahead returns is the same, bit for bit."""
    found = [run(ahead) for ahead in AHEAD]
    for ahead, other in zip(AHEAD[1:], found[1:], strict=True):
        assert torch.equal(found[0], other), f"{ahead} ahead: {(found[0] - other).abs().max()}"


def check_algorithms():
    problem = Quadratic.random(SIZE, 3, noise_std=0.3, seed=2)
    algorithms = {f"push_pull {order}": perron.PushPull(order=order) for order in ("cta", "pu", "atc")}
    algorithms |= {name: ALGORITHMS[name] for name in ("push_diging", "pull_diag_gt", "robust_push_pull")}
    for name, algorithm in algorithms.items():
        for kind, mixing in networks().items():
            if kind == "fixed" or (kind, name) == ("drawn", "push_diging") or name.startswith("push_pull"):

                def run(ahead, algorithm=algorithm, mixing=mixing):
                    options = {"steps": STEPS, "lr": LR, "seed": SEED, "receive_ahead": ahead}
                    return torch.stack([state.x for state in iterates(problem, algorithm, mixing, **options)])

                same_for_all(run)


class Model(nn.Module):
    """Three numbers at the start, and a gradient that depends on them and on the node."""

    def __init__(self, size=3):
        super().__init__()
        self.x = nn.Parameter(torch.linspace(-1, 1, size))

    def step(self, optimizer):
        self.x.grad = self.x.detach() * (1 + RANK) - RANK
        optimizer.step()


def started(ahead, graph="ring", algorithm=None, **options):
    model = Model()
    chosen = algorithm or perron.PushPull()
    return model, Decentralized(model, chosen, graph, lr=LR, seed=SEED, receive_ahead=ahead, **options)


def trained(ahead, *arguments, **options):
    """The models after each step."""
    model, optimizer = started(ahead, *arguments, **options)
    found = []
    for _ in range(STEPS):
        model.step(optimizer)
        found.append(model.x.detach().clone())
    optimizer.close()
    return torch.stack(found)


def check_rounds():
    for graph in ("ring", "one_peer_exponential", networks()["drawn"]):
        same_for_all(partial(trained, graph=graph, rounds=2))


def check_bf16_and_unfused_messages():
    same_for_all(partial(trained, wire="bf16"))
    exchange.FUSE_BELOW, before = 4, exchange.FUSE_BELOW
    same_for_all(partial(trained, graph=networks()["fixed"]))
    exchange.FUSE_BELOW = before


def check_the_receives_of_coming_steps_are_posted():
    model, optimizer = started(3, algorithm=perron.PushPull(order="atc"))
    for step in range(5):
        model.step(optimizer)
        ahead = [len(position.ahead) for position in optimizer.node.ahead.positions]
        assert ahead == ([3, 3] if step > 0 else [3, 0]) or step < 2, (step, ahead)
    numbers = [[one.number for one in position.ahead] for position in optimizer.node.ahead.positions]
    assert all(row == sorted(row) for row in numbers)
    optimizer.close()
    assert optimizer.node.ahead.positions == []


def check_memory_is_bounded():
    dist.barrier()
    kept = []
    model, optimizer = started(2)
    for _ in range(30):
        model.step(optimizer)
        kept.append(len(process_group._in_flight))
    assert max(kept[5:]) == min(kept[5:])
    for _ in range(3):
        optimizer.reset()  # leaves receives, which blank messages complete
        for _ in range(4):
            model.step(optimizer)
    assert len(process_group._in_flight) == kept[-1]
    optimizer.close()


def check_a_pattern_that_breaks():
    """Exchanges of changing sizes, in a changing number of batches."""

    def run(ahead):
        node = DistributedNode(networks()["one-peer"], dtype=torch.float32, receive_ahead=ahead)
        x, found = torch.arange(6.0) + RANK, []
        for step in range(20):
            node.step = step
            some = x[:3] if step in (7, 8, 13) else x
            handles = [node.pull(some), node.push(some)]
            if step in (4, 5, 6, 11):
                found.append(node.pull(x * 2).wait())
            found += [one.wait() for one in handles]
            if step % 3 == 2:
                found.append(node.push(x * 3).wait())
            x = x + found[-1].mean() / 10
        node.drain()
        return torch.cat(found)

    same_for_all(run)


def check_two_optimizers_in_turns():
    def run(ahead):
        (one, first), (other, second) = started(ahead), started(ahead, "one_peer_exponential")
        for turn in range(6):
            for _ in range(1 + turn % 3):
                one.step(first)
            other.step(second)
        first.close()
        second.close()
        return torch.stack([one.x.detach(), other.x.detach()])

    same_for_all(run)


def check_saved_and_loaded():
    def run(ahead):
        model, optimizer = started(ahead, "one_peer_exponential")
        for _ in range(5):
            model.step(optimizer)
        saved = optimizer.state_dict()
        for _ in range(4):
            model.step(optimizer)
        after = model.x.detach().clone()
        optimizer.load_state_dict(saved)
        for _ in range(4):
            model.step(optimizer)
        assert torch.equal(model.x.detach(), after)
        optimizer.reset()
        for _ in range(4):
            model.step(optimizer)
        optimizer.close()
        return model.x.detach()

    same_for_all(run)


def check_an_optimizer_after_one_that_was_dropped():
    kept = []
    for again in range(4):
        model, optimizer = started(2)
        for _ in range(4 + again):
            model.step(optimizer)
        del optimizer
        if RANK % 2:
            gc.collect()
        model, optimizer = started(2, "one_peer_exponential")
        for _ in range(4):
            model.step(optimizer)
        optimizer.close()
        kept.append(sum(tensor.numel() == 6 for _, tensor in process_group._in_flight.values()))
    assert max(after - before for before, after in pairwise(kept)) <= 2, kept  # one batch that was in flight


def check_processes_that_counted_differently():
    """As after a step that failed on some nodes."""
    process_group.FixedPeers().ledger.batches += 10 * RANK
    same_for_all(trained)


def check_a_gradient_that_takes_longer_than_the_timeout():
    model, optimizer = started(2, timeout=1.0)
    for step in range(6):
        if step == 4:
            time.sleep(1.5)
        model.step(optimizer)
    optimizer.close()


def check_what_is_refused():
    for wrong in (-1, 17, 1.0, True, None):
        refused(lambda wrong=wrong: started(wrong), "receive_ahead", "from 0 to 16", repr(wrong))
    refused(lambda: started(RANK), "do not agree on receive_ahead", "rank 0: 0; rank 1: 1")


if __name__ == "__main__":
    run_group(globals())
