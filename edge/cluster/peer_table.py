"""The links of this edge to other nodes: their identity, incarnation, and the nodes to dial.

A peer is one incarnation of one node; a new incarnation replaces the former peer. ``wire/messages/hello.py`` decides
which of two nodes dials, ``wire/links/admission.py`` the admission; the service owns sockets.
"""

import logging
from collections.abc import Callable

from conf.events import say
from edge.cluster.pending_links import PendingLinks
from edge.loop.state import LoopConnection, LoopPeer
from edge.node.ports import LinkIO
from wire.links.admission import (
    HelloResume,
    admit,
    check_certificate,
    check_hello,
    check_member,
    check_room,
    expect,
    resume,
)
from wire.links.allowed import link_tiers
from wire.links.roster import Roster
from wire.links.silence import SPEAK_S, Silence, speak_s_of
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import (
    TIER_OPERATOR,
    TIER_ROUTER,
    LinkError,
    NodeIdentity,
    OtherCluster,
    OtherVersion,
    PeerKey,
    decode_hello,
    dials,
    encode_hello,
)

__all__ = ["DialedPeer", "PeerTable"]

logger = logging.getLogger(__name__)

PEERS_MAX = 1024  # incarnations that dialled this edge; nodes of the map are always accepted
CHECKED_MAX, KEEPALIVES_MAX = 100, 10  # links checked, and keepalives sent, in one step: some 100 us


class DialedPeer:
    """``LoopConnection.context`` of a link that this edge opened; None if the other side did."""

    __slots__ = ("is_judged", "node", "tier", "told")

    def __init__(self, node: str, tier: str, told: HelloResume) -> None:
        self.node = node  # "" for a seed: its HELLO names it
        self.tier = tier
        self.told = told  # of our HELLO
        self.is_judged = False  # its certificate and its HELLO were checked


