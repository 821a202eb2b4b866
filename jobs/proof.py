"""The proof from ack ledgers: an account of each acknowledged message for each durable session subscribed at the time.

A *debt* is an acknowledged message and a session that was subscribed at its receipt: the partition matched the session,
or its subscription to that exact topic was acknowledged before. Every debt has one state. DELIVERED, EXPIRED and
DROPPED come from the primaries' records or the session row. QUEUED is an entry in the store, or newer than the export.
Otherwise it is LOST. DUPLICATED counts debts of QoS 2 that were met twice. If a partition that an edge named has no
record of the message, it is a debt to an unknown session, LOST. A message queued for a shared group is a debt to the
chosen member. ``NOT_PROVEN`` lists the limits, and every report includes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs.proof_result import CLOCK_MARGIN_MS, Proof
from wire.sstable.ledger import PICKED_MARK
from wire.sstable.schema import RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["LEDGER_SCHEMA", "account", "committed", "read_ledgers", "records_of", "summarize"]

_LONG, _INT, _TEXT = T.LongType(), T.IntegerType(), T.StringType()
RECORD_SCHEMA = T.StructType(
    [
        T.StructField("e", _TEXT),
        T.StructField("t", _LONG),
        T.StructField("o", _TEXT),
        T.StructField("q", _INT),
        T.StructField("h", _LONG),
        T.StructField("p", _INT),
        T.StructField("ps", T.ArrayType(_INT)),
        T.StructField("d", T.ArrayType(T.ArrayType(_LONG))),
        T.StructField("s", _LONG),
        T.StructField("n", _LONG),
        T.StructField("op", _LONG),
        T.StructField("pe", _INT),
        T.StructField("r", _TEXT),
    ]
)
_ROWS = T.ArrayType(T.ArrayType(_TEXT))
_OPERATION = T.StructType(
    [
        T.StructField("p", _INT),
        T.StructField("op", _LONG),
        T.StructField("pe", _INT),
        T.StructField("m", _ROWS),
        T.StructField("d", T.ArrayType(T.ArrayType(_LONG))),
    ]
)
LEDGER_SCHEMA = T.StructType(
    [
        *RECORD_SCHEMA,
        T.StructField("b", T.ArrayType(_OPERATION)),  # of a line of operations
        T.StructField("k", _ROWS),  # of a line of acknowledgements
        T.StructField("broken", _TEXT),  # an invalid line
    ]
)
_ENTRY = ["p", "s", "n"]  # one entry of one session's queue
_DEBT = ["p", "o", "s"]


def read_ledgers(spark: SparkSession, uris: Sequence[str]) -> DataFrame:
    """Return the records of ledger files, with their folder (one per node)."""
    lines = spark.read.schema(LEDGER_SCHEMA).option("columnNameOfCorruptRecord", "broken").json(list(uris))
    return committed(records_of(lines))


def records_of(records: DataFrame) -> DataFrame:
    """Return the records of lines, from files or a stream; some may be uncommitted."""
    folder = F.regexp_extract(F.col("_metadata.file_path"), "^(.*)/[^/]*$", 1)
    single = _record(**{name: F.col(name) for name in RECORD_SCHEMA.names})
    each = (
        F.when(F.col("e") == "acks", F.transform("k", _acknowledged))
        .when(F.col("e") == "operations", F.flatten(F.transform("b", _of_operation)))
        .otherwise(F.array(single))
    )
    plain = records.select(folder.alias("folder"), "broken", F.explode(each).alias("record"))
    return plain.select("folder", "broken", "record.*").withColumn("p", F.coalesce("p", F.lit(-1)))


def _record(**fields: Column) -> Column:
    """Return a record with these fields, the others null."""
    null = F.lit(None)
    return F.struct(
        *[fields.get(field.name, null).cast(field.dataType).alias(field.name) for field in RECORD_SCHEMA.fields]
    )


def _origin(row: Column, mark: Column) -> Column:
    """Return the text of a row's origin: kind and two unsigned numbers."""
    numbers = [F.lower(F.conv(row[at], 10, 16)) for at in (1, 2)]
    return F.concat(row[0], F.lit(":"), numbers[0], F.lit(":"), numbers[1], mark)


