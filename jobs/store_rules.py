"""Rules between the rows of a store: one function per rule, from the newest versions to its violations.

Every function returns partition, key (hex), seq, detail. The rules use the exported columns of
``wire/sstable/schema.py``; no value is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from wire.sstable.schema import EntryState, RowKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["NEWEST_COLUMNS", "STORE_RULES", "conflicting_versions", "live_rows", "newest_versions", "session_seq_gaps"]

# Columns of the rules, without the value.
NEWEST_COLUMNS = [
    *("partition", "key", "seq", "epoch", "crc", "kind", "tombstone", "expiry_ms", "client_id", "session_id"),
    *("session_seq", "packet_identifier", "state", "body_id", "acked_up_to", "acked_gaps"),
]


def newest_versions(rows: DataFrame) -> DataFrame:
    """Return the newest version of each key of each replica, including tombstones, and every ``conflict``.

    A conflict has the seq of the previous version but different content, although one operation writes one version.
    """
    versions = Window.partitionBy("replica", "partition", "key").orderBy(F.desc("seq"), F.desc("epoch"), F.desc("crc"))
    other = (F.lag("crc").over(versions) != F.col("crc")) | (F.lag("tombstone").over(versions) != F.col("tombstone"))
    conflict = (F.lag("seq").over(versions) == F.col("seq")) & other
    ranked = rows.withColumn("rank", F.row_number().over(versions))
    return ranked.withColumn("conflict", F.coalesce(conflict, F.lit(False))).where("rank = 1 OR conflict").drop("rank")


def live_rows(newest: DataFrame, versions: DataFrame, *, broadcast: bool) -> DataFrame:
    """Return the live rows, and whether the session row marks a queue entry as finished.

    Conflicts are included for ``conflicting_versions``; every other rule needs ``NOT conflict``.

    Args:
        newest: newest_versions of versions.
        versions: Source of a second read of session rows: a reader skips all others, and the rest needs no shuffle.
        broadcast: Send all sessions to every task, about 100 B each.
    """
    rows = newest_versions(versions.where(_kind(RowKind.SESSION)))
    sessions = rows.where("NOT conflict AND NOT tombstone AND acked_up_to IS NOT NULL").select(
        "replica", "partition", "session_id", F.col("acked_up_to").alias("up_to"), F.col("acked_gaps").alias("gaps")
    )
    finished = (F.col("session_seq") <= F.col("up_to")) | F.coalesce(
        F.array_contains("gaps", F.col("session_seq")), F.lit(False)
    )
    return (
        newest.where("NOT tombstone OR conflict")
        .join(F.broadcast(sessions) if broadcast else sessions, on=["replica", "partition", "session_id"], how="left")
        .withColumn("finished", F.coalesce(finished, F.lit(False)))
        .drop("up_to", "gaps")
    )


def _kind(*kinds: RowKind) -> Column:
    return F.col("kind").isin(*[int(kind) for kind in kinds])


def _found(rows: DataFrame, detail: Column) -> DataFrame:
    return rows.select("partition", F.lower(F.hex("key")).alias("key"), "seq", detail.alias("detail"))


def _sessions(live: DataFrame) -> DataFrame:
    return live.where(_kind(RowKind.SESSION)).select("partition", "session_id").distinct()


def session_in_wrong_partition(live: DataFrame, partitions: int) -> DataFrame:
    """Return rows whose client ID hashes to another partition of the manifest's ring."""
    named = live.where(F.col("client_id").isNotNull() & _kind(RowKind.SESSION, RowKind.SUBSCRIPTION, RowKind.WILL))
    home = F.crc32(F.col("client_id").cast("binary")) % partitions
    return _found(
        named.where(home != F.col("partition")),
        F.concat(F.lit("client "), "client_id", F.lit(" belongs to partition "), home.cast("string")),
    )


def client_with_two_sessions(live: DataFrame) -> DataFrame:
    """Return sessions that share their client ID with another session."""
    by_client = Window.partitionBy("partition", "client_id")
    sessions = live.where(_kind(RowKind.SESSION) & F.col("client_id").isNotNull())
    twice = sessions.withColumn("sessions", F.count(F.lit(1)).over(by_client)).where("sessions > 1")
    return _found(twice, F.concat(F.lit("client "), "client_id", F.lit(" has more than one session")))


def orphaned_entry(live: DataFrame) -> DataFrame:
    """Return queue entries, outbound in-flight state and subscriptions without their session."""
    owned = live.where(
        _kind(RowKind.QUEUED, RowKind.INFLIGHT_OUT, RowKind.SUBSCRIPTION) & F.col("session_id").isNotNull()
    )
    orphans = owned.join(_sessions(live), on=["partition", "session_id"], how="left_anti")
    return _found(orphans, F.concat(F.lit("no session "), F.col("session_id").cast("string")))


def inbound_without_session(live: DataFrame) -> DataFrame:
    """Return QoS 2 packet identifiers of a client without a session."""
    inbound = live.where(_kind(RowKind.INFLIGHT_IN))
    orphans = inbound.join(_sessions(live), on=["partition", "session_id"], how="left_anti")
    return _found(orphans, F.concat(F.lit("packet identifier of no session "), F.col("session_id").cast("string")))


