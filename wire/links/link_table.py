"""The links of one node by peer: admission, the incarnation of each link, and resume positions.

Sans-IO. Its shell (``wire/links/hub.py``, or the simulation) opens and accepts connections, exchanges the two HELLOs of
this table, and moves bytes between a connection and the peer's ``LinkCore``. Numbering is in ``wire/links/link.py``,
identity in ``wire/messages/hello.py``, admission rules in ``wire/links/admission.py``. Source:
docs/adr/0005-wire-format.md.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from conf.events import say
from wire.links.admission import HelloResume, admit, check_hello, check_member, check_room, expect, resume
from wire.links.allowed import kinds_from
from wire.links.link import OPERATOR_BYTES_MAX, RESEND_BYTES_MAX, LinkCore, LinkFull
from wire.links.roster import Roster
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.hello import (
    TIER_OPERATOR,
    LinkError,
    LinkHello,
    NodeIdentity,
    OtherCluster,
    PeerKey,
    dials,
    encode_hello,
)

__all__ = ["LinkConnection", "LinkPeer", "LinkTable"]

logger = logging.getLogger(__name__)

PEERS_MAX = 1024  # incarnations of nodes kept; beyond it the longest disconnected one is reset
MISMATCHES_MAX = 3  # contradicting HELLOs before the link is reset


class LinkConnection(Protocol):
    """The part of a connection that the table uses."""

    def wake(self) -> None:
        """Wake the writer: there are bytes to write."""

    def flush(self) -> None:
        """Write pending bytes: this iteration adds no more."""

    def close(self) -> None:
        """Close it; the link's core belongs to another connection afterwards."""


class LinkPeer:
    """One incarnation of a node: its link and its current connection, if any."""

    __slots__ = ("address", "cluster_id", "condemned", "connection", "core", "dialled_by_us", "key", "mismatches")

    def __init__(self, key: PeerKey, resend_bytes_max: int) -> None:
        self.key = key
        self.core = LinkCore(resend_bytes_max)
        self.connection: LinkConnection | None = None
        self.dialled_by_us = False
        self.address = ""
        self.cluster_id = ""  # from the HELLO of its connection
        self.mismatches = 0  # connections in a row whose HELLO contradicted the link
        self.condemned = ""  # why this incarnation is fenced


