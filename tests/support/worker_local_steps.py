"""One process of the tests of local steps: plain PyTorch code, check by check. Started by test_local_steps_in_processes.py."""

import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from processes import run_group
from worker_inner import ADAMW, PerNode, network_for, stepped, torch_adamw
from worker_training import (
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

from perron import ALGORITHMS, DiLoCo, LocalPushPull, Mixing, PushPull, PushPullDiLoCo, Simulation, simulate
from perron.algorithms import quantized as quantization
from perron.distributed import checkpoint
from perron.distributed.optimizer import Decentralized
from perron.networks import topologies

ORDERS = ("atc", "pu", "cta")
VARYING = Mixing.uniform(topologies.one_peer_exponential(4)) if SIZE == 4 else None


def check_local_steps_with_adamw_equal_the_simulator():
    """An unchanged training loop: four times optimizer.step() are a round of the simulator."""
    for order in ORDERS:
        for mixing in (MIXING, VARYING):
            algorithm, model = LocalPushPull(local_steps=4, order=order, move=ADAMW), Model()
            optimizer = Decentralized(model, algorithm, mixing, lr=LR, seed=SEED)
            trained(optimizer, model, Loss(), 4 * STEPS)
            assert (optimizer.steps, optimizer.gradients_received) == (STEPS, 0)
            close(model.x().detach(), simulated(algorithm, mixing=mixing)[-1])
            optimizer.close()


def check_diloco_equals_the_simulator():
    for order in ORDERS:
        for mixing in (MIXING, VARYING):
            algorithm = PushPullDiLoCo(local_steps=3, order=order, move=ADAMW, outer_lr=0.1)
            model = Model()
            optimizer = Decentralized(model, algorithm, mixing, lr=LR, seed=SEED)
            close(stepped(optimizer, model, Loss()), simulated(algorithm, mixing=mixing))
            optimizer.close()


def check_diloco_with_an_all_reduce_equals_the_simulator():
    for algorithm in (DiLoCo(local_steps=3, move=ADAMW), DiLoCo(local_steps=2, outer_lr=1.0, outer_momentum=0.0)):
        model = Model()
        optimizer = Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED)
        close(stepped(optimizer, model, Loss()), simulated(algorithm))
        optimizer.close()


def check_numbers_of_steps_that_differ():
    """Between nodes and between rounds; a node with fewer steps goes on to the exchange, the simulator discards its gradients."""
    counts = tuple(1 + (3 * node) % 5 for node in range(SIZE))

    def changing(number):
        return counts if number % 2 else 2

    for steps in (counts, changing):
        algorithm, model, loss = PushPullDiLoCo(local_steps=steps, move=ADAMW, outer_lr=0.1), Model(), Loss()
        optimizer = Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED)
        total = received = 0
        while (number := optimizer.steps) < STEPS:
            now = steps(number) if callable(steps) else steps
            own, most = (now[RANK], max(now)) if isinstance(now, tuple) else (now, now)
            loss.draw = total  # the simulator draws for all nodes as often as for the one with most steps
            trained(optimizer, model, loss, own)
            assert optimizer.steps == number + 1
            total, received = total + most, received + own
        close(model.x().detach(), simulated(algorithm)[-1])
        optimizer.close()
        assert received < total or RANK == counts.index(max(counts))


def check_optimizers_of_torch_inside():
    for algorithm in (LocalPushPull(local_steps=3), PushPullDiLoCo(local_steps=3, outer_lr=0.3)):
        model = Model()
        optimizer = Decentralized(model, algorithm, MIXING, inner=torch_adamw, seed=SEED)
        trained(optimizer, model, Loss(), 3 * STEPS)
        close(model.x().detach(), simulated(replace(algorithm, move=PerNode(torch_adamw)))[-1])
        optimizer.close()


