"""Families of a storage node's partitions on its metrics page: drops, sessions, queues, retained messages, lag, epochs.

One walk over the partitions finds what all families show: a node may have thousands, and a page goes on between them.
"""

from collections.abc import Callable, Generator, Mapping

from conf.drop_reasons import REASON_OF, REPEATS, count_drops, count_repeats
from conf.metrics import Histogram, Metrics
from storage.hosting.figures import Figures
from storage.hosting.hosted_partition import FILL_BOUNDS, HostedPartition
from storage.looks.copies import lag_ops
from storage.looks.shown import Shown
from storage.state.timers import EndSession

__all__ = ["expose_partitions"]

AT_ONCE = 8  # partitions, some 10 us


class _Found:
    """Figures that one walk found; of partitions that serve, if nothing else is said."""

    def __init__(self) -> None:
        self.online = self.sessions = self.queued = self.retained = 0  # of all partitions whose primary this node is
        self.epochs: dict[tuple[str, ...], float] = {}
        self.lags: dict[tuple[str, ...], float] = {}
        self.oldest_s: dict[tuple[str, ...], float] = {}
        self.queued_bytes = self.retained_bytes = self.subscriptions = self.ending = 0
        self.fullest = 0.0
        self.fills = Histogram(FILL_BOUNDS)


class _Walk:
    """Walks over the partitions of a node.

    Args:
        shown: Those that it serves.
        figures: Of those whose primary it is.
    """

    def __init__(self, shown: Shown, figures: Figures) -> None:
        self._shown = shown
        self._figures = figures
        self._keys: dict[int, tuple[str, ...]] = {}  # labels, made once

    def steps(self) -> Generator[None, None, _Found]:
        """Return what there is; others may have their turn at each step."""
        for _ in self._figures.count():
            yield
        found = _Found()
        for place, number in enumerate(self._shown.numbers()):
            hosted = self._shown.hosted_now(number)
            if hosted is None:  # it has left meanwhile
                continue
            sessions = len(hosted.partition.sessions)
            if sessions:
                found.sessions += sessions
                found.online += hosted.tally.online
                found.queued += hosted.tally.queued
            if hosted.retained.payload_bytes:  # a retained message has some
                found.retained += len(hosted.retained)
            if hosted.serving:
                self._take(found, hosted)
            if place % AT_ONCE == AT_ONCE - 1:
                yield
        return found

    def _take(self, found: _Found, hosted: HostedPartition) -> None:
        partition = hosted.partition
        key = self._keys.get(partition.number)
        if key is None:
            key = self._keys[partition.number] = (str(partition.number),)
        found.epochs[key] = float(partition.epoch)
        found.lags[key] = float(lag_ops(hosted))
        found.retained_bytes += hosted.retained.payload_bytes
        if partition.work:
            found.ending += sum(isinstance(one, EndSession) for one in partition.work)
        if partition.sessions:
            self._take_sessions(found, hosted, key)

    def _take_sessions(self, found: _Found, hosted: HostedPartition, key: tuple[str, ...]) -> None:
        tally = hosted.tally
        oldest_s = self._shown.oldest_s(hosted) if hosted.partition.ages else None
        if oldest_s is not None:
            found.oldest_s[key] = oldest_s
        found.queued_bytes += tally.queue_bytes
        found.subscriptions += tally.subscriptions
        if tally.fill:
            found.fullest = max(found.fullest, tally.fill)
            found.fills.counts = [one + more for one, more in zip(found.fills.counts, tally.fills, strict=True)]
            found.fills.total += tally.fill_sum


def expose_partitions(
    metrics: Metrics, shown: Shown, figures: Figures, event_counts: Callable[[], Mapping[str, int]], budget_bytes: int
) -> None:
    """Show what a node's partitions hold.

    Args:
        metrics: The page.
        shown: The partitions that this node serves.
        figures: Of those whose primary it is.
        event_counts: Events of this node and of its partitions by name.
        budget_bytes: Of one partition's retained payloads.
    """
    found = metrics.walked(_Walk(shown, figures).steps)
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
        "Operations of a partition that its slowest copy in sync has not on its disk.",
        lambda: found().lags,
        ("partition",),
    )
    metrics.gauge(
        "partition_epoch", "Epoch under which a partition is served here.", lambda: found().epochs, ("partition",)
    )


def _expose_events(metrics: Metrics, event_counts: Callable[[], Mapping[str, int]]) -> None:
    """Show what happened."""
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
    metrics.counter(
        "storage_events_total",
        "All other events of this node by name, those of partitions that have left it included.",
        lambda: {
            (name,): float(count)
            for name, count in event_counts().items()
            if name not in REASON_OF and name not in REPEATS
        },
        ("event",),
    )


def _expose_sessions(metrics: Metrics, found: Callable[[], _Found]) -> None:
    """Show what sessions hold, together."""
    metrics.gauge(
        "sessions",
        "Durable sessions of these partitions, by state.",
        lambda: {("connected",): float(found().online), ("absent",): float(found().sessions - found().online)},
        ("state",),
    )
    metrics.gauge("queued_messages", "Unconsumed entries of all sessions.", lambda: float(found().queued))
    metrics.gauge(
        "queued_bytes",
        "Bytes of unconsumed entries, as queues are bounded by: topic, payload, properties and what an entry takes.",
        lambda: float(found().queued_bytes),
    )
    metrics.gauge(
        "queue_oldest_seconds",
        "Age of the oldest queued message of a partition; none where nothing is queued.",
        lambda: found().oldest_s,
        ("partition",),
    )
    metrics.gauge(
        "queue_fullest_ratio",
        "Of the sessions served here, how full the fullest queue is, by messages or bytes; 1 is its bound.",
        lambda: found().fullest,
    )
    metrics.show(
        "queue_fill_ratio",
        "Queues of the sessions served here that hold something, by how full they are now; 1 is the bound.",
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
        "Sessions that have ended and whose rows are not all deleted yet.",
        lambda: float(found().ending),
    )
