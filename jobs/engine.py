"""The engine that runs a job: ``local`` (Python and pyarrow, in this process) or ``spark``.

``--engine auto`` selects ``local`` for folders of this machine whose newest manifests list at most ``LOCAL_ROWS_MAX``
rows, in any number of files: starting a JVM and a task per file would take longer than the work. Under spark-submit,
for other URIs and above that bound it selects ``spark``. Both engines have the same rules and results;
``tests/jobs/test_engines.py`` compares them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from enum import StrEnum

from jobs.files import local_path, local_rows
from jobs.spark import report_stage

__all__ = ["LEDGER_RECORD_BYTES", "LOCAL_ROWS_MAX", "JobEngine", "add_engine_option", "choose_engine"]

LOCAL_ROWS_MAX = 1_000_000  # of files, and records of ledgers
LEDGER_RECORD_BYTES = 40  # approximate size of a record in a ledger file; smaller when compressed


class JobEngine(StrEnum):
    """Value of ``--engine``."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine``."""
    parser.add_argument(
        "--engine",
        type=JobEngine,
        choices=list(JobEngine),
        default=JobEngine.AUTO,
        help=f"local: without Java, in this process; spark; auto: local up to {LOCAL_ROWS_MAX} rows (default)",
    )


def choose_engine(wanted: JobEngine, uris: Sequence[str], ledgers: Sequence[str] = ()) -> JobEngine:
    """Return LOCAL or SPARK, and print the choice with its reason.

    Args:
        uris: Folders with manifests.
        ledgers: Folders of ledgers.
    Raises:
        ValueError: LOCAL was requested and an input is not a local folder.
    """
    rows = local_rows([*uris, *ledgers])
    if rows is not None:
        files = (path for uri in ledgers for path in local_path(uri).rglob("*") if path.is_file())
        rows += sum(path.stat().st_size for path in files) // LEDGER_RECORD_BYTES
    if wanted is JobEngine.LOCAL and rows is None:
        raise ValueError("--engine local reads folders of this machine only")
    if wanted is not JobEngine.AUTO:
        chosen, reason = wanted, "as requested"
    elif "PYSPARK_GATEWAY_PORT" in os.environ:
        chosen, reason = JobEngine.SPARK, "started by spark-submit"
    elif rows is None:
        chosen, reason = JobEngine.SPARK, "an input is not a local folder"
    else:
        chosen = JobEngine.LOCAL if rows <= LOCAL_ROWS_MAX else JobEngine.SPARK
        reason = f"{rows} rows"
    report_stage(f"engine {chosen} ({reason})")
    return chosen
