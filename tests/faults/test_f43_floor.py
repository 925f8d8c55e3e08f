"""Fewer nodes than the user wants are left: the survivors save and end, or wait for those that are restarted."""

import re
import time

from table import long


def steps_saved(one):
    return sorted(int(path.name[5:]) for path in one.folder.glob("checkpoints/*/step-*"))


def test_f43_too_few_nodes_save_and_end(elastic, row):
    one = elastic(steps=2000, pause=0.01, every=100_000).start("--nodes", 4, "--min-nodes", 4)
    one.further(20, *(f"{node}.1" for node in range(4)))
    one.process("2.1").kill()
    began = time.monotonic()
    codes, said = one.ended()
    took = time.monotonic() - began
    assert codes == [3], said
    reason = (
        r"The training ends: 3 of 4 nodes are left \(lost: node 2 \(killed by SIGKILL\)\), fewer than min_nodes = 4\."
    )
    (step,) = set(re.findall(rf"perron: {reason} Saved after step (\d+)\. Start again to resume", said))
    assert steps_saved(one) == [int(step)]
    assert max(one.steps(f"{node}.1") for node in (0, 1, 3)) == int(step)  # no step was made with three
    one.options["steps"] = int(step) + 20
    codes, said = one.start("--nodes", 4).ended()
    assert codes == [3, 0], said
    found = one.results()
    assert {result["began"] for result in found.values()} == {int(step)}
    assert len(found) == 4
    row.measured(f"saved after step {step} and ended, {took:.1f} s after the kill; resumed by four", trials=1)


@long
def test_f43_a_restarted_node_is_waited_for(elastic, row):
    one = elastic(steps=400, pause=0.01, every=100_000).start("--nodes", 3, "--min-nodes", 3, "--restarts", 1)
    one.further(20, "0.1", "1.1", "2.1")
    one.process("1.1").kill()
    one.further(20, "1.2")
    step = one.steps("0.1")
    one.process("2.1").kill()  # it is not restarted any more
    codes, said = one.ended()
    assert codes == [3], said
    assert "fewer than min_nodes = 3" in said
    (saved,) = steps_saved(one)
    assert saved >= step
    assert max(one.steps("0.1"), one.steps("1.2")) == saved
    members = [change for change in re.findall(r"average over nodes ([\d, ]+)\.", said) if change != "0, 1, 2"]
    assert set(members) <= {"0, 1"}, said  # only of the generation that saved
    row.measured("waited for a restarted node; after the next kill saved and ended", trials=1)
