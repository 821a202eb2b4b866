"""Entry points of the jobs: the command line, the stand-alone verifier, the FileSystem of Hadoop, spark-submit."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from bench import jobs_store
from jobs.bundle import bundle
from jobs.cli import app
from jobs.compaction import run_compact
from jobs.files import HadoopFiles, local_rows, newest_with_bytes
from jobs.selection import CompactionPolicy
from jobs.spark import SMALL_ROWS, fit_to_size, shuffle_tasks
from tests.free_ports import free_port
from tests.jobs.generator import NOW_MS, generate
from tests.patience import PATIENCE_S
from wire.sstable.manifest import ManifestExists, next_manifest, read_manifest
from wire.sstable.run_reader import verify_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
TASKS_MAX = 250  # of a job over 16 partitions: about 30 stages


def test_missing_java_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit code 4, no other output, and no import of pyspark."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(app, ["watch", "--ledger", "a", "--state", "b"])
    assert result.exit_code == 4
    assert re.fullmatch(r"stratamq jobs: .* install .*\n", result.output)


def test_command_line_passes_options_on() -> None:
    """Wrong usage is 2, help is 0 and lists the options, with or without Java."""
    help_text = CliRunner().invoke(app, ["audit", "--help"])
    assert help_text.exit_code == 0
    program = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "compact", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--garbage" in program.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "prune", "--bogus"], cwd=ROOT, capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Usage: stratamq jobs prune [OPTIONS]\nTry 'stratamq jobs prune -h' for help.\n")


def test_stand_alone_verifier_reports_damage(tmp_path: Path) -> None:
    """40 lines with pyarrow only: no findings for a good store, precise ones for a bad one."""
    generate(tmp_path / "in", 1, generations=2, operations=60, partitions=2)
    script = tmp_path / "verify.py"
    text = (ROOT / "jobs" / "verify_manifest.py").read_text()
    assert not re.search(r"^(from|import) (jobs|wire|conf|mqtt)", text, re.MULTILINE)
    script.write_text(text)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), str(tmp_path / "in")], cwd=tmp_path, capture_output=True, text=True
        )

    good = run()
    assert (good.returncode, good.stdout) == (0, "manifest 2: 4 files are as listed\n")
    path = tmp_path / "in" / read_manifest(tmp_path / "in").files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    bad = run()
    assert bad.returncode == 1 and "sha256 differs" in bad.stdout


def test_small_input_disables_code_generation(spark: SparkSession, tmp_path: Path) -> None:
    """Plans are interpreted up to a bound; above it the session has its initial settings; sizes need no session."""
    name = "spark.sql.shuffle.partitions"
    started_with = spark.sparkContext.getConf().get(name)
    fit_to_size(spark, SMALL_ROWS)
    assert spark.conf.get(name) == "1"
    fit_to_size(spark, SMALL_ROWS + 1)
    assert spark.conf.get(name) == started_with
    store = generate(tmp_path / "in", 1, generations=1, operations=20, partitions=2)
    assert local_rows([str(tmp_path / "in"), f"file://{tmp_path}/in"]) == 2 * store.manifest.totals["rows"]
    assert local_rows([str(tmp_path / "none")]) == 0
    assert local_rows(["hdfs:///somewhere"]) is None


@pytest.mark.parametrize(
    ("rows", "cores", "most", "tasks"),
    [
        (SMALL_ROWS, 64, None, 1),
        (1_000_000, 2, None, 5),
        (1_000_000, 1_000, None, 40),  # no more tasks than have something to do
        (1_000_000_000, 64, None, 4_001),  # few enough rows for the memory of a task
        (1_000_000_000, 64, 200, 200),
        (1_000_000, 2, 4, 4),
        (1_000_000, 2, 800, 5),
    ],
)
def test_tasks_of_a_shuffle_follow_the_rows(rows: int, cores: int, most: int | None, tasks: int) -> None:
    """A setting of the user is an upper bound."""
    assert shuffle_tasks(rows, cores, most) == tasks


def test_hadoop_file_system_publishes_once(spark: SparkSession, tmp_path: Path) -> None:
    """The same operations through the JVM: read, hash in executors, publish without overwriting."""
    generate(tmp_path, 2, generations=1, operations=40, partitions=2)
    files = HadoopFiles(spark, f"file://{tmp_path}")
    newest = newest_with_bytes(files)
    assert newest is not None
    manifest, data = newest
    for entry in manifest.files:
        assert files.identify([entry.path, "no"]) == {entry.path: (entry.bytes, entry.sha256), "no": None}
    files.publish(next_manifest(manifest, data))
    with pytest.raises(ManifestExists):
        files.publish(next_manifest(manifest, data))
    assert read_manifest(tmp_path).manifest_no == 2
    files.write("x/y", b"z")
    assert (files.read("x/y"), files.names("x")) == (b"z", ["y"])
    files.delete("x")
    assert files.names("x") == []


def test_compaction_through_hadoop_file_system(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole job without a local input or output path."""
    generate(tmp_path / "in", 3, generations=2, operations=60, partitions=2)
    monkeypatch.setattr("jobs.compaction.open_directory", lambda session, uri: HadoopFiles(session, uri))
    result = run_compact(
        f"file://{tmp_path}/in", f"file://{tmp_path}/out", NOW_MS, spark=spark,
        policy=CompactionPolicy(everything=True, partitions=frozenset({1})),
    )  # fmt: skip
    assert (result.manifest_no, result.partitions, result.findings) == (1, [1], [])
    assert verify_manifest(tmp_path / "out") == []
    assert [f.level for f in read_manifest(tmp_path / "out").files] == [0, 0, 1]