def _acknowledged(row: Column) -> Column:
    """Return an edge's row as a record; the line names the edge."""
    mark = F.when(row[0] == "0", F.concat(F.lit("@"), "o")).otherwise("")
    ps = F.slice(row, 7, F.greatest(F.size(row) - 6, F.lit(0)))
    return _record(e=F.lit("acked"), o=_origin(row, mark), q=row[3], t=row[4], h=row[5], ps=ps)


def _of_operation(operation: Column) -> Column:
    """Return the queued and the finished messages of an operation, as records."""
    of = {"t": F.col("t"), "p": operation["p"], "op": operation["op"], "pe": operation["pe"]}
    taken = F.transform(operation["m"], lambda row: _queued(row, of))
    finished = F.flatten(F.transform(operation["d"], lambda run: _delivered(run, of)))
    return F.concat(*[F.coalesce(rows, F.array().cast(T.ArrayType(RECORD_SCHEMA))) for rows in (taken, finished)])


def _queued(row: Column, of: dict[str, Column]) -> Column:
    sessions = F.when(F.size(row) > 5, F.sequence(F.lit(6), F.size(row), F.lit(2)))
    pairs = F.transform(sessions, lambda at: F.slice(row, at, 2))
    return _record(
        e=F.lit("queued"), o=_origin(row, row[3]), q=row[4], d=F.coalesce(pairs, F.array().cast(_ROWS)), **of
    )


def _delivered(run: Column, of: dict[str, Column]) -> Column:
    """Return one record per entry from the first to the last."""
    return F.transform(F.sequence(run[1], run[2]), lambda n: _record(e=F.lit("delivered"), s=run[0], n=n, **of))


def committed(records: DataFrame) -> DataFrame:
    """Omit recorded operations that were never committed: above the start of a later partition_epoch."""
    began = _event(records, "began").select(
        F.col("p").alias("of"), F.col("pe").alias("later"), F.col("op").alias("end")
    )
    known = records.where("pe IS NOT NULL").select(F.col("p").alias("of"), F.col("pe").alias("epoch")).distinct()
    ends = (
        known.join(began, on="of", how="inner")
        .where("later > epoch")
        .groupBy("of", "epoch")
        .agg(F.min("end").alias("end"))
    )
    bounded = records.join(
        F.broadcast(ends), on=(F.col("p") == F.col("of")) & (F.col("pe") == F.col("epoch")), how="left"
    )
    return bounded.where("end IS NULL OR op IS NULL OR op <= end").drop("of", "epoch", "end")


def _event(records: DataFrame, *names: str) -> DataFrame:
    return records.where(F.col("e").isin(*names))


def _entries(records: DataFrame) -> DataFrame:
    """Return queue entries by message: p, o, s, n, op; equal records of replicas count once."""
    queued = _event(records, "queued").select("p", "o", "op", F.explode("d").alias("pair"))
    pairs = queued.select("p", "o", "op", F.col("pair")[0].alias("s"), F.col("pair")[1].alias("n"))
    return pairs.groupBy("p", "o", "s", "n").agg(F.max("op").alias("op"))


def _acked(records: DataFrame) -> DataFrame:
    """Return acknowledged messages: o, q, h, t of the first acknowledgement, ps."""
    by_origin = _event(records, "acked").groupBy("o")
    return by_origin.agg(
        F.max(F.coalesce("q", F.lit(0))).alias("q"),
        F.max("h").alias("h"),
        F.min("t").alias("t"),
        F.array_distinct(F.flatten(F.collect_list(F.coalesce("ps", F.array().cast("array<int>"))))).alias("ps"),
    )


