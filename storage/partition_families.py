"""Per-partition metric families of a storage node: drops, sessions, queues, retained messages, lag, epochs.

One walk over the partitions collects the values of all families. A node may have thousands of partitions, so the walk
yields between them. Unchanged partitions are not read again. Decision:
docs/adr/0199-figures-are-kept-until-counted.md.
"""

from collections.abc import Callable, Generator, Mapping

from conf.drop_reasons import REASON_OF, REPEATS, count_drops, count_repeats
from conf.metrics import Histogram, Metrics
from storage.hosting.hosted_partition import FILL_BOUNDS, HostedPartition, PartitionMetrics
from storage.hosting.storage_metrics import StorageMetrics
from storage.queries.copies import lag_ops
from storage.queries.query_rows import QueryRows
from storage.state.timers import EndSession

__all__ = ["expose_partitions"]

AT_ONCE = 8  # partitions that are read without a yield, some 10 us


class _PartitionSums:
    """Sums of a walk; of serving partitions unless noted."""

    def __init__(self) -> None:
        self.online = self.sessions = self.queued = self.retained = 0  # of all partitions with this node as primary
        self.epochs: dict[tuple[str, ...], float] = {}
        self.lags: dict[tuple[str, ...], float] = {}
        self.oldest_s: dict[tuple[str, ...], float] = {}
        self.queued_bytes = self.retained_bytes = self.subscriptions = self.ending = 0
        self.fullest = 0.0
        self.fills = Histogram(FILL_BOUNDS)

    def add(self, exposed: PartitionMetrics, sign: int) -> None:
        """Add the values of a partition (sign 1) or subtract them (sign -1)."""
        tally = exposed.tally
        if exposed.sessions:
            self.sessions += sign * exposed.sessions
            self.online += sign * tally.online
            self.queued += sign * tally.queued
        self.retained += sign * exposed.retained
        if not exposed.serving:
            return
        self.retained_bytes += sign * exposed.retained_bytes
        self.ending += sign * exposed.ending
        if exposed.sessions:
            self.queued_bytes += sign * tally.queue_bytes
            self.subscriptions += sign * tally.subscriptions
        if sign > 0:
            self.epochs[exposed.key], self.lags[exposed.key] = exposed.epoch, exposed.lag
        else:
            del self.epochs[exposed.key], self.lags[exposed.key]


class _Walk:
    """Walks over the partitions of a node.

    Args:
        shown: The partitions that it serves.
        partition_metrics: Statistics of the partitions with this node as primary.
    """

    def __init__(self, shown: QueryRows, partition_metrics: StorageMetrics) -> None:
        self._rows = shown
        self._partition_metrics = partition_metrics
        self._keys: dict[int, tuple[str, ...]] = {}  # labels by partition, cached
        self._sums = _PartitionSums()  # sums over the exposed partitions
        self._exposed: dict[int, PartitionMetrics] = {}  # last exposed values by partition
        self._queues: set[int] = set()  # partitions with queued messages

    def steps(self) -> Generator[None, None, _PartitionSums]:
        """Return the sums; other tasks may run at each yield.

        Partitions that have not changed since the last walk are not read again.
        """
        for _ in self._partition_metrics.count():
            yield
        left = AT_ONCE
        for number in self._rows.numbers():
            hosted = self._rows.hosted_now(number)
            if hosted is None:  # it has left meanwhile
                continue
            exposed = hosted.metrics if not hosted.changed else None
            if exposed is not None and self._exposed.get(number) is exposed:
                continue
            self._put(number, exposed or self._measure(hosted))
            left -= 1
            if left <= 0:
                left = AT_ONCE
                yield
        for number in self._exposed.keys() - set(self._rows.numbers()):
            self._put(number, None)
        self._add_queues()
        return self._sums

    def _put(self, number: int, exposed: PartitionMetrics | None) -> None:
        """Replace the counted values of a partition; None for one that has left."""
        before = self._exposed.pop(number, None)
        if before is not None:
            self._sums.add(before, -1)
            self._queues.discard(number)
        if exposed is not None:
            self._exposed[number] = exposed
            self._sums.add(exposed, 1)
            if exposed.sessions and exposed.serving and (exposed.ages or exposed.tally.fill):
                self._queues.add(number)

    def _add_queues(self) -> None:
        """Compute queue ages and fill ratios, which cannot be summed."""
        found = self._sums
        found.oldest_s, found.fullest, found.fills = {}, 0.0, Histogram(FILL_BOUNDS)
        for number in sorted(self._queues):
            hosted, exposed = self._rows.hosted_now(number), self._exposed[number]
            oldest_s = self._rows.oldest_s(hosted) if exposed.ages and hosted is not None else None
            if oldest_s is not None:
                found.oldest_s[exposed.key] = oldest_s
            tally = exposed.tally
            if tally.fill:
                found.fullest = max(found.fullest, tally.fill)
                found.fills.counts = [one + more for one, more in zip(found.fills.counts, tally.fills, strict=True)]
                found.fills.total += tally.fill_sum

    def _measure(self, hosted: HostedPartition) -> PartitionMetrics:
        """Return the metrics of a partition, cached while it does not change."""
        partition, tally = hosted.partition, hosted.tally
        key = self._keys.get(partition.number)
        if key is None:
            key = self._keys[partition.number] = (str(partition.number),)
        lag = lag_ops(hosted)
        ending = sum(isinstance(one, EndSession) for one in partition.work) if partition.work else 0
        exposed = PartitionMetrics(
            key,
            hosted.serving,
            float(partition.epoch),
            float(lag),
            len(partition.sessions),
            tally,
            len(hosted.retained) if hosted.retained.payload_bytes else 0,  # a retained message has some
            hosted.retained.payload_bytes,
            ending,
            bool(partition.sessions and partition.ages),
        )
        if not (
            lag or ending or hosted.changed
        ):  # acknowledgements, slices of work and an unfinished count change without an event
            hosted.metrics = exposed
        return exposed


