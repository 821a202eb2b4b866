"""Reports of partitions' filters to the owners of shards, in slices and as far as links accept them.

A new owner of a shard serves only after a report of every partition, so one without filters reports that. One
partition may have hundreds of thousands of filters: its report takes several iterations.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from storage.hosting.hosted_partition import HostedPartition
from storage.state.partition import Output
from wire.messages.cluster_map import ClusterMap, ShardEntry
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.routes import ReportRoutes, SenderReport
from wire.node.route_registrar import PLACED_AT_ONCE

__all__ = ["REPORT_SPACE_BYTES", "RouteReports"]

AGAIN_S = 0.1
# Filters, and empty reports, which cost as much: some 3 ms. More would block the loop, and a report of a million
# filters exceeds every link.
REPORTED_PER_ITERATION = 1_500
PLACES_PER_FILTER = 2  # shards that are looked up, for the same cost
REPORT_ROUTES_MAX = 500  # in one message, fewer of long ones; a longer report of one partition is divided anyway
REPORT_CHARACTERS = 200  # of filters that count as one more route
REPORT_SPACE_BYTES = 16 * 1024 * 1024  # free bytes of a link below which reports wait: acknowledgements go first
PAUSE_S = 0.002  # between two iterations that send reports, without other events


class _Report:
    """One partition's report in progress.

    Attributes:
        hosted: The partition.
        epoch: partition_epoch of the report.
        shards: Shards whose owners do not have all of it.
        made: Iterator over the pieces.
    """

    __slots__ = ("epoch", "hosted", "made", "shards")

    def __init__(self, hosted: HostedPartition, shards: set[int]) -> None:
        self.hosted = hosted
        self.epoch = hosted.partition.epoch
        self.shards = shards
        self.made: Iterator[tuple[int, SenderReport] | None] = hosted.subscriptions.report(shards)


class RouteReports:
    """Due reports of one node.

    Args:
        partitions: The partitions with this node as primary.
        cluster_map: Of this node.
        room: Returns the bytes that the link to a node accepts now.
    """

    def __init__(
        self, partitions: dict[int, HostedPartition], cluster_map: Callable[[], ClusterMap], room: Callable[[str], int]
    ) -> None:
        self.next_send = float("-inf")
        self._partitions = partitions
        self._map = cluster_map
        self._room = room
        self._retries: dict[int, float] = {}  # shard -> time of the next report to its owner
        self._due: dict[int, frozenset[int]] = {}  # partition -> shards whose owners need its filters
        self._current: _Report | None = None

    def __len__(self) -> int:
        return len(self._due) + (self._current is not None)

    def add(self, partitions: Iterable[HostedPartition], shards: Iterable[int]) -> None:
        """Schedule reports of serving partitions to the owners of these shards."""
        shards = frozenset(shards)  # one object for all of them
        for hosted in partitions:
            known = self._due.get(hosted.partition.number)
            self._due[hosted.partition.number] = shards if known is None else known | shards
            if self._current is not None and self._current.hosted is hosted:
                self._current.shards -= shards  # an earlier piece is incomplete, or went to another owner

    def schedule_retry(self, shard: int, now: float) -> None:
        """Schedule a retry: the router does not own the shard yet, or any more."""
        self._retries[shard] = now + AGAIN_S

    @property
    def next_again(self) -> float:
        """Time of the next retry."""
        return min(self._retries.values(), default=float("inf"))

    def repeat(self, now: float) -> None:
        """Report again to owners that did not own their shards yet."""
        due = {shard for shard, when in self._retries.items() if when <= now}
        if due:
            for shard in due:
                del self._retries[shard]
            self.add([hosted for hosted in self._partitions.values() if hosted.serving], due)

    def _filters(self) -> int:
        due = (self._partitions.get(number) for number in self._due)
        return sum(hosted.subscriptions.filters for hosted in due if hosted is not None)

    def send(self, now: float, *, loading: bool) -> list[Output]:
        """Return due reports with current filters, within the budget of an iteration and the links' capacity."""
        self.next_send = now + PAUSE_S
        if loading and self._current is None and self._filters() < REPORTED_PER_ITERATION:
            return []  # a shard waits for all of them: few large messages
        by_shard: dict[int, list[SenderReport]] = {}
        left = REPORTED_PER_ITERATION
        placements = self._map().shards
        full = {shard for shard, entry in enumerate(placements) if entry.owner and self._is_full(entry.owner)}
        waiting = iter(sorted(self._due))
        while left > 0:
            report = self._current = self._going_on() or self._next(waiting, placements, full)
            if report is None or not full.isdisjoint(report.shards):
                break
            left -= self._step(report, by_shard)
        sends: list[Output] = []
        for shard, reports in sorted(by_shard.items()):
            for piece in _cut(reports) if placements[shard].owner else ():
                message = encode_control(ReportRoutes(shard, placements[shard].epoch, piece))
                sends.append((placements[shard].owner, FrameKind.CONTROL, message))
        return sends

    def _going_on(self) -> _Report | None:
        """Return the report in progress, unless its partition has another primary or epoch now."""
        report = self._current
        if report is None:
            return None
        number = report.hosted.partition.number
        if self._partitions.get(number) is not report.hosted or not report.hosted.serving:
            return None  # the new primary reports it
        if report.hosted.partition.epoch != report.epoch:
            self.add([report.hosted], set(report.shards))
            return None
        return report

    def _next(self, waiting: Iterator[int], placements: Sequence[ShardEntry], full: set[int]) -> _Report | None:
        """Begin the report of the next partition whose shards' owners have capacity on their links."""
        for number in waiting:
            hosted = self._partitions.get(number)
            if hosted is None or not hosted.serving:
                del self._due[number]  # the new primary reports it
                continue
            shards = {shard for shard in self._due[number] if shard < len(placements)}
            if full.isdisjoint(shards):
                del self._due[number]
                return _Report(hosted, shards)
        return None

    def _step(self, report: _Report, by_shard: dict[int, list[SenderReport]]) -> int:
        """Produce a piece of a report; return its cost in filters."""
        for made in report.made:
            if made is None:
                return PLACED_AT_ONCE // PLACES_PER_FILTER
            shard, piece = made
            by_shard.setdefault(shard, []).append(piece)
            if piece.last:
                report.shards.discard(shard)
            return max(1, len(piece.routes))
        self._current = None
        return 1

    def _is_full(self, owner: str) -> bool:
        return self._room(owner) < REPORT_SPACE_BYTES


def _cut(reports: list[SenderReport]) -> list[list[SenderReport]]:
    """Divide reports into messages with a bounded number of routes, in order."""
    pieces: list[list[SenderReport]] = [[]]
    routes = 0
    for report in reports:
        size = len(report.routes)
        size += sum(len(route.topic_filter) + len(route.share_name) for route in report.routes) // REPORT_CHARACTERS
        if pieces[-1] and routes + size > REPORT_ROUTES_MAX:
            pieces.append([])
            routes = 0
        pieces[-1].append(report)
        routes += size
    return pieces
