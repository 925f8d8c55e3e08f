"""One direction of one link between two machines stops working, in an elastic training."""

import time


def test_f33_one_direction_of_one_link_is_cut(machines, elastic, row):
    networks, addresses, cut = machines
    one = elastic(steps=400, pause=0.02, timeout=5)
    for node, network in enumerate(networks):
        where = ["--nodes", 1, "--first", node, "--size", 4, "--store", f"{addresses[0]}:29411"]
        one.start(*where, prefix=network, environment={"GLOO_SOCKET_IFNAME": "cable"})
    one.further(20, *(f"{node}.1" for node in range(4)))
    step, began = one.steps("0.1"), time.monotonic()
    cut(1, 2)
    one.further(60, "0.1", "1.1", "3.1")
    took = time.monotonic() - began
    codes, said = one.ended()
    assert codes == [0, 0, 0, 0], said
    assert "Nothing from node 1 reaches node 2, the other direction works" in said
    found = one.results()
    assert sorted(found) == [0, 1, 3]
    assert {result["step"] for result in found.values()} == {400}
    assert "Node 2 is not a member of the next generation" in said
    assert "Node 2 is not needed any more: the training has finished" in said
    row.measured(f"named; three nodes continue, 60 more steps {took:.0f} s after the cut at step {step}", trials=1)
