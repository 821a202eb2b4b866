"""Permissions on a link: a table of message type, sender tier and receiver tier; each cell has its rule and its sender.

Routers, storage nodes and edges check every frame against it, the edge's compiled loop too. An honest node never sends
a message without a cell, or one for another node: it is refused, and its link is closed until that node starts again. A
message may be forbidden only by its sender's placement or role, for example to a former primary. Then the message is
refused and the link stays, because the receiver's map may be the older one. ``wire/links/refusals.py`` counts and logs
refusals. Source: docs/protocol.md rule 1.8; docs/adr/0018.
"""

import enum
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

from wire.links.roster import Roster
from wire.messages import (
    control,
    disconnected_sessions,
    nodes,
    operators,
    orders,
    policy,
    queries,
    redispatch,
    retained,
    routes,
    running_traces,
    sessions,
    user_counts,
    wills,
)
from wire.messages.cluster_map import ClusterMap
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_GATEWAY, TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE, PeerKey

__all__ = [
    "ANSWERS",
    "CELLS",
    "FRAMES",
    "IDENTITY",
    "RELAYED",
    "ROLE",
    "TIER",
    "PrimaryStatus",
    "Sender",
    "SenderRule",
    "fault_of",
    "is_early_stream",
    "kinds_from",
    "link_tiers",
    "may_send",
    "role_fault_of",
    "standing",
]

TIER = "tier"  # reasons of a refusal: no cell for these tiers
IDENTITY = "identity"  # it speaks for another node, or another incarnation
ROLE = "role"  # its sender is not in that role now, by the receiver's map or Raft group


class SenderRule(enum.Enum):
    """Condition that must hold beside the tiers."""

    TIERS = "nothing more: the receiver looks whom it asked by the number, and whether the sender lives"
    OWN_INCARNATION = "the node, tier and incarnation of the link"
    ROUTES = "an edge's own routes, or those of a partition whose primary the sender is at that partition_epoch"
    PRIMARY = "the node that the receiver's map names as primary of the partition"
    OWNER = "the edge whose connection owns the session"
    ASKED = "a node that this very question was sent to"
    SHARD_OWNER = "the router that was asked, which the receiver's map names as owner of the question's shard"


class Sender(enum.Enum):
    """Role that an edge or storage node needs to send a message (``wire/links/roster.py``).

    A router must belong to the cluster for any message; an operator's or a gateway's certificate is its role.
    """

    CERTIFIED = "any holder of a certificate of the tier: it introduces itself, or is no node"
    MEMBER = "an incarnation that the receiver's map has as alive"


class Cell(NamedTuple):
    """Permitted pairs of tiers for a message, the sender's required role, and a further condition."""

    tiers: frozenset[tuple[str, str]]  # sender, receiver
    rule: SenderRule
    sender: Sender


def _cell(senders: str, receivers: str, rule: SenderRule = SenderRule.TIERS, sender: Sender | None = None) -> Cell:
    """Return a cell; by default nodes send as members and operators by their certificates."""
    if sender is None:
        sender = Sender.CERTIFIED if senders == TIER_OPERATOR else Sender.MEMBER
    return Cell(frozenset(product(senders.split(), receivers.split())), rule, sender)


_NODES = "edge storage router"
_OF_OPERATORS = frozenset(product((TIER_OPERATOR,), _NODES.split()))
_TO_OPERATORS = frozenset(product(_NODES.split(), (TIER_OPERATOR,)))

