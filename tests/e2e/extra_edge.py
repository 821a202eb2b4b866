"""One more edge beside those of ``stratamq up``, with listeners of a test's own."""

import contextlib
import datetime
import json
import os
import select
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratamq.toml_text import toml_document
from tests.e2e.local_cluster import LocalCluster
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority

READY_S = 60.0
SOURCES_OF_RULES = ("roles_file", "acl_file", "cluster_roles", "token_acl", "http_acl")


class ExtraEdge:
    """A running edge: its listeners' ports and its metrics."""

    def __init__(self, addresses: dict[str, str], process: int) -> None:
        self.addresses = addresses
        self.process = process

    def port(self, listener: str) -> int:
        return int(self.addresses[listener].rpartition(":")[2])

    def events(self, cluster: LocalCluster) -> dict[str, float]:
        """Return ``edge_events_total`` by name."""
        return cluster.events_at(self.addresses["metrics"])


@contextlib.contextmanager
def extra_edge(
    cluster: LocalCluster, listeners: dict[str, dict[str, Any]], name: str = "edge-9", **room: Any
) -> Iterator[ExtraEdge]:
    """Run an edge with the configuration of edge-0 except name, listeners, and settings of its package."""
    authority = DevelopmentAuthority(cluster.data / "tls", "stratamq", datetime.datetime.now(datetime.UTC))
    own = authority.node("edge", name)
    folder = cluster.data / name
    folder.mkdir(mode=0o700)
    document = tomllib.loads((cluster.data / "edge-0" / "edge.toml").read_text())
    document["node"] |= {"id": name, "data_dir": str(folder), "certificate": str(own.certificate), "key": str(own.key)}
    document["metrics"]["port"] = 0
    shown = authority.server()
    for table in listeners.values():
        table |= {"bind": "127.0.0.1", "port": 0}
        table.setdefault("allow_anonymous", True)
        if not any(table.get(source) for source in SOURCES_OF_RULES):
            table |= {"roles_file": str(cluster.data / "roles.toml"), "authenticated_roles": ["device"]}
            table["anonymous_roles"] = ["device", "figures"]
        if table.get("tls"):
            table |= {"certificate": str(shown.certificate), "key": str(shown.key)}
    document["edge"] |= {**room, "listeners": listeners}
    config = folder / "edge.toml"
    config.touch(0o600)
    config.write_text(toml_document(document))
    reading, writing = os.pipe()
    with (cluster.data / f"{name}.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stratamq", "edge", "--config", str(config), "--ready-fd", str(writing)],
            pass_fds=(writing,),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    os.close(writing)
    try:
        yield ExtraEdge(_addresses(reading, process, cluster.data / f"{name}.txt"), process.pid)
    finally:
        os.close(reading)
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _addresses(reading: int, process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    data, deadline = b"", time.monotonic() + READY_S
    while not data.endswith(b"\n"):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
        if select.select([reading], [], [], 0.2)[0]:
            data += os.read(reading, 65_536)
    addresses: dict[str, str] = json.loads(data)["addresses"]
    return addresses