def check_saving():
    """A state resumes bit for bit, between rounds and in the middle of one, also with an optimizer of torch and few bits."""
    local, diloco = LocalPushPull(local_steps=4), PushPullDiLoCo(local_steps=4, outer_lr=0.3)
    adamw = {"lr": LR}
    cases = [
        (replace(local, move=ADAMW), adamw), (replace(diloco, move=ADAMW), adamw), (local, {"inner": torch_adamw}),
        (replace(local, order="cta", move=ADAMW), adamw | {"wire": "int8"}), (diloco, adamw | {"wire": "int4"}),
        (DiLoCo(local_steps=4, move=ADAMW), adamw),
    ]  # fmt: skip
    for algorithm, options in cases:
        for done in (12, 14):
            model, loss = Model(), Loss()
            optimizer = Decentralized(model, algorithm, MIXING, seed=SEED, **options)
            trained(optimizer, model, loss, done)
            saved, drawn = deepcopy(optimizer.state_dict()), loss.draw  # torch shares the tensors of its own state
            assert optimizer.gradients_received == done % 4
            whole = trained(optimizer, model, loss, 7)
            optimizer.close()
            other, loss = Model(), Loss()
            again = Decentralized(other, algorithm, MIXING, seed=SEED, **options)
            again.load_state_dict(saved)
            assert (again.steps, again.gradients_received) == (done // 4, done % 4)
            loss.draw = drawn
            found = trained(again, other, loss, 7)
            assert torch.equal(found, whole), (algorithm, options, done, (found - whole).abs().amax(-1))
            again.close()


def check_files_in_the_middle_of_a_round():
    folder = Path(sys.argv[3])
    algorithm = LocalPushPull(local_steps=4, move=ADAMW)

    def make():
        model = Model()
        return model, Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED, wire="int8")

    model, optimizer = make()
    loss = Loss()
    trained(optimizer, model, loss, 10)
    checkpoint.save(folder / "rounds", optimizer)
    drawn = loss.draw
    whole = trained(optimizer, model, loss, 9)
    optimizer.close()
    dist.barrier()
    model, optimizer = make()
    assert checkpoint.load(folder / "rounds", optimizer).step == 2
    loss = Loss()
    loss.draw = drawn
    assert torch.equal(trained(optimizer, model, loss, 9), whole)
    optimizer.close()


def check_a_file_that_not_all_nodes_saved():
    """Files within a round have names of their own: the newest that all nodes have is taken."""
    folder = Path(sys.argv[3]) / "uneven"
    algorithm = LocalPushPull(local_steps=4, move=ADAMW)

    def make():
        model = Model()
        return model, Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED)

    model, optimizer = make()
    loss = Loss()
    trained(optimizer, model, loss, 9)
    checkpoint.save(folder, optimizer)
    saved, sent = loss.draw, optimizer.node.bytes_sent
    whole = trained(optimizer, model, loss, 2)
    if RANK == 0:  # the others have died before
        checkpoint.save(folder, optimizer)
    optimizer.close()
    dist.barrier()
    model, optimizer = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the newer one is mentioned
        found = checkpoint.load(folder, optimizer)
    assert (found.step, optimizer.gradients_received) == (2, 1)
    assert optimizer.node.bytes_sent >= sent > 0
    loss = Loss()
    loss.draw = saved
    assert torch.equal(trained(optimizer, model, loss, 2), whole)
    optimizer.close()


def check_the_model_in_the_middle_of_a_round():
    """The average is that of the models as they are, and a closed optimizer can still be saved."""
    for algorithm in (LocalPushPull(local_steps=5, move=ADAMW), PushPullDiLoCo(local_steps=5, outer_lr=0.3)):
        model, loss = Model(), Loss()
        optimizer = Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED)
        trained(optimizer, model, loss, 8)
        mean = model.x().detach().clone()
        dist.all_reduce(mean)
        with optimizer.averaged_model():
            close(model.x().detach(), mean / SIZE)
        optimizer.close()
        saved, drawn = deepcopy(optimizer.state_dict()), loss.draw
        assert saved["perron"]["received"] == 3
        dist.barrier()
        other = Model()
        again = Decentralized(other, algorithm, MIXING, lr=LR, seed=SEED)
        again.load_state_dict(saved)
        assert torch.equal(other.x(), model.x())
        loss.draw = drawn
        trained(again, other, loss, 7)
        assert again.steps == 3
        whole, loss = Model(), Loss()
        plain = Decentralized(whole, algorithm, MIXING, lr=LR, seed=SEED)
        trained(plain, whole, loss, 15)
        assert torch.equal(whole.x(), other.x())
        again.close()
        plain.close()


def check_another_number_of_steps_after_loading():
    """A round begins with the number of steps that it should have, where the algorithm restarts."""
    algorithm = PushPullDiLoCo(local_steps=grown, outer_lr=0.1)
    optimizer = Decentralized(Model(), algorithm, MIXING, lr=LR, seed=SEED)
    optimizer.set_parameters(Model().x().detach(), step=4)
    assert optimizer.steps == 4
    trained(optimizer, optimizer.model, Loss(), 4)
    assert (optimizer.steps, optimizer.gradients_received) == (4, 4)
    optimizer.close()


