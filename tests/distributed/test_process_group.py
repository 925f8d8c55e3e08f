"""Groups of processes, here threads of one process."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from kinds import Training, group

from perron.distributed.collective import assemble
from perron.distributed.consistency import gather_texts
from perron.distributed.elastic.generation import Generation
from perron.distributed.elastic.protocol import Decision, Member
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import FixedPeers


@pytest.mark.slow
def test_a_collective_waits_as_long_as_it_is_told(tmp_path):
    """And not as long as its group, which is meant for messages."""
    members, found = [Member(node, str(node), fresh=True, phase="start", step=0) for node in range(2)], {}
    store, ready = dist.FileStore(str(tmp_path / "store"), 2), threading.Barrier(2)

    def come(rank, late):
        generation = Generation(Decision(0, tuple(members)), str(rank), {})
        ready.wait()
        generation.connect(dist.PrefixStore("generation", store), 3.0)
        time.sleep(late)
        found[rank] = gather_texts(f"text of {rank}", generation, 100.0)
        generation.leave()

    both = [threading.Thread(target=come, args=(rank, 5.0 * rank)) for rank in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert found == {rank: ["text of 0", "text of 1"] for rank in range(2)}


def test_names_of_trainings_only_grow(tmp_path, monkeypatch):
    """Whatever the clock says when members change: newer checkpoints must count as newer."""
    with group():
        optimizer: Decentralized = Training(tmp_path).optimizer
        before = optimizer.run_id
        monkeypatch.setattr("perron.distributed.collective.time.time_ns", lambda: 10**18)  # it was set back
        with torch.no_grad():
            assemble(optimizer, FixedPeers(), optimizer._flat.point(), optimizer.node.mixing)
        assert optimizer.run_id > before
