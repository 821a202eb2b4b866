"""Invariants with hostile nodes: no message of an unregistered node is executed or answered.

Checks every node many times a second, and receives each message that a router passes to its parts.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from router.raft.messages import PreVoteReply, decode_message
from tests.simulation.edge_process import EdgeProcess
from tests.simulation.router_process import RouterProcess
from tests.simulation.storage_process import StorageProcess
from tests.simulation.unregistered_process import UnregisteredProcess
from tests.wire.forged_messages import FORGED
from tests.wire.schema_messages import FORGED_NODE
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control, decode_control, decode_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, PeerKey
from wire.messages.message import name_of
from wire.messages.nodes import (
    DrainNode,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MapPage,
    MapStep,
    RegisterRequest,
    RequestRefused,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, NodeProcess

__all__ = ["HostileWatch"]

LOOK_S = 0.05
VIOLATIONS_MAX = 20
# messages to routers that any certificate holder may send; independent of the table of permissions, which is tested
INTRODUCTIONS = (RegisterRequest, Heartbeat, DrainNode, Leave, FollowMap)
# router answers to registrations; other answers are for members
ANSWERS = (RequestRefused, MapPage, MapStep)
COUNTS = (
    *("frames_unreadable", "links_refused_condemned", "links_refused_hello", "frames_of_dead", "answers_unknown"),
    *("not_of_the_group", "shard_messages_dropped"),
)


class HostileWatch:
    """The checker of one seed's hostile nodes.

    Args:
        cluster: Cluster with the checked nodes.
        strangers: The unregistered nodes.
    """

    def __init__(self, cluster: "Cluster", strangers: list[UnregisteredProcess]) -> None:
        self._cluster = cluster
        self._strangers = {stranger.node: stranger for stranger in strangers}
        self._refused: Counter[tuple[str, int]] = Counter()  # by node and life
        self._ends = False
        self.violations: list[str] = []
        self.looks = 0
        for node in cluster.nodes.values():
            if isinstance(node, RouterProcess):
                node.on_message = self._passed(node.node)
                node.watch_messages()
        self._look_repeated()

    @property
    def refused(self) -> int:
        """Number of refused messages and links in all lives of all nodes."""
        return sum(self._refused.values())

    def end(self) -> None:
        """Run a last check."""
        self._ends = True
        self.look()

    def look(self) -> None:
        """Check the state of every running node."""
        self.looks += 1
        for name, node in self._cluster.nodes.items():
            if node.up:
                self._look_at(name, node)
        for stranger in self._strangers.values():
            received, stranger.received = stranger.received, []
            for peer, kind, payload in received:
                self._judge_received(stranger, peer, kind, payload)

    def deceived(self) -> list[str]:
        """Return the clients that received a forged message."""
        return [name for name, client in self._cluster.clients.items() if FORGED in client.received]

    # -- one node

    def _look_repeated(self) -> None:
        if not self._ends:
            self.look()
            self._cluster.scheduler.after(LOOK_S, self._look_repeated)

    def _look_at(self, name: str, node: "NodeProcess") -> None:
        drops = node.raft.drops if isinstance(node, RouterProcess) else {}
        counts = {**node.core.counts, **drops}
        self._refused[name, node.life] = sum(
            count for what, count in counts.items() if what in COUNTS or what.startswith("refused_")
        )
        cluster_map = node.core.machine.map if isinstance(node, RouterProcess) else node.core.map
        self._judge_map(name, cluster_map)
        if isinstance(node, RouterProcess):
            if node.raft.leader in self._strangers:
                self._violated(f"{name} follows {node.raft.leader} in Raft")
            if FORGED_NODE in node.core.policy.machine.tables.roles:
                self._violated(f"{name} has a forged role")
            return
        if node.core.lease.following in self._strangers or node.core.lease.leader in self._strangers:
            self._violated(f"{name} follows a router that is none of the group")
        if isinstance(node, EdgeProcess):
            if vars(node.core.policy)["_follower"].view.role(FORGED_NODE) is not None:
                self._violated(f"{name} has a forged role")
            linked = [key.node for key in node.core.peers.connected()]
        else:
            linked = [key.node for key in node.table.connected()]
            self._judge_sessions(name, node)
        for stranger in self._strangers.values():
            # a storage node keeps the link of a dead incarnation, and drops its messages
            if stranger.node in linked and stranger.tier != TIER_ROUTER and stranger.node not in cluster_map.nodes:
                self._violated(f"{name} has a link to {stranger.node}, which its map does not have")

    def _judge_map(self, name: str, cluster_map: ClusterMap) -> None:
        if FORGED_NODE in cluster_map.nodes:
            self._violated(f"{name} has a forged map of epoch {cluster_map.epoch}")
        for entry in cluster_map.nodes.values():
            if entry.address == "nowhere:1":
                self._violated(f"{name} has a forged registration of {entry.node}")
        for stranger in self._strangers.values():
            if cluster_map.has_live(stranger.node) and stranger.tier != TIER_EDGE:
                self._violated(f"{name} has {stranger.node} in its map")

    def _judge_sessions(self, name: str, node: StorageProcess) -> None:
        for hosted in node.core.partitions.values():
            for session in hosted.partition.sessions.values():
                if session.edge in self._strangers:
                    self._violated(f"{name} gave the session of {session.client_id} to {session.edge}")

    # -- messages

    def _passed(self, router: str) -> Callable[[PeerKey, Control], None]:
        def passed(peer: PeerKey, message: Control) -> None:
            stranger = self._strangers.get(peer.node)
            if stranger is None or (isinstance(message, INTRODUCTIONS) and peer.tier != TIER_ROUTER):
                return
            if peer.tier == TIER_ROUTER or not stranger.is_registered_at(router):
                self._violated(f"{router} took {name_of(message)} of {peer.node}")

        return passed

    def _judge_received(self, stranger: UnregisteredProcess, peer: PeerKey, kind: int, payload: bytes) -> None:
        if kind == FrameKind.CONTROL:
            messages = [decode_control(payload)]
        elif kind == FrameKind.CONTROLS:
            messages = decode_controls(payload)
        elif kind == FrameKind.RAFT:
            raft = decode_message(payload)
            if not isinstance(raft, PreVoteReply):  # changes no state
                self._violated(f"{peer.node} sent {type(raft).__name__} of term {raft.term} to {stranger.node}")
            return
        else:
            self._violated(f"{peer.node} sent a frame of kind {kind} to {stranger.node}")
            return
        for message in messages:
            without_lease = isinstance(message, HeartbeatReply) and not message.lease_s
            if not (peer.tier == TIER_ROUTER and (isinstance(message, ANSWERS) or without_lease)):
                self._violated(f"{peer.node} sent {name_of(message)} to {stranger.node}")

    def _violated(self, what: str) -> None:
        if what not in self.violations and len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)
