"""Kafka as a source: records of a consumer group, committed after all earlier records are acknowledged.

One thread polls. While the window is full it pauses the partitions and keeps polling, so that the group does not expire
it. When partitions are revoked it waits shortly for open records, commits, and unassigns.
"""

from __future__ import annotations

import importlib
import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import trio

from conf.bridge_settings import GatewaySettings, KafkaSource
from conf.errors import ExitCode, UserError
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.kafka_library import SILENT, ErrorReporter, kafka_library, kafka_settings
from gateways.bridges.map_bridge import build_source
from gateways.bridges.message import BridgeMessage, mqtt_text
from gateways.bridges.offsets import Offsets, Partition
from gateways.bridges.running import Bridge, BridgeFinding
from mqtt.properties import Properties, PropertyId

__all__ = ["KafkaConsumer", "build_kafka_source", "check_group"]

POLL_S = 0.1
BATCH = 500  # records of one poll
COMMIT_S = 1.0
COMMIT_RECORDS = 1000
UNASSIGNED_S = 10.0  # from the start, after which a group without an assigned partition is reported
REVOKE_S = 5.0  # for open records, before partitions are unassigned
STOP_S = 5.0  # for the last commit of an ending process
REQUEST_S = 5.0
HEARTBEATS_PER_SESSION = 3  # as Kafka recommends
MEMBERS_SHOWN_MAX = 3  # listed members of a group
CONSUMER_ONLY = (
    "group.id",
    "group.instance.id",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "partition.assignment.strategy",
    "queued.max.messages.kbytes",
)
FULL_POLL_S = 0.02  # poll interval while the window is full
FIELDS = {"key": lambda message: (message.key or b"").decode(errors="replace")}


