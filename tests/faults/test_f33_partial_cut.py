"""One direction of one link between two machines stops working, in an elastic training."""

import time

import pytest


def test_f33_one_direction_of_one_link_is_cut(machines, elastic, row):
    networks, addresses, cut = machines
    one = elastic(steps=400, pause=0.02, timeout=5)
    for node, network in enumerate(networks):
        where = ["--nodes", 1, "--first", node, "--size", 4, "--store", f"{addresses[0]}:29411"]
        one.start(*where, prefix=network, environment={"GLOO_SOCKET_IFNAME": "cable"})
    one.further(20, *(f"{node}.1" for node in range(4)))
    step, began = one.steps("0.1"), time.monotonic()
    cut(1, 2)
    one.further(60, *(f"{node}.1" for node in range(4)))
    took = time.monotonic() - began
    codes, said = one.ended()
    assert codes == [0, 0, 0, 0], said
    assert "Nothing from node 1 reaches node 2, the other direction works" in said
    found = one.results()
    assert {result["step"] for result in found.values()} == {400}
    assert [found[node]["x"][0] for node in range(4)] == pytest.approx([1.5] * 4, abs=0.05)
    assert all("lost" not in change for result in found.values() for change in result["changes"])
    row.measured(f"named; all four nodes continue, 60 more steps {took:.0f} s after the cut at step {step}", trials=1)
