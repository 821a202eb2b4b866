"""Valid senders of routes: an edge for itself, the primary in the map for a partition.

A primary can stay the same over many partition_epochs while backups change; its messages of all of them are valid. A
sender whose map differs from this router's must repeat its message until both have the newer map. Source:
docs/protocol.md rules 1.8, 3.2; docs/adr/0018.
"""

from typing import NamedTuple

from msgspec.structs import replace

from wire.links.allowed import PrimaryStatus, standing
from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.hello import TIER_EDGE, PeerKey
from wire.messages.routes import AddRoutes, RemoveRoutes, ReportRoutes

__all__ = ["RouteSenders", "Routes", "ValidatedBatch"]

Routes = AddRoutes | RemoveRoutes | ReportRoutes


class ValidatedBatch(NamedTuple):
    """Valid part of a message, and whether its sender must repeat the rest."""

    message: Routes | None
    repeat: bool  # the two maps differ
    refused: bool  # a part is from another node than the primary


class RouteSenders:
    """The current primaries, each with the first partition_epoch of its uninterrupted role."""

    def __init__(self) -> None:
        self._primaries: dict[int, tuple[str, int]] = {}

    def replaced(self, cluster_map: ClusterMap) -> None:
        """Rebuild from a whole map, which does not contain the start of its primaries' roles."""
        self._primaries = {
            number: (placement.primary, placement.epoch) for number, placement in enumerate(cluster_map.partitions)
        }

    def apply_step(self, delta: MapDelta) -> None:
        """Apply one step of the map."""
        for number, placement in delta.partitions.items():
            known, since = self._primaries.get(number, ("", 0))
            if placement.primary != known:
                since = placement.epoch
            self._primaries[number] = (placement.primary, since)

    def validate(self, cluster_map: ClusterMap, peer: PeerKey, message: Routes) -> ValidatedBatch:
        """Return the valid part of a message that ``wire.links.allowed.fault_of`` accepted."""
        if peer.tier == TIER_EDGE:
            return ValidatedBatch(message, repeat=False, refused=False)
        if not isinstance(message, ReportRoutes):
            found = self._primary_status(cluster_map, peer, message.partition, message.sender_epoch)
            taken = message if found is PrimaryStatus.PRIMARY else None
            return ValidatedBatch(taken, found is not PrimaryStatus.PRIMARY, found is PrimaryStatus.OTHER)
        reports = []
        repeat = refused = False
        for report in message.reports:
            found = self._primary_status(cluster_map, peer, report.partition, report.sender_epoch)
            if found is PrimaryStatus.PRIMARY:
                reports.append(report)
            repeat = repeat or found is not PrimaryStatus.PRIMARY
            refused = refused or found is PrimaryStatus.OTHER
        return ValidatedBatch(replace(message, reports=reports) if reports else None, repeat, refused)

    def _primary_status(
        self, cluster_map: ClusterMap, peer: PeerKey, partition: int, sender_epoch: int
    ) -> PrimaryStatus:
        if not cluster_map.is_alive(peer.node, peer.incarnation):
            return PrimaryStatus.LATER  # this map does not contain the incarnation yet
        _, since = self._primaries.get(partition, ("", 0))
        return standing(cluster_map, peer.node, partition, sender_epoch, since)
