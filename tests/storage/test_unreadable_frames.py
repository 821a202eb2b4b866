"""Damaged frames of a peer are counted and dropped completely; the node and its work are unaffected."""

import pytest

from storage.core import FrameArrived
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage, encode_message
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (FrameKind.PUBLISH, encode_message(PublishMessage(1, b"t", b"x", 1, partitions=(0,))) + b"\x01\x05"),
        (FrameKind.PUSH_ACK, b"\x00" * 7),
        (FrameKind.CONTROL, b"\xc1"),
        (FrameKind.REPLICATE, b"\x93"),
    ],
)
def test_damaged_frames_are_counted(kind: int, payload: bytes) -> None:
    """The node continues, and a batch with a damaged end is not processed in part."""
    cluster = Cluster(nodes=1, partitions=1)
    core = next(iter(cluster.nodes.values())).core
    assert core is not None
    tier = "storage" if kind == FrameKind.REPLICATE else "edge"
    core.handle(1.0, [FrameArrived(PeerKey("node-9", tier, 1), kind, payload)])
    assert core.counts["frames_unreadable"] == 1
