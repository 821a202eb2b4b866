"""The route shards of this incarnation: their messages, and their part of an iteration.

A message reaches a shard only at its shard_epoch, from an incarnation that has not ended, while this router has its
lease. Any other is answered with ``Moved``, and its sender checks the map. Sans-IO. Source: docs/protocol.md section 3.
"""

from collections.abc import Callable

from router.routes.senders import Routes, RouteSenders
from router.routes.shard import RouteShard
from router.routes.shard_work import BatchValidator, ShardMessage, ShardWork
from wire.links.refusals import Refusals
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeState
from wire.messages.control import Control
from wire.messages.hello import TIER_EDGE, PeerKey
from wire.messages.message import name_of
from wire.messages.nodes import Moved
from wire.messages.routes import AddRoutes, Invalidated, RemoveRoutes, Resolve

__all__ = ["OwnedShards"]

STEPS_OF_ACKNOWLEDGEMENT = 5


class OwnedShards:
    """The shards of one router, each at its owned shard_epoch."""

    def __init__(
        self,
        node: str,
        cached_topics_max: int,
        send_message: Callable[[str, Control], None],
        count: Callable[[str], None],
        refusals: Refusals,
    ) -> None:
        self._node = node
        self._cached_topics_max = cached_topics_max
        self._send_message = send_message
        self._count = count
        self._refusals = refusals
        self.shards: dict[int, RouteShard] = {}
        self._senders = RouteSenders()
        self._touched: set[int] = set()  # may have messages to send
        self._waiting: set[int] = set()  # wait for edges or partitions
        self._resized: set[int] = set()  # changed since their sizes were reported
        self._work = ShardWork(self.take)

    @property
    def has_work(self) -> bool:
        """True if the next iteration should start at once."""
        return bool(self._work)

    @property
    def waits(self) -> bool:
        """True while a shard waits for nodes, or may have messages to send."""
        return bool(self._waiting or self._touched)

    # --- the map

    def follow(self, now: float, cluster_map: ClusterMap, *, active: bool) -> None:
        """Create the shards that the map assigns to this router, and drop others.

        Args:
            now: Seconds.
            cluster_map: As of now.
            active: The map has this incarnation.
        """
        for number, placement in enumerate(cluster_map.shards):
            owned = self.shards.get(number)
            if not active or placement.owner != self._node:
                if self.shards.pop(number, None) is not None:
                    self._touched.add(number)
            elif owned is None or owned.epoch != placement.epoch:
                edges = [entry.node for entry in cluster_map.live(TIER_EDGE)]
                partitions = [at for at, partition in enumerate(cluster_map.partitions) if partition.epoch]
                self.shards[number] = RouteShard(
                    number, placement.epoch, edges, partitions, self._cached_topics_max, now
                )
                self._touched.add(number)

    def apply_step(self, delta: MapDelta) -> None:
        """Apply a map step to the partitions' valid senders."""
        self._senders.apply_step(delta)

    def replaced(self, cluster_map: ClusterMap) -> None:
        """Rebuild the partitions' valid senders from a replaced map."""
        self._senders.replaced(cluster_map)

    def remove_edge(self, now: float, edge: str) -> None:
        """Drop the routes and cached topics of an edge whose incarnation ended."""
        for number in sorted(self.shards):
            self.shards[number].now = now
            self.shards[number].edge_dead(edge)
            self._touched.add(number)

    # --- messages

    def add(self, peer: PeerKey, message: ShardMessage) -> bool:
        """Queue a message; False if it is dropped because the backlog is full."""
        return self._work.add(peer, message)

    def is_behind(self, node: str) -> bool:
        """Return whether a node sends faster than its messages are processed."""
        return self._work.is_behind(node)

    def run_iteration(self, validator: BatchValidator) -> None:
        """Process messages in order and slices of long work, within one iteration's budget."""
        self._touched.update(self._work.run_iteration(validator, self.shards))

    def take(self, validator: BatchValidator, peer: PeerKey, message: ShardMessage) -> int:
        """Pass a message to its shard; return its cost in steps."""
        if isinstance(message, Invalidated):
            return self._invalidated(validator, peer, message)
        if _has_ended(validator.map, peer):
            self._count("frames_of_dead")
            return 1
        shard = self.shards.get(message.shard)
        if shard is None or shard.epoch != message.shard_epoch or not validator.leased:
            self._moved(peer, message, shard.epoch if shard is not None else 0)
            return 1
        shard.now = validator.now
        began = shard.steps
        if isinstance(message, Resolve):
            shard.resolve(peer.node, message)
        else:
            self._routes(validator, shard, peer, message)
        self._touched.add(message.shard)
        return 1 + shard.steps - began

    def _moved(self, peer: PeerKey, message: Resolve | Routes, epoch: int) -> None:
        request = message.request if isinstance(message, Resolve | AddRoutes) else 0
        self._send_message(peer.node, Moved(request, "shard", message.shard, epoch))

    def _routes(self, validator: BatchValidator, shard: RouteShard, peer: PeerKey, message: Routes) -> None:
        validated = self._senders.validate(validator.map, peer, message)
        if validated.repeat:
            self._moved(peer, message, shard.epoch)
        if validated.refused:
            self._refusals.refuse(validator.now, peer, name_of(message), "placement")
        if isinstance(validated.message, AddRoutes):
            shard.add(peer.node, validated.message)
        elif isinstance(validated.message, RemoveRoutes):
            shard.remove(peer.node, validated.message)
        elif validated.message is not None:
            shard.report(peer.node, validated.message)

    def _invalidated(self, validator: BatchValidator, peer: PeerKey, message: Invalidated) -> int:
        """Record that an edge dropped answers; only the incarnation in the map counts."""
        shard = self.shards.get(message.shard)
        if shard is None or shard.epoch != message.shard_epoch:
            return 1
        if not validator.map.is_alive(peer.node, peer.incarnation):
            self._count("invalidated_by_others")
            return 1
        shard.now = validator.now
        began = shard.steps
        shard.invalidated(peer.node, message)
        self._touched.add(message.shard)
        return STEPS_OF_ACKNOWLEDGEMENT + shard.steps - began

    # --- the end of an iteration, and checks

    def send(self) -> None:
        """Send the messages of this iteration's shards, and record the shards with further work or waits."""
        for number in sorted(self._touched):
            shard = self.shards.get(number)
            for node, message in shard.take_sends() if shard is not None else ():
                self._send_message(node, message)
            for _ in range(shard.take_dropped() if shard is not None else 0):
                self._count("shard_messages_dropped")
            if shard is not None and shard.has_slices:
                self._work.add_shard(number)
            if shard is not None and shard.waits:
                self._waiting.add(number)
            else:
                self._waiting.discard(number)
        self._resized |= self._touched
        self._touched.clear()

    def repeat(self, now: float, cluster_map: ClusterMap) -> set[str]:
        """Repeat unacknowledged messages; return the nodes that did not answer for two leases."""
        patience_s = 2 * cluster_map.lease_s
        waited: set[str] = set()
        for number in sorted(self._waiting | self._touched):
            shard = self.shards.get(number)
            if shard is None or not shard.waits:
                continue
            shard.tick(now)
            self._touched.add(number)
            edges, partitions = shard.find_unanswered(now, patience_s)
            waited |= edges | {cluster_map.partitions[partition].primary for partition in partitions}
        return waited

    def note_sizes(self, sizes: dict[int, tuple[int, int]]) -> None:
        """Update a table of shard -> (routes, bytes)."""
        for number in sorted(self._resized | self._touched):
            shard = self.shards.get(number)
            if shard is None:
                sizes.pop(number, None)
            else:
                sizes[number] = (shard.routes, shard.bytes)
        self._resized.clear()


def _has_ended(cluster_map: ClusterMap, peer: PeerKey) -> bool:
    """Return whether the map has ended an incarnation; one that it does not contain yet has not ended."""
    entry = cluster_map.nodes.get(peer.node)
    if entry is None or entry.incarnation < peer.incarnation:
        return False
    return entry.incarnation > peer.incarnation or entry.state == NodeState.DEAD
