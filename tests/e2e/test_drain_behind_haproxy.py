"""Drain edges in sequence under load, behind the shipped HAProxy configuration: each client sees one close.

HAProxy polls /readyz, which returns 503 before the edge refuses: so no connection attempt fails, and no client
waits to reconnect. No acknowledged message is lost, by the history of every client.
"""

import io
from functools import partial
from pathlib import Path

import pytest
import trio

from stratamq.history.check import judge
from stratamq.history.history import RunHistory, parse_history
from stratamq.history.operations import Kind
from stratamq.history.recorder import RecordSettings
from stratamq.history.report import as_text
from tests.e2e.extra_edge import extra_edge
from tests.e2e.local_cluster import local_cluster
from tests.e2e.test_drain_history import Drainer, record_both
from tests.e2e.test_shipped_balancers import adapted, running
from tests.free_ports import free_port

LISTENERS = {"behind": {"tls": False, "proxy_protocol": "any"}}


def refused(history: RunHistory) -> list[str]:
    """Return the refused connection attempts, except those that the client aborted."""
    return [
        f"{connect.invoke.process} at {connect.started_ns / 1e9:.2f}: {connect.completion}"
        for connect in history.of_kind(Kind.CONNECT)
        if not connect.ok and (connect.completion is None or connect.completion.reason != "local")
    ]


@pytest.mark.slow
def test_clients_behind_haproxy_see_one_close_each(tmp_path: Path) -> None:
    """Half of the clients have a durable session; each edge is drained while the other one serves its clients."""
    clients, rate = 100, 50
    with (
        local_cluster("--edges", "1") as cluster,
        extra_edge(cluster, {name: dict(table) for name, table in LISTENERS.items()}, "edge-8") as first,
        extra_edge(cluster, {name: dict(table) for name, table in LISTENERS.items()}, "edge-9") as second,
    ):
        port, config = free_port(), tmp_path / "haproxy.cfg"
        text = adapted("haproxy-passthrough.cfg", port, [first, second], "behind").replace("check port 9749", "check")
        config.write_text(text)
        door = (("127.0.0.1", port),)
        drainer = Drainer(cluster, range(8, 10), rate)
        settings = partial(RecordSettings, door, clients=clients // 2, drain_s=30.0, operations_per_s=4.0)
        sinks = io.BytesIO(), io.BytesIO()
        durable, others = settings("queue", 1.0, 1), settings("routes", 1.0, 2)
        with running(["haproxy", "-db", "-f", str(config)], port, "haproxy"):
            trio.run(record_both, [(durable, sinks[0], drainer.work), (others, sinks[1], drainer.wait)])
    assert sum(result["clients"] for result in drainer.results) >= clients, drainer.results
    for sink in sinks:
        history = parse_history(sink.getvalue())
        verdict = judge(history)
        print(as_text(verdict, 3))
        assert verdict.complete and verdict.clean, as_text(verdict, 3)
        assert not refused(history)
