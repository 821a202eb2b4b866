"""A node with a valid certificate that sends messages outside its permissions: to all nodes, at random, in many lives.

Its links are valid (HELLO, numbers, repeats); its messages violate ``wire/links/allowed.py``. They concern edges,
sessions and partitions of others, with right and wrong epochs. They include Raft in another's name, repeats of received
or sent frames, undecodable payloads, and wrong frame numbers. An edge may register itself, and keeps no lease. Damage
that a member can do within its permissions (a router to its shards, a storage node to its partitions) is out of scope:
those do not register.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from router.raft.messages import RequestVote, TimeoutNow, encode_message
from tests.fuzz.nested import nested
from tests.simulation.hostile_node import HostileNode, SentFrame
from tests.simulation.link_process import LinkConnection
from tests.simulation.process import World
from tests.simulation.router_process import RouterProcess
from tests.wire.forged_messages import forged_controls, forged_frames, framed, is_inside_its_cell
from wire.links.allowed import CELLS, SenderRule, fault_of, may_send
from wire.messages.batches import encode_publish_ack
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.control import decode_control, decode_controls, encode_control
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey, first_number
from wire.messages.nodes import RegisterRequest

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

__all__ = ["HostileProcess"]

TIERS = (TIER_EDGE, TIER_STORAGE, TIER_ROUTER)
TAGS = 400  # of an edge's messages that one forged frame acknowledges
SHIFTS = (-1, 1, 2, 1_000, -(10**6), 1 << 32, -(1 << 32))
SHIFTED = ("epoch", "partition_epoch", "sender_epoch", "owner_epoch", "shard_epoch", "route_version", "incarnation")


class HostileProcess(HostileNode):
    """One hostile node with messages outside its permissions."""

    def __init__(self, world: World, cluster: "Cluster", rng: random.Random) -> None:
        tier = rng.choice(TIERS)
        super().__init__(world, cluster, rng, f"{tier[0]}9", tier)
        self._registered = False
        self._subtle = False

    def start(self, incarnation: int) -> None:
        """Begin a life with links to all nodes."""
        self._registered = False
        # no message that ends its link: sender and target are wrong. A router has no such message
        self._subtle = self._draws.random() < 0.6 and self.tier != TIER_ROUTER
        super().start(incarnation)

    # -- sending

    def send_some(self, peer: PeerKey, cluster_map: ClusterMap) -> None:
        """Send a message outside its permissions."""
        rng = self._draws
        loud = 0 if self._subtle else 2
        ways: list[tuple[int, Callable[[PeerKey, ClusterMap], SentFrame | None]]] = [
            (8, self._forged), (4, self._of_another_epoch), (3, self._acknowledgements), (2, self._repeated),
            (loud, self._unreadable), (loud, self._raft), (1, self._registration),
        ]  # fmt: skip
        way = rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]
        frame = way(peer, cluster_map)
        if frame is None:
            return
        self.frames_sent += 1
        self._remembered.append(frame)
        if loud and rng.random() < 0.05:
            self._send_badly_numbered(peer.node, *frame)
            return
        for _ in range(rng.choice((1, 1, 1, 2))):
            self.table.send(peer.node, *frame)

    def _send_badly_numbered(self, node: str, kind: int, payload: bytes) -> None:
        """Write a frame with a used number, which is skipped, or a gap, which ends the link."""
        link = self.table.get(node)
        if link is not None and isinstance(link.connection, LinkConnection):
            number = self._draws.choice((link.core.last_sent, 1, link.core.last_sent + 5))
            link.connection.end.send(HEADER.pack(len(payload), kind, 0, PROTOCOL_VERSION, number) + payload)

    def _passes(self, peer: PeerKey, kind: int, payload: bytes) -> bool:
        """Whether a message is outside our permissions, and so to be sent."""
        me = PeerKey(self.node, self.tier, self.incarnation)
        if is_inside_its_cell(me, peer.tier, kind, payload):
            return False
        if self._subtle and (kind in (FrameKind.RAFT, FrameKind.PUBLISH) or not may_send(self.tier, peer.tier, kind)):
            return False
        if kind == FrameKind.CONTROLS:
            return all(self._passes(peer, FrameKind.CONTROL, encode_control(one)) for one in decode_controls(payload))
        if kind == FrameKind.CONNECT_ANSWERS:
            return not self._registered  # a live edge may have been asked for it
        if kind != FrameKind.CONTROL:
            return True
        message = decode_control(payload)
        if self._subtle and fault_of(me, peer.tier, message):
            return False
        # a live edge may have been asked for it
        return not (self._registered and CELLS[type(message)].rule is SenderRule.ASKED)

    def _forged(self, peer: PeerKey, cluster_map: ClusterMap) -> SentFrame | None:
        frames = [(int(kind), payload) for kind, _, payload in forged_frames(self._victim(cluster_map))]
        frames = [(kind, payload) for kind, payload in frames if self._passes(peer, kind, payload)]
        return self._draws.choice(frames) if frames else None

    def _of_another_epoch(self, peer: PeerKey, cluster_map: ClusterMap) -> SentFrame | None:
        rng = self._draws
        messages = list(forged_controls(self._victim(cluster_map)))
        messages = [one for one in messages if self._passes(peer, *framed(one))]
        if not messages:
            return None
        message: Any = rng.choice(messages)
        names = [name for name in SHIFTED if hasattr(message, name)]
        if names:
            name = rng.choice(names)
            message = msgspec.structs.replace(message, **{name: max(0, getattr(message, name) + rng.choice(SHIFTS))})
        kind, payload = framed(message)
        try:
            return (int(kind), payload) if self._passes(peer, kind, payload) else None
        except ValueError:  # out of its range
            return None if self._subtle else (int(kind), payload)

    def _acknowledgements(self, peer: PeerKey, cluster_map: ClusterMap) -> SentFrame | None:
        if peer.tier != TIER_EDGE or (self._subtle and self.tier == TIER_ROUTER):
            return None
        first = first_number(peer.incarnation) + self._draws.choice((0, 0, self._draws.randrange(3_000)))
        partition = self._draws.randrange(len(cluster_map.partitions))
        return int(FrameKind.PUBLISH_ACK), b"".join(
            encode_publish_ack(tag, partition, 0) for tag in range(first, first + TAGS)
        )

    def _repeated(self, peer: PeerKey, _: ClusterMap) -> SentFrame | None:
        """Repeat a frame sent or received in any life."""
        if not self._remembered:
            return None
        kind, payload = self._draws.choice(self._remembered)
        try:
            return (kind, payload) if self._passes(peer, kind, payload) else None
        except ValueError:
            return None if self._subtle else (kind, payload)

    def _unreadable(self, _: PeerKey, cluster_map: ClusterMap) -> SentFrame | None:
        rng = self._draws
        kind, _name, payload = rng.choice(list(forged_frames(self._victim(cluster_map))))
        damaged = rng.choice((nested(rng.choice((10, 1_000))), rng.randbytes(rng.randrange(40)), payload[:-1], b"\xc1"))
        if kind == FrameKind.PUBLISH and self.tier == TIER_EDGE:
            return None  # an edge may publish any decoded content
        return int(kind), damaged

    def _raft(self, peer: PeerKey, _: ClusterMap) -> SentFrame | None:
        """Return a Raft message in the name of another router."""
        routers = [node for node in self._cluster.nodes.values() if isinstance(node, RouterProcess)]
        other, to = self._draws.choice(routers), self._draws.choice(routers)
        if peer.tier != TIER_ROUTER or not other.up:
            return None
        term = to.raft.term + self._draws.choice((0, 1, 1_000))
        header = (other.node, peer.node, term, other.incarnation, other.disk.storage_id, to.disk.storage_id)
        vote = RequestVote(*header, last_log_index=1 << 40, last_log_term=term, transfer=True)
        return int(FrameKind.RAFT), encode_message(self._draws.choice((vote, TimeoutNow(*header))))

    def _registration(self, peer: PeerKey, _: ClusterMap) -> SentFrame | None:
        """Register for the duration of a lease; only an edge, which no partition depends on."""
        if self.tier != TIER_EDGE or peer.tier != TIER_ROUTER:
            return None
        self._registered = True
        entry = NodeEntry(self.node, self.tier, self.incarnation, self.address)
        return int(FrameKind.CONTROL), encode_control(RegisterRequest(1, entry, ended_incarnation=self.incarnation - 1))
