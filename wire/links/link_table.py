"""The links of one node by peer: who is admitted, which incarnation a link belongs to, where it resumes.

Sans-IO. Its shell (``wire/links/hub.py``, or the simulation) opens and accepts connections, exchanges the two HELLOs
with what this table gives it, and moves bytes between a connection and the peer's ``LinkCore``. Numbering is in
``wire/links/link.py``, identity in ``wire/messages/hello.py``, who is admitted in ``wire/links/admission.py``.
Source: docs/adr/0005-wire-format.md.
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

PEERS_MAX = 1024  # incarnations of nodes kept; past it the longest-disconnected is forgotten, and reset
MISMATCHES_MAX = 3  # contradicting HELLOs before both sides begin anew


class LinkConnection(Protocol):
    """A connection as the table needs it."""

    def wake(self) -> None:
        """There is something to write."""

    def flush(self) -> None:
        """There is something to write, and no more of it in this turn."""

    def close(self) -> None:
        """End it; the link's core belongs to another connection from now on."""


class LinkPeer:
    """One incarnation of a node: its link and, while there is one, its connection."""

    __slots__ = ("address", "cluster_id", "condemned", "connection", "core", "dialled_by_us", "key", "mismatches")

    def __init__(self, key: PeerKey, resend_bytes_max: int) -> None:
        self.key = key
        self.core = LinkCore(resend_bytes_max)
        self.connection: LinkConnection | None = None
        self.dialled_by_us = False
        self.address = ""
        self.cluster_id = ""  # as the HELLO of its connection said
        self.mismatches = 0  # connections in a row whose HELLO contradicted the link
        self.condemned = ""  # why no further connection of this incarnation is taken


