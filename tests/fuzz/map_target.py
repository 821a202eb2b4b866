"""Fuzz target of the map stream: a node that follows is sent pages and steps, in any order, cut and damaged."""

import contextlib

import msgspec

from tests.fuzz.good_messages import good
from wire.decoding import Unreadable
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState, PartitionEntry, ShardEntry
from wire.messages.control import Control, decode_control, decode_controls, encode_control, join_controls
from wire.messages.map_pages import MAP_BYTES_MAX, STEPS_MAX, map_pages
from wire.messages.nodes import HeartbeatReply, MapPage, MapStep, Registered
from wire.node.lease_holder import LeaseHolder

__all__ = ["MAP_TALKS", "map_talk"]

_NODES = {
    name: NodeEntry(name, tier, 2, "h:1", state=NodeState.ACTIVE) for name, tier in (("e1", "edge"), ("r1", "router"))
}
_MAP = ClusterMap("c", 4, _NODES, [PartitionEntry(1, "s1", ("s1",))], [ShardEntry(1, "r1")], base_shards=1)
_PAGE = map_pages(_MAP)[0]
_FULL = msgspec.convert(good(MapDelta), MapDelta)


def _cut(size: int) -> list[MapPage]:
    return [
        msgspec.structs.replace(_PAGE, offset=offset, data=_PAGE.data[offset : offset + size])
        for offset in range(0, len(_PAGE.data), size)
    ]


def _steps(*epochs: int) -> list[MapStep]:
    return [MapStep(msgspec.structs.replace(_FULL, epoch=epoch, delegations=None, shards={})) for epoch in epochs]


_TALKS: tuple[list[Control], ...] = (
    [Registered(1, 2), _PAGE, *_steps(5, 6)],
    [*_cut(60), *_steps(5)],
    [_cut(60)[0], *_steps(5, 6), *_cut(60)[1:]],
    [_PAGE, *_steps(5, 7), _PAGE],
    [_PAGE, MapStep(_FULL), HeartbeatReply(2, 0.0, 2.0, 5, "r1", 5)],
)
MAP_TALKS = tuple(join_controls([encode_control(message) for message in talk]) for talk in _TALKS)


def map_talk(data: bytes) -> None:
    """For any router messages, the map moves to higher epochs only, and stays encodable."""
    epochs: list[int] = []

    def moved(cluster_map: ClusterMap) -> None:
        epochs.append(cluster_map.epoch)
        assert not cluster_map.partitions or cluster_map.partition_for("client") < len(cluster_map.partitions)

    holder = LeaseHolder(NodeEntry("e1", "edge", 2, "h:1"), lambda *_: True, moved)
    holder.router_up("r1", 0.0, 2)
    holder.beat(0.0)
    try:
        messages = decode_controls(data)
    except Unreadable:
        with contextlib.suppress(Unreadable):
            decode_control(data)
        return
    for number, message in enumerate(messages):
        if not holder.following:
            holder.beat(float(number))
        holder.handle(float(number), "r1", message)
    assert epochs == sorted(epochs)
    pages = vars(holder)["_pages"]
    assert len(vars(pages)["_steps"]) <= STEPS_MAX and len(vars(pages)["_data"]) <= min(MAP_BYTES_MAX, len(data))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(holder.map), type=ClusterMap) == holder.map
