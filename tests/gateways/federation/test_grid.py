"""Real Mosquittos, one agent beside each: publish anywhere, subscribe anywhere, once; the grid of three by three."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateways.federation.real_federation import (
    GRID,
    INSTALLED,
    Federation,
    Publisher,
    Subscriber,
    running,
)

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed")

NAMES = [str(number) for number in range(1, 10)]
OURS = {"hello_s": 1.0, "announce_s": 5.0, "redundancy": 2}


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_two_brokers(tmp_path: Path) -> None:
    """What is published at one is delivered at the other, once."""
    federation = Federation(tmp_path, ["a", "b"], [("a", "b")])
    with running(federation):
        federation.wait_overlay()
        subscriber = Subscriber(federation.sites["b"].broker_port, "sub", "plant/#")
        federation.wait_members("plant/x", {"b"})
        publisher = Publisher(federation.sites["a"].broker_port, "pub")
        for payload in payloads(100):
            publisher.publish("plant/x", payload)
        federation.wait_delivered(publisher, [subscriber], 100)
        assert set(subscriber.payloads.values()) == {1}
        subscriber.close()
        publisher.close()


def test_grid_of_nine(tmp_path: Path) -> None:
    """The predecessor's grid: subscribers at 3 and 8, publisher at 7; each message reaches both, once."""
    federation = Federation(tmp_path, NAMES, GRID, OURS)
    with running(federation):
        federation.wait_overlay()
        subscribers = [Subscriber(federation.sites[name].broker_port, f"sub-{name}", "plant/#") for name in ("3", "8")]
        federation.wait_members("plant/x", {"3", "8"})
        publisher = Publisher(federation.sites["7"].broker_port, "pub")
        for payload in payloads(200):
            publisher.publish("plant/x", payload)
        federation.wait_delivered(publisher, subscribers, 200)
        assert [set(each.payloads.values()) for each in subscribers] == [{1}, {1}]
        for subscriber in subscribers:
            assert [payload for _, payload in subscriber.at] == payloads(200)  # one origin and topic along one path
            subscriber.close()
        publisher.close()
