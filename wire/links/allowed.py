"""Rights on a link: one table of message type, sender tier and receiver tier, each cell with its rule.

Routers, storage nodes and edges judge every frame by it, the edge's compiled loop too. A message without a cell, or one
that speaks for another node, has no honest cause: it is refused and its link is closed until that node starts again. A
message that only its place forbids (the sender is not the primary any more) is refused, and the link stays.
Counting and logging of refusals is in ``wire/links/refusals.py``. Source: docs/protocol.md rule 1.8; docs/adr/0018.
"""

import enum
from itertools import product
from typing import NamedTuple

from wire.messages import messages as m
from wire.messages.cluster_map import ClusterMap
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey

__all__ = [
    "ANSWERS",
    "CELLS",
    "FRAMES",
    "IDENTITY",
    "RELAYED",
    "TIER",
    "Rule",
    "Standing",
    "fault_of",
    "link_tiers",
    "may_send",
    "standing",
]

TIER = "tier"  # reasons of a refusal: no cell for these tiers
IDENTITY = "identity"  # it speaks for another node, or another life


class Rule(enum.Enum):
    """Condition that must hold beside the tiers."""

    TIERS = "nothing more: the receiver looks whom it asked by the number, and whether the sender lives"
    OWN_LIFE = "the node, tier and incarnation of the link"
    ROUTES = "an edge's own routes, or those of a partition whose primary the sender is at that partition_epoch"
    PRIMARY = "the node that the receiver's map names as primary of the partition"
    OWNER = "the edge whose connection owns the session"
    ASKED = "a node that this very question was sent to"


class Cell(NamedTuple):
    """Which tier may send a message to which, and what must hold beside that."""

    tiers: frozenset[tuple[str, str]]  # sender, receiver
    rule: Rule


def _cell(senders: str, receivers: str, rule: Rule = Rule.TIERS) -> Cell:
    return Cell(frozenset(product(senders.split(), receivers.split())), rule)


_NODES = "edge storage router"

CELLS: dict[type, Cell] = {
    m.Register: _cell(_NODES, "router", Rule.OWN_LIFE),
    m.Registered: _cell("router", _NODES),
    m.Refused: _cell("router", _NODES),
    m.Heartbeat: _cell(_NODES, "router", Rule.OWN_LIFE),
    m.Drain: _cell(_NODES, "router"),  # of the link's life: it names no other
    m.Leave: _cell(_NODES, "router"),
    m.HeartbeatReply: _cell("router", _NODES),
    m.FollowMap: _cell("edge storage", "router"),
    m.MapPage: _cell("router", "edge storage"),
    m.MapStep: _cell("router", "edge storage"),
    m.RequestChange: _cell("storage", "router"),  # by the primary: the step itself says so (placement_change)
    m.Changed: _cell("router", "storage"),
    m.Resolve: _cell("edge", "router"),
    m.Resolved: _cell("router", "edge"),
    m.AddRoutes: _cell("edge storage", "router", Rule.ROUTES),
    m.RoutesAdded: _cell("router", "edge storage"),
    m.RemoveRoutes: _cell("edge storage", "router", Rule.ROUTES),
    m.ReportRoutes: _cell("edge storage", "router", Rule.ROUTES),
    m.Invalidate: _cell("router", "edge"),
    m.Invalidated: _cell("edge", "router"),
    m.Moved: Cell(
        frozenset({(TIER_ROUTER, TIER_EDGE), (TIER_ROUTER, TIER_STORAGE), (TIER_STORAGE, TIER_EDGE)}), Rule.TIERS
    ),
    m.OpenSession: _cell("edge", "storage"),
    m.SessionOpened: _cell("storage", "edge", Rule.ASKED),
    m.CloseSession: _cell("edge", "storage", Rule.OWNER),
    m.SessionClosed: _cell("storage", "edge", Rule.ASKED),
    m.KickSession: _cell("storage", "edge", Rule.PRIMARY),
    m.SessionKicked: _cell("edge", "storage", Rule.ASKED),
    m.Relay: _cell("edge storage", "router"),
    m.Relayed: _cell("router", "edge storage"),  # what it holds is judged as its first sender's
    m.SubscribeSession: _cell("edge", "storage", Rule.OWNER),
    m.SessionSubscribed: _cell("storage", "edge", Rule.ASKED),
    m.UnsubscribeSession: _cell("edge", "storage", Rule.OWNER),
    m.SessionUnsubscribed: _cell("storage", "edge", Rule.ASKED),
    m.RecordInbound: _cell("edge", "storage", Rule.OWNER),
    m.InboundRecorded: _cell("storage", "edge", Rule.ASKED),
    m.ReleaseInbound: _cell("edge", "storage", Rule.OWNER),
    m.InboundReleased: _cell("storage", "edge", Rule.ASKED),
    m.ReadRetained: _cell("edge", "storage"),
    m.ReadRetainedAll: _cell("edge", "storage"),
    m.RetainedPage: _cell("storage", "edge", Rule.ASKED),
    m.RetainedNone: _cell("storage", "edge", Rule.ASKED),
    m.DeliverRetained: _cell("edge", "storage", Rule.OWNER),
    m.RetainedDelivered: _cell("storage", "edge", Rule.ASKED),
    m.PollClaims: _cell("storage", "edge", Rule.PRIMARY),
    m.Claims: _cell("edge", "storage", Rule.ASKED),
    m.FireWill: _cell("storage", "edge", Rule.PRIMARY),
    m.WillFired: _cell("edge", "storage", Rule.ASKED),
    m.HandOn: _cell("storage", "edge", Rule.PRIMARY),
    m.HandedOn: _cell("edge", "storage", Rule.ASKED),
    m.Admin: _cell("operator", "router storage"),
    m.AdminReply: _cell("router storage", "operator"),
}