@pytest.mark.slow
def test_spark_submit_with_an_unmodified_cluster(tmp_path: Path) -> None:
    """Compact and audit by spark-submit on a master with two workers, executors without our packages or Python.

    The number of tasks follows the rows, not Spark's 200 for each shuffle and one for each file.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    jobs_store.generate(tmp_path / "in", 2 * SMALL_ROWS)
    bundle(tmp_path / "stratamq-jobs.zip")
    environment = {"PATH": os.environ["PATH"], "SPARK_HOME": str(home), "PYSPARK_PYTHON": "/no/python/in/executors",
                   "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "HOME": str(tmp_path),
                   "SPARK_LOG_DIR": str(tmp_path / "logs"), "SPARK_WORKER_DIR": str(tmp_path / "work")}  # fmt: skip
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        master = _start_standalone(home, environment, daemons, tmp_path)
        submit = [
            *(str(home / "bin" / "spark-submit"), "--master", master, "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.eventLog.enabled=true"),
            *("--conf", f"spark.eventLog.dir=file://{tmp_path}/events", "--conf", "spark.eventLog.compress=false"),
            *("--py-files", str(tmp_path / "stratamq-jobs.zip")),
        ]
        (tmp_path / "events").mkdir()
        store, out = f"file://{tmp_path}/in", f"file://{tmp_path}/out"
        now = str(jobs_store.NOW_MS)
        compact = [str(ROOT / "jobs" / "compact.py"), "--input", store, "--output", out, "--now", now]
        audit = [str(ROOT / "jobs" / "audit.py"), "--input", out, "--output", f"{out}/report"]
        for words in (compact, audit):
            done = subprocess.run(
                [*submit, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
            )
            assert done.returncode == 0, done.stderr[-3000:]
            tasks = _tasks_of_stages(max((tmp_path / "events").iterdir()))
            assert max(tasks) <= jobs_store.PARTITIONS and sum(tasks) < TASKS_MAX, tasks
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(PATIENCE_S)
    assert verify_manifest(tmp_path / "out") == []
    compacted = read_manifest(tmp_path / "out")
    assert compacted.totals["rows"] > SMALL_ROWS  # below, the audit has one task for each shuffle
    assert [f.level for f in compacted.files] == [1] * jobs_store.PARTITIONS
    assert (tmp_path / "out" / "report" / "report.html").stat().st_size > 5_000


def _tasks_of_stages(log: Path) -> list[int]:
    """Return the number of tasks of each stage that an application completed, from its event log."""
    lines = [line for part in sorted(log.glob("events_*")) for line in part.read_text().splitlines()]
    return [
        json.loads(line)["Stage Info"]["Number of Tasks"] for line in lines if '"SparkListenerStageCompleted"' in line
    ]


def _start_standalone(
    home: Path, environment: dict[str, str], daemons: list[subprocess.Popen[bytes]], logs: Path
) -> str:
    """Start a master and two workers on loopback; return the master's URL once it listens."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class = str(home / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    words = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *[[f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", url]
          for _ in range(2)],
    ]  # fmt: skip
    for number, word in enumerate(words):
        log = (logs / f"daemon-{number}.log").open("wb")
        daemons.append(subprocess.Popen([spark_class, *word], env=environment, stdout=log, stderr=log))
        if number == 0:
            for _ in range(200):
                with socket.socket() as probe:
                    probe.settimeout(0.3)
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                daemons[0].poll()
                subprocess.run(["sleep", "0.1"], check=True)  # the daemon has no other readiness signal
    return url
