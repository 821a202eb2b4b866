"""Families of a storage node's partitions on its metrics page: drops, queues, retained bytes, lag, epochs."""

from collections.abc import Callable, Mapping

from conf.drop_reasons import count_drops, count_repeats
from conf.metrics import Histogram, Metrics
from storage.hosting.hosted_partition import FILL_BOUNDS, HostedPartition
from storage.looks.copies import lag_ops
from storage.looks.shown import Shown
from storage.state.timers import EndSession

__all__ = ["expose_partitions"]

Read = Callable[[HostedPartition], float | None]


class PartitionKeys(dict[int, tuple[str, ...]]):
    """Labels of partitions by number, made once."""

    def __missing__(self, number: int) -> tuple[str, ...]:
        made = self[number] = (str(number),)
        return made


def expose_partitions(
    metrics: Metrics, shown: Shown, event_counts: Callable[[], Mapping[str, int]], budget_bytes: int
) -> None:
    """Show what a node's partitions hold.

    Args:
        metrics: The page.
        shown: The partitions that this node serves.
        event_counts: Events of this node and of its partitions by name.
        budget_bytes: Of one partition's retained payloads.
    """

    keys = PartitionKeys()

    def each(read: Read) -> Callable[[], Mapping[tuple[str, ...], float]]:
        def found() -> Mapping[tuple[str, ...], float]:
            values = [(keys[hosted.partition.number], read(hosted)) for hosted in shown.serving()]
            return {key: value for key, value in values if value is not None}

        return found

    def total(read: Read) -> Callable[[], float]:
        return lambda: float(sum(read(hosted) or 0.0 for hosted in shown.serving()))

    metrics.counter(
        "messages_dropped_total",
        "Copies of messages that somebody should have had and did not get, by reason.",
        lambda: count_drops(event_counts()),
        ("reason",),
    )
    metrics.counter(
        "repeats_total",
        "Messages that came again and were dropped: nobody misses them.",
        lambda: count_repeats(event_counts()),
    )
    metrics.gauge(
        "queue_oldest_seconds",
        "Age of the oldest queued message of a partition; none where nothing is queued.",
        each(shown.oldest_s),
        ("partition",),
    )

    _expose_sessions(metrics, shown, total)
    metrics.gauge(
        "queue_fullest_ratio",
        "Of the sessions served here, how full the fullest queue is, by messages or bytes; 1 is its bound.",
        lambda: max((hosted.tally.fill for hosted in shown.serving()), default=0.0),
    )
    metrics.gauge(
        "queued_bytes",
        "Bytes of unconsumed entries, as queues are bounded by: topic, payload, properties and what an entry takes.",
        total(lambda hosted: hosted.tally.queue_bytes),
    )
    metrics.gauge(
        "retained_bytes", "Payloads of retained messages.", total(lambda hosted: hosted.retained.payload_bytes)
    )
    metrics.gauge(
        "retained_budget_bytes",
        "Bound of retained payloads in the partitions served here.",
        total(lambda _: budget_bytes),
    )
    metrics.gauge(
        "partition_lag_ops",
        "Operations of a partition that its slowest copy in sync has not on its disk.",
        each(lag_ops),
        ("partition",),
    )
    metrics.gauge(
        "partition_epoch",
        "Epoch under which a partition is served here.",
        each(lambda hosted: hosted.partition.epoch),
        ("partition",),
    )


def _expose_sessions(metrics: Metrics, shown: Shown, total: Callable[[Read], Callable[[], float]]) -> None:
    """Show what sessions hold, together."""

    def fills() -> Histogram:
        found = Histogram(FILL_BOUNDS)
        for hosted in shown.serving():
            if not hosted.tally.fill:
                continue
            found.counts = [one + more for one, more in zip(found.counts, hosted.tally.fills, strict=True)]
            found.total += hosted.tally.fill_sum
        return found

    metrics.show(
        "queue_fill_ratio",
        "Queues of the sessions served here that hold something, by how full they are now; 1 is the bound.",
        fills,
    )
    metrics.gauge(
        "subscriptions",
        "Subscriptions of the stored sessions served here.",
        lambda: {("stored",): float(sum(hosted.tally.subscriptions for hosted in shown.serving()))},
        ("kind",),
    )
    metrics.gauge(
        "sessions_expired_uncollected",
        "Sessions that have ended and whose rows are not all deleted yet.",
        total(lambda hosted: _ending(hosted) if hosted.partition.work else 0),
    )


def _ending(hosted: HostedPartition) -> int:
    return sum(isinstance(one, EndSession) for one in hosted.partition.work)
