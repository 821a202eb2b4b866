"""A real cluster for tests: ``stratamq up`` in its own process group, on chosen ports, stopped at the end."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.forked_commands import run_command
from tests.patience import PATIENCE_S

READY_S = 3 * PATIENCE_S  # many processes start
LAST_LINES = 25  # of each log, shown when a test fails
PORTS_TRIES = 3  # `up` chooses free ports, and binds them a while later


class LocalCluster:
    """One running ``stratamq up``."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.log = data.with_suffix(".log")
        self._output = self.log.open("wb")
        command = [sys.executable, "-m", "stratamq", "up", "--data", str(data), "--tls-port", "0", "--plain-port", "0"]
        if "--admin-port" not in options:
            command.append("--no-admin")
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        """Wait until every node is ready."""
        self.wait_for(self.is_ready, "ready")

    def has_its_ports(self) -> bool:
        """Wait until it is ready or has ended; return False if another cluster took a port that this one had chosen."""
        self.wait_for(lambda: self.process.poll() is not None or self.is_ready(), "ready", ends=True)
        return self.process.poll() is None or b"Address already in use" not in self.log.read_bytes()

    def is_ready(self) -> bool:
        """Return whether every node is ready."""
        return (self.data / "up.json").exists() and b"ready after" in self.log.read_bytes()

    def wait_for(
        self, condition: Callable[[], bool], what: str, timeout_s: float = READY_S, *, ends: bool = False
    ) -> None:
        """Wait for a condition, at most so long; a cluster that ended fails at once, unless that is waited for."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert ends or self.process.poll() is None, f"`up` ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"not {what} after {timeout_s} s: {self.log.read_text()[-2000:]}"
            time.sleep(0.05)

    @property
    def state(self) -> dict[str, Any]:
        """The nodes as written by `up`."""
        state: dict[str, Any] = json.loads((self.data / "up.json").read_text())
        return state

    def port(self, edge: int, listener: str = "tls") -> int:
        """Return a listener's port."""
        return int(self.state["listeners"][f"edge-{edge}"][listener])

    def pid(self, node: str) -> int:
        """Return a node's process."""
        return int(self.state["nodes"][node]["pid"])

    def is_started_again(self, node: str, before: int) -> bool:
        """Return whether a node has another process than before; while it starts `up` does not name it."""
        found = self.state["nodes"].get(node)
        return found is not None and int(found["pid"]) != before

    @property
    def authority(self) -> str:
        """The file that clients verify the edges with."""
        return str(self.data / "tls" / "ca.pem")

    def kill(self, node: str) -> None:
        """Kill a node's process with -9."""
        os.kill(self.pid(node), signal.SIGKILL)

    def admin(self, *arguments: str) -> dict[str, Any]:
        """Run an operator command and return its JSON output."""
        result = self.command(*arguments, "-o", "json", "--data", str(self.data))
        assert result.returncode == 0, result.stderr
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    @staticmethod
    def command_line() -> list[str]:
        """Return the first words of a ``stratamq`` command line."""
        return [sys.executable, "-m", "stratamq"]

    @staticmethod
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``stratamq`` with arguments."""
        return run_command(*arguments)

    def metrics(self, node: str) -> str:
        """Return a node's metrics page."""
        return self.metrics_at(self.state["nodes"][node]["addresses"]["metrics"])

    @staticmethod
    def metrics_at(address: str) -> str:
        """Return the metrics page of an address."""
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
            return str(page.read().decode())

    def events_at(self, address: str) -> dict[str, float]:
        """Return an edge's event counters by name, including the families of connects and disconnects."""
        page = self.metrics_at(address)
        found = re.findall(r'stratamq_edge_events_total\{event="(\w+)"\} (\S+)', page)
        for family, label in (("connects", "reason_code"), ("disconnects", "reason")):
            rows = re.findall(rf'stratamq_{family}_total\{{.*?\b{label}="(\w+)".*?\}} (\S+)', page)
            found += [(f"{family}_{value}", amount) for value, amount in rows]
        return {name: float(amount) for name, amount in found}

    def last_words(self) -> str:
        """Return the ends of the logs of ``up`` and of all nodes, for the report of a failed test."""
        logs = [self.log, *sorted((self.data / "logs").glob("*.log"))]
        texts = {log.name: log.read_text(errors="replace").splitlines()[-LAST_LINES:] for log in logs if log.exists()}
        return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in texts.items())

    def stop(self) -> int:
        """Stop all processes as Ctrl-C does; return the exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        self._output.close()
        return code


@contextlib.contextmanager
def local_cluster(*options: str) -> Iterator[LocalCluster]:
    """Run a cluster in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="stratamq-test-"))
    cluster = LocalCluster(folder / "cluster", *options)
    try:
        for _ in range(PORTS_TRIES):
            if cluster.has_its_ports():
                break
            cluster.stop()
            shutil.rmtree(cluster.data, ignore_errors=True)
            cluster = LocalCluster(folder / "cluster", *options)
        cluster.wait_ready()
        yield cluster
    except BaseException:
        print(cluster.last_words())
        raise
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
