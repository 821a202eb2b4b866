"""Compaction and audit at size, with limits: rates, linearity, and the same merge by a Python heap and by DuckDB.

    python -m bench.jobs                          # all parts, about 10 minutes on two free cores
    python -m bench.jobs --rows 1 --compared 0    # one size, in millions, alone

Prints the cost per row for 1 to 16 million rows, the audit up to 8 million, and at 8 million the three merges side by
side, compared row for row in every column. Then the limits with the results; exit code 1 if one is missed.
All parts run in this order on one machine; rates depend on other load, so the load average is printed, and
next to each result, in brackets, the rate of the same CPU time on two free cores. A copy with the machine and the
versions is written to bench/results/ (``--results``).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.jobs_rivals import differences, duckdb_merge, heap_merge
from bench.jobs_store import NOW_MS, generate
from wire.sstable.manifest import Manifest

MERGE_ROWS_PER_S = 230_000  # bars, on two cores, at 8 million rows, 6 GB
PUBLISH_ROWS_PER_S = 120_000
AUDIT_RATIO_MAX = 2.0  # of the compaction's time
LIBRARIES = "pyspark", "pyarrow", "duckdb"
LINEAR_MAX = 1.25  # cost per row of any size, relative to the smallest; fixed costs reduce it
WARM_ROWS = 300_000  # more than jobs.spark.SMALL_ROWS, so that it runs the code of the large sizes
Seconds = tuple[float, float]  # wall; CPU time over two cores


@dataclass(slots=True)
class Measurement:
    """One size."""

    rows: int
    bytes: int
    seconds: dict[str, Seconds] = field(default_factory=dict)

    def rate(self, step: str, clock: int = 0) -> float:
        return self.rows / self.seconds[step][clock]

    def us_per_row(self, clock: int = 0) -> float:
        return 1e6 / self.rate("published", clock)

    def audit_ratio(self, clock: int = 0) -> float:
        return self.seconds["audit"][clock] / self.seconds["published"][clock]


class _Report:
    """Prints lines, and keeps them for the results file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    words.add_argument("--rows", type=float, nargs="*", default=[1, 2, 4, 8, 16], help="millions of rows, ascending")
    words.add_argument("--compared", type=float, default=8, help="this size is the bars' and has the rivals; 0: none")
    words.add_argument("--audited", type=float, default=8, help="sizes up to here are audited")
    words.add_argument("--directory", type=Path, help="where to work; default: a temporary directory")
    words.add_argument("--driver-memory-mb", type=int, default=6144)
    words.add_argument("--results", type=Path, default=Path(f"bench/results/{time.strftime('%Y-%m-%d')}-jobs.md"))
    arguments = words.parse_args()
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"bench.jobs needs {', '.join(missing)}: `make setup-dev setup-jobs`, or the extras dev and jobs",
              file=sys.stderr)  # fmt: skip
        return 2
    from jobs.spark import open_session

    report = _Report()
    started = time.perf_counter()
    spark = open_session("stratamq-bench", master="local[2]", driver_memory_mb=arguments.driver_memory_mb)
    report(f"session {time.perf_counter() - started:.1f} s; {machine(spark, arguments.driver_memory_mb)}")
    root = Path(tempfile.mkdtemp(prefix="stratamq-bench-", dir=arguments.directory))
    bars: list[tuple[str, bool]] = []
    measured: list[Measurement] = []
    try:
        warm = generate(root / "warm", WARM_ROWS)
        _spark(spark, root / "warm", warm, audited=True)
        report("rows | MB | merge+write rows/s | published rows/s | us per row | audit s | audit/compaction | load")
        for millions in arguments.rows:
            directory = root / f"{millions}"
            store = generate(directory, int(millions * 1_000_000))
            result = _spark(spark, directory, store, audited=millions <= arguments.audited)
            measured.append(result)
            report(_line(result))
            if millions == arguments.compared:
                bars += _bars(result) + _side_by_side(directory, store, result, report)
            shutil.rmtree(directory)
    finally:
        spark.stop()
        shutil.rmtree(root)
    if len(measured) > 1:
        bars.append(_linear(measured))
    for text, met in bars:
        report(f"{'met   ' if met else 'MISSED'} {text}")
    if arguments.compared in arguments.rows:
        _write(arguments.results, report.lines)
    return 0 if all(met for _, met in bars) else 1


def machine(spark: Any, memory_mb: int) -> str:
    """Return a description of the measured machine, in one line."""
    model = next((x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x),
                 platform.machine())  # fmt: skip
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    java = spark.sparkContext._jvm.System.getProperty("java.version")
    return (
        f"{os.cpu_count()} cores of {model}, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB, "
        f"driver memory {memory_mb} MB; CPython {platform.python_version()}, Java {java}, {', '.join(versions)}"
    )


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = " ".join(["python -m bench.jobs", *sys.argv[1:]])
    head = f"# Compaction and audit at size\n\n`{words}`, {time.strftime('%Y-%m-%d')}. In brackets: from CPU time.\n"
    path.write_text(f"{head}\n```\n" + "\n".join(lines) + "\n```\n")


