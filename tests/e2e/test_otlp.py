"""The service beside a real cluster exports a traced message as spans to a collector in its own process."""

from pathlib import Path

import pytest

from tests.admin.otlp_receiver import receiver
from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import local_cluster
from tests.e2e.test_prometheus import served

pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not here: the extra otel")


@pytest.mark.slow
def test_traced_message_reaches_collector(tmp_path: Path) -> None:
    """Publish, commit and both deliveries are one trace; an untraced message creates no span."""
    with (
        receiver(tmp_path / "spans") as collector,
        local_cluster("--admin-port", "0", "--set", f"admin.otlp_endpoint={collector.endpoint}") as cluster,
    ):
        served(cluster)
        stored = PahoClient(cluster.port(1, "plain"), "stored", expiry_s=1)
        passing = PahoClient(cluster.port(1, "plain"), "passing")
        for client in (stored, passing):
            client.subscribe("a/#", 1)
        publisher = PahoClient(cluster.port(0, "plain"), "publisher")
        cluster.admin("trace", "start", "topic", "a/1", "--name", "otlp")
        publisher.publish("a/1", "x", 1)
        publisher.publish("a/2", "x", 1)
        for client in (stored, passing):
            client.wait_for(2)
        cluster.wait_for(lambda: len(collector.spans()) >= 4, "sent")
        page = cluster.metrics("admin")
        for client in (stored, passing, publisher):
            client.close()
        spans = collector.spans()
    assert len({span["trace"] for span in spans}) == 1
    by_name = {(span["name"], span["about"].get("messaging.client.id", "")) for span in spans}
    assert by_name >= {("publish", "publisher"), ("commit", ""), ("deliver", "stored"), ("deliver", "passing")}
    assert "stratamq_otlp_failures_total 0.0" in page
