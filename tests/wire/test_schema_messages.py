"""The messages of unregistered hostile nodes: of every type of the schema, and each can be decoded."""

import random

import pytest

from tests.wire.forged_messages import Victim
from tests.wire.schema_messages import TYPES, RaftState, SchemaMessages
from wire.links.allowed import CELLS, FRAMES
from wire.messages.batches import decode_publish, decode_publish_acks, decode_push_acks, decode_pushes
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry, ShardEntry
from wire.messages.connects import decode_answers, decode_connects
from wire.messages.control import decode_control, decode_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.replication import decode_replica_message

NODES = {
    "e1": NodeEntry("e1", "edge", 5, "e1:1", state=NodeState.ACTIVE),
    "s1": NodeEntry("s1", "storage", 6, "s1:1", state=NodeState.ACTIVE),
}
MAP = ClusterMap("c", 7, NODES, [PartitionEntry(3, "s1", ("s1",))], [ShardEntry(2, "r1")], base_shards=1)
VICTIM = Victim(MAP, "e1", 0, "client", 1 << 48 | 1, 1 << 32 | 1, 1, 1, 5 << 20, 9)
READERS = {
    FrameKind.CONTROL: decode_control,
    FrameKind.CONTROLS: decode_controls,
    FrameKind.CONNECTS: decode_connects,
    FrameKind.CONNECT_ANSWERS: decode_answers,
    FrameKind.REPLICATE: decode_replica_message,
    FrameKind.REPLICATE_ACK: decode_replica_message,
    FrameKind.PUBLISH: decode_publish,
    FrameKind.PUBLISH_ACK: decode_publish_acks,
    FrameKind.PUSH: decode_pushes,
    FrameKind.PUSH_ACK: decode_push_acks,
}


def test_schema_messages_draw_every_frame_kind_and_message() -> None:
    assert {kind for kind, _ in TYPES} == set(FRAMES) - {FrameKind.CONTROLS}, "a new kind needs a line in TYPES"
    assert set(CELLS) <= {message for _, message in TYPES}


@pytest.mark.parametrize("pair", TYPES, ids=lambda pair: pair[1].__name__)
def test_schema_messages_are_well_formed(pair: tuple[int, type]) -> None:
    """Otherwise the decoder would refuse them, and the rules after it would not be tested."""
    schema = SchemaMessages(random.Random(1))
    for receiver in (PeerKey("r1", "router", 2), PeerKey("s1", "storage", 6), PeerKey("e1", "edge", 5)):
        for _ in range(20):
            sender = PeerKey("e8", "edge", 9)
            kind, payload = schema.frame(pair, VICTIM, {"sent_at": [1.0]}, sender, receiver, RaftState(3, 10, 3, 77))
            if kind != FrameKind.RAFT:  # which the schema decodes itself
                assert READERS[kind](payload)