def _subscribed_then(records: DataFrame, acked: DataFrame) -> DataFrame:
    """Return debts from subscriptions to the exact topic, independent of the partition's record."""
    begun = _event(records, "subscribed").groupBy("p", "s", "h").agg(F.min("t").alias("since"))
    over = _event(records, "unsubscribed").groupBy("p", "s", "h").agg(F.min("t").alias("until"))
    ended = _event(records, "ended").groupBy("p", "s").agg(F.min("t").alias("ended"))
    spans = begun.join(over, on=["p", "s", "h"], how="left").join(ended, on=["p", "s"], how="left")
    until = F.least(F.coalesce("until", F.lit(1 << 62)), F.coalesce("ended", F.lit(1 << 62)))
    during = acked.select("o", "h", "t").join(spans, on="h", how="inner")
    margin = F.lit(CLOCK_MARGIN_MS)
    inside = (F.col("since") + margin < F.col("t")) & (F.col("t") + margin < until)
    return during.where((F.col("h") != 0) & inside).select(*_DEBT).distinct()


def _owed(records: DataFrame, acked: DataFrame, entries: DataFrame) -> DataFrame:
    """Return all debts: p, o, s, q. Without a partition's record, the debt is to the unknown session -1."""
    named = acked.select("o", F.explode("ps").alias("p"))
    arrived = _event(records, "queued", "dropped").where("o IS NOT NULL").select("p", "o").distinct()
    silent = named.join(arrived, on=["p", "o"], how="left_anti").select("p", "o", F.lit(-1).cast("bigint").alias("s"))
    matched = entries.select(*_DEBT)
    refused = _event(records, "dropped").where("o IS NOT NULL").select(*_DEBT)
    subscribed = _subscribed_then(records, acked)
    debts = matched.unionByName(refused).unionByName(subscribed).distinct().unionByName(silent)
    return debts.join(acked.select("o", "q"), on="o", how="inner").unionByName(_picked(records))


def _picked(records: DataFrame) -> DataFrame:
    """Return debts to members of shared groups: queued messages, acknowledged or not."""
    taken = _event(records, "queued").where(F.col("o").contains(PICKED_MARK))
    pairs = taken.select("p", "o", "q", F.explode("d").alias("pair"))
    return pairs.groupBy("p", "o", F.col("pair")[0].alias("s")).agg(F.max("q").alias("q")).select("o", "p", "s", "q")


def _outcomes(
    records: DataFrame, entries: DataFrame, store: DataFrame | None, op_index: DataFrame, removed: DataFrame | None
) -> DataFrame:
    """Return one row per debt, with the combined flags of its entries."""
    finished = _event(records, "delivered", "expired", "dropped").where("n IS NOT NULL")
    by_node = finished.groupBy("folder", *_ENTRY).agg(
        *[F.count_if(F.col("e") == name).alias(name) for name in ("delivered", "expired", "dropped")]
    )
    by_entry = by_node.groupBy(*_ENTRY).agg(*[F.max(name).alias(name) for name in ("delivered", "expired", "dropped")])
    ended = _event(records, "ended").select("p", "s").distinct().withColumn("session_ended", F.lit(True))
    state = (
        entries.join(by_entry, on=_ENTRY, how="left")
        .join(ended, on=["p", "s"], how="left")
        .join(F.broadcast(op_index), on="p", how="left")
    )
    if store is None:
        state = state.withColumn("in_store", F.lit(True)).withColumn("row_finished", F.lit(False))
    else:
        state = state.join(_in_store(store), on=_ENTRY, how="left").join(
            _session_rows(store), on=["p", "s"], how="left"
        )
        by_row = (F.col("n") <= F.col("up_to")) | F.array_contains("gaps", F.col("n"))
        state = state.withColumn("row_finished", F.coalesce(by_row, F.lit(False)))
    if removed is not None:
        is_in = (F.col("n") >= F.col("first")) & (F.col("n") <= F.col("last"))
        ranges = F.broadcast(removed.withColumnsRenamed({"p": "rp", "s": "rs"}))
        state = state.join(ranges, on=(F.col("p") == F.col("rp")) & (F.col("s") == F.col("rs")) & is_in, how="left")
    newer = F.coalesce(F.col("op") > F.col("exported"), F.lit(False))
    by_compaction = F.lit(False) if removed is None else F.col("first").isNotNull()
    return state.groupBy(*_DEBT).agg(
        F.count_distinct("op").alias("entries"),  # overlapping subscriptions get copies by one operation
        F.max(F.coalesce("delivered", F.lit(0))).alias("delivered"),
        F.max(F.coalesce("expired", F.lit(0))).alias("expired"),
        F.max(F.coalesce("dropped", F.lit(0))).alias("dropped"),
        F.max(F.coalesce("session_ended", F.lit(False))).alias("session_ended"),
        F.max("row_finished").alias("row_finished"),
        F.max(by_compaction).alias("removed"),
        F.max(F.coalesce("in_store", F.lit(False)) | newer).alias("queued"),
    )