CELLS: dict[type, Cell] = {
    nodes.RegisterRequest: _cell(_NODES, "router", SenderRule.OWN_INCARNATION, Sender.CERTIFIED),
    nodes.Registered: _cell("router", _NODES),
    nodes.RequestRefused: _cell("router", _NODES),
    nodes.Heartbeat: _cell(_NODES, "router", SenderRule.OWN_INCARNATION, Sender.CERTIFIED),
    nodes.DrainNode: _cell(_NODES, "router", sender=Sender.CERTIFIED),  # of the link's incarnation: it names no other
    nodes.Leave: _cell(_NODES, "router", sender=Sender.CERTIFIED),
    nodes.HeartbeatReply: _cell("router", _NODES, SenderRule.ASKED),  # leases and epochs: as the leader
    nodes.FollowMap: _cell("edge storage gateway operator", "router", sender=Sender.CERTIFIED),
    nodes.MapPage: _cell("router", "edge storage gateway operator"),
    nodes.MapStep: _cell("router", "edge storage gateway operator"),
    nodes.RequestChange: _cell("storage", "router"),  # by the primary, as the step states (placement_change)
    nodes.Changed: _cell("router", "edge storage"),
    routes.Resolve: _cell("edge", "router"),
    routes.Resolved: _cell("router", "edge", SenderRule.SHARD_OWNER),
    routes.AddRoutes: _cell("edge storage", "router", SenderRule.ROUTES),
    routes.RoutesAdded: _cell("router", "edge storage", SenderRule.SHARD_OWNER),
    routes.RemoveRoutes: _cell("edge storage", "router", SenderRule.ROUTES),
    routes.ReportRoutes: _cell("edge storage", "router", SenderRule.ROUTES),
    routes.Invalidate: _cell("router", "edge"),  # a former owner's too: dropping a cached route is always safe
    routes.Invalidated: _cell("edge", "router"),
    nodes.Moved: Cell(
        frozenset({(TIER_ROUTER, TIER_EDGE), (TIER_ROUTER, TIER_STORAGE), (TIER_STORAGE, TIER_EDGE)}),
        SenderRule.TIERS,
        Sender.MEMBER,
    ),
    sessions.OpenSession: _cell("edge", "storage"),
    sessions.SessionOpened: _cell("storage", "edge", SenderRule.ASKED),
    sessions.CloseSession: _cell("edge", "storage", SenderRule.OWNER),
    sessions.SessionClosed: _cell("storage", "edge", SenderRule.ASKED),
    sessions.KickSession: _cell("storage", "edge", SenderRule.PRIMARY),
    sessions.SessionKicked: _cell("edge", "storage", SenderRule.ASKED),
    sessions.SessionExpired: _cell("storage", "edge", SenderRule.PRIMARY),
    nodes.Relay: _cell("edge storage", "router"),
    nodes.Relayed: _cell("router", "edge storage"),  # its content is checked as its first sender's
    sessions.SubscribeSession: _cell("edge", "storage", SenderRule.OWNER),
    sessions.SessionSubscribed: _cell("storage", "edge", SenderRule.ASKED),
    sessions.UnsubscribeSession: _cell("edge", "storage", SenderRule.OWNER),
    sessions.SessionUnsubscribed: _cell("storage", "edge", SenderRule.ASKED),
    sessions.ListFilters: _cell("edge", "storage", SenderRule.OWNER),
    sessions.FiltersListed: _cell("storage", "edge", SenderRule.ASKED),
    sessions.RecordInbound: _cell("edge", "storage", SenderRule.OWNER),
    sessions.InboundRecorded: _cell("storage", "edge", SenderRule.ASKED),
    sessions.ReleaseInbound: _cell("edge", "storage", SenderRule.OWNER),
    sessions.InboundReleased: _cell("storage", "edge", SenderRule.ASKED),
    retained.ReadRetained: _cell("edge", "storage"),
    retained.ReadRetainedAll: _cell("edge", "storage"),
    retained.RetainedPage: _cell("storage", "edge", SenderRule.ASKED),
    retained.RetainedNone: _cell("storage", "edge", SenderRule.ASKED),
    retained.DeliverRetained: _cell("edge", "storage", SenderRule.OWNER),
    retained.RetainedDelivered: _cell("storage", "edge", SenderRule.ASKED),
    disconnected_sessions.ListDisconnected: _cell("edge", "storage"),
    disconnected_sessions.DisconnectedListed: _cell("storage", "edge", SenderRule.ASKED),
    disconnected_sessions.RevokeDisconnected: _cell(
        "edge", "storage"
    ),  # of a disconnected session: it names the closed connection
    disconnected_sessions.DisconnectedRevoked: _cell("storage", "edge", SenderRule.ASKED),
    user_counts.UserCounts: _cell("storage", "storage"),
    running_traces.RunningTrace: _cell("edge", "edge storage"),
    sessions.PollClaims: _cell("storage", "edge", SenderRule.PRIMARY),
    sessions.Claims: _cell("edge", "storage", SenderRule.ASKED),
    wills.FireWill: _cell("storage", "edge", SenderRule.PRIMARY),
    wills.WillFired: _cell("edge", "storage", SenderRule.ASKED),
    redispatch.RedispatchOrder: _cell("storage", "edge", SenderRule.PRIMARY),
    redispatch.RedispatchReply: _cell("edge", "storage", SenderRule.ASKED),
    # A gateway has the role of a viewer (access/operators/commands.py).
    operators.Admin: Cell(_OF_OPERATORS | {(TIER_GATEWAY, TIER_ROUTER)}, SenderRule.TIERS, Sender.CERTIFIED),
    operators.AdminReply: Cell(_TO_OPERATORS | {(TIER_ROUTER, TIER_GATEWAY)}, SenderRule.TIERS, Sender.CERTIFIED),
    queries.Query: Cell(_OF_OPERATORS, SenderRule.TIERS, Sender.CERTIFIED),
    queries.QueryResult: Cell(_TO_OPERATORS, SenderRule.TIERS, Sender.CERTIFIED),
    queries.StartTrace: _cell("operator", "edge storage"),
    queries.StopTrace: _cell("operator", "edge storage"),
    policy.FollowPolicy: _cell("edge", "router"),
    policy.PolicyPaged: _cell("router", "edge", SenderRule.ASKED),
    policy.PolicyStepped: _cell("router", "edge", SenderRule.ASKED),
    policy.AskCredentials: _cell("edge", "router"),
    policy.FetchUsers: _cell("edge", "router"),
    policy.UserRecords: _cell("router", "edge"),
    orders.OrderNode: _cell("router", _NODES),  # by each router that serves operators
    orders.NodeOrdered: _cell(_NODES, "router"),
}

