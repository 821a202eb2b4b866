"""Kafka as a sink: records with acks of all replicas, idempotent, by librdkafka.

The library sends and tries again in threads of its own, and keeps the order of a partition; the loop polls for its
verdicts, and takes those of one poll together. ``murmur2_random`` puts a key where Java's producers put it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio

from conf.bridge_settings import GatewaySettings, KafkaSink
from conf.errors import ExitCode, UserError
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.kafka_library import SILENT, ErrorReporter, kafka_library, kafka_settings
from gateways.bridges.map_bridge import build_sink
from gateways.bridges.message import user_properties
from gateways.bridges.pump import SinkDelivery
from gateways.bridges.running import Bridge, BridgeFinding
from mqtt.properties import PropertyId

__all__ = ["KafkaProducer", "build_kafka_sink"]

POLL_S = 0.1
OPEN_POLL_S = 0.005  # while records are open
LOOK_S = 5.0  # for the brokers to answer, at start and when all were down
AWAY_LOOK_S = 1.0
HEADERS = {PropertyId.CONTENT_TYPE: "content-type", PropertyId.RESPONSE_TOPIC: "response-topic"}


def build_kafka_sink(name: str, settings: KafkaSink, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from the cluster to Kafka.

    Raises:
        UserError: A mistake of the configuration, or the library is missing.
    """
    del gateway
    library = kafka_library(name)
    for number, each in enumerate(settings.map, 1):
        if not each.topic:
            raise UserError(f"bridge.{name}.map {number}: topic is missing", ExitCode.USAGE)
    told: dict[str, Any] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        # The library's own bound would give up after 5 minutes; 0 is for ever.
        "message.timeout.ms": int(settings.give_up_s * 1000),
        "queue.buffering.max.messages": settings.window_messages * 2,
        "queue.buffering.max.kbytes": max(1024, settings.window_bytes * 2 // 1024),
        **kafka_settings(f"bridge.{name}", settings.brokers, settings.kafka),
    }
    topics = sorted({each.topic for each in settings.map if "{" not in each.topic})
    try:
        library.Producer({**told, **SILENT})  # judges the settings, and is discarded
    except (library.KafkaException, ValueError, TypeError) as error:
        raise UserError(f"bridge.{name}.kafka: {_words(error)}", ExitCode.USAGE) from None
    return build_sink(name, settings, True, lambda flow: KafkaProducer(library, told, topics, flow))


