"""The quantities of Theorem 1: what they ask for, and that corrected ones do what printed ones do not."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from perron import Mixing
from perron.cli.main import app
from perron.errors import SpectralError
from perron.networks import topologies
from perron.theory.theorem import (
    MixingConstants,
    TheoremOne,
    block_bound,
    corrected_block_bound,
    gap_bound,
    mixing_sum_bound,
    steps_limit,
)

# Medians of 30 weightings 1..9, from an independent computation: C-tilde, and the step's limit times L.
PRACTICALITY = [
    (topologies.exponential, 4, 2.4e4, 2.8e-6),
    (topologies.exponential, 16, 6.3e6, 8.2e-9),
    (topologies.chordal_ring, 8, 9.2e7, 2.5e-10),
    (topologies.ring, 12, 2.4e10, 6.0e-13),
]


@pytest.mark.parametrize(("topology", "n", "block", "step"), PRACTICALITY)
def test_what_the_theorem_asks_for(topology, n, block, step):
    found = []
    for seed in range(30):
        mixes = MixingConstants.of(Mixing.random_integer(topology(n), seed=seed))
        m = block_bound(n, mixes.alignment, mixes.pull_sum, mixes.push_sum)
        assert m == pytest.approx(20 * n**3 * (mixes.pull_sum * mixes.push_sum / mixes.alignment) ** 2)
        found.append((m, steps_limit(mixes, m, 1.0)))
    logs = np.log(found)
    again = np.random.default_rng(0).integers(30, size=(500, 30))
    error = np.median(logs[again], axis=1).std(axis=0)  # of the median of a sample, by bootstrap
    # Both sides are medians of samples: four standard errors of their difference, and the rounding to two digits.
    assert np.abs(np.median(logs, axis=0) - np.log([block, step])).max() <= 4 * 2**0.5 * error.max() + 0.05


@pytest.fixture(scope="module")
def mixing():
    return Mixing.random_integer(topologies.exponential(8), seed=1)


def test_rescaling_the_loss_rescales_the_corrected_step_only(mixing):
    one, twice = ({"smoothness": k, "gap": k, "noise": k, "steps": 1e40} for k in (1.0, 2.0))
    steps = [[TheoremOne.of(mixing, corrected=c, **scale).step for scale in (one, twice)] for c in (True, False)]
    assert steps[0][0] / steps[0][1] == pytest.approx(2)
    assert steps[1][0] / steps[1][1] == pytest.approx(1 / 2)  # the printed step grows with the loss


@pytest.mark.parametrize("steps", [1e8, 1e16, 1e24])
def test_the_corrected_bound_follows_from_the_first(mixing, steps):
    one = TheoremOne.of(mixing, steps=steps, corrected=True)
    assert one.first_bound() <= one.bound * (1 + 1e-12)
    assert 30 <= one.leading <= 52.5
    assert one.block >= corrected_block_bound(one.constants)


def test_the_theorem_says_nothing_about_runs_shorter_than_a_block(mixing):
    for corrected in (False, True):
        shortest = TheoremOne.of(mixing, steps=1.0, corrected=corrected).block
        before, after = (TheoremOne.of(mixing, steps=shortest * k, corrected=corrected) for k in (0.999, 1.001))
        assert (before.applies, after.applies) == (False, True)
        assert np.isinf(before.bound)
        assert np.isfinite(after.bound)
        assert dict(before.rows())["bound on E |grad f|^2"].startswith("none: T = ")


def test_the_repaired_theorem_bounds_runs_that_the_printed_one_does_not():
    """11^T/2 and f_i = (x - 1)^2/2, where Push-Pull is SGD on the mean gradient: exact, by two geometric sums."""
    for corrected in (True, False):
        theorem = TheoremOne(MixingConstants(2, 1.0, 1.0, 1.0, 1.0, 1.0), 1.0, 0.5, 1e-3, 1e15, corrected=corrected)
        a, shrink = theorem.step, (1 - theorem.step) ** 2
        floor = a**2 * theorem.noise**2 / 2 / (1 - shrink)
        blocks = -np.expm1(theorem.steps * np.log1p(-a) * 2) / -np.expm1(theorem.block * np.log1p(-a) * 2)
        mean = floor + (1 - floor) * blocks * theorem.block / theorem.steps
        assert bool(mean <= theorem.bound) is corrected


def test_the_standard_branch_is_active_where_it_is_said_to_be(mixing):
    at = TheoremOne.of(mixing, corrected=True)
    late, early = (TheoremOne.of(mixing, corrected=True, steps=at.standard_from * k) for k in (1.01, 0.99))
    assert late.step == late.branches[0]
    assert early.step == early.branches[1]


def test_rows_and_errors(mixing):
    rows = dict(TheoremOne.of(mixing).rows())
    assert rows["n"] == "8"
    assert rows["leading constant"] == "44"
    assert gap_bound(MixingConstants.of(mixing)) > 0
    with pytest.raises(SpectralError, match="positive noise; got -1"):
        TheoremOne.of(mixing, noise=-1.0)
    with pytest.raises(SpectralError, match="at least one step; got 0"):
        MixingConstants.of(mixing, block=0)


def test_proposition_two_is_vacuous_without_self_loops():
    assert np.isinf(mixing_sum_bound([[0.5, 0.5, 0], [0, 0, 1], [1, 0, 0]]))
    assert mixing_sum_bound(np.full((3, 3), 1 / 3)) == pytest.approx(1)


def test_command_prints_both_versions():
    done = CliRunner().invoke(app, ["paper", "theorem", "exponential", "--nodes", "4", "--json"])
    told = json.loads(done.output)
    assert float(told["printed"]["leading constant"]) == 44
    assert 30 <= float(told["corrected"]["leading constant"]) <= 52.5
    assert float(told["printed"]["bound on E |grad f|^2"]) > 0
    done = CliRunner().invoke(app, ["paper", "theorem", "exponential", "--nodes", "4"])
    assert "as repaired" in done.output
    done = CliRunner().invoke(app, ["paper", "theorem", "exponential", "--nodes", "16"])  # a million steps are no block
    assert "none: T = 1e+06 is less than one block" in " ".join(done.output.split())
    assert "says nothing about runs shorter than one block" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["paper", "theorem", "exponential", "--nodes", "4", "--noise", "-1"])
    assert "positive noise; got -1" in str(done.exception)