class PeerTable:
    """Peers of one edge by node name.

    Args:
        loop: Links.
        identity: This edge, as in its HELLO.
        certify: (cluster, tier, node) of a link's certificate; None on a plaintext link.
        retired: Called with a replaced peer: its pending requests must go to another node.
        count: Counts refusals.
        has_received: Returns whether a connection has received a byte.

    Attributes:
        router_fault: Why the last dialled and reachable router made no link with this edge; "" if it did.
        other_cluster: Why a seed was refused: it belongs to another cluster; "" if none did.
    """

    def __init__(
        self,
        loop: LinkIO,
        identity: NodeIdentity,
        certify: Callable[[LoopConnection], tuple[str, str, str] | None],
        retired: Callable[[PeerKey], None],
        count: Callable[[str], None] = lambda _: None,
        has_received: Callable[[LoopConnection], bool] = lambda _: True,
    ) -> None:
        self.identity = identity
        self.other_cluster = ""
        self._cluster_ids: dict[str, str] = {}  # by node; while this edge knows none of its own
        self._loop = loop
        self._certify = certify
        self._retired = retired
        self._map = ClusterMap("")  # the current map
        self._roster = Roster(lambda: self._map)
        self._peers: dict[str, tuple[PeerKey, LoopPeer]] = {}
        self._named: set[str] = set()  # in the map
        self._silence: dict[str, Silence] = {}
        self._unchecked: list[str] = []  # nodes with links not yet checked in this sweep
        self._count = count
        self._fenced: dict[str, tuple[int, str]] = {}  # node -> incarnation that broke the protocol, and how
        self.router_fault = ""
        self.pending = PendingLinks(has_received)

    def get(self, node: str) -> LoopPeer | None:
        """Return the peer of a node, connected or not."""
        known = self._peers.get(node)
        return None if known is None else known[1]

    def key(self, peer: LoopPeer) -> PeerKey:
        """Return the node, tier and incarnation of a peer."""
        key = peer.key
        assert isinstance(key, PeerKey)
        return key

    def connected(self) -> list[PeerKey]:
        """Return the peers with a connected link, by name."""
        return [self._peers[node][0] for node in sorted(self._peers) if self._peers[node][1].conn is not None]

    def connections(self) -> list[LoopConnection]:
        """Return the connections of all links."""
        return [peer.conn for _, peer in self._peers.values() if peer.conn is not None]

    def wanted(self, cluster_map: ClusterMap) -> dict[str, tuple[str, str]]:
        """Return node -> (tier, address) of the live nodes that this edge must dial and is not linked to."""
        mine = self.identity
        is_registered = cluster_map.is_alive(mine.node, mine.incarnation)
        wanted = {}
        for name, entry in cluster_map.nodes.items():
            if not entry.alive or name == mine.node or not dials(mine.tier, mine.node, entry.tier, name):
                continue
            if entry.tier != TIER_ROUTER and not is_registered:
                continue  # they would refuse the link
            peer = self.get(name)
            fenced, _ = self._fenced.get(name, (-1, ""))
            if (peer is None or peer.conn is None) and fenced != entry.incarnation:
                wanted[name] = (entry.tier, entry.address)
        return wanted

    def hello_for(self, node: str, tier: str) -> tuple[DialedPeer, bytes]:
        """Return the context of a link that we open, and the HELLO to write on it first."""
        known = self._peers.get(node)
        told = HelloResume(known[0].incarnation, known[1].link.taken) if known is not None else HelloResume()
        return DialedPeer(node, tier, told), encode_hello(self.identity, *told)

    def secured(self, conn: LoopConnection) -> None:
        """Check a link's certificate before the first read; close the connection if it is not acceptable."""
        try:
            certified = self._certify(conn)
            if certified is not None:
                check_certificate(self.identity, certified, link_tiers(self.identity.tier))
        except LinkError as error:
            self._refuse(conn, "certificate", error)

    def _refuse(self, conn: LoopConnection, reason: str, error: LinkError, answer: bytes = b"") -> None:
        say(logger, "link.refused", why=error)
        self._not_linked(conn, str(error))
        self._count(f"links_refused_{reason}")
        self._loop.close(conn, answer, linger=False)

    def dropped(self, conn: LoopConnection) -> None:
        """Handle the end of a connection that was no client's; a router may have closed it before its HELLO."""
        self.pending.ended(conn)
        if isinstance(conn.context, DialedPeer) and not conn.context.is_judged:
            self._not_linked(conn, "it ended before HELLO: a certificate was refused, here or there")

    def _not_linked(self, conn: LoopConnection, why: str) -> None:
        if isinstance(conn.context, DialedPeer) and conn.context.tier == TIER_ROUTER:
            conn.context.is_judged, self.router_fault = True, why

    def condemn(self, peer: LoopPeer, why: str) -> None:
        """Refuse all later connections of an incarnation that broke the protocol."""
        key = self.key(peer)
        if key.tier != TIER_OPERATOR:  # each operator command has its own name and incarnation
            self._fenced[key.node] = key.incarnation, why
        self._count("links_refused_condemned")

    def hello(self, conn: LoopConnection, payload: bytes) -> PeerKey | None:
        """Check a HELLO and bind the connection to its peer; None if it was refused and closed."""
        try:
            hello = decode_hello(payload)
            key = check_hello(self.identity, hello, self._certify(conn))
            dialled = conn.context if isinstance(conn.context, DialedPeer) else None
            if dialled is not None:
                expect(key, dialled.tier, dialled.node)
            check_member(self.identity, key, self._roster, dialled=dialled is not None)
            self._admit(key, dialled=dialled is not None)
            peer = self._peer_of(key)
            told = dialled.told if dialled is not None else HelloResume(key.incarnation, peer.link.taken)
            if dialled is not None:
                dialled.is_judged = True
            else:
                self._loop.unbind_link(peer)
                self._loop.write(conn, encode_hello(self.identity, *told))
            self._loop.bind_link(conn, peer, resume(self.identity, hello, key, told, peer.link.taken))
            if hello.cluster_id and not self.identity.cluster_id:
                self._cluster_ids[key.node] = hello.cluster_id
        except LinkError as error:
            if isinstance(error, OtherCluster) and isinstance(conn.context, DialedPeer) and not conn.context.node:
                self.other_cluster = str(error)
            answer = isinstance(error, OtherVersion | OtherCluster) and not isinstance(conn.context, DialedPeer)
            self._refuse(conn, "hello", error, encode_hello(self.identity) if answer else b"")
            return None
        return key

    def _admit(self, key: PeerKey, *, dialled: bool) -> None:
        known = self._peers.get(key.node)
        incarnation, why = self._fenced.get(key.node, (-1, ""))
        fenced = why if incarnation >= key.incarnation else None
        admit(self.identity, key, None if known is None else known[0], fenced, dialled=dialled)
        if known is None and key.tier == TIER_OPERATOR:
            check_room(self.identity, key, sum(one.tier == TIER_OPERATOR for one, _ in self._peers.values()))
        if known is None and len(self._peers) >= PEERS_MAX:
            raise LinkError(f"{key.node} is not in the map, and {PEERS_MAX} others came before it")

    def _peer_of(self, key: PeerKey) -> LoopPeer:
        known = self._peers.get(key.node)
        if known is not None and known[0] == key:
            return known[1]
        if known is not None:
            self._loop.retire_peer(known[1])
            self._retired(known[0])
        peer = self._loop.add_peer(0, key.tier, key.incarnation)
        peer.key = key
        self._peers[key.node] = (key, peer)
        return peer

    def belong(self, cluster_id: str) -> None:
        """Close links to nodes of other clusters, now that this edge has read the map of its own."""
        self.identity = self.identity._replace(cluster_id=cluster_id)
        for node in sorted(self._peers):
            conn = self._peers[node][1].conn
            if conn is not None and self._cluster_ids.get(node, cluster_id) != cluster_id:
                self._loop.close(conn, linger=False)
        self._cluster_ids.clear()

    def forget_operator(self, key: PeerKey) -> None:
        """Remove all state of an operator after the end of its link."""
        known = self._peers.get(key.node)
        if known is not None and known[0] == key:
            del self._peers[key.node]
            self._silence.pop(key.node, None)
            self._loop.retire_peer(known[1])

    def keep_alive(self) -> bool:
        """Send keepalives on links without output since the last sweep, ``SPEAK_S`` ago.

        One call handles some of the peers: a thousand would delay clients by milliseconds. True at the end of the
        sweep.
        """
        if not self._unchecked:
            self._unchecked = list(self._peers)
        sent = 0
        for _ in range(min(CHECKED_MAX, len(self._unchecked))):
            node = self._unchecked.pop()
            if node not in self._peers:
                continue
            key, peer = self._peers[node]
            silence = self._silence.get(node)
            if silence is None:
                silence = self._silence[node] = Silence(SPEAK_S, speak_s=speak_s_of(key.tier))
            if silence.owes_word(peer.link.last_sent) and peer.conn is not None:
                peer.link.keepalive()
                self._loop.write(peer.conn, b"")
                sent += 1
                if sent == KEEPALIVES_MAX:
                    break
        return not self._unchecked

    def know(self, cluster_map: ClusterMap) -> None:
        """Create a peer for every live node: its link queues messages, in order, before the first connection.

        Otherwise a route to an edge would lose messages sent before the two are linked.
        """
        self._map = cluster_map
        for node, entry in cluster_map.nodes.items():
            known = self._peers.get(node)
            if (
                entry.alive
                and node != self.identity.node
                and (known is None or known[0].incarnation < entry.incarnation)
            ):
                self._peer_of(PeerKey(node, entry.tier, entry.incarnation))

    def retire_dead(self, cluster_map: ClusterMap) -> list[str]:
        """End the links to dead incarnations, and to nodes removed from the map; return them."""
        gone = []
        forgotten = self._named.difference(cluster_map.nodes)
        self._named = set(cluster_map.nodes)
        for node in forgotten:
            self._fenced.pop(node, None)
        for node in sorted(self._peers):
            key, peer = self._peers[node]
            entry = cluster_map.nodes.get(node)
            over = node in forgotten or (
                entry is not None
                and (entry.incarnation > key.incarnation or (entry.incarnation == key.incarnation and not entry.alive))
            )
            if over:
                self._loop.retire_peer(peer)
                del self._peers[node]
                gone.append(node)
                self._retired(key)
        return gone
