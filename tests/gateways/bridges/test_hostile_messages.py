"""Unpublishable messages, missing echoes, and rejected dead letters.

A single publisher's message must not end a bridge: it goes to the dead letter, or is counted, and the next one is sent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateways.bridges import echoes
from gateways.bridges.dead_letter_file import append_letters
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.message import BridgeMessage, SinkRecord, mqtt_text
from gateways.bridges.mqtt_end import MqttEnd, PublishingDeadLetters, PublishingSink
from gateways.bridges.pump import BridgePump, DeadLetter, PumpBounds, SinkDelivery
from gateways.bridges.rules import RuleResult
from mqtt.packets import Publish
from mqtt.properties import Properties, PropertyId
from tests.gateways.bridges.bridge_simulation import BOUNDS, SimClient
from tests.gateways.bridges.model_broker import Message, ModelBroker

DEAD = "bridge/site/rejected"


class Rig:
    """A flow that publishes at a model broker, with an end and a client as in bridges."""

    def __init__(self, *filters: str, has_no_local: bool = True, packet_bytes_max: int = 0) -> None:
        self.now = 0.0
        self.broker = ModelBroker(packet_bytes_max=packet_bytes_max)
        self.end = MqttEnd("remote", lambda: self.now, lambda: 0, filters, has_no_local=has_no_local)
        self.client = SimClient(self.broker, self.end, {}, lambda: self.now)
        self.end.client = self.client
        self.acknowledged: list[int] = []
        self.flow = BridgeFlow(
            "out",
            BridgePump(PumpBounds(), Random(1)),
            self.apply_rules,
            self.acknowledged.append,
            lambda: self.now,
            lambda: 0,
        )
        self.flow.connect(
            PublishingSink(self.end, self.flow, lambda: 0), PublishingDeadLetters(self.end, self.flow, DEAD)
        )
        self._offered = 0
        self.client.open()
        self.move()

    @staticmethod
    def apply_rules(message: BridgeMessage) -> RuleResult:
        return RuleResult([SinkRecord(message.topic, message.payload, message.topic, message, qos=message.qos)])

    def move(self) -> None:
        """Move all bytes until none is left."""
        while self.client.outgoing or self.broker.output:
            self.client.move_out(len(self.client.outgoing))
            self.client.move_in(len(self.broker.output))

    def time(self) -> float:
        """Return the time."""
        return self.now

    def reopen(self) -> None:
        """End the connection, and open the next one."""
        self.client.cut()
        self.client.open()
        self.move()

    def offer(self, topic: str, payload: bytes = b"x", properties: dict[str, object] | None = None) -> None:
        """Pass a message of the source."""
        self._offered += 1
        named: Properties = {PropertyId[name]: value for name, value in (properties or {}).items()}
        self.flow.take(self._offered, BridgeMessage(topic, payload, 1, properties=named))
        self.move()

    def record_topics(self) -> list[str]:
        """Return a list that collects the topics of messages that are no echoes."""
        topics: list[str] = []

        def apply_rules(message: BridgeMessage) -> RuleResult:
            topics.append(message.topic)
            return RuleResult(dropped="recorded")

        recording_flow = BridgeFlow(
            "in", BridgePump(PumpBounds(), Random(1)), apply_rules, lambda _: None, lambda: self.now, lambda: 0
        )
        self.end.flow = recording_flow
        return topics

    @property
    def taken(self) -> list[str]:
        """Topics of the messages that the broker accepted."""
        return [message.topic for message in self.broker.taken]


LONG = [("bridge-path", "x" * 65_535), ("a" * 65_536, "b")]


@pytest.mark.parametrize(
    ("topic", "properties", "reason"),
    [
        ("a", {"USER_PROPERTY": LONG}, "packet_invalid"),
        ("a", {"USER_PROPERTY": [("name", "two\nlines")]}, "packet_invalid"),
        ("a", {"USER_PROPERTY": [("na\0me", "value")]}, "packet_invalid"),
        ("a", {"USER_PROPERTY": [("name", "\ud800")]}, "packet_invalid"),
        ("a", {"CONTENT_TYPE": "text\x7f"}, "packet_invalid"),
        ("a", {"CORRELATION_DATA": b"x" * 65_536}, "packet_invalid"),
        ("two\nlines", {}, "topic_invalid"),
        ("a/+", {}, "topic_invalid"),
        ("", {}, "topic_invalid"),
        ("\U0001f600" * 17_000, {}, "topic_invalid"),
    ],
)
def test_end_unpublishable_message_goes_to_dead_letter(topic: str, properties: dict[str, object], reason: str) -> None:
    """If sent, it would end the connection, be resent on the next one, and block the bridge without end."""
    rig = Rig()
    rig.offer(topic, b"x", properties)
    rig.offer("next")
    assert rig.taken == [DEAD, "next"] and rig.acknowledged == [1, 2]
    assert rig.flow.pump.counts[f"rejected_{reason}"] == rig.flow.pump.counts["dead_letter"] == 1


class LimitedSink:
    """A sink with settable capacity."""

    def __init__(self) -> None:
        self.capacity = 0
        self.payloads: list[bytes] = []
        self.flow: BridgeFlow | None = None

    @property
    def has_capacity(self) -> bool:
        return self.capacity > 0

    def send(self, sending: SinkDelivery) -> None:
        assert self.flow is not None
        self.capacity -= 1
        self.payloads.append(sending.record.payload)
        self.flow.done(sending.token)


@pytest.mark.parametrize("qos", [1, 2])
def test_end_overfull_window_leaves_messages_to_broker(qos: int) -> None:
    """A 3.1.1 broker has no Receive Maximum: bytes are bounded, and the connection is kept until there is capacity.

    Then messages left at the broker are resent on the next connection: none is lost or repeated.
    """
    rig, sink = Rig(), LimitedSink()
    flow = BridgeFlow(
        "in", BridgePump(PumpBounds(size_bytes=1000), Random(1)), rig.apply_rules, rig.end.finish, rig.time, lambda: 0
    )
    sink.flow, rig.end.flow, broken = flow, flow, list[str]()
    flow.connect(sink, PublishingDeadLetters(rig.end, flow, DEAD))
    rig.client.break_off = broken.append  # type: ignore[method-assign,assignment]
    rig.client.bounds = replace(BOUNDS, window=1024)
    rig.reopen()
    rig.broker.filters["f/#"] = (2, False)
    wanted = [b"%d" % number * 50 for number in range(60)]
    for number, payload in enumerate(wanted):
        rig.broker.publish(Message(f"f/{number % 3}", payload, qos))
    rig.move()
    assert 1000 < flow.pump.open_bytes < 2500 and not broken
    connections = 0
    while len(sink.payloads) < len(wanted) and connections < 20:
        sink.capacity = 1000
        flow.step()
        rig.move()
        sink.capacity = 0
        assert broken or len(sink.payloads) == len(wanted)
        broken.clear()
        rig.reopen()
        connections += 1
    assert sink.payloads == wanted and flow.pump.counts["left_to_broker"] > connections > 1


def test_end_left_messages_are_fetched_while_others_are_open() -> None:
    """One record with endless retries does not block the others."""
    rig, sink = Rig(), LimitedSink()
    flow = BridgeFlow(
        "in", BridgePump(PumpBounds(size_bytes=1000), Random(1)), rig.apply_rules, rig.end.finish, rig.time, lambda: 0
    )
    sink.flow, rig.end.flow, broken = flow, flow, list[str]()
    flow.connect(sink, PublishingDeadLetters(rig.end, flow, DEAD))
    rig.client.break_off = broken.append  # type: ignore[method-assign,assignment]
    for number in range(50):
        rig.end.received(Publish("a", b"x" * 99, 1, packet_identifier=number + 1))
    sink.capacity = flow.pump.open_messages - 1
    flow.step()
    assert not broken and flow.pump.open_messages == 1
    rig.now += 11.0
    rig.end.writable()
    assert len(broken) == 1


@pytest.mark.parametrize("topic", [DEAD, "somewhere/else"])
def test_dead_letter_rejected_twice_is_dropped(topic: str) -> None:
    """Otherwise two bridges of all topics would forward each other's rejections in a loop."""
    rig = Rig()
    rig.offer(topic, b"x", {"USER_PROPERTY": [("rejected-reason", "not_json"), ("name", "two\nlines")]})
    rig.offer(DEAD, b"x", {"CONTENT_TYPE": "two\nlines"})
    assert rig.taken == [] and rig.acknowledged == [1, 2]
    assert rig.flow.pump.counts["dropped_rejected_twice"] == 2