# Frames, and conditions besides the tiers: RAFT in the link's own name. PUBLISH between storage nodes at QoS 0 only,
# forwarded by a former primary. PUBLISH_ACK of a partition from the primary to which that tag was sent, of a pick from
# the picked edge. PUSH from the primary of the session's partition. PUSH_ACK from the edge that owns the session.
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
    FrameKind.CONTROLS: frozenset(
        pair for tier in (TIER_ROUTER, TIER_STORAGE) for pair in ((TIER_EDGE, tier), (tier, TIER_EDGE))
    ),
    FrameKind.CONNECTS: CELLS[sessions.OpenSession].tiers,
    FrameKind.CONNECT_ANSWERS: CELLS[sessions.SessionOpened].tiers,
}

# A partition's reply to each request of an edge; Moved may replace any of them.
ANSWERS: dict[type, tuple[type, ...]] = {
    sessions.OpenSession: (sessions.SessionOpened,),
    sessions.CloseSession: (sessions.SessionClosed,),
    sessions.SubscribeSession: (sessions.SessionSubscribed,),
    sessions.UnsubscribeSession: (sessions.SessionUnsubscribed,),
    sessions.ListFilters: (sessions.FiltersListed,),
    sessions.RecordInbound: (sessions.InboundRecorded,),
    sessions.ReleaseInbound: (sessions.InboundReleased,),
    retained.ReadRetained: (retained.RetainedPage,),
    retained.DeliverRetained: (retained.RetainedDelivered,),
    disconnected_sessions.ListDisconnected: (disconnected_sessions.DisconnectedListed,),
    disconnected_sessions.RevokeDisconnected: (disconnected_sessions.DisconnectedRevoked,),
}

RELAYED = (sessions.KickSession, sessions.SessionKicked)


def may_send(sender_tier: str, receiver_tier: str, kind: int) -> bool:
    """Return whether a tier may send this kind of frame to another; False for an unknown kind."""
    return (sender_tier, receiver_tier) in FRAMES.get(kind, frozenset())


def kinds_from(receiver_tier: str) -> dict[str, frozenset[int]]:
    """Return the kinds of frame that each tier may send to this one, for receivers that check every frame."""
    return {
        sender: frozenset(kind for kind in FRAMES if may_send(sender, receiver_tier, kind))
        for sender in link_tiers(receiver_tier)
    }


def link_tiers(receiver_tier: str) -> frozenset[str]:
    """Return the tiers from which a node accepts links: those that may send it any message."""
    return frozenset(sender for pairs in FRAMES.values() for sender, receiver in pairs if receiver == receiver_tier)


