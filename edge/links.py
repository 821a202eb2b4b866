"""Starts and ends of links at this edge, and refusals of forbidden messages of nodes.

``edge/cluster/peer_table.py`` binds a connection to its peer. This module follows routers, sends queued requests to
storage nodes, and closes the link of a node that breaks the protocol.
"""

import logging
from collections.abc import Callable

from conf.events import say
from edge.cluster.peer_table import PeerTable
from edge.cluster_policy import ClusterPolicy
from edge.loop.state import LoopConnection, LoopPeer
from edge.map_follower import EdgeMapFollower
from edge.node.node import EdgeNode
from edge.node.ports import LinkIO
from edge.subscriptions.topic_routes import TopicRoutes
from wire.links.allowed import IDENTITY, TIER
from wire.links.refusals import Refusals
from wire.messages.hello import TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.node.unreached import Unreached

__all__ = ["EdgeLinks"]

logger = logging.getLogger(__name__)


class EdgeLinks:
    """The links of one edge.

    Args:
        node: This edge.
        loop: Closes links.
        peers: The other nodes.
        follower: Partitions and their primaries.
        routes: Routes, which name edges.
        policy: Follows a router.
        relinked: Called when a dial may be due.
        operator_gone: Called when the link of an operator ended.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: LinkIO,
        peers: PeerTable,
        follower: EdgeMapFollower,
        routes: TopicRoutes,
        policy: ClusterPolicy,
        relinked: Callable[[], None],
        operator_gone: Callable[[PeerKey], None],
    ) -> None:
        self._node = node
        self._loop = loop
        self._peers = peers
        self._follower = follower
        self._routes = routes
        self._policy = policy
        self._relinked = relinked
        self._operator_gone = operator_gone
        self._refusals = Refusals(node.count)
        self._unreached = Unreached(node.name)

    def hello(self, conn: LoopConnection, payload: bytes) -> None:
        """Handle a link's first frame."""
        key = self._peers.hello(conn, payload)
        if key is not None:
            name = f"{key.tier}/{key.node}" if conn.tls is not None else ""  # plaintext proves no identity
            self._peers.pending.authenticated(conn, name, self._node.now)
        if key is None or key.tier == TIER_OPERATOR:
            return
        self._unreached.link_up(key)
        if key.tier == TIER_ROUTER:
            self._peers.router_fault = ""
            self._node.lease.router_up(key.node, self._node.now, key.incarnation)
            self._policy.router_up(key.node)
        elif key.tier == TIER_STORAGE:
            self._follower.storage_up(key.node)
        else:
            self._routes.peers_changed()

    def dropped(self, conn: LoopConnection) -> None:
        """Handle the end of a connection that was no client's, perhaps before its link was established."""
        self._peers.dropped(conn)
        self._relinked()

    def over(self, key: PeerKey) -> None:
        """Handle the end of a link's connection or of the peer's incarnation; not called for retired peers."""
        self._node.wake()
        if key.tier == TIER_OPERATOR:
            self._operator_gone(key)
            return
        self._relinked()
        self._unreached.link_down(key)
        if key.tier == TIER_ROUTER:
            self._node.lease.router_down(key.node)
            self._policy.router_down(key.node)

    def broke(self, peer: LoopPeer, why: str) -> None:
        """Refuse an incarnation after an unreadable frame; later incarnations of the node may connect."""
        self._node.count("frames_unreadable")
        key = self._peers.key(peer)
        say(logger, "link.broke_protocol", tier=key.tier, peer=key.node, why=why)
        self._peers.condemn(peer, why)

    def violated(self, peer: LoopPeer, what: str, reason: str, *, early: bool = False) -> None:
        """Count a forbidden message; close the link, until the node restarts, for one that no honest node sends."""
        self._refusals.refuse(self._node.now, self._peers.key(peer), what, reason, early=early)
        if reason in (TIER, IDENTITY):
            self._peers.condemn(peer, f"it may not send {what} ({reason})")
            if peer.conn is not None:
                self._loop.close(peer.conn, linger=False)

    def tick(self, now: float) -> bool:
        """Send keepalives, and report unreachable nodes to the routers; False: the next iteration continues."""
        for conn in self._peers.pending.take_silent(now):
            self._loop.close(conn, linger=False)
        if not self._peers.keep_alive():
            return False
        self._node.lease.unreachable = self._unreached.nodes(now, self._node.map)
        return True