def build_kafka_source(name: str, settings: KafkaSource, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from Kafka to the cluster.

    Raises:
      UserError: A configuration error, or the library is missing.
    """
    library = kafka_library(name)
    for number, each in enumerate(settings.map, 1):
        if not each.topic:
            raise UserError(f"bridge.{name}.map {number}: topic is missing", ExitCode.USAGE)
    options = {
        "group.id": settings.consumer_group,
        "group.instance.id": f"{gateway.id}-{name}",
        "client.id": settings.client_id,
        "session.timeout.ms": round(settings.session_timeout_s * 1000),
        "heartbeat.interval.ms": round(settings.session_timeout_s * 1000 / HEARTBEATS_PER_SESSION),
        "auto.offset.reset": settings.begin,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "partition.assignment.strategy": "cooperative-sticky",
        "queued.max.messages.kbytes": max(1024, settings.window_bytes // 1024),
        **kafka_settings(f"bridge.{name}", settings.brokers, settings.kafka),
    }
    topics = sorted({each.filter for each in settings.map})
    try:
        library.Consumer({**options, **SILENT}).close()  # validates the settings
    except (library.KafkaException, ValueError, TypeError) as error:
        raise UserError(f"bridge.{name}.kafka: {error}", ExitCode.USAGE) from None
    return build_source(name, settings, lambda flow: KafkaConsumer(library, options, topics, flow), FIELDS)


class KafkaConsumer:
    """Source of one flow, and one side of its bridge."""

    name = "kafka"

    def __init__(self, library: Any, options: Mapping[str, Any], topics: list[str], flow: BridgeFlow) -> None:
        self.is_up = False
        self.reason = "not connected yet"
        self._library, self._options, self._topics, self._flow = library, dict(options), topics, flow
        self._reporter = ErrorReporter(library)
        self._lock = threading.Lock()
        self._offsets = Offsets()
        self._references: dict[int, tuple[Partition, int]] = {}
        self._numbers = itertools.count()
        self._stopping, self._delivered, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._paused = False
        self._fatal = ""  # set by a fatal error: this consumer reads no more records

    def finish(self, reference: int) -> None:
        """Record that the cluster has acknowledged a record."""
        with self._lock:
            partition, offset = self._references.pop(reference)
            self._offsets.finish(partition, offset)

    async def run(self) -> None:
        """Read records until cancelled; at the end acknowledged offsets are committed within STOP_S."""
        try:
            await trio.to_thread.run_sync(self._consume, trio.lowlevel.current_trio_token(), abandon_on_cancel=True)
        finally:
            self._stopping.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._ended.wait, STOP_S)

    def _consume(self, token: trio.lowlevel.TrioToken) -> None:
        try:
            self._poll(token)
        finally:
            self._ended.set()

    def _poll(self, token: trio.lowlevel.TrioToken) -> None:
        consumer = self._library.Consumer({**self._options, "error_cb": self._failed, "on_commit": self._on_commit})
        consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        began = committed_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                if self._fatal:
                    raise UserError(self._fatal)
                self._pause(consumer, not self._flow.has_capacity)
                records = consumer.consume(1 if self._paused else BATCH, POLL_S if not self._paused else FULL_POLL_S)
                good = [record for record in records if self._check_record(record)]
                with self._lock:
                    taken = [(self._number(record), record) for record in good if self._is_assigned(record)]
                if taken:
                    self._delivered.clear()
                    self._call_in_loop(token, partial(self._deliver, taken))
                    while not self._delivered.wait(POLL_S) and not self._stopping.is_set():
                        pass  # the loop is busy: no further batch
                with self._lock:
                    many = self._offsets.finished_since >= COMMIT_RECORDS
                if not self.is_up and not consumer.assignment() and time.monotonic() - began > UNASSIGNED_S:
                    group = self._options["group.id"]
                    text = f"group {group} assigns no partition to this bridge: check whether another program uses it"
                    self.reason = self._reporter.with_cause(text)
                if many or time.monotonic() - committed_at >= COMMIT_S:
                    self._commit(consumer, asynchronous=True)
                    committed_at = time.monotonic()
        finally:
            consumer.close()  # calls ``_revoked``, which commits

    @staticmethod
    def _call_in_loop(token: trio.lowlevel.TrioToken, call: Any) -> None:
        try:
            token.run_sync_soon(call)
        except trio.RunFinishedError:
            pass  # not committed: another process reads it again

    def _is_assigned(self, record: Any) -> bool:
        """Return whether a record's partition is still assigned after the call that read it."""
        return self._offsets.is_assigned((record.topic(), record.partition()))

    def _number(self, record: Any) -> int:
        partition = (record.topic(), record.partition())
        number = next(self._numbers)
        self._offsets.read(partition, record.offset())
        self._references[number] = (partition, record.offset())
        return number

    def _deliver(self, taken: list[tuple[int, Any]]) -> None:
        """Pass records to the flow, in the event loop; one batch may exceed the window."""
        self.is_up, self.reason = True, ""
        for number, record in taken:
            self._flow.take(number, _message(record))
        self._delivered.set()

    def _check_record(self, record: Any) -> bool:
        """Record an error in place of a record; return whether there is a record."""
        error = record.error()
        if error is not None:
            self.is_up, self.reason = False, error.str()
        return error is None

    def _pause(self, consumer: Any, wanted: bool) -> None:
        if wanted != self._paused:
            assigned = consumer.assignment()
            (consumer.pause if wanted else consumer.resume)(assigned)
            self._paused = wanted

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        with self._lock:
            for each in partitions:
                self._offsets.assign((each.topic, each.partition))
        consumer.incremental_assign(partitions)
        if self._paused:
            consumer.pause(partitions)
        self.is_up, self.reason = True, ""

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        """Unassign partitions after a wait for open records and a commit."""
        names = [(each.topic, each.partition) for each in partitions]
        until = time.monotonic() + (REVOKE_S if not self._stopping.is_set() else 0.0)
        while time.monotonic() < until:
            with self._lock:
                if not any(self._offsets.open_records(name) for name in names):
                    break
            time.sleep(FULL_POLL_S)
        self._commit(consumer, asynchronous=False)
        self._lost(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[Any]) -> None:
        """Remove partitions that other consumers may read already, without a commit."""
        with self._lock:
            for each in partitions:
                self._offsets.revoke((each.topic, each.partition))
        consumer.incremental_unassign(partitions)

    def _commit(self, consumer: Any, *, asynchronous: bool) -> None:
        with self._lock:
            moved = self._offsets.to_commit()
        if not moved:
            return
        make = self._library.TopicPartition
        offsets = [make(topic, number, offset) for (topic, number), offset in moved.items()]
        try:
            self._on_commit(None, consumer.commit(offsets=offsets, asynchronous=asynchronous) or ())
        except self._library.KafkaException as error:
            self.reason = f"commit: {error}"  # the records are read again

    def _on_commit(self, error: Any, offsets: Iterable[Any]) -> None:
        """Record the committed offsets; failed ones, as during a rebalance, are committed again later."""
        for each in offsets:
            wrong = each.error or error
            if wrong is not None:
                self.reason = f"commit: {wrong.str()}"
            else:
                with self._lock:
                    self._offsets.committed({(each.topic, each.partition): each.offset})

    def _failed(self, error: Any) -> None:
        self._reporter.record(error)
        if error.fatal():
            member = self._options.get("group.instance.id", "")
            fenced = error.code() == self._library.KafkaError.FENCED_INSTANCE_ID
            why = f"another process joined as {member}: set another gateway.id there" if fenced else error.str()
            self._fatal = f"kafka group {self._options['group.id']}: {why}"
        if error.code() == self._library.KafkaError._ALL_BROKERS_DOWN:
            self.is_up, self.reason = False, self._reporter.with_cause("all brokers are down")

    async def check(self) -> list[BridgeFinding]:
        """Check the topics and the members of the group, without joining it."""
        return await trio.to_thread.run_sync(self._check, abandon_on_cancel=True)

    def _check(self) -> list[BridgeFinding]:
        where, reporter = f"kafka {self._options['bootstrap.servers']}", ErrorReporter(self._library, is_check=True)
        consumer = self._library.Consumer({**self._options, **SILENT, "error_cb": reporter.record})
        try:
            found = [consumer.list_topics(topic, timeout=REQUEST_S).topics[topic] for topic in self._topics]
        except self._library.KafkaException as error:
            consumer.consume(1, 0.0)  # calls ``error_cb``
            return [BridgeFinding(False, where, reporter.with_cause(str(error)))]
        finally:
            consumer.close()
        findings = [
            BridgeFinding(
                each.error is None,
                f"{where} {each.topic}",
                f"{len(each.partitions)} partitions" if each.error is None else each.error.str(),
            )
            for each in found
        ]
        return [*findings, *self._check_group(f"{where} group {self._options['group.id']}")]

    def _check_group(self, where: str) -> list[BridgeFinding]:
        """List other members of the group: they would be assigned some of its partitions."""
        group, own = self._options["group.id"], self._options["client.id"]
        shared = {key: value for key, value in self._options.items() if key not in CONSUMER_ONLY} | SILENT
        admin = importlib.import_module("confluent_kafka.admin").AdminClient(shared)
        try:
            described = admin.describe_consumer_groups([group], request_timeout=REQUEST_S)[group].result(REQUEST_S)
        except (self._library.KafkaException, TimeoutError):
            return []  # the server does not support this; other readers are unknown
        return [check_group(described, own, where)]


def check_group(described: Any, own: str, where: str) -> BridgeFinding:
    """Return the finding about a group that this bridge must use alone.

    Args:
      described: From the library, with ``state`` and ``members``.
      own: Client ID of the bridge, which may be running.
      where: Heading of the finding.
    """
    others = [each for each in described.members if each.client_id != own]
    shown = ", ".join(f"{each.client_id} at {each.host}" for each in others[:MEMBERS_SHOWN_MAX])
    if others:
        return BridgeFinding(False, where, f"another program reads there: {shown}; set another consumer_group")
    if described.state.name == "STABLE" and not described.members:
        return BridgeFinding(True, where, "in use; the server does not list the members")
    return BridgeFinding(True, where, "no other program")


def _message(record: Any) -> BridgeMessage:
    users = [(mqtt_text(name.encode()), mqtt_text(value or b"")) for name, value in record.headers() or ()]
    properties: Properties = {PropertyId.USER_PROPERTY: users} if users else {}
    kind, at_ms = record.timestamp()
    reference = f"{record.topic()}:{record.partition()}:{record.offset()}"
    return BridgeMessage(
        record.topic(),
        record.value() or b"",
        2,
        False,
        properties,
        record.key(),
        reference,
        at_ms if kind else 0,
    )