# Frames, and beside the tiers: RAFT in the link's own name; PUBLISH between storage nodes at QoS 0 only, passed on by a
# former primary; PUBLISH_ACK of a partition from a node that was sent that tag as its primary, of a pick from the
# picked edge; PUSH from the primary of the session's partition; PUSH_ACK from the edge that owns the session;
# REPLICATE from the primary of that partition_epoch, REPLICATE_ACK from a replica of it.
FRAMES: dict[int, frozenset[tuple[str, str]]] = {
    FrameKind.RAFT: frozenset({(TIER_ROUTER, TIER_ROUTER)}),
    FrameKind.PUBLISH: frozenset(
        {(TIER_EDGE, TIER_EDGE), (TIER_EDGE, TIER_STORAGE), (TIER_STORAGE, TIER_STORAGE)},
    ),
    FrameKind.PUBLISH_ACK: frozenset({(TIER_EDGE, TIER_EDGE), (TIER_STORAGE, TIER_EDGE)}),
    FrameKind.PUSH: frozenset({(TIER_STORAGE, TIER_EDGE)}),
    FrameKind.PUSH_ACK: frozenset({(TIER_EDGE, TIER_STORAGE)}),
    FrameKind.REPLICATE: frozenset({(TIER_STORAGE, TIER_STORAGE)}),
    FrameKind.REPLICATE_ACK: frozenset({(TIER_STORAGE, TIER_STORAGE)}),
    FrameKind.CONTROL: frozenset().union(*(cell.tiers for cell in CELLS.values())),
}

# What a partition answers to an edge's request; Moved may come instead of each.
ANSWERS: dict[type, tuple[type, ...]] = {
    m.OpenSession: (m.SessionOpened,),
    m.CloseSession: (m.SessionClosed,),
    m.SubscribeSession: (m.SessionSubscribed,),
    m.UnsubscribeSession: (m.SessionUnsubscribed,),
    m.RecordInbound: (m.InboundRecorded,),
    m.ReleaseInbound: (m.InboundReleased,),
    m.ReadRetained: (m.RetainedPage,),
    m.DeliverRetained: (m.RetainedDelivered,),
}

RELAYED = (m.KickSession, m.SessionKicked)


def may_send(sender_tier: str, receiver_tier: str, kind: int) -> bool:
    """Return whether a tier may send this kind of frame to another; a kind without a row may nobody."""
    return (sender_tier, receiver_tier) in FRAMES.get(kind, frozenset())


def link_tiers(receiver_tier: str) -> frozenset[str]:
    """Return the tiers that a node takes links from: those that may say anything to it."""
    return frozenset(sender for pairs in FRAMES.values() for sender, receiver in pairs if receiver == receiver_tier)


def fault_of(peer: PeerKey, receiver_tier: str, message: m.Control) -> str:
    """Return "", or why a control message closes its link: TIER or IDENTITY.

    The other rules need the receiver's state; the receiver looks at them where it carries the message out.
    """
    cell = CELLS.get(type(message))
    if cell is None or (peer.tier, receiver_tier) not in cell.tiers:
        return TIER
    if isinstance(message, m.Moved):  # routers answer for shards, storage nodes for partitions
        return "" if message.what == ("shard" if peer.tier == TIER_ROUTER else "partition") else IDENTITY
    if cell.rule is Rule.OWN_LIFE:
        return "" if _is_own_life(peer, message) else IDENTITY
    if cell.rule is Rule.ROUTES:
        return "" if _are_own_routes(peer, message) else IDENTITY
    return ""


def _is_own_life(peer: PeerKey, message: m.Control) -> bool:
    if isinstance(message, m.Register):
        return (message.entry.node, message.entry.tier, message.entry.incarnation) == peer
    return isinstance(message, m.Heartbeat) and (message.node, message.incarnation) == (peer.node, peer.incarnation)


def _are_own_routes(peer: PeerKey, message: m.Control) -> bool:
    if isinstance(message, m.ReportRoutes):
        senders = [(report.partition, report.sender_epoch) for report in message.reports]
    else:
        assert isinstance(message, m.AddRoutes | m.RemoveRoutes)
        senders = [(message.partition, message.sender_epoch)]
    if peer.tier == TIER_EDGE:
        return all(sender == (-1, peer.incarnation) for sender in senders)
    return all(partition >= 0 for partition, _ in senders)


class Standing(enum.Enum):
    """A map's view of a node that speaks as the primary of a partition."""

    PRIMARY = "it is the primary, and was at that partition_epoch"
    LATER = "the partition_epoch is above the map's: the map may say so soon"
    OTHER = "it is not, or was not then"


def standing(cluster_map: ClusterMap, node: str, partition: int, partition_epoch: int, since: int) -> Standing:
    """Judge a node that speaks as the primary of a partition.

    Args:
        cluster_map: The receiver's.
        node: The sender.
        partition: Whose primary it says it is.
        partition_epoch: Under which it says so.
        since: The partition_epoch from which on the map has named the present primary without a break.
    """
    if not cluster_map.partitions:
        return Standing.LATER
    if not 0 <= partition < len(cluster_map.partitions):
        return Standing.OTHER
    placement = cluster_map.partitions[partition]
    if partition_epoch > placement.epoch:
        return Standing.LATER
    return Standing.PRIMARY if placement.primary == node and partition_epoch >= since else Standing.OTHER
