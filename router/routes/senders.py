"""Whose routes a shard takes: an edge's from that edge, a partition's from the node that the map names as its primary.

A primary stays the same over many partition_epochs, while backups come and go; what it sent under any of them stands.
A sender whose map and this router's differ is asked to repeat, and says the same when both have the newer one.
Source: docs/protocol.md rules 1.8, 3.2; docs/adr/0018.
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
    """Remainder of a message that was judged, and whether its sender is to repeat the rest."""

    message: Routes | None
    repeat: bool  # the two maps differ
    refused: bool  # something of it is from another node than the primary


class RouteSenders:
    """The present primaries, each with the partition_epoch since which the map has named it without a break."""

    def __init__(self) -> None:
        self._primaries: dict[int, tuple[str, int]] = {}

    def replaced(self, cluster_map: ClusterMap) -> None:
        """Begin anew from a whole map: it does not say since when its primaries are."""
        self._primaries = {
            number: (placement.primary, placement.epoch) for number, placement in enumerate(cluster_map.partitions)
        }

    def stepped(self, delta: MapDelta) -> None:
        """Follow one step of the map."""
        for number, placement in delta.partitions.items():
            known, since = self._primaries.get(number, ("", 0))
            if placement.primary != known:
                since = placement.epoch
            self._primaries[number] = (placement.primary, since)

    def judge(self, cluster_map: ClusterMap, peer: PeerKey, message: Routes) -> ValidatedBatch:
        """Return what of a message its sender may say now; ``wire.links.allowed.fault_of`` was content with it."""
        if peer.tier == TIER_EDGE:
            return ValidatedBatch(message, repeat=False, refused=False)
        if not isinstance(message, ReportRoutes):
            found = self._standing(cluster_map, peer, message.partition, message.sender_epoch)
            taken = message if found is PrimaryStatus.PRIMARY else None
            return ValidatedBatch(taken, found is not PrimaryStatus.PRIMARY, found is PrimaryStatus.OTHER)
        reports = []
        repeat = refused = False
        for report in message.reports:
            found = self._standing(cluster_map, peer, report.partition, report.sender_epoch)
            if found is PrimaryStatus.PRIMARY:
                reports.append(report)
            repeat = repeat or found is not PrimaryStatus.PRIMARY
            refused = refused or found is PrimaryStatus.OTHER
        return ValidatedBatch(replace(message, reports=reports) if reports else None, repeat, refused)

    def _standing(self, cluster_map: ClusterMap, peer: PeerKey, partition: int, sender_epoch: int) -> PrimaryStatus:
        if not cluster_map.is_alive(peer.node, peer.incarnation):
            return PrimaryStatus.LATER  # an incarnation that this map does not have yet
        _, since = self._primaries.get(partition, ("", 0))
        return standing(cluster_map, peer.node, partition, sender_epoch, since)