class LinkTable:
    """All links of one node.

    Args:
        identity: This node.
        on_frame: A frame from a peer, once and in order; ``LinkError`` fences that incarnation, any other error is a
            bug.
        on_up: A connection to this incarnation of a peer was established.
        on_down: It ended; the link keeps untaken frames and resumes after a reconnect.
        on_reset: The incarnation was replaced or forgotten: all state about it is void.
        roster: Registered nodes of this node's map; None at routers.

    Attributes:
        other_cluster: Why the node at a seed's address was refused: it belongs to another cluster; "" if none was.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        *,
        on_frame: Callable[[PeerKey, int, bytes], None],
        on_up: Callable[[PeerKey], None],
        on_down: Callable[[PeerKey], None],
        on_reset: Callable[[PeerKey], None],
        resend_bytes_max: int = RESEND_BYTES_MAX,
        roster: Roster | None = None,
    ) -> None:
        self.identity = identity
        self._roster = roster
        self.other_cluster = ""
        self.incarnations_fenced = 0  # for a frame that they sent
        self._kinds = kinds_from(identity.tier)  # of frames, by the tier that sends them
        self._on_frame, self._on_up, self._on_down, self._on_reset = on_frame, on_up, on_down, on_reset
        self._resend_bytes_max = resend_bytes_max
        self._peers: dict[str, LinkPeer] = {}  # by node; in order of first appearance
        self._named: set[str] = set()  # in the map
        self.frames_refused: dict[str, int] = {"no_peer": 0, "no_room": 0, "too_long": 0}

    # -- lookup and sending

    def get(self, node: str) -> LinkPeer | None:
        """Return the link of a node's current incarnation, connected or not."""
        return self._peers.get(node)

    def connected(self) -> list[PeerKey]:
        """Return the connected peers, by name."""
        return sorted(peer.key for peer in self._peers.values() if peer.connection is not None)

    def send(self, node: str, kind: int, payload: bytes) -> bool:
        """Queue a frame; it leaves with the connection's next flush, or after a reconnect.

        Returns:
            False when no incarnation of the node is known, or its link's buffer is full: the frame was counted instead
            of queued.
        """
        peer = self._queue(node, kind, payload)
        if peer is not None and peer.connection is not None:
            peer.connection.wake()
        return peer is not None

    def send_all(self, frames: Iterable[tuple[str, int, bytes]]) -> set[str]:
        """Queue the frames of one iteration, as (node, kind, payload), and write them: one flush per connection.

        Returns:
            Nodes of which a frame was not queued, as in ``send``.
        """
        peers: dict[str, LinkPeer] = {}
        refused: set[str] = set()
        for node, kind, payload in frames:
            peer = self._queue(node, kind, payload)
            if peer is None:
                refused.add(node)
            else:
                peers[node] = peer
        for peer in peers.values():
            if peer.connection is not None:
                peer.connection.flush()
        return refused

    def _queue(self, node: str, kind: int, payload: bytes) -> LinkPeer | None:
        peer = self._peers.get(node)
        if peer is None:
            self.frames_refused["no_peer"] += 1
            return None
        if len(payload) > FRAME_BYTES_MAX:  # a bug here, but it must not end the node: the requester retries
            self.frames_refused["too_long"] += 1
            say(logger, "link.frame_too_long", kind=kind, peer=node, octets=len(payload))
            return None
        try:
            peer.core.send(kind, payload)
        except LinkFull:
            self.frames_refused["no_room"] += 1
            if peer.key.tier == TIER_OPERATOR:
                say(logger, "link.not_read", peer=node)
                self.forget(node)
            return None
        return peer

    # -- incarnations

    def learn(self, peers: Mapping[str, tuple[str, str, int]]) -> dict[tuple[str, str], str]:
        """Learn the peers: node -> (tier, address, incarnation; 0: unknown).

        The link to a known incarnation exists from this call on: frames for it are queued until it connects. An older
        incarnation of that node is reset (``on_reset``).

        Returns:
            (node, address) -> tier of the peers that this node has to dial.
        """
        wanted = {}
        for node, (tier, address, incarnation) in peers.items():
            if node == self.identity.node:
                continue
            known = self._peers.get(node)
            if incarnation > (known.key.incarnation if known is not None else 0):
                self.peer_of(PeerKey(node, tier, incarnation))
            if address and dials(self.identity.tier, self.identity.node, tier, node):
                wanted[(node, address)] = tier
        return wanted

    def peer_of(self, key: PeerKey) -> LinkPeer:
        """Return the link of this incarnation, ending an earlier incarnation of the same node.

        Raises:
            LinkError: Admission changed since its HELLO was checked.
        """
        peer = self._peers.get(key.node)
        if peer is None or peer.key != key:
            self._admit(key, dialled=True)  # in the map, or checked already by the dialler
        if peer is not None and peer.key != key:
            self.forget(key.node)
            peer = None
        if peer is None:
            if len(self._peers) >= PEERS_MAX:
                self._evict()
            buffer_bytes = OPERATOR_BYTES_MAX if key.tier == TIER_OPERATOR else self._resend_bytes_max
            peer = self._peers[key.node] = LinkPeer(key, buffer_bytes)
        return peer

    def forget(self, node: str) -> None:
        """Drop the link of a dead incarnation and its frames; ``on_reset`` follows."""
        peer = self._peers.pop(node, None)
        if peer is not None:
            self._drop_connection(peer)
            self._on_reset(peer.key)

    def names(self, nodes: Iterable[str]) -> None:
        """Set the node names of the map, of dead nodes too; a removed name may return with any incarnation.

        Otherwise a stolen certificate, used with an incarnation of the far future, would keep its node out permanently.
        """
        named = set(nodes)
        for node in sorted(self._named - named):
            self.forget(node)
        self._named = named

    def belong(self, cluster_id: str) -> None:
        """Set the cluster ID that this node read from its map, and end links to nodes of another cluster."""
        self.identity = self.identity._replace(cluster_id=cluster_id)
        for node in sorted(self._peers):
            if self._peers[node].cluster_id not in ("", cluster_id):
                self.forget(node)

    def _evict(self) -> None:
        for node, peer in self._peers.items():
            if peer.connection is None:
                say(logger, "link.forgotten", peer=node, peers=PEERS_MAX)
                self.forget(node)
                return
        say(logger, "link.peers_many", peers=PEERS_MAX)

    # -- HELLO

    def greeting(self, node: str) -> tuple[HelloResume, bytes]:
        """Return (resume position, bytes) of our HELLO to a node that we dial; "" and unknown nodes have none."""
        known = self._peers.get(node)
        position = HelloResume(known.key.incarnation, known.core.taken) if known is not None else HelloResume()
        return position, encode_hello(self.identity, *position)

    def dialled(self, hello: LinkHello, certified: tuple[str, str, str] | None, tier: str, node: str) -> PeerKey:
        """Admit the node that answered at an address that we dialled; ``node`` is "" where any of the tier may answer.

        Raises:
            LinkError: Not admitted.
        """
        try:
            key = check_hello(self.identity, hello, certified)
        except OtherCluster as error:
            self.other_cluster = str(error) if not node else self.other_cluster
            raise
        expect(key, tier, node)
        check_member(self.identity, key, self._roster, dialled=True)
        self._admit(key, dialled=True)
        return key

    def accepted(self, hello: LinkHello, certified: tuple[str, str, str] | None) -> tuple[PeerKey, HelloResume, bytes]:
        """Admit a node that dialled us; return its key, and the resume position and bytes of our HELLO.

        Its former connection is dropped here: "taken" must not change after the peer received it.

        Raises:
            LinkError: Not admitted.
        """
        key = check_hello(self.identity, hello, certified)
        check_member(self.identity, key, self._roster, dialled=False)
        self._admit(key, dialled=False)
        known = self._peers.get(key.node)
        position = HelloResume(key.incarnation, known.core.taken) if known and known.key == key else HelloResume()
        if known is not None:
            self._drop_connection(known)
        return key, position, encode_hello(self.identity, *position)

    def _admit(self, key: PeerKey, *, dialled: bool) -> None:
        known = self._peers.get(key.node)
        if known is None:
            admit(self.identity, key, None, None, dialled=dialled)
            if key.tier == TIER_OPERATOR:
                operators = sum(peer.key.tier == TIER_OPERATOR for peer in self._peers.values())
                check_room(self.identity, key, operators)
            return
        condemned = (known.condemned or None) if known.key == key else None
        admit(self.identity, key, known.key, condemned, dialled=dialled)
        # Two routers that know each other only as seeds dial each other: the one that the rule names wins.
        ours = dials(self.identity.tier, self.identity.node, key.tier, key.node)
        if known.connection is not None and known.key == key and ours and known.dialled_by_us:
            raise LinkError(f"{key.node} is linked already")

    # -- connections

    def join(
        self, peer: LinkPeer, connection: LinkConnection, hello: LinkHello, position: HelloResume, *, dialled: bool
    ) -> None:
        """Let a connection carry this link, after the exchange of HELLOs.

        Raises:
            LinkError: The two HELLOs contradict the link; the shell closes the connection.
        """
        self._drop_connection(peer)
        try:
            peer.core.connected(resume(self.identity, hello, peer.key, position, peer.core.taken))
        except LinkError:
            self._mismatch(peer)
            raise
        peer.connection, peer.dialled_by_us, peer.mismatches = connection, dialled, 0
        peer.address, peer.cluster_id = hello.address, hello.cluster_id
        self._on_up(peer.key)

    def ended(self, peer: LinkPeer, connection: LinkConnection) -> None:
        """Drop a closed connection; an operator's link ends with it."""
        if peer.connection is connection:
            self._drop_connection(peer)
        if peer.key.tier == TIER_OPERATOR and self._peers.get(peer.key.node) is peer:
            self.forget(peer.key.node)

    def _mismatch(self, peer: LinkPeer) -> None:
        """Reset the link of a peer that forgot it (the peer's map had this node as dead, or the peer had too many
        links).

        Not at the first contradiction: two connections that cross each other contradict once.
        """
        peer.mismatches += 1
        if peer.mismatches >= MISMATCHES_MAX and self._peers.get(peer.key.node) is peer:
            say(logger, "link.begins_anew", peer=peer.key.node)
            self.forget(peer.key.node)

    def _drop_connection(self, peer: LinkPeer) -> None:
        connection = peer.connection
        if connection is None:
            return
        peer.connection = None
        connection.close()
        peer.core.disconnected()
        self._on_down(peer.key)

    # -- frames

    def frame(self, peer: LinkPeer, kind: int, payload: bytes) -> None:
        """Pass a frame to the owner.

        Raises:
            LinkError: The incarnation that sent it is fenced; the shell closes the connection.
        """
        try:
            if kind not in self._kinds.get(peer.key.tier, ()):
                raise LinkError(f"a {peer.key.tier} may not send it to a {self.identity.tier}")
            self._on_frame(peer.key, kind, payload)
        except LinkError as error:
            self.incarnations_fenced += 1
            peer.condemned = f"frame kind {kind}: {error}"
            raise LinkError(peer.condemned) from None

    def condemn(self, key: PeerKey, why: str) -> None:
        """Fence an incarnation that violated the protocol: end its link and accept no later connection of it.

        Frames that were read with the bad one count as taken and are not sent again, so the link cannot resume.
        """
        peer = self._peers.get(key.node)
        if peer is None or peer.key != key or peer.condemned:
            return
        say(logger, "link.broke_protocol", tier=key.tier, peer=key.node, why=why)
        self.incarnations_fenced += 1
        peer.condemned = why
        self._drop_connection(peer)
