"""The paper's claims: every check finds what is known, and every check could have found the opposite."""

import json
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from perron import paper as claims
from perron._storage.jsonable import to_jsonable
from perron.algorithms import ADDOPT
from perron.cli import paper as paper_cli
from perron.cli.main import app
from perron.errors import FailedError, PerronError
from perron.paper import (
    CLAIMS,
    Claim,
    Evidence,
    appendix,
    bounds,
    check_claim,
    constants,
    experiments,
    identities,
    noise,
    proof,
    select_claims,
    spectra,
)
from perron.paper.claim import conclude
from perron.paper.practicality import GRAPHS, practicality
from perron.paper.search import FAMILIES, Pair, check_inequality, worst
from perron.theory.theorem import MixingConstants

LOW = 8  # candidates in a search


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("key", CLAIMS)
def test_the_verdict_is_the_expected_one(key, seed):
    result = check_claim(CLAIMS[key], seed=seed, effort=LOW)
    assert result.agrees, result.evidence
    assert (result.evidence.counterexample is None) == (result.evidence.verdict == "holds")
    json.dumps(result.to_dict(), allow_nan=False)


# Each check with its statement changed: true ones made too strong, false ones weakened to what holds.
CHANGED = {
    "1": (partial(bounds.step_size, power=-1), "holds"),
    "2": (partial(bounds.leading_constant, constant=74.0), "holds"),
    "2b": (partial(bounds.other_terms, factors=(40, 24)), "holds"),
    "2c": (partial(bounds.lost_factor, restored=True), "holds"),
    "2d": (partial(bounds.gap_coefficient, corrected=True), "holds"),
    "2e": (partial(bounds.gradient_coefficient, constant=13.0), "holds"),
    "3a": (partial(experiments.data_size, total=1_440_000), "holds"),
    "3b": (partial(experiments.small_step, step=0.05), "holds"),
    "3c": (partial(experiments.integer_weights, high=3), "holds"),
    "4": (partial(experiments.edge_direction, transposed=True), "holds"),
    "5": (partial(experiments.stochastic_metric, noise=0.0), "holds"),
    "6": (partial(noise.consensus_growth, restored=True), "holds"),
    "7a": (partial(spectra.proposition_two, tighten=0.8), "false"),
    "7b": (partial(spectra.at_least_one, least=1.1), "false"),
    "7c": (partial(spectra.peak, factor=2.0), "holds"),
    "7d": (partial(spectra.contraction_below_one, loops="all"), "holds"),
    "7e": (partial(spectra.power_sums, power=1.0), "false"),
    "7f": (partial(spectra.rolling_sum, tighten=0.9), "false"),
    "7g": (partial(spectra.lemma_constants, tighten=0.5), "false"),
    "7h": (partial(spectra.tracker_noise, constant=4.0), "holds"),
    "7i": (partial(spectra.mixed_products, exponent=2.0), "holds"),
    "7j": (partial(identities.sum_of_trackers, shift=1), "false"),
    "7k": (partial(identities.rolling_models, offset=1), "holds"),
    "7l": (partial(noise.tracker_start, constant=12.0), "holds"),
    "8": (partial(noise.noise_separation, factor=2.0), "holds"),
    "9": (partial(bounds.enough_blocks, forgiven=1e5), "holds"),
    "10": (partial(identities.frost_average, scaled=False), "holds"),
    "11": (partial(identities.example_one, algorithm=ADDOPT()), "holds"),
    "12": (partial(noise.one_step_descent, constants=1e9), "holds"),
    "13": (partial(experiments.graphs_of_the_text, text_graphs=True), "holds"),
    "14": (partial(experiments.common_start, start="equal"), "holds"),
    "15a": (partial(identities.regularizer, summed=False), "holds"),
    "15b": (partial(bounds.missing_blocks, restored=True), "holds"),
    "15c": (partial(noise.known_at_the_time, lag=1), "holds"),
    "16": (partial(noise.residual_blocks, tighten=0.1), "false"),
    "17a": (partial(appendix.weighted_contraction, power=-1), "holds"),
    "17b": (partial(appendix.weighted_norm, power=0.5), "holds"),
    "17c": (partial(appendix.last_equality, equal=False), "holds"),
    "18": (partial(appendix.lemma_two_quarter, divisor=1), "holds"),
    "19": (partial(appendix.effective_batch, shared=True), "holds"),
    "20": (partial(appendix.residual_variance, constant=1e9), "holds"),
    "21": (partial(appendix.decay, strict=False), "false"),
    "22a": (partial(constants.display, key="22a", forgiven=0.3), "false"),
    "22b": (partial(constants.display, key="22b", forgiven=1e9), "holds"),
    "22c": (partial(constants.display, key="22c", forgiven=1e9), "holds"),
    "22d": (partial(constants.display, key="22d", forgiven=2.0), "holds"),
    "22e": (partial(constants.display, key="22e", forgiven=1.02), "holds"),
    "23": (partial(appendix.sums_from_identity, tighten=0.3), "false"),
    "24a": (partial(proof.tracker_display, noise=8), "holds"),
    "24b": (partial(proof.moments, line=partial(proof.model_change, printed=True), largest=1.0, tighten=1e-3), "false"),
    "25a": (partial(proof.moments, line=proof.descent, tighten=0.1), "false"),
    "25b": (partial(proof.moments, line=proof.growth, largest=1.0, tighten=1e-3), "false"),
    "25c": (partial(proof.moments, line=proof.tracker_change, largest=1.0, tighten=1e-2), "false"),
    "25d": (partial(proof.moments, line=proof.model_change, largest=1.0, tighten=1e-3), "false"),
    "25e": (partial(proof.coefficients, conditions=1e-3), "false"),
    "25f": (partial(proof.final_bound, tighten=0.9), "false"),
    "26a": (partial(proof.lemma_one, tighten=1e-2), "false"),
    "26b": (partial(proof.on_quadratics, corrected=True), "holds"),
}


@pytest.mark.parametrize("key", CHANGED)
def test_a_changed_statement_changes_the_verdict(key):
    check, verdict = CHANGED[key]
    assert CLAIMS[key].expected != verdict
    assert check(np.random.default_rng(3), LOW).verdict == verdict


def test_every_claim_is_changed_once():
    assert set(CHANGED) == set(CLAIMS)


def test_a_wrong_formula_in_the_library_is_noticed(monkeypatch):
    honest = spectra.mixing_sum_bound
    monkeypatch.setattr(spectra, "mixing_sum_bound", lambda matrix: 0.7 * honest(matrix))
    assert check_claim(CLAIMS["7a"], effort=LOW).evidence.verdict == "false"


def test_a_repair_that_fails_is_noticed():
    def score(pair, ratio):
        return ratio

    rng = np.random.default_rng(0)
    found = check_inequality(score, rng, 4, version=(2.0,), repaired=(1.01,), repair="nothing")
    assert found.verdict == "false"
    assert found.counterexample["lhs/rhs"] == 2
    outcomes = [{"printed": True}, {"printed": False}]
    outcomes += [{"printed": False, "repaired": repaired} for repaired in (False, True)]
    verdicts = [conclude("", {}, {}, **outcome).verdict for outcome in outcomes]
    assert verdicts == ["holds", "false", "false", "repaired"]
    several = iter([0.5, np.nan, *[0.5] * 9])
    assert check_inequality(lambda pair: next(several), rng, 4).verdict == "false"  # what is not a number does not pass


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_families_are_what_they_should_be(family):
    for seed in range(5):
        pair = family(np.random.default_rng(seed))
        assert pair.mixing.is_strongly_connected  # Mixing also checks that A and B are stochastic
        assert pair.A_norms.sum() <= pair.s_A * (1 + 1e-6)
        assert max(pair.A_norms.sum(), (pair.A_norms**2).sum()) == pytest.approx(pair.s_A, rel=1e-6)
        assert asdict(pair.constants) == pytest.approx(asdict(MixingConstants.of(pair.mixing)))
        power = min(5, len(pair.B_powers) - 1)
        deviation = np.linalg.matrix_power(pair.B, power) - np.outer(pair.pi_B, np.ones(pair.nodes))
        assert deviation == pytest.approx(pair.B_powers[power])


def test_the_same_seed_finds_the_same():
    first, again, other = (check_claim(CLAIMS["7h"], seed=seed, effort=LOW).evidence for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_search_climbs():
    def score(pair):
        return float(pair.pi_A.max())

    still = worst(score, np.random.default_rng(0), 1, families=FAMILIES[1:2])
    found = worst(score, np.random.default_rng(0), 40, families=FAMILIES[1:2])
    assert found.ratio > still.ratio
    assert found.tried == 60


def test_exact_moments_agree_with_sampled_ones():
    """The responses are those of a run: draw noises, run Push-Pull literally, compare second moments."""
    rng, trials, steps = np.random.default_rng(0), 20_000, 4
    pair = Pair(rng.uniform(1, 2, (2, 2)), rng.uniform(1, 2, (2, 2)), "2 nodes")
    curvature = np.array([0.5, -0.8])
    exact = noise.responses(pair.A, pair.B, curvature, 1.0, 0.4, steps)
    x, y, before, sampled = np.ones((trials, 2)), np.zeros((trials, 2)), np.zeros((trials, 2)), []
    for _ in range(steps):
        g = curvature * x + rng.standard_normal((trials, 2))
        y, before = y @ pair.B.T + g - before, g
        x = x @ pair.A.T - 0.4 * y
        sampled.append((g**2).mean(axis=0))
    assert (exact.noisy**2).sum(axis=2) == pytest.approx(np.array(sampled), rel=0.05)


# ---- choosing, and the command


def test_choosing():
    assert [claim.key for claim in select_claims(["7", "2"])] == [
        "2", "2b", "2c", "2d", "2e", *(f"7{letter}" for letter in "abcdefghijkl"),
    ]  # fmt: skip
    assert [claim.key for claim in select_claims(["7h"])] == ["7h"]
    assert len(select_claims()) == len(CLAIMS)
    with pytest.raises(PerronError, match=r"There is no claim '99'.*There are: 1, 2, 2b"):
        select_claims(["99"])
    with pytest.raises(PerronError, match="seed >= 0 and an effort >= 1"):
        check_claim(CLAIMS["3a"], effort=0)


def run(*arguments):
    return CliRunner().invoke(app, ["paper", "check", *arguments])


def test_exit_codes(monkeypatch):
    assert run("--only", "3a").exit_code == 0
    other = Claim("3a", "no", "nowhere", "holds", CLAIMS["3a"].check)
    monkeypatch.setitem(claims.CLAIMS, "3a", other)
    failed = run("--only", "3a")
    assert isinstance(failed.exception, FailedError)
    assert "expected: holds" in failed.output
    assert "0 of 1 verdicts are the expected ones" in failed.output
    assert isinstance(run("--only", "none").exception, PerronError)
    assert run("--effort", "some").exit_code == 2


def test_json(monkeypatch):
    told = json.loads(run("--only", "7h", "--only", "3a", "--json", "--seed", "5").output)
    assert (told["seed"], told["effort"], told["agree"]) == (5, "quick", 2)
    first, second = told["claims"]
    assert (first["key"], first["verdict"], first["agrees"]) == ("3a", "repaired", True)
    B = np.array(second["counterexample"]["B"])
    assert B.sum(axis=0) == pytest.approx(1, abs=1e-5)
    pair = Pair(np.ones_like(B), B, "read")
    left = (np.linalg.norm(pair.steps_B(), 2, axis=(1, 2)) ** 2).sum()
    assert left > 2 * pair.s_B  # the counterexample is one, even as rounded for print


def test_the_page(monkeypatch, tmp_path):
    short = {key: CLAIMS[key] for key in ("3a", "7b")}
    monkeypatch.setattr(claims, "CLAIMS", short)
    monkeypatch.setattr(paper_cli, "WEIGHTINGS", 1)
    path = tmp_path / "paper.md"
    assert run("--write", str(path)).exit_code == 0
    text = path.read_text()
    assert "| 3a | L_total" in text
    assert r"\|I - A_inf\|" in text
    assert "2 of 2 verdicts" in text
    assert "| exponential | 16 |" in text
    assert "leave out --only" in str(run("--write", str(path), "--only", "3a").exception)


def test_plain_data():
    given = {"a": np.array([[1 / 3]]), "b": np.int64(2), 3: np.inf, "c": "x"}
    assert to_jsonable(given, digits=6) == {"a": [[0.333333]], "b": 2, "3": None, "c": "x"}
    assert Evidence("holds", "").to_dict()["counterexample"] is None


def test_practicality():
    (row,) = practicality(GRAPHS[1:2], weightings=30)
    assert row.nodes == 16
    assert 4e6 < row.block < 1e7  # about 6e6 steps before the theorem says anything
    assert row.usual / row.step > 1e6