def grown(number):
    """Return the numbers of local steps of a round."""
    return 2 if number < 3 else 5


def check_the_memory_is_set_up_again():
    """One exchange of few is in full precision, in both worlds at once; with receives ahead and graphs in turn."""
    before, quantization.REFRESH = quantization.REFRESH, 4
    try:
        for mixing in (MIXING, VARYING):
            if mixing is None:
                continue
            model = Model()
            algorithm = PushPull(order="atc")
            optimizer = Decentralized(model, algorithm, mixing, lr=LR, seed=SEED, wire="int4")
            trained(optimizer, model, Loss(), STEPS)
            simulation = Simulation(problem=PROBLEM, algorithm=algorithm, mixing=mixing, lr=LR, seed=SEED, wire="int4")
            *_, now = simulation.iterates(STEPS)
            close(model.x().detach(), now.state.x[0, RANK])
            optimizer.close()
    finally:
        quantization.REFRESH = before


def check_the_option_of_the_optimizer():
    """local_steps= makes Push-Pull one with local steps; the training loop is the same."""
    for algorithm, expected in (
        (None, LocalPushPull(local_steps=3)),
        (PushPull(order="pu", move=ADAMW), LocalPushPull(local_steps=3, order="pu", move=ADAMW)),
        (PushPullDiLoCo(outer_lr=0.2), PushPullDiLoCo(outer_lr=0.2, local_steps=3)),
        (DiLoCo(), DiLoCo(local_steps=3)),
    ):
        model = Model()
        optimizer = Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED, local_steps=3)
        assert optimizer.algorithm == expected
        trained(optimizer, model, Loss(), 3 * STEPS)
        close(model.x().detach(), simulated(expected)[-1])
        optimizer.close()
    refused(lambda: Decentralized(Model(), ALGORITHMS["sgp"], MIXING, lr=LR, local_steps=3), "one gradient for each")
    refused(lambda: Decentralized(Model(), None, MIXING, lr=LR, local_steps=0), "whole number, at least 1")


def check_bytes_are_counted_as_the_simulator_counts_them():
    """Summed over nodes; in the order atc no message of the next step is posted yet."""
    cases = [
        (PushPull(order="atc"), {}), (PushPull(order="atc", move=ADAMW), {"wire": "bf16"}),
        (LocalPushPull(local_steps=3), {"wire": "int8"}), (PushPullDiLoCo(local_steps=2, outer_lr=0.1), {"wire": "int4"}),
        (DiLoCo(local_steps=2), {}), (ALGORITHMS["centralized"], {}),
    ]  # fmt: skip
    for algorithm, options in cases:
        model = Model()
        optimizer = Decentralized(model, algorithm, MIXING, lr=LR, seed=SEED, **options)
        before = optimizer.node.bytes_sent  # the start of an algorithm may average
        trained(optimizer, model, Loss(), STEPS * getattr(algorithm, "local_steps", 1))
        total = torch.tensor(optimizer.node.bytes_sent - before)
        dist.all_reduce(total)
        history = simulate(PROBLEM, algorithm, MIXING, steps=STEPS, lr=LR, progress=False, **options)
        assert int(total) == history.costs["bytes"][-1], (algorithm, int(total), history.costs["bytes"][-1])
        optimizer.close()


def check_join():
    for algorithm in (LocalPushPull(local_steps=3), PushPullDiLoCo(local_steps=3, outer_lr=0.3), DiLoCo(local_steps=3)):
        model, loss = Model(), Loss()
        optimizer = Decentralized(model, algorithm, network_for(algorithm), lr=LR, seed=SEED)
        with optimizer.join(6):
            trained(optimizer, model, loss, 6)
        assert optimizer.steps == 2
        optimizer.close()
    uneven = PushPullDiLoCo(local_steps=tuple(range(1, SIZE + 1)), outer_lr=0.1)
    optimizer = Decentralized(Model(), uneven, network_for(uneven), lr=LR, seed=SEED)
    refused(lambda: optimizer.join(6).__enter__(), "different numbers of local steps")
    optimizer.close()


if __name__ == "__main__":
    run_group(globals())
