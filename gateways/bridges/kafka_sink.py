"""Kafka as a sink: acks of all replicas, idempotent, by librdkafka.

The library sends and retries in threads of its own, and keeps the order of a partition. The event loop polls for
delivery reports and handles those of one poll together. ``murmur2_random`` partitions keys as Java's producers do.
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
OPEN_POLL_S = 0.005  # while records are in flight
REQUEST_S = 5.0  # timeout of metadata requests
RECHECK_S = 1.0
HEADERS = {PropertyId.CONTENT_TYPE: "content-type", PropertyId.RESPONSE_TOPIC: "response-topic"}


def build_kafka_sink(name: str, settings: KafkaSink, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from the cluster to Kafka.

    Raises:
      UserError: A configuration error, or the library is missing.
    """
    del gateway
    library = kafka_library(name)
    for number, each in enumerate(settings.map, 1):
        if not each.topic:
            raise UserError(f"bridge.{name}.map {number}: topic is missing", ExitCode.USAGE)
    options: dict[str, Any] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        # The library's default gives up after 5 minutes; 0 means no limit.
        "message.timeout.ms": int(settings.give_up_s * 1000),
        "queue.buffering.max.messages": settings.window_messages * 2,
        "queue.buffering.max.kbytes": max(1024, settings.window_bytes * 2 // 1024),
        **kafka_settings(f"bridge.{name}", settings.brokers, settings.kafka),
    }
    topics = sorted({each.topic for each in settings.map if "{" not in each.topic})
    try:
        library.Producer({**options, **SILENT})  # validates the settings
    except (library.KafkaException, ValueError, TypeError) as error:
        raise UserError(f"bridge.{name}.kafka: {_error_text(error)}", ExitCode.USAGE) from None
    return build_sink(name, settings, True, lambda flow: KafkaProducer(library, options, topics, flow))


class KafkaProducer:
    """Sink of one flow, and one side of its bridge."""

    name = "kafka"

    def __init__(self, library: Any, options: Mapping[str, Any], topics: Sequence[str], flow: BridgeFlow) -> None:
        self.is_up = False
        self.reason = "not connected yet"
        self._library, self._options, self._topics, self._flow = library, dict(options), topics, flow
        self._reporter = ErrorReporter(library)
        self._producer: Any = None
        self._reports: list[tuple[int, Any]] = []  # delivery reports of the present poll
        self._sent = trio.Event()
        self._errors = {getattr(library.KafkaError, name): reason for name, reason in REJECTIONS.items()}
        self._open: set[int] = set()
        self._full = False

    @property
    def has_capacity(self) -> bool:
        """Whether the library accepts one more record."""
        return self._producer is not None and not self._full

    def send(self, sending: SinkDelivery) -> None:
        """Pass a record to the library."""
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
            self._handle_error(token, error.args[0])
        except (TypeError, ValueError) as error:
            self._flow.reject(token, "record_invalid", str(error))
        else:
            self._open.add(token)
            self._sent.set()

    async def run(self) -> None:
        """Poll delivery reports, and check the brokers while they are down, until cancelled."""
        self._producer = self._library.Producer({**self._options, "error_cb": self._failed})
        self._flow.step()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._poll)
            while True:
                if not self.is_up:
                    await trio.to_thread.run_sync(self._check_brokers, abandon_on_cancel=True)
                await trio.sleep(RECHECK_S)

    async def _poll(self) -> None:
        """Poll the library, often while records are in flight; a polling thread would compete for the GIL."""
        while True:
            self._producer.poll(0)
            self._drain()
            if self._open or self._full:
                await trio.sleep(OPEN_POLL_S)
            else:
                self._sent = trio.Event()
                with trio.move_on_after(POLL_S):
                    await self._sent.wait()

    def _check_brokers(self) -> None:
        try:
            self._producer.list_topics(timeout=REQUEST_S)
        except self._library.KafkaException as error:
            self._set_state(False, self._reporter.with_cause(_error_text(error)))
        else:
            self._reporter.clear()
            self._set_state(True, "")

    def _set_state(self, is_up: bool, reason: str) -> None:
        """Set the state of the brokers, from any thread."""
        self.is_up, self.reason = is_up, reason

    def _failed(self, error: Any) -> None:
        """Handle an error that concerns no single record."""
        self._reporter.record(error)
        if error.code() == self._library.KafkaError._ALL_BROKERS_DOWN:
            self._set_state(False, self._reporter.with_cause("all brokers are down"))
        elif error.fatal():
            self._set_state(False, f"fatal producer error: {error.str()}")

    def _delivered(self, token: int, error: Any, _message: Any) -> None:
        """Record a delivery report."""
        self._reports.append((token, error))

    def _drain(self) -> None:
        """Handle delivery reports."""
        reports, self._reports = self._reports, []
        if not reports:
            return
        self._full = False
        self._open.difference_update(token for token, _ in reports)
        done = [token for token, error in reports if error is None]
        failed = [(token, error) for token, error in reports if error is not None]
        if done:
            self.is_up, self.reason = True, ""
            self._flow.all_done(done)
        for token, error in failed:
            self._handle_error(token, error)
        if any(error.fatal() for _, error in failed):
            self._replace_producer()

    def _handle_error(self, token: int, error: Any) -> None:
        reason = self._errors.get(error.code())
        if reason is None:
            self._flow.retry(token, error.str())
        else:
            self._flow.reject(token, reason, error.str())

    def _replace_producer(self) -> None:
        """Replace the producer after a fatal error (idempotence lost)."""
        tokens, self._open = sorted(self._open), set()
        self._producer = self._library.Producer({**self._options, "error_cb": self._failed})
        for token in tokens:
            self._flow.retry(token, "the producer was replaced", reason="producer_fatal", after_s=0.0)

    async def check(self) -> list[BridgeFinding]:
        """Check the topics of the rules."""
        return await trio.to_thread.run_sync(self._check, abandon_on_cancel=True)

    def _check(self) -> list[BridgeFinding]:
        where = f"kafka {self._options['bootstrap.servers']}"
        reporter = ErrorReporter(self._library, is_check=True)
        admin = self._library.Producer({**self._options, **SILENT, "error_cb": reporter.record})
        try:
            found = [admin.list_topics(topic, timeout=REQUEST_S).topics[topic] for topic in self._topics]
            count = len(admin.list_topics(timeout=REQUEST_S).brokers)
        except self._library.KafkaException as error:
            admin.poll(0)  # calls ``error_cb``
            return [BridgeFinding(False, where, reporter.with_cause(_error_text(error)))]
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


def _error_text(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return str(found.str() if hasattr(found, "str") else found)
