"""Mosquitto's formats: its 23 topics from the nodes' metrics, and a listener."""

import msgspec

from admin.http.mosquitto_handlers import to_mosquitto_listener, tree_of
from wire.messages.client_rows import ListenerRow
from wire.messages.node_rows import SlowSubscriberRow, StatsRow

# Expected values of Mosquitto's own HTTP API test, without memory tracking.
CLIENTS = {f"clients/{name}" for name in ("total", "maximum", "disconnected", "connected", "expired")}
STORED = {"messages/stored", "store/messages/bytes", "retained messages/count", "subscriptions/count", "uptime"}
BOTH = {f"{name}/{way}" for name in ("messages", "bytes", "publish/bytes") for way in ("received", "sent")}
PUBLISHED = {f"publish/messages/{name}" for name in ("dropped", "received", "sent")}
REST = {"shared_subscriptions/count", "packet/out/count", "packet/out/bytes", "connections/socket/count"}
EDGE = StatsRow(
    started_at_ms=5_000,
    counters={
        'stratamq_packets_total{direction="in",type="publish"}': 3.0,
        'stratamq_packets_total{direction="in",type="other"}': 4.0,
        'stratamq_packets_total{direction="out",type="publish"}': 9.0,
        'stratamq_bytes_total{direction="out"}': 100.0,
        'stratamq_payload_bytes_total{direction="in"}': 50.0,
        'stratamq_payload_bytes_total{direction="out"}': 60.0,
        'stratamq_connects_total{result="accepted",reason_code="0x00"}': 6.0,
        'stratamq_messages_received_total{qos="1"}': 3.0,
        'stratamq_messages_dropped_total{reason="slow"}': 1.0,
    },
    gauges={
        "stratamq_clients": 4.0,
        'stratamq_subscriptions{kind="ephemeral"}': 2.0,
        'stratamq_subscriptions{kind="ephemeral_shared"}': 7.0,
    },
)
STORAGE = StatsRow(
    started_at_ms=1_000,
    counters={'stratamq_storage_events_total{event="sessions_expired"}': 8.0},
    gauges={
        'stratamq_sessions{state="absent"}': 5.0,
        'stratamq_sessions{state="connected"}': 1.0,
        "stratamq_queued_messages": 20.0,
        "stratamq_retained_messages": 10.0,
        "stratamq_retained_bytes": 999.0,
        "stratamq_queued_bytes": 2_000.0,
        'stratamq_subscriptions{kind="stored"}': 3.0,
    },
)


def test_the_topics_of_mosquitto_and_no_other() -> None:
    """Edges and storage nodes together; all are numbers, as in Mosquitto. Two were null."""
    unsent = [
        SlowSubscriberRow(client_id="a", by="unsent", value=70.0),
        SlowSubscriberRow(client_id="b", by="unsent", value=30.0),
    ]
    values = tree_of([EDGE, STORAGE], 61_000, 3, unsent)
    tree = {name.removeprefix("$SYS/broker/"): value for name, value in values.items()}
    assert set(tree) == CLIENTS | STORED | BOTH | PUBLISHED | REST and len(tree) == 23
    assert all(isinstance(value, int) for value in tree.values())
    assert (tree["packet/out/count"], tree["packet/out/bytes"]) == (2, 100)
    assert (tree["clients/connected"], tree["clients/disconnected"], tree["clients/total"]) == (4, 5, 9)
    assert (tree["clients/maximum"], tree["clients/expired"]) == (4, 8)
    assert (tree["messages/stored"], tree["retained messages/count"]) == (30, 10)
    assert tree["store/messages/bytes"] == 2_999
    assert (tree["subscriptions/count"], tree["shared_subscriptions/count"]) == (5, 7)
    assert (tree["messages/received"], tree["messages/sent"], tree["bytes/sent"]) == (7, 9, 100)
    assert (tree["publish/bytes/received"], tree["publish/bytes/sent"]) == (50, 60)
    assert (tree["connections/socket/count"], tree["publish/messages/dropped"], tree["uptime"]) == (6, 1, 60)
    assert tree_of([EDGE], 61_000, 11, [])["$SYS/broker/clients/maximum"] == 11


def test_listeners_by_port_or_path() -> None:
    """A Unix socket listener has `path` instead of `port`, as in Mosquitto."""
    ws = ListenerRow(kind="ws", bind="[::1]:8083", tls=True, client_certificates=True, anonymous=False)
    assert msgspec.to_builtins(to_mosquitto_listener(ws)) == {
        "port": 8083,
        "protocol": "websockets",
        "tls": True,
        "mtls": True,
        "allow_anonymous": False,
    }
    local = to_mosquitto_listener(ListenerRow(kind="mqtt", bind="/run/stratamq/mqtt.sock", anonymous=True))
    assert msgspec.to_builtins(local)["path"] == "/run/stratamq/mqtt.sock" and local.port is None