def test_dead_letter_too_large_is_dropped() -> None:
    """Otherwise it would be retried without end and fill the window; the next message is sent."""
    rig = Rig(packet_bytes_max=200)
    rig.offer("a", b"x" * 201)
    rig.offer("b")
    assert rig.taken == ["b"] and rig.acknowledged == [1, 2]
    assert rig.flow.pump.counts["dropped_dead_letter_too_large"] == 1
    assert "'a', 201 bytes" in rig.flow.error.text


def test_dead_letter_file_is_bounded(tmp_path: Path) -> None:
    """Failed letters are retried: none is written in part or dropped."""
    message = BridgeMessage("a", b"x" * 100)
    letter = DeadLetter(1, SinkRecord("a", b"", "a", message), "too_large")
    path = tmp_path / "rejected.jsonl"
    append_letters(path, [letter, letter], 1000)
    size = path.stat().st_size
    with pytest.raises(OSError, match="dead_letter_bytes_max"):
        append_letters(path, [letter, letter], 1000)
    assert path.stat().st_size == size < 1000


def test_echoes_distinguish_topics_with_common_prefix() -> None:
    """A message published by the bridge to one topic differs from a device's message on another one."""
    rig = Rig("#", has_no_local=False)
    begin = "building/with/a/name/of/more/than/sixty-four/characters/in/all/of/its/levels/"
    received = rig.record_topics()
    rig.offer(f"{begin}lamp", b"on")
    rig.end.received(Publish(f"{begin}heater", b"on", 0))
    rig.end.received(Publish(f"{begin}lamp", b"on", 0))
    assert received == [f"{begin}heater"]


def test_echoes_expected_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for equal messages that are published without end, and never echoed."""
    monkeypatch.setattr(echoes, "ECHOES_MAX", 10)
    rig = Rig("#", has_no_local=False)
    for number in range(50):
        rig.offer("a", b"same" if number % 2 else b"%d" % number)
    received = rig.record_topics()
    for _ in range(12):
        rig.end.received(Publish("a", b"same"))
    assert received == ["a", "a"]  # ten were expected


def test_echoes_late_echo_is_a_message() -> None:
    rig = Rig("#", has_no_local=False)
    for _ in range(3):
        rig.offer("a", b"same")
        rig.now += 31.0
    received = rig.record_topics()
    for _ in range(3):
        rig.end.received(Publish("a", b"same"))
    assert received == ["a", "a"]  # only for the third one an echo is still expected: 60 s have passed for the others


@pytest.mark.parametrize(
    ("value", "text"), [(b"plain", "plain"), (b"two\nlines", "74776f0a6c696e6573"), (b"\xff\0", "ff00"), (b"", "")]
)
def test_text_of_other_systems(value: bytes, text: str) -> None:
    assert mqtt_text(value) == text
