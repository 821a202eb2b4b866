"""The Spark session of a job, and what is said when there can be none.

Under ``spark-submit`` master, memory and paths come from there and nothing is overridden but what correctness needs.
Started by ``stratamq jobs``, a local session is built with settings that suit one machine.
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
    "open_session",
    "report_stage",
    "unavailable_reason",
]

SMALL_ROWS = 200_000  # up to here compiling Spark's plans costs more than interpreting them
# Also fewer tasks: with so few rows a task is mostly its own start.
_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",  # planning again after each stage took a third of an audit
}
# And a JVM whose short life goes into work instead of into optimizing itself.
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Not the greeting `Setting Spark log level to "ERROR".`
_ERROR_LINE = re.compile(r"^\S+ \S+ (ERROR|FATAL) |Exception in thread|^Caused by: |OutOfMemoryError", re.MULTILINE)
_logs: list[Path] = []  # of JVMs that this process started
_DRIVER_MEMORY_MB_MAX = 6144  # of a local session; merges spill to disk, more only helps very wide audits


class SparkUnavailable(RuntimeError):
    """There is no Java or no pyspark; the message says what to install."""


def unavailable_reason() -> str:
    """Return what is missing to run Spark here and how to install it, or an empty string."""
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
        master: Used only when neither exists.
        driver_memory_mb: Heap of a local session; 0 takes a quarter of the machine, 6 GB at most.
        small: The input is known to be small: start a local JVM that begins fast instead of ending fast.
        quiet: What the JVM of a local session writes to stderr goes to a file, which ``could_not_run`` names.
        settings: Further Spark settings of a local session.
    Raises:
        SparkUnavailable: Without Java or pyspark.
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
                "spark.sql.icu.caseMappings.enabled": "false",  # hexadecimal digits alone are lowered; ICU loads long
                "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
                **({"spark.driver.extraJavaOptions": _SMALL_JVM} if small else {}),
                **(settings or {}),
            }
        )
    with _stderr_to_file() if quiet and not submitted else contextlib.nullcontext():
        session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def fit_to_size(session: SparkSession, rows: int) -> None:
    """Set the session up for a small input, or back to what it was started with: the result is the same."""
    started_with = session.sparkContext.getConf()
    for name, small in _SMALL.items():
        value = small if rows <= SMALL_ROWS else started_with.get(name)
        if value is None:
            session.conf.unset(name)
        else:  # unset would fall back to Spark's default, not to what the session was started with
            session.conf.set(name, value)


def close_session() -> None:
    """Stop the session of this process, if there is one: left to the exit, a cluster takes it for a failure."""
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
    while _logs:
        _logs.pop().unlink(missing_ok=True)


def could_not_run(job: str, error: Exception) -> JobExitCode:
    """Print why a job could not run, and where Spark's own log lines are if it wrote an error; return the exit code."""
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
    """Start processes with stderr on a file: the JVM writes lines there before any setting of ours reaches it."""
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
    """Tell the person at the terminal what was just done: one line on stderr."""
    print(text, file=sys.stderr, flush=True)
