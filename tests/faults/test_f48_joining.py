"""A node is killed while it joins the training, or while it loads a checkpoint."""

import pytest
from table import long


def test_f48_killed_in_join_and_restarted(elastic, row):
    one = elastic(steps=40, dies=[1, "in join"]).start("--nodes", 3, "--restarts", 1)
    codes, said = one.ended()
    assert codes == [0], said
    found = one.results()
    assert {result["name"] for result in found.values()} == {"0.1", "1.2", "2.1"}
    assert {result["began"] for result in found.values()} == {0}
    assert [result["x"][0] for result in found.values()] == pytest.approx([1.0] * 3, rel=0.2)
    row.measured("in join: restarted, the training began with all nodes", trials=1)


@long
def test_f48_killed_in_join_without_restarts(elastic, row):
    one = elastic(steps=40, dies=[1, "in join"]).start("--nodes", 3)
    codes, said = one.ended()
    assert codes == [3], said
    assert "cannot start: node 1 was killed by SIGKILL before the training began" in said
    assert one.results() == {}
    row.measured("in join, without restarts: the others end and say so", trials=1)


@pytest.mark.parametrize("place", ["before loading", pytest.param("in loading", marks=long)])
def test_f48_killed_while_a_checkpoint_is_loaded(place, elastic, row):
    one = elastic(steps=60, every=20).start("--nodes", 3)
    assert one.ended()[0] == [0]
    one.options |= {"steps": 100, "dies": [1, place]}
    for path in one.folder.glob("*.result"):
        path.unlink()
    codes, said = one.start("--nodes", 3, "--restarts", 1).ended()
    assert codes == [0, 0], said
    found = one.results()
    assert {result["name"] for result in found.values()} == {"0.1", "1.2", "2.1"}, said
    assert {found[node]["began"] for node in (0, 2)} == {60}, said
    assert found[1]["began"] >= 60, said
    assert {result["step"] for result in found.values()} == {100}
    row.measured(f"{place}: restarted, all continue from step 60", trials=1)
