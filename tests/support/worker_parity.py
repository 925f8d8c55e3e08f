"""One process of the parity test: runs every case on this node and saves its models. Started by test_distributed.py."""

import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sampled import SampledQuadratic

from perron import ALGORITHMS, Mixing
from perron.algorithms.unreliable import Links, Unreliable
from perron.distributed import node as distributed
from perron.networks import samplers, topologies
from perron.problems import Logistic, Neural
from perron.simulation import measure_traits

STEPS, SEED = 12, 3
QUANTIZED = ("push_pull", "push_pull_atc", "push_diging", "frost", "local_push_pull", "sgp")


@cache
def networks(n):
    """Directed and weighted; different graphs for A and B; varying in time; drawn at random in each step."""
    one, other = topologies.random_digraph(n, seed=1), topologies.exponential(n)
    both = Mixing(pull=Mixing.random_integer(one, seed=2).pull, push=Mixing.random_integer(other, seed=3).push)
    return {
        "directed": Mixing.random_integer(one, seed=1),
        "two graphs": both,
        "time-varying": Mixing.uniform(topologies.one_peer_exponential(4)) if n == 4 else Mixing.random_integer(
            [topologies.ring(n), topologies.random_digraph(n, seed=5)], seed=4
        ),
        "drawn": samplers.activation(both, probability=0.7, seed=5) if n == 4 else samplers.link_failures(both, probability=0.3),
    }  # fmt: skip


def network_for(name, n, kind):
    """The network of a case, or None if the algorithm cannot use one of that kind."""
    matrices = ALGORITHMS[name].about.matrices
    if matrices == "R C":
        return Mixing.spanning_trees(topologies.random_digraph(n, seed=1)) if kind == "directed" else None
    if matrices.startswith("W"):
        return Mixing.metropolis(topologies.random_digraph(n, seed=1).symmetric()) if kind == "directed" else None
    if kind == "drawn" and matrices == "A":
        return None  # pull-only methods divide by numbers that nodes which sleep make tiny
    return networks(n)[kind]


@cache
def problems(n):
    random = np.random.default_rng(0)
    features = torch.as_tensor(random.standard_normal((20 * n, 3)))
    labels = torch.as_tensor(random.choice([-1.0, 1.0], 20 * n))
    return {
        "quadratic": SampledQuadratic.random(n, 3, noise_std=0.3, seed=2),
        "logistic": Logistic(features, labels, nodes=n, batch=5, compiled=False),
        "neural": Neural.images(n, model="mlp", width=4, depth=1, samples=150, batch=7),
    }


def cases(n):
    """Names, algorithms, networks, problems and steps."""
    for kind in networks(n):
        for name, algorithm in ALGORITHMS.items():
            mixing = network_for(name, n, kind)
            if mixing is None:
                continue
            try:
                algorithm.check(distributed.Network(mixing))
            except ValueError:
                continue  # refused in both worlds
            more = (
                ("logistic", "neural")
                if name in ("push_pull", "frost", "add_opt")
                else ("logistic",) * algorithm.about.samples
            )
            for problem in ("quadratic", *more):
                lr = 0.05 / (n if measure_traits(algorithm).effective.startswith("n") else 1)
                yield f"{name}, {kind}, {problem}", algorithm, mixing, problems(n)[problem], lr


def wrapped(n):
    """Names; algorithms, networks, what is put around a node, and what the simulator calls it."""
    bad = {"loss": 0.3, "delay": 3, "repeats": 0.2}
    links = {"lossy": {"loss": 0.3}, "late": bad}
    found = {}
    for wire in ("bf16", "int8", "int4"):
        for name in QUANTIZED:
            for network in ("directed", "time-varying"):
                found[f"{name}, {network}, {wire}"] = (name, networks(n)[network], None, {"wire": wire})
    for name in ("push_pull", "robust_push_pull", "add_opt"):
        for network in ("directed", "two graphs"):
            for case, options in links.items():
                wrap = partial(Unreliable, faults=Links(**options))
                found[f"{name}, {network}, {case}"] = (name, networks(n)[network], wrap, options)
    return found


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found = {}
    for case, algorithm, mixing, problem, lr in cases(size):
        states = distributed.iterates(problem, algorithm, mixing, steps=STEPS, lr=lr, seed=SEED)
        found[case] = np.stack([state.x.numpy() for state in states])
    for case, (name, mixing, wrap, options) in wrapped(size).items():
        given = {"wire": options["wire"]} if wrap is None else {"wrap": wrap}
        states = distributed.iterates(
            problems(size)["quadratic"], ALGORITHMS[name], mixing, steps=STEPS, lr=0.05, seed=SEED, **given
        )
        found[case] = np.stack([state.x.numpy() for state in states])
    np.savez(folder / f"{rank}.npz", **found)
    dist.destroy_process_group()
