"""Helpers that compare replicas: rows of a state, equal states, a healed placement."""

from storage.state import keys
from storage.state.rows import LocalRow, MetaRow, unpack
from tests.simulation.model_store import ModelDisk
from tests.storage.storage_cluster import Cluster


class EmptyStore:
    """A store without rows."""

    def get(self, key: bytes) -> bytes | None:
        """Return None."""

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:  # noqa: ARG002
        """Return no rows."""
        return []


def state_of(disk: ModelDisk, partition: int) -> tuple[int, dict[bytes, bytes]]:
    """Return (op_index, rows) of a partition's state on a disk, without its log and local row."""
    start, stop = keys.partition_range(partition)
    rows = {
        key: record
        for key, record in disk.records.items()
        if start <= key < stop and key[2:3] not in (keys.LOG, keys.LOCAL)
    }
    meta = rows.get(keys.meta_key(partition))
    return (unpack(MetaRow, meta[5:]).op_index if meta is not None else 0), rows


def assert_equal_states(cluster: Cluster) -> None:
    """Every pair of replicas in sync at one op_index has the same rows."""
    for number, placement in enumerate(cluster.map.partitions):
        seen: dict[int, tuple[str, dict[bytes, bytes]]] = {}
        for name in placement.in_sync:
            if name not in cluster.nodes:
                continue
            op_index, rows = state_of(cluster.disks[name], number)
            local = cluster.disks[name].records.get(keys.local_key(number))
            if local is not None and op_index < unpack(LocalRow, local[5:]).floor:
                continue  # a range transfer has rows newer than its META row until the log catches up
            if op_index in seen:
                other, expected = seen[op_index]
                differing = {key for key in rows.keys() | expected.keys() if rows.get(key) != expected.get(key)}
                assert not differing, f"p{number} at {op_index}: {name} and {other} differ in {sorted(differing)[:5]}"
            seen[op_index] = (name, rows)


def heal_placement(cluster: Cluster, copies: int) -> None:
    """Wait until every partition has so many replicas in sync and its primary serves."""
    end = cluster.now + 20
    while True:
        cluster.step()
        placements = cluster.map.partitions
        if all(
            len(placement.in_sync) == copies and placement.primary in cluster.nodes and not placement.joining
            for placement in placements
        ) and all(node.core.serving for node in cluster.nodes.values()):
            return
        assert cluster.now < end, placements
