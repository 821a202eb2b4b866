"""A primary writes rows of its own partition at its backups, and of no other."""

import pytest

from router.map.commands import PlacePartitions
from storage.core import FrameArrived
from storage.replication.backup import PartitionBackup
from storage.state import keys
from storage.state.rows import LogRow, pack
from tests.storage.replicas import EmptyStore
from tests.storage.storage_cluster import Cluster
from wire.decoding import Unreadable
from wire.messages.cluster_map import PartitionEntry
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_STORAGE, PeerKey
from wire.messages.replication import Append, encode_replica_message

FOREIGN = [keys.meta_key(2), keys.meta_key(4), b"", b"\x00", b"\x00\x02\xff", b"\x00\x04"]


@pytest.mark.parametrize("key", FOREIGN, ids=repr)
def test_log_row_with_foreign_keys_is_refused_completely(key: bytes) -> None:
    """It was applied under any key."""
    replica = PartitionBackup(3, EmptyStore(), {})
    replica.load()
    own = pack(LogRow(1, 1, [(keys.session_key(3, 1), b"v")], 1))
    with pytest.raises(Unreadable, match="not of partition 3"):
        replica.append(Append(3, 1, 0, 0, 2, 0, 0, [own, pack(LogRow(1, 2, [(key, b"v")], 1))]))
    assert (replica.log_end, replica.take_writes()) == (0, [])


@pytest.mark.parametrize("early", [False, True])
def test_node_condemns_a_peer_that_writes_foreign_rows(early: bool) -> None:
    """Also one that its map does not list yet: the pending message condemned the router that announced it."""
    cluster = Cluster(nodes=2, partitions=2, replicas=2, min_in_sync=1)
    cluster.settle()
    placement = cluster.map.partitions[0]
    liar, backup = placement.in_sync
    epoch = placement.epoch
    if early:
        epoch, liar, backup = epoch + 1, backup, liar
    core = cluster.nodes[backup].core
    assert core is not None
    peer = PeerKey(liar, TIER_STORAGE, cluster.map.nodes[liar].incarnation)
    row = pack(LogRow(epoch, 1, [(keys.session_key(1, 1), b"v")], epoch))
    payload = encode_replica_message(Append(0, epoch, 0, 0, 1, 0, 0, [row]))
    ready = core.handle(cluster.now, [FrameArrived(peer, FrameKind.REPLICATE, payload)])
    assert [name for name, _ in ready.condemned] == [peer]
    assert core.counts["frames_unreadable"] == 1
    if early:
        assert not cluster.apply(PlacePartitions({0: PartitionEntry(epoch, liar, placement.in_sync)}))
        cluster.run(1.0)
        assert core.map.partitions[0].primary == liar
    assert keys.session_key(1, 1) not in cluster.disks[backup].records
