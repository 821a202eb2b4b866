"""Prometheus beside a cluster: it finds its targets by the service's discovery, scrapes, and evaluates the rules."""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.free_ports import free_port
from tests.patience import PATIENCE_S

__all__ = ["PROMETHEUS", "PROMTOOL", "RealPrometheus", "real_prometheus"]

PROMETHEUS, PROMTOOL = shutil.which("prometheus") or "", shutil.which("promtool") or ""
RULES = Path(__file__).parents[2] / "docs" / "monitoring" / "alerts.yml"
WAIT_S = 60.0


class RealPrometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=PATIENCE_S)

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer."""
        answer = self._http.get(path, params=query).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now, those that are no number left out."""
        found: list[dict[str, Any]] = self.ask("/query", query=expression)["result"]
        return [row for row in found if row["value"][1] != "NaN"]

    def up(self) -> dict[str, str]:
        """Return by node whether its page was read at last."""
        targets = self.ask("/targets", state="active")["activeTargets"]
        return {target["labels"]["node"]: target["health"] for target in targets}

    def firing(self) -> set[str]:
        """Return the names of the alarms that fire."""
        return {one["labels"]["alertname"] for one in self.ask("/alerts")["alerts"] if one["state"] == "firing"}

    def wait_for(self, condition: Callable[[], bool], what: str, within_s: float = WAIT_S) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(httpx.TransportError):
                if condition():
                    return
            assert time.monotonic() < deadline, f"not {what} after {within_s} s; firing: {self.firing()}"
            time.sleep(0.2)


@contextlib.contextmanager
def real_prometheus(folder: Path, discovery: str, token: str) -> Iterator[RealPrometheus]:
    """Run one that reads each page every second."""
    port = free_port()
    job = {
        "job_name": "stratamq",
        "http_sd_configs": [
            {"url": discovery, "refresh_interval": "1s", "authorization": {"type": "Bearer", "credentials": token}}
        ],
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    assert subprocess.run([PROMTOOL, "check", "config", str(folder / "prometheus.yml")], check=False).returncode == 0
    command = [
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield RealPrometheus(port)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