class _Stopwatch:
    """Wall and CPU seconds of the driver's JVM and of this process."""

    def __init__(self, spark: Any) -> None:
        self._stat = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/stat")
        self.begin()

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._cpu_now()

    def _cpu_now(self) -> float:
        ticks = self._stat.read_text().rpartition(")")[2].split()[11:13]  # user and system
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") + time.process_time()

    def read(self) -> tuple[float, float]:
        """Return wall seconds since begin, and the seconds that the CPU time used would take on two cores."""
        return time.perf_counter() - self._wall, (self._cpu_now() - self._cpu) / 2


def _spark(spark: Any, directory: Path, store: Manifest, *, audited: bool) -> Measurement:
    from jobs.audit import run_audit
    from jobs.compaction import run_compact

    measured = Measurement(store.totals["rows"], store.totals["bytes"])
    watch = _Stopwatch(spark)

    def step(name: str) -> None:
        measured.seconds[name] = watch.read()

    result = run_compact(str(directory), str(directory / "spark"), NOW_MS, spark=spark, step=step)
    assert result.rows_in == measured.rows and not result.findings
    if audited:
        watch.begin()
        audit = run_audit([str(directory)], spark=spark)
        step("audit")
        assert not audit.findings, audit.counts
    return measured


def _both(figure: Any, digits: int = 0) -> str:
    return f"{figure(0):.{digits}f} [{figure(1):.{digits}f}]"


def _line(measured: Measurement) -> str:
    audit = "- | -"
    if "audit" in measured.seconds:
        seconds = measured.seconds["audit"]
        audit = f"{seconds[0]:.1f} [{seconds[1]:.1f}] | {_both(measured.audit_ratio, 2)}"
    return (
        f"{measured.rows:>9} | {measured.bytes / 1e6:.0f} | {_both(lambda clock: measured.rate('written', clock))} | "
        f"{_both(lambda clock: measured.rate('published', clock))} | {_both(measured.us_per_row, 2)} | {audit} | "
        f"{os.getloadavg()[0]:.1f}"
    )


# -- bars --------------------------------------------------------------------------------------------------------------


def _bars(at_size: Measurement) -> list[tuple[str, bool]]:
    merge, publish = at_size.rate("written"), at_size.rate("published")
    bars = [
        (f"merge and write: {merge:.0f} rows/s, bar {MERGE_ROWS_PER_S}", merge >= MERGE_ROWS_PER_S),
        (f"published, verified: {publish:.0f} rows/s, bar {PUBLISH_ROWS_PER_S}", publish >= PUBLISH_ROWS_PER_S),
    ]
    if "audit" in at_size.seconds:
        ratio = at_size.audit_ratio()
        bars.append((f"audit: {ratio:.2f} of the compaction, bar {AUDIT_RATIO_MAX}", ratio <= AUDIT_RATIO_MAX))
    return bars


def _linear(measured: list[Measurement]) -> tuple[str, bool]:
    costs = [result.us_per_row() for result in measured]
    worst = max(costs) / costs[0]
    sizes = f"{measured[0].rows / 1e6:.0f} to {measured[-1].rows / 1e6:.0f} million rows"
    return f"cost per row over {sizes}: at most {worst:.2f} of the smallest's, bar {LINEAR_MAX}", worst <= LINEAR_MAX


def _side_by_side(directory: Path, store: Manifest, spark: Measurement, report: _Report) -> list[tuple[str, bool]]:
    began = time.perf_counter(), time.process_time()
    heap_merge(directory, store)
    heap = time.perf_counter() - began[0], time.process_time() - began[1]
    began = time.perf_counter(), time.process_time()
    with_duckdb = duckdb_merge(directory, store)
    duck = time.perf_counter() - began[0], (time.process_time() - began[1]) / 2
    report("merge, filter, write sorted runs: rows/s (crc of every row checked?)")
    report(f"  Spark local[2]      {_both(lambda clock: spark.rate('written', clock))} (yes)")
    report(f"  Python heap, 1 core {_both(lambda clock: spark.rows / heap[clock])} (yes)")
    if with_duckdb:
        report(f"  DuckDB, 2 threads   {_both(lambda clock: spark.rows / duck[clock])} (no: it has no crc32)")
    rows, wrong = differences(directory, with_duckdb)
    for line in wrong:
        report(line)
    others = "heap and DuckDB" if with_duckdb else "heap (DuckDB is not installed)"
    return [(f"results of Spark, {others} identical row for row: {rows} rows", not wrong)]


if __name__ == "__main__":
    sys.exit(main())
