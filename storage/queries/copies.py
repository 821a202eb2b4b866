"""Copies of partitions at this node, slow sessions, and drops by reason."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from conf.drop_reasons import REASON_OF, REASONS
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.placements import Placements
from storage.queries.query_rows import QueryRows
from storage.state.durable_sessions import DurableSession
from wire.messages.cluster_map import PartitionEntry
from wire.queries.journal import drop_columns
from wire.queries.source import USAGE, Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["copy_sources", "lag_ops"]

MEASURES = ("queued", "age", "bytes", "window")


class _Copy(NamedTuple):
    """One partition as the map places it."""

    number: int
    entry: PartitionEntry
    hosted: HostedPartition | None


class _Slow(NamedTuple):
    """One session with one metric."""

    hosted: HostedPartition
    session: DurableSession
    by: str
    value: float
    unit: str


def copy_sources(
    shown: QueryRows, placements: Placements, counts: Callable[[], Mapping[str, int]]
) -> dict[str, RowSource]:
    """Return the row sources of copies, slow sessions and drops."""

    def copies(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        (after,) = ask.numbers(1)
        for number, entry in enumerate(shown.map().partitions):
            if number > after:
                held = shown.node in (entry.primary, *entry.in_sync, *entry.joining) or number in placements.replicas
                yield number, _Copy(number, entry, placements.hosted.get(number)) if held else None

    def slow(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        by = ask.where.get("by", MEASURES[0])
        if by not in MEASURES:
            raise QueryRefused(f"storage measures slow sessions by {', '.join(MEASURES)}, not by {by[:32]!r}", USAGE)
        partition, number = ask.numbers(2)
        for hosted, session in shown.sessions_after(partition, number, ask.now):
            yield (hosted.partition.number, session.number), _measured(shown, hosted, session, by)

    return {
        "replicas": RowSource(copies, _copy_columns(shown, placements)),
        "slow": RowSource(slow, _slow_columns(shown)),
        "drops": RowSource(
            lambda _: _drops(counts()), drop_columns(placements.journal, shown.node), lambda: len(REASONS)
        ),
    }


def _measured(shown: QueryRows, hosted: HostedPartition, session: DurableSession, by: str) -> _Slow | None:
    if not session.queued:
        return None
    if by == "age":
        value, unit = shown.age_s(hosted, shown.head_arrival(hosted, session)) or 0.0, "s"
    elif by == "bytes":
        value, unit = float(session.queue_bytes), "bytes"
    elif by == "window":
        value, unit = (session.out / session.window if session.window else 0.0), "ratio"
    else:
        value, unit = float(session.queued), "messages"
    return _Slow(hosted, session, by, value, unit) if value > 0 else None


def _slow_columns(shown: QueryRows) -> Columns:
    return {
        "client_id": lambda one: one.session.client_id,
        "node": lambda one: one.session.edge or shown.node,
        "by": lambda one: one.by,
        "value": lambda one: one.value,
        "unit": lambda one: one.unit,
        "since_ms": lambda one: shown.slow_since_ms(one.hosted, one.session),
        "session": lambda one: one.session.number,
        "partition": lambda one: one.hosted.partition.number,
        "number": lambda one: one.session.connection if one.session.edge else None,
    }


def lag_ops(hosted: HostedPartition) -> int:
    """Return how many operations the slowest in-sync copy has not written to disk."""
    partition = hosted.partition
    synced, newest = partition.synced, partition.meta.op_index
    slowest = newest
    for name in partition.replicas:
        has = synced.get(name, 0)
        if has < slowest:  # no call of min: this runs for each partition of a page
            slowest = has
    return newest - slowest


def _copy_columns(shown: QueryRows, placements: Placements) -> Columns:
    def of(read: Any) -> Any:
        return lambda one: read(one.hosted) if one.hosted is not None else None

    def role(one: _Copy) -> str:
        if one.hosted is not None:
            return "primary" if one.hosted.serving else one.hosted.phase.name.lower()
        if one.entry.primary == shown.node:
            return "waiting"
        if shown.node in one.entry.in_sync:
            return "backup"
        return "catching_up" if shown.node in one.entry.joining else "left"

    def op_index(one: _Copy) -> int | None:
        if one.hosted is not None:
            return one.hosted.partition.meta.op_index
        replica = placements.replicas.get(one.number)
        return replica.log_end if replica is not None else None

    def is_transferring(one: _Copy) -> bool | None:
        replica = placements.replicas.get(one.number)
        return replica.local.transferring if replica is not None and one.hosted is None else None

    return {
        "partition": lambda one: one.number,
        "node": lambda _: shown.node,
        "role": role,
        "primary": lambda one: one.entry.primary,
        "epoch": lambda one: one.entry.epoch,
        "op_index": op_index,
        "commit_index": of(lambda hosted: hosted.partition.commit_index),
        "synced": of(lambda hosted: {name or shown.node: index for name, index in hosted.partition.synced.items()}),
        "in_sync": lambda one: list(one.entry.in_sync),
        "lag_ops": of(lag_ops),
        "sessions": of(lambda hosted: len(hosted.partition.sessions)),
        "connected": of(lambda hosted: hosted.tally.online),
        "queued": of(lambda hosted: hosted.tally.queued),
        "retained": of(lambda hosted: len(hosted.retained)),
        "queue_oldest_s": of(shown.oldest_s),
        "acknowledges": of(lambda hosted: hosted.partition.acknowledges),
        "transferring": is_transferring,
        "log_start": of(lambda hosted: hosted.partition.local.log_start),
    }


def _drops(counts: Mapping[str, int]) -> Iterator[tuple[Place, Any]]:
    by_reason = dict.fromkeys(REASONS, 0)
    for name, reason in REASON_OF.items():
        by_reason[reason] += counts.get(name, 0)
    yield from enumerate(by_reason.items(), 1)