class LinkTable:
    """All links of one node.

    Args:
        identity: This node.
        on_frame: A frame from a peer, once and in order; ``LinkError`` condemns that incarnation, anything else is a
        bug.
        on_up: A connection to this incarnation of a peer stands.
        on_down: It ended; the link keeps what was not taken and goes on after a reconnect.
        on_reset: This incarnation is over, another one appeared or it was forgotten: everything of it is void.
        roster: Who is registered, by this node's map; None at routers.

    Attributes:
        other_cluster: Why who answered at a seed was refused: it belongs to another cluster; "" if none did.
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
        self.incarnations_condemned = 0  # for what they sent
        self._kinds = kinds_from(identity.tier)  # of frames, by the tier that sends them
        self._on_frame, self._on_up, self._on_down, self._on_reset = on_frame, on_up, on_down, on_reset
        self._resend_bytes_max = resend_bytes_max
        self._peers: dict[str, LinkPeer] = {}  # by node; in order of first appearance
        self._named: set[str] = set()  # in the map
        self.frames_refused: dict[str, int] = {"no_peer": 0, "no_room": 0, "too_long": 0}

    # -- looking and sending

    def get(self, node: str) -> LinkPeer | None:
        """Return the incarnation of a node that the link belongs to, connected or not."""
        return self._peers.get(node)

    def connected(self) -> list[PeerKey]:
        """Return the peers with a standing connection, by name."""
        return sorted(peer.key for peer in self._peers.values() if peer.connection is not None)

    def send(self, node: str, kind: int, payload: bytes) -> bool:
        """Queue a frame; it leaves with the connection's next flush, or after a reconnect.

        Returns:
            False when no incarnation of the node is known, or its link has no room: nothing was queued, that is
            counted.
        """
        peer = self._queue(node, kind, payload)
        if peer is not None and peer.connection is not None:
            peer.connection.wake()
        return peer is not None

    def send_all(self, frames: Iterable[tuple[str, int, bytes]]) -> set[str]:
        """Queue what one turn sends, as (node, kind, payload), and write it: each connection is woken once, or not.

        Returns:
            Nodes of which a frame was not queued, as ``send`` says.
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
        if len(payload) > FRAME_BYTES_MAX:  # a bug here, but none that may end the node; whoever waits asks again
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
        """Take who else there is: node -> (tier, address, incarnation; 0: unknown).

        The link to a known incarnation exists from here on: what is sent to it waits for the connection, and an older
        incarnation of that node is over (``on_reset``).

        Returns:
            (node, address) -> tier of those that are ours to dial.
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
            LinkError: Not admitted any more: others have come since its HELLO was judged.
        """
        peer = self._peers.get(key.node)
        if peer is None or peer.key != key:
            self._admit(key, dialled=True)  # by the map, or judged already by who dialled
        if peer is not None and peer.key != key:
            self.forget(key.node)
            peer = None
        if peer is None:
            if len(self._peers) >= PEERS_MAX:
                self._evict()
            room = OPERATOR_BYTES_MAX if key.tier == TIER_OPERATOR else self._resend_bytes_max
            peer = self._peers[key.node] = LinkPeer(key, room)
        return peer

    def forget(self, node: str) -> None:
        """A node's incarnation is over (dead in the map): drop its link and what it held; ``on_reset`` follows."""
        peer = self._peers.pop(node, None)
        if peer is not None:
            self._drop_connection(peer)
            self._on_reset(peer.key)

    def names(self, nodes: Iterable[str]) -> None:
        """Take the names in the map, of dead nodes too: one that is there no more begins anew, with any incarnation.

        Else a thief of a node's certificate who came with a number of the far future would keep that node out for good.
        """
        named = set(nodes)
        for node in sorted(self._named - named):
            self.forget(node)
        self._named = named

    def belong(self, cluster_id: str) -> None:
        """This node has read the map of its cluster: links to nodes of another one end."""
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
        """Return what our HELLO says to a node that we dial ("" or unknown: nothing), and its bytes."""
        known = self._peers.get(node)
        told = HelloResume(known.key.incarnation, known.core.taken) if known is not None else HelloResume()
        return told, encode_hello(self.identity, *told)

    def dialled(self, hello: LinkHello, certified: tuple[str, str, str] | None, tier: str, node: str) -> PeerKey:
        """Judge who answered at an address that we dialled; ``node`` is "" where any of the tier may answer.

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
        """Judge who dialled us; return its key, what our HELLO says, and that HELLO's bytes.

        Its former connection is dropped here: "taken" must not move after it was told.

        Raises:
            LinkError: Not admitted.
        """
        key = check_hello(self.identity, hello, certified)
        check_member(self.identity, key, self._roster, dialled=False)
        self._admit(key, dialled=False)
        known = self._peers.get(key.node)
        told = HelloResume(key.incarnation, known.core.taken) if known and known.key == key else HelloResume()
        if known is not None:
            self._drop_connection(known)
        return key, told, encode_hello(self.identity, *told)

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
        self, peer: LinkPeer, connection: LinkConnection, hello: LinkHello, told: HelloResume, *, dialled: bool
    ) -> None:
        """HELLOs were exchanged: the connection carries this link from now on.

        Raises:
            LinkError: The two HELLOs contradict the link; the connection is no part of it, the shell closes it.
        """
        self._drop_connection(peer)
        try:
            peer.core.connected(resume(self.identity, hello, peer.key, told, peer.core.taken))
        except LinkError:
            self._mismatch(peer)
            raise
        peer.connection, peer.dialled_by_us, peer.mismatches = connection, dialled, 0
        peer.address, peer.cluster_id = hello.address, hello.cluster_id
        self._on_up(peer.key)

    def ended(self, peer: LinkPeer, connection: LinkConnection) -> None:
        """A connection is gone; an operator's link goes with it."""
        if peer.connection is connection:
            self._drop_connection(peer)
        if peer.key.tier == TIER_OPERATOR and self._peers.get(peer.key.node) is peer:
            self.forget(peer.key.node)

    def _mismatch(self, peer: LinkPeer) -> None:
        """Begin anew with a peer that forgot this link (it was told that we are dead, or had too many peers).

        Not at the first contradiction: two connections that cross each other contradict one another once.
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
        """Hand a frame that the link took to the owner.

        Raises:
            LinkError: The incarnation that sent it is condemned; the shell closes the connection.
        """
        try:
            if kind not in self._kinds.get(peer.key.tier, ()):
                raise LinkError(f"a {peer.key.tier} may not send it to a {self.identity.tier}")
            self._on_frame(peer.key, kind, payload)
        except LinkError as error:
            self.incarnations_condemned += 1
            peer.condemned = f"frame kind {kind}: {error}"
            raise LinkError(peer.condemned) from None

    def condemn(self, key: PeerKey, why: str) -> None:
        """End the link of an incarnation that broke the protocol, and take no other connection of that incarnation.

        Frames that were read together with the broken one count as taken and do not come again: the link cannot go on.
        """
        peer = self._peers.get(key.node)
        if peer is None or peer.key != key or peer.condemned:
            return
        say(logger, "link.broke_protocol", tier=key.tier, peer=key.node, why=why)
        self.incarnations_condemned += 1
        peer.condemned = why
        self._drop_connection(peer)