def fault_of(peer: PeerKey, receiver_tier: str, message: control.Control) -> str:
    """Return "", or why a control message closes its link: TIER or IDENTITY.

    The other rules need the receiver's state; the receiver checks them when it processes the message.
    """
    messages = _CHECKS.get((peer.tier, receiver_tier))
    if messages is None or type(message) not in messages:
        return TIER
    check = messages[type(message)]
    return "" if check is None or check(peer, message) else IDENTITY


def role_fault_of(peer: PeerKey, message: control.Control, roster: Roster) -> str:
    """Return "", or ROLE if the sender lacks the role that this message requires; its link stays."""
    if peer.tier == TIER_ROUTER:
        return "" if roster.is_router(peer) else ROLE
    if CELLS[type(message)].sender is Sender.CERTIFIED or peer.tier in (TIER_OPERATOR, TIER_GATEWAY):
        return ""
    return "" if roster.is_member(peer) else ROLE


STREAMED = (nodes.MapPage, nodes.MapStep, policy.PolicyPaged, policy.PolicyStepped)


def is_early_stream(peer: PeerKey, message: control.Control, roster: Roster) -> bool:
    """Return whether a message is map or policy of an unregistered router, as at the start of a cluster.

    A node without a map follows any router that it dials. That router sends steps until the map has its registration,
    even if the map has another router already. These messages are refused nevertheless.
    """
    return peer.tier == TIER_ROUTER and isinstance(message, STREAMED) and roster.is_unknown(peer)


def _is_own_kind(peer: PeerKey, message: nodes.Moved) -> bool:
    """Return whether a router reports a shard, or a storage node a partition."""
    return message.what == ("shard" if peer.tier == TIER_ROUTER else "partition")


def _is_own_incarnation(peer: PeerKey, message: control.Control) -> bool:
    if isinstance(message, nodes.RegisterRequest):
        return (message.entry.node, message.entry.tier, message.entry.incarnation) == peer
    return isinstance(message, nodes.Heartbeat) and (message.node, message.incarnation) == (peer.node, peer.incarnation)


def _are_own_reports(peer: PeerKey, message: routes.ReportRoutes) -> bool:
    return all(_are_own_routes(peer, report) for report in message.reports)


def _are_own_routes(
    peer: PeerKey, routes_message: routes.AddRoutes | routes.RemoveRoutes | routes.SenderReport
) -> bool:
    if peer.tier == TIER_EDGE:
        return routes_message.partition == -1 and routes_message.sender_epoch == peer.incarnation
    return routes_message.partition >= 0


def _check_of(message: type) -> Callable[[PeerKey, Any], bool] | None:
    """Return the check of a message of this type besides the tiers; None if there is none."""
    if message is nodes.Moved:
        return _is_own_kind
    if message is routes.ReportRoutes:
        return _are_own_reports
    return {SenderRule.OWN_INCARNATION: _is_own_incarnation, SenderRule.ROUTES: _are_own_routes}.get(
        CELLS[message].rule
    )


# (sender, receiver) -> the permitted messages, and the check of each
_CHECKS: dict[tuple[str, str], dict[type, Callable[[PeerKey, Any], bool] | None]] = {
    tiers: {message: _check_of(message) for message, cell in CELLS.items() if tiers in cell.tiers}
    for tiers in FRAMES[FrameKind.CONTROL]
}


class PrimaryStatus(enum.Enum):
    """Result of comparing a sender with the primary in a map."""

    PRIMARY = "it is the primary, and was at that partition_epoch"
    LATER = "the partition_epoch is above the map's: the map may say so soon"
    OTHER = "it is not, or was not then"


def standing(cluster_map: ClusterMap, node: str, partition: int, partition_epoch: int, since: int) -> PrimaryStatus:
    """Return whether a node is the primary of a partition, by the receiver's map.

    Args:
        cluster_map: The receiver's.
        node: The sender.
        partition: Partition of which it claims to be primary.
        partition_epoch: Epoch of its claim.
        since: The partition_epoch from which on the map has named the present primary without a break.
    """
    if not cluster_map.partitions:
        return PrimaryStatus.LATER
    if not 0 <= partition < len(cluster_map.partitions):
        return PrimaryStatus.OTHER
    placement = cluster_map.partitions[partition]
    if partition_epoch > placement.epoch:
        return PrimaryStatus.LATER
    return PrimaryStatus.PRIMARY if placement.primary == node and partition_epoch >= since else PrimaryStatus.OTHER
