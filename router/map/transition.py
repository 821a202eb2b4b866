"""One step of the map under construction: the map before it, and the changed entries.

The rules (``node_rules``, ``partition_rules``, ``shard_rules``) read nodes as they will be after the step, and other
entries as before. The map changes only when the step is applied, so a refused command has no effect.
"""

from collections import Counter

from router.placement.changes import still_in_sync
from router.placement.ring import RingNode
from wire.messages.cluster_map import ClusterMap, Delegation, MapDelta, NodeEntry, PartitionEntry, ShardEntry
from wire.messages.hello import TIER_ROUTER

__all__ = ["Transition"]


class Transition:
    """The map before a step, and its changes."""

    def __init__(self, before: ClusterMap) -> None:
        self.before = before
        self.nodes: dict[str, NodeEntry] = {}
        self.forgotten: list[str] = []
        self.partitions: dict[int, PartitionEntry] = {}
        self.shards: dict[int, ShardEntry] = {}
        self.delegations: tuple[Delegation, ...] | None = None
        self._primaries: Counter[str] | None = None

    @property
    def changed(self) -> bool:
        """True if the step changes the map."""
        return bool(self.nodes or self.forgotten or self.partitions or self.shards or self.delegations is not None)

    def delta(self) -> MapDelta:
        """Return the step, at the next epoch; the same bytes on every router."""
        for number, entry in self.partitions.items():
            assert entry.epoch == self.before.partitions[number].epoch + 1, f"partition {number} skips an epoch"
        nodes = tuple(self.nodes[name] for name in sorted(self.nodes))
        return MapDelta(
            self.before.epoch + 1,
            nodes,
            tuple(self.forgotten),
            dict(sorted(self.partitions.items())),  # the same bytes on every router
            dict(sorted(self.shards.items())),
            self.delegations,
            self.before.digest,
        )

    # --- nodes after the step

    def node(self, name: str) -> NodeEntry | None:
        """Return a node's entry after the step."""
        return self.nodes.get(name) or self.before.nodes.get(name)

    def is_alive(self, name: str) -> bool:
        """Return whether a node will be alive, including a stopping one."""
        entry = self.node(name)
        return entry is not None and entry.alive

    def stays(self, name: str) -> bool:
        """Return whether a node will be alive and not stopping."""
        entry = self.node(name)
        return entry is not None and entry.alive and not entry.stops

    def ring_nodes(self, tier: str) -> list[RingNode]:
        """Return the nodes of a tier that may own roles, in name order."""
        names = sorted({*self.before.nodes, *self.nodes})
        entries = [entry for name in names if (entry := self.node(name)) is not None]
        return [
            RingNode(entry.node, entry.weight, entry.zone)
            for entry in entries
            if entry.tier == tier and entry.alive and not entry.admin_state and not self._has_handed_over(entry)
        ]

    def _has_handed_over(self, entry: NodeEntry) -> bool:
        """Whether a node stops and has handed over its roles; without a successor it keeps them until its end."""
        if not entry.stops or entry.tier != TIER_ROUTER or entry.node in self.nodes:
            return entry.stops
        return all(shard.owner != entry.node for shard in self.before.shards)

    # --- placements

    def place(self, number: int, primary: str, in_sync: tuple[str, ...], joining: tuple[str, ...]) -> None:
        """Set a partition's placement, at its next partition_epoch."""
        epoch = self.before.partitions[number].epoch + 1
        self.partitions[number] = PartitionEntry(epoch, primary, in_sync, joining)

    def may_lead(self, name: str, placement: PartitionEntry) -> bool:
        """Return whether a node may be primary: it stays, or it stops and is the primary already."""
        return self.stays(name) or (name == placement.primary and self.is_alive(name))

    def still_in_sync(self, in_sync: tuple[str, ...]) -> tuple[str, ...]:
        """Return the live replicas, or all if the live ones are too few."""
        return still_in_sync(in_sync, self.is_alive, self.before.min_in_sync)

    def select_successor(self, candidates: tuple[str, ...]) -> str:
        """Return the next primary, the candidate with the fewest primaries, and count it.

        Otherwise one node could get all primaries after a few deaths.
        """
        if self._primaries is None:
            self._primaries = Counter(placement.primary for placement in self.before.partitions)
        counts = self._primaries
        successor = min(candidates, key=lambda name: (counts[name], candidates.index(name)))
        counts[successor] += 1
        return successor
