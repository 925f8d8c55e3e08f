"""Levels, slopes and times: on series whose answer is known."""

import numpy as np
import pytest

from perron.errors import PerronError
from perron.studies.statistics import BAND, COARSE, Fit, best_time, level, power_law, slope_verdict, time_to


def floor(records=200, trials=20, height=1.0, seed=0, correlation=0.9):
    """A stationary positive series with correlated records: squares of an autoregression, with mean ``height``."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((6, trials))
    rows = []
    for _ in range(records):
        x = correlation * x + np.sqrt(1 - correlation**2) * random.standard_normal(x.shape)
        rows.append((x**2).mean(axis=0))
    return height * np.array(rows)


STEPS = np.arange(200) * 10


def test_levels_of_stationary_series_are_right_within_their_error():
    found = [level(STEPS, floor(seed=seed)) for seed in range(60)]
    assert sum(one.stationary for one in found) >= 40  # a quarter is called too noisy
    off = np.array([(one.mean - 1) / one.error for one in found])
    assert 0.7 < off.std() < 1.4  # the standard error is neither boastful nor timid
    assert {one.since for one in found} <= {1000, 1330, 1500}


@pytest.mark.parametrize("rate", [0.02, 0.005, 0.001])
def test_what_still_falls_is_refused(rate):
    transient = np.exp(-rate * np.arange(200))[:, None]
    found = level(STEPS, transient * (1 + 0.01 * floor()))
    assert not found.stationary
    assert found.why == "still falling"


@pytest.mark.parametrize(("rate", "most"), [(0.016, 0), (0.008, 6), (0.004, 40)])
def test_noise_seldom_hides_a_fall(rate, most):
    """Over the run these curves lose 96, 80 and 55 %; the noise is correlated, and as large as the level."""
    fall = np.exp(-rate * np.arange(200))[:, None]
    assert sum(level(STEPS, floor(seed=seed) * fall).stationary for seed in range(100)) <= most


def test_a_transient_on_top_of_a_floor_is_refused_until_it_is_gone():
    transient = 30 * np.exp(-0.1 * np.arange(200))[:, None]
    assert level(STEPS, floor(seed=1) + transient).stationary  # e^-10 of it is left in the window
    slow = 30 * np.exp(-0.015 * np.arange(200))[:, None]
    assert level(STEPS, floor() + slow).why == "still falling"


def test_rising_noisy_single_and_diverged_series_are_refused():
    assert level(STEPS, floor() * np.geomspace(1, 10, 200)[:, None]).why == "rising"
    assert level(STEPS, floor(trials=3, correlation=0.999)).why == "too noisy"
    assert level(STEPS, floor(trials=1)).why == "too few trials"
    gone = floor()
    gone[150:, 3] = np.inf
    assert level(STEPS, gone).why == "diverged"
    with pytest.raises(PerronError, match="16 records"):
        level(STEPS[:5], floor(records=5))


def test_a_later_window_serves_if_the_first_half_still_falls():
    late = floor(seed=3)
    late[:130] += np.linspace(10, 0, 130)[:, None]
    found = level(STEPS, late)
    assert found.stationary
    assert found.since > 1000


def test_power_law_finds_its_exponent_and_covers_it():
    n = np.array([4, 8, 12, 16])
    assert power_law(n, 3 / n, np.full(4, 0.01)).slope == pytest.approx(-1)
    random, hits = np.random.default_rng(0), 0
    for _ in range(300):
        y = 2 / n * (1 + 0.03 * random.standard_normal(4))
        fit = power_law(n, y, 0.03 * y)
        hits += fit.low <= -1 <= fit.high
    assert 0.92 <= hits / 300 <= 1.0
    crooked = power_law(n, [1, 2, 1, 2], np.full(4, 1e-6))
    assert crooked.high - crooked.low > 1  # scatter beyond the errors widens the interval
    assert np.isnan(power_law([4, 4], [1, 2], [0.1, 0.1]).slope)


def test_weights_let_the_precise_points_decide():
    fit = power_law([1, 2, 4], [1, 0.5, 100], [1e-3, 1e-3, 1e4])
    assert fit.slope == pytest.approx(-1, abs=0.05)


def test_time_to_an_accuracy_is_the_step_from_which_it_holds():
    steps = np.arange(10) * 5
    curve = np.array([9, 5, 1, 3, 1, 1, 0.5, 1, 1, 1.0])
    assert time_to(steps, curve, 1.0) == 20  # not 10: it rose again
    assert time_to(steps, curve, 5.0) == 5
    assert time_to(steps, curve, 10.0) == 0
    assert time_to(steps, curve, 0.6) == np.inf
    late = np.array([9, 9, 9, 9, 9, 9, 9, 9, 9, 1.0])
    assert time_to(steps, late, 1.0) == np.inf  # one record is not "stays"
    both = time_to(steps, np.stack([curve, late], axis=1), 1.0)
    assert both.tolist() == [20, np.inf]
    assert time_to(steps, np.where(curve > 4, np.nan, curve), 3.0) == 10


def test_best_time_takes_the_best_step_and_its_interval_covers_the_truth():
    steps = np.arange(0, 1000, 5)

    def grid(nodes, trials=20, seed=0):
        """SGD on a quadratic: exp(-lr t) plus a floor lr / nodes, times noise."""
        random, found = np.random.default_rng(seed), {}
        for lr in (0.02, 0.04, 0.08, 0.16, 0.32):
            mean = np.exp(-lr * steps) + 0.1 * lr / nodes
            found[lr] = (steps, mean[:, None] * random.gamma(20, 1 / 20, size=(len(steps), trials)))
        return found

    one, four = best_time(grid(1), 0.006), best_time(grid(4), 0.006)
    assert one.lr == 0.04
    assert four.lr == 0.16
    ratio, low, high = one.speedup(four)
    assert low <= ratio <= high
    assert ratio == pytest.approx(4, rel=0.35)
    assert not one.at_edge
    assert best_time(grid(1), 0.02).lr == 0.16
    never = best_time(grid(1), 1e-9)
    assert never.steps == np.inf
    assert np.isnan(one.speedup(never)).all()
    assert best_time({0.02: grid(1)[0.02]}, 0.006).at_edge is False
    assert best_time({lr: grid(1)[lr] for lr in (0.02, 0.04)}, 0.006).at_edge


# ---- the equivalence test of slopes


def verdicts(slope, error, times=300):
    """The verdicts on studies whose levels fall as n^slope, each known up to a relative error by 20 trials."""
    random, n, spread = np.random.default_rng(1), np.array([4.0, 8, 12, 16]), error * 20**0.5
    found = []
    for _ in range(times):
        each = n**slope * random.gamma(spread**-2, spread**2, (20, 4))
        found.append(slope_verdict(power_law(n, each.mean(axis=0), each.std(axis=0, ddof=1) / 20**0.5, trials=20)))
    return found


@pytest.mark.parametrize("slope", [-1 - BAND, -1 + BAND])
@pytest.mark.parametrize("error", [0.01, 0.03, 0.1])
def test_a_slope_at_the_edge_of_the_band_is_rarely_called_linear(slope, error):
    claimed = verdicts(slope, error).count("linear speedup")
    assert claimed <= 300 * 0.025 + 3 * (300 * 0.025) ** 0.5


def test_a_slope_of_one_is_called_linear_where_levels_are_known_well():
    assert verdicts(-1.0, 0.02).count("linear speedup") > 270
    assert verdicts(-1.0, 0.1).count(COARSE) > 270
    assert verdicts(-0.5, 0.03).count("no linear speedup") > 270


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-1.1, -0.9, "linear speedup"), (-1.101, -0.95, COARSE), (-1.05, -0.899, COARSE), (-2.0, 0.0, COARSE),
        (-0.899, -0.8, "no linear speedup"), (-1.3, -1.101, "no linear speedup"), (np.nan, np.nan, "needs two node counts"),
    ],
)  # fmt: skip
def test_the_whole_interval_decides(low, high, verdict):
    assert slope_verdict(Fit((low + high) / 2, low, high)) == verdict
