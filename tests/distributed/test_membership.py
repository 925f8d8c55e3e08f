"""A membership in one process, with a store in memory."""

import threading
from types import SimpleNamespace

import torch.distributed as dist

from perron.distributed.elastic.membership import Membership


class Gone:
    """A store whose host has exited."""

    def __getattr__(self, name):
        raise dist.DistNetworkError("Connection refused")


def test_nobody_waits_for_others_once_the_store_is_gone(monkeypatch):
    """It ends when all have finished; one of them may not have seen that the others have."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    store = dist.HashStore()
    store.set("heartbeat/1.1", "1")
    membership = Membership(store, 0, 2, name="0.1", timeout=5)
    members = [SimpleNamespace(node=node, name=f"{node}.1") for node in range(2)]
    membership._heartbeat.watch(["0.1", "1.1"])
    membership.generation = SimpleNamespace(members=members, ended=False, leave=lambda: None)
    finishing = threading.Thread(target=membership.finish, args=(10,), daemon=True)
    finishing.start()
    finishing.join(0.5)
    assert finishing.is_alive()  # node 1 still trains
    membership._heartbeat.store = Gone()
    finishing.join(30)
    assert not finishing.is_alive()
