"""A scripted router: a map machine whose commands are committed at once, and replies to nodes."""

from collections.abc import Callable

from router.map.commands import Bootstrap, Command, DeclareDead, PlacePartitions, PlaceShards, RegisterNode
from router.map.machine import MapMachine
from router.placement.changes import placement_change
from wire.messages.cluster_map import MapDelta, NodeEntry
from wire.messages.control import Control, decode_control
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.map_pages import map_pages
from wire.messages.nodes import (
    Changed,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    Registered,
    RegisterRequest,
    RequestChange,
    RequestRefused,
)
from wire.messages.orders import NodeOrdered
from wire.messages.routes import AddRoutes, RoutesAdded

__all__ = ["LEASE_S", "ROUTER", "ScriptedRouter"]

ROUTER = "r1"
LEASE_S = 2.0


class ScriptedRouter:
    """One router without timeouts: a node is dead when a test declares it dead.

    Args:
        tell: Sends a control message to a node.
        moved: Is called with each change of the map.
        bootstrap: The cluster's first command.
    """

    def __init__(
        self, tell: Callable[[str, Control], None], moved: Callable[[MapDelta], None], bootstrap: Bootstrap
    ) -> None:
        self.key = PeerKey(ROUTER, TIER_ROUTER, 1)
        self.machine = MapMachine()
        self.acknowledged: dict[str, int] = {}  # node -> epoch of the map
        self.added: list[AddRoutes] = []
        self.routes_answered = True
        self.ordered: list[NodeOrdered] = []
        self.routes: dict[tuple[int, int], set[str]] = {}  # partition, shard -> filters
        self._tell, self._moved = tell, moved
        self.machine.apply(bootstrap)
        self.apply(RegisterNode(NodeEntry(ROUTER, TIER_ROUTER, 1, "r1:1")))
        self.apply(PlaceShards(dict.fromkeys(range(bootstrap.shards), ROUTER)))

    def apply(self, command: Command) -> str:
        """Commit a command of the map and send it to all nodes; return the reason of a refusal, or ""."""
        outcome = self.machine.apply(command)
        if outcome.delta is not None:
            self._moved(outcome.delta)
        return outcome.refusal

    def declare_dead(self, key: PeerKey) -> None:
        """End an incarnation's lease."""
        self.apply(DeclareDead(key.node, key.incarnation))

    def take(self, source: PeerKey, payload: bytes) -> None:
        """Process a control message of a storage node."""
        node, message = source.node, decode_control(payload)
        epoch = self.machine.map.epoch
        if isinstance(message, RegisterRequest):
            self.apply(RegisterNode(message.entry, message.whole))
            self._tell(node, Registered(message.request, message.entry.incarnation))
        elif isinstance(message, FollowMap):
            for page in map_pages(self.machine.map):
                self._tell(node, page)
        elif isinstance(message, Heartbeat):
            self.acknowledged[node] = message.map_epoch
            storages = [entry.node for entry in self.machine.map.live(TIER_STORAGE)]
            settled = min([epoch, *(self.acknowledged.get(name, 0) for name in storages)])
            beat = (message.incarnation, message.sent_at, LEASE_S, settled, ROUTER)
            self._tell(node, HeartbeatReply(*beat, map_epoch=epoch))
        elif isinstance(message, AddRoutes):
            self.added.append(message)
            names = self.routes.setdefault((message.partition, message.shard), set())
            names.update(entry.topic_filter for entry in message.routes)
            if self.routes_answered:
                self.answer(node, message)
        elif isinstance(message, NodeOrdered):
            self.ordered.append(message)
        elif isinstance(message, RequestChange):
            entry, refusal = placement_change(self.machine.map, node, message)
            if entry is None:
                self._tell(node, RequestRefused(message.request, "invalid", refusal))
            else:
                refusal = self.apply(PlacePartitions({message.partition: entry}))
                assert not refusal
                self._tell(node, Changed(message.request))

    def answer(self, node: str, asked: AddRoutes) -> None:
        """Acknowledge routes."""
        self._tell(node, RoutesAdded(asked.request, asked.shard, asked.shard_epoch, asked.sender_epoch))
