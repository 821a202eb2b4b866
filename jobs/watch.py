"""Watch ack ledgers of a running cluster for acknowledged messages that no record accounts for.

    stratamq jobs watch --ledger DIR [--ledger DIR ...] --state DIR [--within MINUTES] [--late MINUTES] [--once]

Structured Streaming over finished ledger files; open ones are not read. Debts and states are those of the audit
(``jobs/proof.py``), from ledgers alone. A message is LOST if no partition or session of its debts has delivered it,
queued it, or dropped it with a reason. It is reported at the age ``within`` plus ``late``, by the newest record's time,
since files end at different times. It is reported again as SETTLED if a later file accounts for it.

The state is a folder: ``kept/<batch>`` has the records that may still matter, and the reported debts. Each batch writes
a new folder from the previous batch's, so that an interrupted batch can be repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.findings import JobExitCode
from jobs.job_parser import JobParser, spark_options
from jobs.spark import SparkUnavailable, close_session, could_not_run, fit_to_size, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LedgerWatch", "main"]

FINISHED = "*.{jsonl,jsonl.gz}"
MINUTE_MS = 60_000
FILES_PER_BATCH = 64
FORGET_MINUTES = 24 * 60  # after its report, a message without a record is no longer tracked
SHOWN_MAX = 100  # lines of one batch on the terminal; the file has all of them
REPORTED = "p int, o string, s bigint, q int, t bigint"


class LedgerWatch:
    """One watch.

    Args:
        ledgers: Directories of ledger files, or of folders of them, one per node.
        state: Folder for this watch only.
        within_minutes: Age at which a message must be accounted for.
        late_minutes: Largest difference between the newest records of two nodes.
    """

    def __init__(
        self, spark: SparkSession, ledgers: Sequence[str], state: Path, within_minutes: float, late_minutes: float
    ) -> None:
        self._spark, self._ledgers, self._state = spark, list(ledgers), state
        self._patience_ms = int((within_minutes + late_minutes) * MINUTE_MS)

    def run(self, *, once: bool, every_s: float = 60.0) -> int:
        """Follow the ledgers, with ``once`` to the last finished file. Return the number of unaccounted messages."""
        writer = (
            self._stream()
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(self._state / "checkpoint"))
        )
        query = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_s:g} seconds")
        running = query.start()
        try:
            running.awaitTermination()
        except KeyboardInterrupt:
            running.stop()
        return self.unaccounted()

    def unaccounted(self) -> int:
        """Return the number of reported messages that are not settled."""
        kept = self._kept(self._batches()[-1:])
        return 0 if kept is None else self._spark.read.schema(REPORTED).parquet(str(kept / "reported")).count()

    def _stream(self) -> DataFrame:
        from pyspark.sql import DataFrame

        from jobs.proof import LEDGER_SCHEMA, records_of

        streams = [
            self._spark.readStream.schema(LEDGER_SCHEMA)
            .option("columnNameOfCorruptRecord", "broken")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", FINISHED)
            .option("ignoreMissingFiles", "true")  # compressed meanwhile: it arrives under its other name
            .option("maxFilesPerTrigger", FILES_PER_BATCH)
            .json(ledger)
            for ledger in self._ledgers
        ]
        return reduce(DataFrame.unionByName, [records_of(stream) for stream in streams])

    # -- one batch

    def _batch(self, fresh: DataFrame, number: int) -> None:
        from pyspark.sql import functions as F

        from jobs.proof import account, committed
        from jobs.rows import literal_frame

        fit_to_size(self._spark, 0)
        before = self._kept([each for each in self._batches() if each < number][-1:])
        records = fresh.where("e IN ('acked', 'queued', 'subscribed', 'unsubscribed', 'ended', 'began') "
                              "OR (e = 'dropped' AND o IS NOT NULL)").drop("broken")  # fmt: skip
        if before is not None:
            records = self._spark.read.parquet(str(before / "records")).unionByName(records)
        records = records.cache()
        try:
            newest = records.agg(F.max("t")).collect()[0][0]
            if newest is None:
                return
            exported = literal_frame(self._spark, [], "p int, exported bigint")
            debts = account(committed(records), None, exported)
            times = records.where("e = 'acked'").groupBy("o").agg(F.min("t").alias("t"))
            lost = debts.where("state = 'LOST'").join(times, on="o", how="inner").drop("state", "duplicated").cache()
            self._write(number, before, lost, records, int(newest))
            lost.unpersist()
        finally:
            records.unpersist()
        for old in self._batches()[:-2]:  # a repeated batch needs the previous one's folder
            shutil.rmtree(self._state / "kept" / f"{old:08}", ignore_errors=True)

    def _write(self, number: int, before: Path | None, lost: DataFrame, records: DataFrame, newest: int) -> None:
        """Write the state of the batch, and report changes."""
        from pyspark.sql import functions as F

        from jobs.rows import literal_frame

        keys = ["p", "o", "s"]
        known = (
            literal_frame(self._spark, [], REPORTED)
            if before is None
            else self._spark.read.schema(REPORTED).parquet(str(before / "reported"))
        )
        horizon = newest - self._patience_ms
        forgotten = horizon - FORGET_MINUTES * MINUTE_MS
        over = known.where(F.col("t") <= forgotten)
        reported = (
            lost.where(F.col("t") <= horizon).join(over, on=keys, how="left_anti").select("p", "o", "s", "q", "t")
        )
        new = reported.join(known, on=keys, how="left_anti").withColumn("state", F.lit("LOST"))
        gone = known.join(reported, on=keys, how="left_anti").withColumn(
            "state", F.when(F.col("t") > forgotten, "SETTLED").otherwise("FORGOTTEN")
        )
        self._write_report(number, new.unionByName(gone).orderBy("t", *keys).collect())
        # An old settled message is no longer tracked; the sessions of its topic are.
        open_ones = lost.where(F.col("t") > forgotten).select("o").distinct()
        of_messages = records.where("e IN ('acked', 'queued', 'dropped')")
        recent = of_messages.where(F.col("t") > horizon - self._patience_ms)
        old = of_messages.where(F.col("t") <= horizon - self._patience_ms).join(open_ones, on="o", how="left_semi")
        ended = records.where((F.col("e") == "ended") & (F.col("t") <= horizon - self._patience_ms))
        sessions = records.where("e IN ('subscribed', 'unsubscribed', 'ended', 'began')").join(
            ended.select("p", "s").distinct(), on=["p", "s"], how="left_anti"
        )
        kept = self._state / "kept" / f"{number:08}"
        recent.unionByName(old).unionByName(sessions.select(*records.columns)).distinct().write.mode(
            "overwrite"
        ).parquet(str(kept / "records"))
        reported.write.mode("overwrite").parquet(str(kept / "reported"))
        (kept / "whole").touch()

    def _write_report(self, number: int, rows: Sequence[object]) -> None:
        """Write the lines of one batch into a file atomically, and print the first ones."""
        lines = [json.dumps(row.asDict()) for row in rows]  # type: ignore[attr-defined]
        folder = self._state / "reports"
        folder.mkdir(exist_ok=True)
        target = folder / f"{number:08}.jsonl"
        if lines:
            temporary = target.with_suffix(".tmp")
            temporary.write_text("".join(f"{line}\n" for line in lines))
            temporary.replace(target)
        for line in lines[:SHOWN_MAX]:
            print(line, flush=True)
        if len(lines) > SHOWN_MAX:
            print(f"{len(lines) - SHOWN_MAX} more in {target}", file=sys.stderr, flush=True)

    # -- the state

    def _batches(self) -> list[int]:
        """Return the numbers of batches with complete state, in order."""
        return sorted(int(each.parent.name) for each in (self._state / "kept").glob("[0-9]*/whole"))

    def _kept(self, numbers: Sequence[int]) -> Path | None:
        return self._state / "kept" / f"{numbers[-1]:08}" if numbers else None


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    options = JobParser(
        prog="stratamq jobs watch", description="Account for acknowledged messages while the cluster runs."
    )
    options.add_argument("--ledger", required=True, action="append", help="directory of ledgers; may be repeated")
    options.add_argument("--state", required=True, type=Path, help="folder of this watch; a later run resumes from it")
    options.add_argument(
        "--within", type=float, default=10.0, help="minutes after which a message must be accounted for (10)"
    )
    options.add_argument("--late", type=float, default=15.0, help="minutes that a node's files may end later (15)")
    options.add_argument("--every", type=float, default=60.0, help="seconds between scans for finished files (60)")
    options.add_argument("--once", action="store_true", help="end with the last finished file")
    spark_options(options)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 with unaccounted messages."""
    try:
        arguments = parser().parse_args(argv)
        if min(arguments.within, arguments.late) < 0 or arguments.every <= 0:
            parser().error("--within and --late must be 0 or more, --every above 0")
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        arguments.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        for ledger in arguments.ledger:
            if "://" not in ledger and not Path(ledger).is_dir():
                raise FileNotFoundError(f"no such directory: {ledger}")
        spark = open_session("stratamq-watch", small=True, quiet=not arguments.spark_logs)
        watch = LedgerWatch(spark, arguments.ledger, arguments.state, arguments.within, arguments.late)
        left = watch.run(once=arguments.once, every_s=arguments.every)
    except (SparkUnavailable, OSError) as error:
        return could_not_run("watch", error)
    print(f"{left} messages are unaccounted for" if left else "clean", file=sys.stderr)
    return JobExitCode.FINDINGS if left else JobExitCode.CLEAN


if __name__ == "__main__":
    code = main()
    close_session()
    sys.exit(code)
