"""Reports of partitions with many filters, and of many partitions, are made in short iterations."""

import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import cast

from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.route_reports import REPORTED_PER_ITERATION, RouteReports
from tests.turn_time import assert_within, timed
from wire.messages.cluster_map import ClusterMap, ShardEntry
from wire.messages.control import decode_control
from wire.messages.routes import ReportRoutes, SenderReport
from wire.node.route_registrar import REPORT_ROUTES_MAX, sender_report

SHARDS = 64
ROUND_MS = 8  # of the processor, the median; 2 to 3 ms were measured


@dataclass
class Core:
    number: int
    epoch: int = 1


@dataclass
class Subscriptions:
    owner: "Partition"
    names: dict[str, int]
    version: int = 0

    @property
    def filters(self) -> int:
        return len(self.names)

    def report(self, shards: Set[int]) -> Iterator[tuple[int, SenderReport] | None]:
        self.version += 1
        partition = self.owner.partition
        return sender_report(self.owner.map, partition.number, partition.epoch, self.version, self.names, shards)


@dataclass
class Partition:
    """The part of a hosted partition that reports use."""

    partition: Core
    map: ClusterMap
    serving: bool = True
    subscriptions: Subscriptions = field(init=False)


class Node:
    """The reports of one node, and the sent pieces."""

    def __init__(self, partitions: int, filters: int) -> None:
        self.map = ClusterMap("c", 1, shards=[ShardEntry(1, "r0") for _ in range(SHARDS)], base_shards=SHARDS)
        self.partitions: dict[int, HostedPartition] = {}
        for number in range(partitions):
            partition = Partition(Core(number), self.map)
            names = {f"r{at % 97}/d{at}/p{number}": 1 for at in range(filters)}
            partition.subscriptions = Subscriptions(partition, names)
            self.partitions[number] = cast(HostedPartition, partition)
        self.room = 1 << 30
        self.reports = RouteReports(self.partitions, lambda: self.map, lambda _: self.room)
        self.times: list[float] = []
        self.whole: dict[tuple[int, int, int], list[str]] = {}  # (partition, its epoch, shard) -> filters
        self._begun: dict[tuple[int, int, int], list[str]] = {}

    def send(self) -> int:
        """Run one iteration; return the number of reported filters."""
        began = time.thread_time()
        sends = self.reports.send(0.0, loading=False)
        self.times.append(time.thread_time() - began)
        count = 0
        for _, _, payload in sends:
            message = decode_control(payload)
            assert isinstance(message, ReportRoutes)
            for piece in message.reports:
                key = (piece.partition, piece.sender_epoch, message.shard)
                if piece.first:
                    self._begun[key] = []
                self._begun[key] += [route.topic_filter for route in piece.routes]
                count += len(piece.routes)
                if piece.last:
                    self.whole[key] = self._begun.pop(key)
        return count

    def all(self, partition: int, epoch: int = 1) -> list[str]:
        """Return the filters in the complete reports of a partition, of all shards."""
        assert all((partition, epoch, shard) in self.whole for shard in range(SHARDS))
        return sorted(name for shard in range(SHARDS) for name in self.whole[partition, epoch, shard])


def names(node: Node, partition: int) -> dict[str, int]:
    return cast(Partition, node.partitions[partition]).subscriptions.names


@timed
def test_reports_of_one_large_and_many_empty_partitions_are_sliced() -> None:
    for partitions, filters in ((1, 20_000), (200, 0)):
        node = Node(partitions, filters)
        node.reports.add(node.partitions.values(), range(SHARDS))
        while len(node.reports):
            assert node.send() <= REPORTED_PER_ITERATION + REPORT_ROUTES_MAX
        assert len(node.times) > 5
        middle_ms = sorted(node.times)[len(node.times) // 2] * 1e3
        assert_within(f"the middle turn of {partitions} partitions", middle_ms, ROUND_MS)
        for partition in range(partitions):
            assert node.all(partition) == sorted(names(node, partition))


def test_new_epoch_restarts_the_report() -> None:
    """A shard rejects an old epoch: a report in progress would never end there."""
    node = Node(2, 3_000)
    node.reports.add(node.partitions.values(), range(SHARDS))
    node.send()
    node.send()
    node.partitions[0].partition.epoch = 2
    removed = next(reversed(names(node, 0)))
    del names(node, 0)[removed]
    while len(node.reports):
        node.send()
    told = [key for key in node.whole if key[0] == 0]
    assert {shard for _, _, shard in told} == set(range(SHARDS))
    last = {shard: node.whole[partition, epoch, shard] for partition, epoch, shard in sorted(told)}
    assert sorted(name for some in last.values() for name in some) == sorted(names(node, 0))
    assert node.all(1) == sorted(names(node, 1))


def test_report_is_repeated_to_a_moved_shard_and_dropped_for_a_moved_partition() -> None:
    node = Node(2, 3_000)
    node.reports.add(node.partitions.values(), range(SHARDS))
    node.send()
    node.reports.add(node.partitions.values(), [SHARDS - 1])
    names(node, 0)["new"] = 1
    node.send()
    node.partitions[1].serving = False
    while len(node.reports):
        node.send()
    (shard,) = node.map.shards_for_filter("new")
    expected = sorted(name for name in names(node, 0) if name != "new" or shard == SHARDS - 1)
    assert node.all(0) == expected
    assert not [key for key in node.whole if key[0] == 1]


def test_full_link_pauses_a_report() -> None:
    node = Node(1, 5_000)
    node.reports.add(node.partitions.values(), range(SHARDS))
    node.send()
    assert node.send() > 0
    node.room = 0
    assert [node.send() for _ in range(3)] == [0, 0, 0]
    node.room = 1 << 30
    while len(node.reports):
        node.send()
    assert node.all(0) == sorted(names(node, 0))