class KafkaProducer:
    """Sink of one flow, and one side of its bridge."""

    name = "kafka"

    def __init__(self, library: Any, told: Mapping[str, Any], topics: Sequence[str], flow: BridgeFlow) -> None:
        self.is_up = False
        self.reason = "not connected yet"
        self._library, self._told, self._topics, self._flow = library, dict(told), topics, flow
        self._complaints = ErrorReporter(library)
        self._producer: Any = None
        self._verdicts: list[tuple[int, Any]] = []  # of the present poll
        self._sent = trio.Event()
        self._errors = {getattr(library.KafkaError, name): reason for name, reason in REJECTIONS.items()}
        self._open: set[int] = set()
        self._full = False

    @property
    def has_room(self) -> bool:
        """Whether the library takes one more record."""
        return self._producer is not None and not self._full

    def send(self, sending: SinkDelivery) -> None:
        """Give a record to the library."""
        record, token = sending.record, sending.token
        try:
            self._producer.produce(
                record.target,
                record.payload,
                key=record.key,
                headers=_headers(sending),
                on_delivery=partial(self._delivered, token),
            )
        except BufferError:
            self._full = True
            self._flow.retry(token, "librdkafka's queue is full", reason="queue_full", after_s=POLL_S)
        except self._library.KafkaException as error:
            self._judge(token, error.args[0])
        except (TypeError, ValueError) as error:
            self._flow.reject(token, "record_invalid", str(error))
        else:
            self._open.add(token)
            self._sent.set()

    async def run(self) -> None:
        """Poll the library's verdicts, and look whether brokers are there, for ever."""
        self._producer = self._library.Producer({**self._told, "error_cb": self._failed})
        self._flow.step()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._poll)
            while True:
                if not self.is_up:
                    await trio.to_thread.run_sync(self._look, abandon_on_cancel=True)
                await trio.sleep(AWAY_LOOK_S)

    async def _poll(self) -> None:
        """Hear the library: often while records are open, for a thread of its own would fight for the interpreter."""
        while True:
            self._producer.poll(0)
            self._drain()
            if self._open or self._full:
                await trio.sleep(OPEN_POLL_S)
            else:
                self._sent = trio.Event()
                with trio.move_on_after(POLL_S):
                    await self._sent.wait()

    def _look(self) -> None:
        try:
            self._producer.list_topics(timeout=LOOK_S)
        except self._library.KafkaException as error:
            self._tell(False, self._complaints.add_to(_words(error)))
        else:
            self._complaints.forget()
            self._tell(True, "")

    def _tell(self, is_up: bool, reason: str) -> None:
        """Note the state of the brokers, from any thread."""
        self.is_up, self.reason = is_up, reason

    def _failed(self, error: Any) -> None:
        """Hear an error that concerns no single record."""
        self._complaints.hear(error)
        if error.code() == self._library.KafkaError._ALL_BROKERS_DOWN:
            self._tell(False, self._complaints.add_to("all brokers are down"))
        elif error.fatal():
            self._tell(False, f"the producer cannot go on: {error.str()}")

    def _delivered(self, token: int, error: Any, _message: Any) -> None:
        """Hear a verdict."""
        self._verdicts.append((token, error))

    def _drain(self) -> None:
        """Act on verdicts."""
        verdicts, self._verdicts = self._verdicts, []
        if not verdicts:
            return
        self._full = False
        self._open.difference_update(token for token, _ in verdicts)
        done = [token for token, error in verdicts if error is None]
        failed = [(token, error) for token, error in verdicts if error is not None]
        if done:
            self.is_up, self.reason = True, ""
            self._flow.all_done(done)
        for token, error in failed:
            self._judge(token, error)
        if any(error.fatal() for _, error in failed):
            self._begin_anew()

    def _judge(self, token: int, error: Any) -> None:
        reason = self._errors.get(error.code())
        if reason is None:
            self._flow.retry(token, error.str())
        else:
            self._flow.reject(token, reason, error.str())

    def _begin_anew(self) -> None:
        """Make another producer after an error that ends the present one (idempotence lost)."""
        tokens, self._open = sorted(self._open), set()
        self._producer = self._library.Producer({**self._told, "error_cb": self._failed})
        for token in tokens:
            self._flow.retry(token, "the producer began anew", reason="producer_fatal", after_s=0.0)

    async def check(self) -> list[BridgeFinding]:
        """Ask for the topics of the rules."""
        return await trio.to_thread.run_sync(self._check, abandon_on_cancel=True)

    def _check(self) -> list[BridgeFinding]:
        where = f"kafka {self._told['bootstrap.servers']}"
        complaints = ErrorReporter(self._library, looks=True)
        admin = self._library.Producer({**self._told, **SILENT, "error_cb": complaints.hear})
        try:
            found = [admin.list_topics(topic, timeout=LOOK_S).topics[topic] for topic in self._topics]
            count = len(admin.list_topics(timeout=LOOK_S).brokers)
        except self._library.KafkaException as error:
            admin.poll(0)  # for its complaints
            return [BridgeFinding(False, where, complaints.add_to(_words(error)))]
        findings = [BridgeFinding(True, where, f"{count} brokers")]
        for topic in found:
            text = f"{len(topic.partitions)} partitions" if topic.error is None else topic.error.str()
            findings.append(BridgeFinding(topic.error is None, f"{where} {topic.topic}", text))
        return findings


REJECTIONS = {
    "MSG_SIZE_TOO_LARGE": "too_large",
    "INVALID_MSG": "record_invalid",
    "INVALID_RECORD": "record_invalid",
    "UNKNOWN_TOPIC_OR_PART": "unknown_topic",
    "_UNKNOWN_TOPIC": "unknown_topic",
    "_UNKNOWN_PARTITION": "unknown_topic",
    "TOPIC_EXCEPTION": "topic_invalid",
    "TOPIC_AUTHORIZATION_FAILED": "not_authorized",
    "CLUSTER_AUTHORIZATION_FAILED": "not_authorized",
    "_MSG_TIMED_OUT": "gave_up",
}


def _headers(sending: SinkDelivery) -> list[tuple[str, bytes]]:
    record = sending.record
    message = record.message
    headers = [
        ("mqtt-topic", message.topic.encode()),
        ("mqtt-qos", b"%d" % message.qos),
        ("mqtt-retain", b"1" if message.retain else b"0"),
    ]
    if message.reference:
        headers.append(("stratamq-ref", message.reference.encode()))
    if message.properties:
        for identifier, name in HEADERS.items():
            value = message.properties.get(identifier)
            if isinstance(value, str):
                headers.append((name, value.encode()))
        correlation = message.properties.get(PropertyId.CORRELATION_DATA)
        if isinstance(correlation, bytes):
            headers.append(("correlation-data", correlation))
        headers += [(f"u-{name}", value.encode()) for name, value in user_properties(message.properties)]
    return headers + [(name, value.encode()) for name, value in record.headers.items()]


def _words(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return str(found.str() if hasattr(found, "str") else found)
