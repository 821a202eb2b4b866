"""The Spark session of a job, and the error message when Spark is unavailable.

Under ``spark-submit``, its master, memory and paths apply, and only settings for correctness are overridden.
``stratamq jobs`` builds a local session with settings for one machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from conf.urls import mask_urls
from jobs.findings import JobExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SMALL_ROWS",
    "SparkUnavailable",
    "close_session",
    "could_not_run",
    "fit_to_size",
    "limit_listing_tasks",
    "open_session",
    "report_stage",
    "shuffle_tasks",
    "tasks_max",
    "unavailable_reason",
]

SMALL_ROWS = 200_000  # up to here, compiling Spark's plans costs more than interpreting them
ROWS_PER_TASK = 250_000  # of a shuffle, 40 MB of about 150 B each
ROWS_PER_TASK_MIN = 25_000  # below that another core gains less than the start of its task costs
FILES_PER_LISTING_TASK = 100
_TASKS = "spark.sql.shuffle.partitions"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",  # re-planning after each stage took a third of an audit
}
# A short-lived JVM without costly optimization of its own.
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Does not match the greeting `Setting Spark log level to "ERROR".`
_ERROR_LINE = re.compile(r"^\S+ \S+ (ERROR|FATAL) |Exception in thread|^Caused by: |OutOfMemoryError", re.MULTILINE)
_logs: list[Path] = []  # of JVMs started by this process
_DRIVER_MEMORY_MB_MAX = 6144  # of a local session; merges spill to disk, more only helps very wide audits


class SparkUnavailable(RuntimeError):
    """Java or pyspark is missing; the message names the package to install."""


def unavailable_reason() -> str:
    """Return the missing dependency of Spark and how to install it, or an empty string."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'stratamq[jobs]' (pyspark 4.3.0)"
    java_home = os.environ.get("JAVA_HOME")
    if java_home and (Path(java_home) / "bin" / "java").exists():
        return ""
    if shutil.which("java") is None:
        return "Java is not installed: install a Java 17 runtime (Debian: apt install openjdk-17-jre-headless)"
    return ""


def open_session(
    application: str,
    *,
    master: str = "local[*]",
    driver_memory_mb: int = 0,
    small: bool = False,
    quiet: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Return the session of spark-submit or of the running process, else a new local one.

    Args:
        master: Used only if neither exists.
        driver_memory_mb: Heap of a local session; 0 takes a quarter of the machine, 6 GB at most.
        small: The input is small: start a local JVM with a short start-up instead of a high throughput.
        quiet: Redirect stderr of a local session's JVM to a file, which ``could_not_run`` names.
        settings: Further Spark settings of a local session.
    Raises:
        SparkUnavailable: Java or pyspark is missing.
    """
    reason = unavailable_reason()
    if reason:
        raise SparkUnavailable(reason)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(application)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and SparkSession.getActiveSession() is None:
        memory_mb = driver_memory_mb or _default_memory_mb()
        builder = builder.master(master).config(
            map={
                "spark.driver.memory": f"{memory_mb}m",  # in local mode the driver is the executor
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.log.level": "ERROR",
                "spark.sql.icu.caseMappings.enabled": "false",  # only hexadecimal digits are lowered; ICU loads slowly
                **({"spark.driver.extraJavaOptions": _SMALL_JVM} if small else {}),
                **(settings or {}),
            }
        )
    with _stderr_to_file() if quiet and not submitted else contextlib.nullcontext():
        session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def fit_to_size(session: SparkSession, rows: int) -> None:
    """Configure query plans and shuffle tasks for this number of rows; results are the same.

    A ``spark.sql.shuffle.partitions`` from the start of the session is an upper bound.
    """
    started_with = session.sparkContext.getConf()
    for name, small in _SMALL.items():
        value = small if rows <= SMALL_ROWS else started_with.get(name)
        if value is None:
            session.conf.unset(name)
        else:  # unset would restore Spark's default, not the session's initial value
            session.conf.set(name, value)
    tasks = shuffle_tasks(rows, session.sparkContext.defaultParallelism, tasks_max(session))
    session.conf.set(_TASKS, str(tasks))


def shuffle_tasks(rows: int, cores: int, most: int | None = None) -> int:
    """Return the number of tasks of a shuffle of ``rows`` rows, at least 1 and at most ``most``.

    Spark's default of 200 is too much for a million rows, as a task takes 0.1 s by itself, and too little for 10^9.
    """
    if rows <= SMALL_ROWS:
        return 1
    wanted = max(rows // ROWS_PER_TASK + 1, min(cores, rows // ROWS_PER_TASK_MIN))
    return wanted if most is None else min(wanted, most)


def tasks_max(session: SparkSession) -> int | None:
    """Return the spark.sql.shuffle.partitions that the session was started with, None without."""
    most = session.sparkContext.getConf().get(_TASKS)
    return None if most is None else int(most)


def limit_listing_tasks(session: SparkSession, files: int) -> None:
    """Set the number of tasks that list files; Spark's default is one per file."""
    if session.sparkContext.getConf().get(_LISTING_TASKS) is None:
        session.conf.set(_LISTING_TASKS, str(files // FILES_PER_LISTING_TASK + 1))


def close_session() -> None:
    """Stop the session of this process, if any; a cluster reports an unstopped one as a failure."""
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
    while _logs:
        _logs.pop().unlink(missing_ok=True)


def could_not_run(job: str, error: Exception) -> JobExitCode:
    """Print why a job could not run, and the path of Spark's log if it has an error; return the exit code."""
    print(mask_urls(f"stratamq jobs {job}: {error}"), file=sys.stderr)
    while _logs:
        log = _logs.pop()
        if _ERROR_LINE.search(log.read_text(errors="replace")):
            print(f"Spark's own log lines: {log}", file=sys.stderr)
        else:
            log.unlink()
    return JobExitCode.COULD_NOT_RUN


@contextlib.contextmanager
def _stderr_to_file() -> Iterator[None]:
    """Start processes with stderr redirected to a file: the JVM writes there before any log setting applies."""
    descriptor, name = tempfile.mkstemp(prefix="stratamq-spark-", suffix=".log")
    _logs.append(Path(name))
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(descriptor)


def _default_memory_mb() -> int:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return max(1024, min(_DRIVER_MEMORY_MB_MAX, pages // 4))


def report_stage(text: str) -> None:
    """Print a completed stage of the job to stderr, for the user at the terminal."""
    print(text, file=sys.stderr, flush=True)
