"""Steps of large models take no new memory from the system."""

import os
import subprocess
import sys

import pytest

from perron import _memory

STEPS = """
import resource
import torch
import perron

class Distances(perron.Problem):
    nodes, dim = 8, 2**19

    def local_grads(self, x):
        return x - 1

    def loss(self, x):
        return (x - 1).square().sum(-1) / 2

mixing = perron.Mixing.uniform(perron.topologies.ring(8))
states = perron.Simulation(problem=Distances(), algorithm=perron.PushPull(), mixing=mixing, lr=0.1).iterates(12)
pages = []
for _ in states:
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(pages[-1] - pages[6], int(perron._memory.keep_freed_memory()))
"""


def pages_of_six_steps(**environment: str) -> tuple[int, bool]:
    """New pages of memory in six late steps of a model of 32 MB, and whether freed memory is kept."""
    settings = {name: value for name, value in os.environ.items() if name not in _memory.OWN_SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env=settings | environment, check=True, capture_output=True, text=True
    )
    pages, kept = map(int, done.stdout.split())
    return pages, bool(kept)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_freed_memory_is_kept():
    pages, kept = pages_of_six_steps()
    if not kept:
        pytest.skip("another C library")
    assert pages < 4096  # of 4 KB each: half of one tensor, where a step makes several


def test_settings_of_the_environment_are_left_alone():
    _, kept = pages_of_six_steps(MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept
