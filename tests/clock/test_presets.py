import numpy as np
import pytest

from perron.clock import presets
from perron.clock.machines import Machines
from perron.errors import PerronError

NODES = {"aws-10": 10, "gaia": 11, "aws-na": 22, "geant": 40, "exodus": 79, "ebone": 87}
LINKS = {"aws-10": 45, "gaia": 55, "aws-na": 231, "geant": 61, "exodus": 147, "ebone": 161}


@pytest.mark.parametrize("name", NODES)
def test_every_pair_has_a_link_and_rates_are_positive(name):
    machines = presets.load(name)
    n = NODES[name]
    assert machines.nodes == n
    assert len(machines.graph.edges) == n * (n - 1)
    latency = machines.latency_matrix
    np.testing.assert_array_equal(latency, latency.T)
    assert latency[~np.eye(n, dtype=bool)].min() >= 0.004
    underlay = presets.load(name, route=False)
    assert len(underlay.graph.edges) == 2 * LINKS[name]
    assert underlay.labels == machines.labels


def test_names_descriptions_and_sources():
    assert presets.names() == list(NODES)
    assert list(presets.describe()) == presets.names()
    for name in presets.names():
        first = (presets.FOLDER / f"{name}.csv").read_text().splitlines()[0]
        assert first.startswith("# both_ways=true; ")
        assert "Marfoq et al. 2020" in first or "Yuan et al. 2022" in first


def test_figures_of_the_sources():
    gaia = Machines.read("gaia")
    virginia, california = (gaia.labels.index(name) for name in ("Virginia", "California"))
    assert gaia.latency[virginia, california] == pytest.approx(0.004 + 8.5e-6 * 3560.859824767453, rel=1e-15)
    assert gaia.rate[virginia, california] == 1.25e8
    assert gaia.up == gaia.down == 1.25e9
    aws = presets.load("aws-10")
    assert aws.latency[aws.labels.index("Tokyo"), aws.labels.index("Oregon")] == 0.096
    assert aws.rate[aws.labels.index("Tokyo"), aws.labels.index("Oregon")] == 523e6 / 8
    assert aws.up == np.inf


def test_a_path_pays_the_constant_of_the_rule_once():
    length, hops = presets.paths("geant")
    assert hops.max() > 3
    routed, underlay = presets.load("geant"), presets.load("geant", route=False).routed()
    far = np.argwhere(hops > 3)[0]
    assert routed.latency[*far] == pytest.approx(0.004 + 8.5e-6 * length[*far])
    assert underlay.latency_matrix[*far] > routed.latency[*far] + 0.004 * (hops[*far] - 1) - 1e-3


def test_access_is_an_option_and_unknown_names_are_refused():
    assert presets.load("gaia", access=1e6).down == 1e6
    assert presets.load("aws-10", access=1e6).up == 1e6
    with pytest.raises(PerronError, match="did you mean 'gaia'"):
        presets.load("gaja")
    with pytest.raises(PerronError, match="no lengths of links"):
        presets.paths("aws-10")