def orphaned_inflight(live: DataFrame) -> DataFrame:
    """Return unacknowledged outbound messages without a queue entry to send again."""
    entries = live.where(_kind(RowKind.QUEUED)).select("partition", "session_id", "session_seq")
    sent = live.where(_kind(RowKind.INFLIGHT_OUT) & (F.col("state") == int(EntryState.SENT)) & ~F.col("finished"))
    orphans = sent.join(entries, on=["partition", "session_id", "session_seq"], how="left_anti")
    return _found(orphans, F.concat(F.lit("no queue entry "), F.col("session_seq").cast("string")))


def packet_identifier_reused(live: DataFrame) -> DataFrame:
    """Return unfinished messages of a session that share a packet identifier [MQTT-2.2.1-3]."""
    identified = live.where(
        _kind(RowKind.QUEUED, RowKind.INFLIGHT_OUT) & F.col("packet_identifier").isNotNull() & ~F.col("finished")
    )
    by_identifier = Window.partitionBy("partition", "session_id", "packet_identifier")
    messages = identified.withColumn("low", F.min("session_seq").over(by_identifier)).withColumn(
        "high", F.max("session_seq").over(by_identifier)
    )
    return _found(
        messages.where("low <> high"),
        F.concat(
            *(F.lit("packet identifier "), F.col("packet_identifier").cast("string"), F.lit(" of session ")),
            *(F.col("session_id").cast("string"), F.lit(" is also that of another entry")),
        ),
    )


def session_seq_repeated(live: DataFrame) -> DataFrame:
    """Return queue entries of a session that share their session_seq."""
    by_seq = Window.partitionBy("partition", "session_id", "session_seq")
    entries = live.where(_kind(RowKind.QUEUED)).withColumn("entries", F.count(F.lit(1)).over(by_seq))
    return _found(entries.where("entries > 1"), F.concat(F.lit("session_seq "), F.col("session_seq").cast("string")))


def session_seq_disorder(live: DataFrame) -> DataFrame:
    """Return unsent queue entries that are not in the order of their operations (P4)."""
    by_session = Window.partitionBy("partition", "session_id").orderBy("session_seq", "key")
    waiting = live.where(_kind(RowKind.QUEUED) & (F.col("state") == int(EntryState.QUEUED)))
    disorder = waiting.withColumn("before", F.lag("seq").over(by_session)).where("seq < before")
    return _found(disorder, F.concat(F.lit("the entry before has seq "), F.col("before").cast("string")))


def dangling_body(live: DataFrame) -> DataFrame:
    """Return rows that refer to a body missing from their partition."""
    bodies = live.where(_kind(RowKind.BODY)).select("partition", "body_id").distinct()
    users = live.where(F.col("body_id").isNotNull() & ~_kind(RowKind.BODY) & ~F.col("finished"))
    dangling = users.join(bodies, on=["partition", "body_id"], how="left_anti")
    return _found(dangling, F.concat(F.lit("no body "), F.lower(F.hex("body_id"))))


STORE_RULES: dict[str, Callable[[DataFrame], DataFrame]] = {
    rule.__name__: rule
    for rule in (
        *(client_with_two_sessions, orphaned_entry, inbound_without_session, orphaned_inflight),
        *(packet_identifier_reused, session_seq_repeated, session_seq_disorder, dangling_body),
    )
}


def session_seq_gaps(live: DataFrame) -> DataFrame:
    """Return sessions with missing queue entries, neither stored nor finished, and the number in ``missing``."""
    sessions = live.where(_kind(RowKind.SESSION) & F.col("acked_up_to").isNotNull())
    entries = live.where(_kind(RowKind.QUEUED) & ~F.col("finished"))
    queues = entries.groupBy("partition", "session_id").agg(
        F.max("session_seq").alias("last"), F.count_distinct("session_seq").alias("entries")
    )
    joined = sessions.drop("finished").join(queues, on=["partition", "session_id"], how="inner")
    between = F.size(
        F.filter(
            F.coalesce("acked_gaps", F.array().cast("array<bigint>")),
            lambda n: (n > F.col("acked_up_to")) & (n < F.col("last")),
        )
    )
    missing = F.col("last") - F.col("acked_up_to") - F.col("entries") - between
    detail = F.concat(
        *(F.lit("session "), F.col("session_id").cast("string"), F.lit(": "), F.col("missing").cast("string")),
        *(F.lit(" entries missing up to session_seq "), F.col("last").cast("string")),
    )
    short = joined.withColumn("missing", missing).where("missing > 0")
    return short.select("partition", F.lower(F.hex("key")).alias("key"), "seq", detail.alias("detail"), "missing")


def conflicting_versions(rows: DataFrame) -> DataFrame:
    """Return rows with another row's key and seq but different content."""
    return _found(rows.where("conflict"), F.lit("two versions with the same seq"))
