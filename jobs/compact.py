"""Compact an exported store: the newest version of each key, one sorted run per partition, manifest last.

    stratamq jobs compact --input DIR --output DIR [--now MS]
    spark-submit --master ... --py-files stratamq-jobs.zip jobs/compact.py --input URI --output URI --now MS

Steps: read the newest manifest; verify that every input is the listed file; merge; measure the output; sync; publish
the next manifest. Readers see the old state until the last step, and the new one after it. A partition with a damaged
input or a row with a wrong CRC is held: its files are carried unchanged, the rows are copied into quarantine and
reported, and no older version reappears. ``jobs/merge.py`` decides which rows are removed. ``jobs/compaction.py`` has
the steps; this file is the command line.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from jobs.compaction import CompactionFailed, CompactResult, run_compact
from jobs.engine import JobEngine, add_engine_option, choose_engine
from jobs.files import local_rows
from jobs.findings import JobExitCode
from jobs.job_parser import JobParser, spark_options
from jobs.selection import CompactionPolicy
from jobs.spark import SMALL_ROWS, SparkUnavailable, close_session, could_not_run, open_session
from wire.sstable.manifest import ManifestExists

__all__ = ["main"]


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser, the same for ``stratamq jobs compact`` and spark-submit."""
    options = JobParser(prog="stratamq jobs compact", description="Compact exported SSTables.")
    options.add_argument("--input", required=True, help="directory or URI with manifests")
    options.add_argument("--output", required=True, help="directory or URI to publish into; may be the input")
    options.add_argument("--now", type=int, help="UTC ms that decides on expiry; default: the clock, once, at start")
    options.add_argument("--generations", type=int, default=4, help="merge a partition with this many files")
    options.add_argument("--garbage", type=float, default=0.25, help="or with this share of known garbage")
    options.add_argument("--partition", type=int, action="append", help="only this one; may be repeated")
    options.add_argument("--all", action="store_true", help="merge every partition")
    options.add_argument("--partial", action="store_true", help="exclude a much larger base")
    options.add_argument("--keep-acknowledged", action="store_true", help="skip the removal by session rows")
    options.add_argument("--run-id", default="", help="name of the folder for new runs")
    add_engine_option(options)
    spark_options(options)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        arguments = parser().parse_args(argv)
        policy = CompactionPolicy(
            generations=arguments.generations,
            garbage=arguments.garbage,
            partial=arguments.partial,
            everything=arguments.all,
            partitions=frozenset(arguments.partition) if arguments.partition else None,
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    except ValueError as error:
        print(f"stratamq jobs compact: {error}", file=sys.stderr)
        return JobExitCode.USAGE
    try:
        engine = choose_engine(arguments.engine, [arguments.input, arguments.output])
        spark = None
        if engine is JobEngine.SPARK:
            rows = local_rows([arguments.input])
            small = rows is not None and rows <= SMALL_ROWS
            spark = open_session("stratamq-compact", small=small, quiet=not arguments.spark_logs)
        result = run_compact(
            arguments.input,
            arguments.output,
            arguments.now if arguments.now is not None else time.time_ns() // 1_000_000,
            policy=policy,
            remove_by_session=not arguments.keep_acknowledged,
            run_id=arguments.run_id,
            spark=spark,
            engine=engine,
        )
    except (SparkUnavailable, ValueError, ManifestExists, CompactionFailed, OSError) as error:
        return could_not_run("compact", error)
    for finding in result.findings[:20]:
        print(f"{finding.finding}: {finding.file}: {finding.detail}", file=sys.stderr)
    print(_summary(result))
    return result.exit_code


def _summary(result: CompactResult) -> str:
    removed = ", ".join(f"{n} {name}" for name, n in result.removed.items()) or "nothing"
    return (
        f"manifest {result.manifest_no}: {result.rows_in} rows -> {result.rows_out} in {len(result.partitions)} "
        f"partitions (removed {removed}); {len(result.held)} partitions held, {len(result.findings)} findings"
    )


if __name__ == "__main__":
    code = main()
    close_session()
    sys.exit(code)
