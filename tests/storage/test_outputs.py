"""The order in which what a partition says leaves its node."""

from storage.durable_sessions import DurableSession
from storage.partition import Partition
from storage.settings import PartitionSettings
from tests.simulation.model_store import ModelDisk, ModelStore
from tests.storage.storage_cluster import STORE_SETTINGS
from wire.frames import FrameKind


def test_what_needed_no_commit_is_not_overtaken_while_nothing_may_leave() -> None:
    """Simulation seed 20059: nothing leaves without a lease; when it was back, the earlier push went last."""
    store = ModelStore.open(ModelDisk(), "cluster", "s1", STORE_SETTINGS)
    partition = Partition(0, PartitionSettings(), store, {}, 0.0)
    session = DurableSession(1, "alice")
    session.edge = "e1"
    partition.push(session, b"first", settled=True)
    partition.put(b"row", b"of the second")
    partition.push(session, b"second")
    partition.close_operation()
    partition.push(session, b"third", settled=True)  # committed, but what goes before it is not
    partition.close_operation()
    assert partition.meta.op_index == 1
    partition.note_synced("", 1)  # the round in which anything may leave again
    pushes = [b"first", b"second", b"third"]
    assert partition.committed_outputs() == [("e1", FrameKind.PUSH, payload) for payload in pushes]
    assert partition.committed_outputs() == []
