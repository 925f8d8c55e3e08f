"""A node dies at the very end of an elastic training, and is restarted: the training has finished, and stays so."""

import pytest

PLACES = ["in the average", "after the average", "in close", "in finish"]


@pytest.mark.parametrize("place", PLACES)
def test_f29_a_node_dies_at_the_end(place, elastic, row):
    one = elastic(steps=40, dies=[1, place]).start("--nodes", 4, "--restarts", 2)
    codes, said = one.ended()
    assert codes == [0], said
    assert "Node 1 was killed by SIGKILL" in said
    found = one.results()
    names = {result["name"] for result in found.values()}
    assert names == {f"{node}.1" for node in range(4) if node != 1 or place != "in the average"}, said
    assert {result["step"] for result in found.values()} == {40}
    assert {result["began"] for result in found.values()} == {0}
    assert one.steps("1.2") == one.steps("1.3") == 0  # no process in its place has trained
    average = 1.5 if place != "in the average" else 5 / 3
    shares = [result["x"][0] for result in found.values()]
    assert shares == pytest.approx([average] * len(shares), rel=0.2)
    if place != "in the average":
        assert len({tuple(result["x"]) for result in found.values()}) == 1
    row.measured(f"killed {place}: results stand, exit code 0", trials=1)
