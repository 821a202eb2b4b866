"""Tests a real broker over MQTT 3.1.1, as a bridge of level 0x84 and by counting echoes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.gateways.federation.real_federation import (
    Federation,
    Publisher,
    Site,
    Subscriber,
    needs_mosquitto,
    running,
    until,
)
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, needs_mosquitto]

MESSAGES = 400
PAUSE_S = 0.005


class AsBridge(Site):
    """Its agent connects with level 0x84."""

    def __init__(self, *place: object) -> None:
        super().__init__(*place)  # type: ignore[arg-type]
        self.settings = {"protocol": "3.1.1"}


class WithEchoes(Site):
    """Its agent connects as a client and counts the echoes."""

    def __init__(self, *place: object) -> None:
        super().__init__(*place)  # type: ignore[arg-type]
        self.settings = {"protocol": "3.1.1", "no_local": False}


@pytest.mark.parametrize("kind", [AsBridge, WithEchoes])
def test_filters_change_under_way(tmp_path: Path, kind: type[Site]) -> None:
    """Each message arrives once in both directions while the captured filters move between connections."""
    federation = Federation(tmp_path, ["a", "b", "c"], [("a", "b"), ("b", "c")], kinds={"a": kind})
    with running(federation):
        federation.wait_overlay()
        a, b = (federation.sites[name] for name in ("a", "b"))
        ends = [
            Subscriber(a.broker_port, "sub-a", "plant/#"),
            Subscriber(b.broker_port, "sub-b", "plant/x"),
            Subscriber(federation.sites["c"].broker_port, "sub-c", "plant/x"),
        ]
        federation.wait_members("plant/x", {"a", "b", "c"})
        publishers = [Publisher(site.broker_port, f"pub-{site.name}") for site in (a, b)]
        threads = [
            each.publish_slowly("plant/x", head, MESSAGES, PAUSE_S) for each, head in zip(publishers, "ab", strict=True)
        ]
        for number, topic_filter in enumerate(("plant/+", "plant/#", "+/x", "#")):
            other = Subscriber(b.broker_port, f"other-{number}", topic_filter)
            time.sleep(0.4)
            other.client.unsubscribe(topic_filter)
        for thread in threads:
            thread.join()
        for publisher in publishers:
            publisher.wait()
        wanted = {f"{head}-{number}".encode() for head in "ab" for number in range(MESSAGES)}
        try:
            until(lambda: all(set(each.payloads) == wanted for each in ends), PATIENCE_S, "all messages")
        finally:
            print([len(wanted - set(each.payloads)) for each in ends], a.ask("status")["counts"])
        time.sleep(1)  # for late duplicates
        assert [set(each.payloads.values()) for each in ends] == [{1}] * 3
        for end in ends:
            end.close()
        for publisher in publishers:
            publisher.close()