def expose_partitions(
    metrics: Metrics,
    shown: QueryRows,
    partition_metrics: StorageMetrics,
    event_counts: Callable[[], Mapping[str, int]],
    budget_bytes: int,
) -> None:
    """Register the metrics of a node's partitions.

    Args:
        metrics: The metrics page.
        shown: The partitions that this node serves.
        partition_metrics: Statistics of the partitions with this node as primary.
        event_counts: Events of this node and of its partitions by name.
        budget_bytes: Bound of one partition's retained payloads.
    """
    found = metrics.walked(_Walk(shown, partition_metrics).steps)
    _expose_events(metrics, metrics.shared(event_counts))
    _expose_sessions(metrics, found)
    metrics.gauge("retained_messages", "Retained messages.", lambda: float(found().retained))
    metrics.gauge("retained_bytes", "Payloads of retained messages.", lambda: float(found().retained_bytes))
    metrics.gauge(
        "retained_budget_bytes",
        "Bound of retained payloads in the partitions served here.",
        lambda: float(budget_bytes * len(found().epochs)),
    )
    metrics.gauge(
        "partition_lag_ops",
        "Operations of a partition that its slowest in-sync copy has not written to disk.",
        lambda: found().lags,
        ("partition",),
    )
    metrics.gauge(
        "partition_epoch", "Epoch under which a partition is served here.", lambda: found().epochs, ("partition",)
    )


def _expose_events(metrics: Metrics, event_counts: Callable[[], Mapping[str, int]]) -> None:
    metrics.counter(
        "messages_dropped_total",
        "Messages dropped before delivery, counted on the node that dropped them, by reason.",
        lambda: count_drops(event_counts()),
        ("reason",),
    )
    metrics.counter(
        "repeats_total",
        "Repeated messages that were received before and discarded.",
        lambda: count_repeats(event_counts()),
    )
    metrics.counter(
        "storage_events_total",
        "All other events of this node by name, including those of partitions that left it.",
        lambda: {
            (name,): float(count)
            for name, count in event_counts().items()
            if name not in REASON_OF and name not in REPEATS
        },
        ("event",),
    )


def _expose_sessions(metrics: Metrics, found: Callable[[], _PartitionSums]) -> None:
    metrics.gauge(
        "sessions",
        "Durable sessions of these partitions, by state.",
        lambda: {("connected",): float(found().online), ("absent",): float(found().sessions - found().online)},
        ("state",),
    )
    metrics.gauge("queued_messages", "Unconsumed entries of all sessions.", lambda: float(found().queued))
    metrics.gauge(
        "queued_bytes",
        "Bytes of unconsumed entries as in queue_bytes_max: topic, payload, properties and entry overhead.",
        lambda: float(found().queued_bytes),
    )
    metrics.gauge(
        "queue_oldest_seconds",
        "Age of the oldest queued message of a partition; absent if its queues are empty.",
        lambda: found().oldest_s,
        ("partition",),
    )
    metrics.gauge(
        "queue_fullest_ratio",
        "Fill ratio of the fullest session queue served here, by messages or bytes; 1 is its bound.",
        lambda: found().fullest,
    )
    metrics.show(
        "queue_fill_ratio",
        "Non-empty session queues served here by current fill ratio; 1 is the bound.",
        lambda: found().fills,
    )
    metrics.gauge(
        "subscriptions",
        "Subscriptions of the stored sessions served here.",
        lambda: {("stored",): float(found().subscriptions)},
        ("kind",),
    )
    metrics.gauge(
        "sessions_expired_uncollected",
        "Ended sessions with rows that are not deleted yet.",
        lambda: float(found().ending),
    )