def _in_store(live: DataFrame) -> DataFrame:
    entries = live.where((F.col("kind") == int(RowKind.QUEUED)) & ~F.col("finished"))
    keys = entries.select(
        F.col("partition").alias("p"), F.col("session_id").alias("s"), F.col("session_seq").alias("n")
    )
    return keys.distinct().withColumn("in_store", F.lit(True))


def _session_rows(live: DataFrame) -> DataFrame:
    rows = live.where((F.col("kind") == int(RowKind.SESSION)) & F.col("acked_up_to").isNotNull())
    return rows.groupBy(F.col("partition").alias("p"), F.col("session_id").alias("s")).agg(
        F.max("acked_up_to").alias("up_to"), F.max("acked_gaps").alias("gaps")
    )


def account(
    records: DataFrame, store: DataFrame | None, op_index: DataFrame, removed: DataFrame | None = None
) -> DataFrame:
    """Return every debt with its state: p, o, s, q, state, duplicated.

    Args:
        records: read_ledgers of edges and partitions.
        store: live_rows of one replica at op_index; None takes queued entries from the ledger.
        op_index: p int, exported bigint: op_index of the store for each partition.
        removed: p int, s bigint, first bigint, last bigint: expired entries that compactions removed, without
            overlaps.
    """
    acked = _acked(records)
    entries = _entries(records)
    owed = _owed(records, acked, entries)
    refused = _event(records, "dropped").where("o IS NOT NULL").select(*_DEBT).distinct()
    debts = (
        owed.join(_outcomes(records, entries, store, op_index, removed), on=_DEBT, how="left")
        .join(refused.withColumn("refused", F.lit(True)), on=_DEBT, how="left")
    )  # fmt: skip
    state = (
        F.when(_positive("delivered"), "DELIVERED")
        .when(_positive("expired"), "EXPIRED")
        .when(_positive("dropped") | _true("refused"), "DROPPED")
        .when(_true("row_finished"), "DELIVERED")
        .when(_true("queued"), "QUEUED")
        .when(_true("session_ended"), "DROPPED")
        .when(_true("removed"), "EXPIRED")
        .otherwise("LOST")
    )
    twice = (F.col("q") == 2) & ((F.coalesce("entries", F.lit(0)) > 1) | (F.coalesce("delivered", F.lit(0)) > 1))
    return debts.select(*_DEBT, "q", state.alias("state"), twice.alias("duplicated"))


def _positive(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0)) > 0


def _true(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(False))


def summarize(accounted: DataFrame) -> Proof:
    """Return the totals: ACKED is the number of debts, each in one of the five states."""
    states = ("DELIVERED", "QUEUED", "EXPIRED", "DROPPED", "LOST")
    row = accounted.agg(
        F.count(F.lit(1)).alias("acked"),
        *[F.count_if(F.col("state") == state).alias(state.lower()) for state in states],
        F.count_if("duplicated").alias("duplicated"),
        F.count_if(F.col("o").contains(PICKED_MARK)).alias("shared"),
    ).collect()[0]
    return Proof(**{name: int(value) for name, value in row.asDict().items()})
