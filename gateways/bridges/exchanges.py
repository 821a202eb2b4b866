"""QoS 2 exchanges of a bridge between two brokers, stored so that the next process resumes them: exactly once.

Defines the rows of the spool, the writes of each change, and the state restored at start. Output is sent only after its
rows are synced; the shell owns the spool (``gateways/bridges/exactly_once.py``). Kinds of rows, keyed by side and,
except for the last, packet identifier:

  sent   a PUBLISH uses the identifier, with its source message; or PUBREC was received, and PUBREL is next
  done   a message of this side was forwarded: the answer is PUBREC, until PUBREL is received
  asked  the filters of this side's session: at 3.1.1 another SUBSCRIBE would resend retained messages

A message accepted by the sink is "released" and "done" in one commit, so no crash separates them.
Source: MQTT 5.0 section 4.3.3, PROTOCOL.md section 9.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateways.bridges.flow import BridgeFlow
from gateways.bridges.message import BridgeMessage, SinkRecord, user_properties
from gateways.bridges.mqtt_end import REASON, MqttEnd
from gateways.spool_rows import Delete, Put, Write
from mqtt import StreamDecoder, encode_packet
from mqtt.client_session import ClientSession, OpenPublish, StateChange
from mqtt.errors import MqttError
from mqtt.packets import Publish, SubscriptionRequest
from mqtt.properties import PropertyId

__all__ = ["ASKED", "DONE", "SENT", "DamagedExchangeRow", "SinkExchange", "SinkExchanges"]

SENT, DONE, ASKED = "sent", "done", "asked"
HEADER = struct.Struct(">BBHQQH")  # flags, direction, source identifier, number, at_ms, bytes of the source topic
RELEASED, DEAD_LETTER = 1, 2
DIRECTIONS = ("", "out", "in")
SIDES = {"cluster": b"c", "remote": b"r"}
SOURCES = {"out": "cluster", "in": "remote"}
ORPHAN = -1  # token of an exchange without a waiting flow


Rows = Sequence[tuple[bytes, bytes]]


class DamagedExchangeRow(ValueError):
    """A row is invalid."""


@dataclass(frozen=True, slots=True)
class SinkExchange:
    """One open exchange towards a sink, as stored in its row.

    Attributes:
      number: Increases in the order of sending.
      direction: Direction of the flow; "" for a message of no flow.
      is_dead_letter: It is published to the flow's dead letter.
      source_identifier: Packet identifier of its QoS 2 source message; 0: no source waits for an answer.
      source_topic: Topic of that message.
      at_ms: When the bridge read that message.
      packet: The sent packet; None after PUBREC.
    """

    number: int
    direction: str = ""
    is_dead_letter: bool = False
    source_identifier: int = 0
    source_topic: str = ""
    at_ms: int = 0
    packet: Publish | None = None

    def encode(self) -> bytes:
        """Return the value of its row."""
        flags = (0 if self.packet else RELEASED) | (DEAD_LETTER if self.is_dead_letter else 0)
        topic = self.source_topic.encode()
        direction = DIRECTIONS.index(self.direction)
        head = HEADER.pack(flags, direction, self.source_identifier, self.number, self.at_ms, len(topic))
        return head + topic + (encode_packet(self.packet, 5) if self.packet else b"")

    @classmethod
    def decode(cls, value: bytes) -> SinkExchange:
        """Return the exchange of a row.

        Raises:
          DamagedExchangeRow: The row is invalid.
        """
        try:
            flags, direction, source_identifier, number, at_ms, size = HEADER.unpack_from(value)
            topic = value[HEADER.size : HEADER.size + size].decode()
            packet = None
            if not flags & RELEASED:
                (found,) = StreamDecoder(5).feed(value[HEADER.size + size :])
                if not isinstance(found, Publish) or found.qos != 2:
                    raise DamagedExchangeRow("no PUBLISH of QoS 2")
                packet = found
            is_dead_letter = bool(flags & DEAD_LETTER)
            return cls(number, DIRECTIONS[direction], is_dead_letter, source_identifier, topic, at_ms, packet)
        except (struct.error, UnicodeDecodeError, IndexError, ValueError, MqttError) as error:
            raise DamagedExchangeRow(str(error)) from None


class SinkExchanges:
    """All exchanges of one bridge.

    Args:
      ends, sessions: By side, "cluster" and "remote".
      flows: Flows of the bridge.
      name: Name of the bridge in ``bridge-path``.
    """

    def __init__(
        self,
        ends: Mapping[str, MqttEnd],
        sessions: Mapping[str, ClientSession],
        flows: Sequence[BridgeFlow],
        name: str = "",
    ) -> None:
        self._ends, self._sessions, self._name = ends, sessions, name
        self._flows = {flow.direction: flow for flow in flows}
        self._sent: dict[tuple[str, int], SinkExchange] = {}
        self._done: set[tuple[str, int]] = set()
        self._next_number = 0
        self._filters_by_side: dict[str, bytes] = {}
        self._writes: list[Write] = []
        self._held: list[Callable[[], None]] = []  # output held for those writes, of both sides in order
        self._held_for_commit: list[Callable[[], None]] = []  # output held for the commit in progress
        self._is_committing = False
        self.waker: Callable[[], None] = lambda: None  # called when writes are pending

    # Order of commits and output

    def keep(self, side: str, changes: Sequence[StateChange], then: Callable[[], None]) -> None:
        """Record changes of a side's session; ``then`` releases the output that depends on them; see
        ``client.Keep``.
        """
        self._record_changes(side, changes)
        self._held.append(then)
        if self._writes or self._is_committing:
            self.waker()
        else:
            self._release(self._held)

    def begin_commit(self) -> list[Write]:
        """Return the writes of the next commit, of both sides; empty if there are none."""
        assert not self._is_committing
        writes, self._writes = self._writes, []
        self._is_committing = bool(writes)
        if writes:
            self._held_for_commit, self._held = self._held, []
        return writes

    def committed(self) -> None:
        """Release the output held for the commit that is now on disk."""
        self._is_committing = False
        self._release(self._held_for_commit)
        if not self._writes:
            self._release(self._held)

    def _release(self, waiting: list[Callable[[], None]]) -> None:
        calls = list(waiting)
        waiting.clear()
        for call in calls:
            call()

    # Changes

    def record_filters(self, side: str, filters: Sequence[SubscriptionRequest]) -> None:
        """Store the filters of a side's session."""
        if not self.has_filters(side, filters):
            self._filters_by_side[side] = _filters(filters)
            self._writes.append(Put(ASKED, SIDES[side], self._filters_by_side[side]))
            self.waker()

    def has_filters(self, side: str, filters: Sequence[SubscriptionRequest]) -> bool:
        """Whether a side's session has exactly these filters."""
        return self._filters_by_side.get(side) == _filters(filters)

    def _record_changes(self, side: str, changes: Sequence[StateChange]) -> None:
        """Record the changes of a side's session."""
        for change in changes:
            identifier = change.identifier
            match change.kind:
                case "sent":
                    self._record_sent(side, identifier, change.token)
                case "released":
                    if (side, identifier) in self._sent:
                        self._put_sent(side, identifier, SinkExchange(self._sent[side, identifier].number))
                case "ended":
                    if self._sent.pop((side, identifier), None) is not None:
                        self._writes.append(Delete(SENT, _key(side, identifier)))
                case "taken":
                    self.finished(side, identifier)
                case "finished":
                    if (side, identifier) in self._done:
                        self._done.discard((side, identifier))
                        self._writes.append(Delete(DONE, _key(side, identifier)))
                case "forgotten":
                    self._forget_session(side)

    def finished(self, side: str, identifier: int) -> None:
        """Record that a QoS 2 message of a side was forwarded: it must not be forwarded again."""
        if (side, identifier) not in self._done:
            self._done.add((side, identifier))
            self._writes.append(Put(DONE, _key(side, identifier), b""))
            self.waker()

    def _record_sent(self, side: str, identifier: int, token: int) -> None:
        publish = self._sessions[side].outbound.get(identifier)
        if publish is None or publish.packet.qos != 2:
            return  # a broker stores no QoS 1 state: the identifier may be reused at once
        exchange = SinkExchange(self._next_number, packet=publish.packet, source_topic=publish.packet.topic_name)
        self._next_number += 1
        publisher, inner = self._ends[side].get_publisher(token)
        flow = publisher.flow
        if flow is not None:
            reference, message = flow.pump.get_origin(inner)
            source = self._ends[SOURCES[flow.direction]].get_unacknowledged(reference)
            exchange = replace(
                exchange,
                direction=flow.direction,
                is_dead_letter=publisher.is_dead_letter,
                source_identifier=source.packet_identifier or 0 if source is not None and source.qos == 2 else 0,
                source_topic=message.topic,
                at_ms=message.at_ms,
            )
        self._put_sent(side, identifier, exchange)

    def _put_sent(self, side: str, identifier: int, exchange: SinkExchange) -> None:
        self._sent[side, identifier] = exchange
        self._writes.append(Put(SENT, _key(side, identifier), exchange.encode()))

    def _forget_session(self, side: str) -> None:
        """Delete the rows of a session that its broker has lost; its identifiers will be reused."""
        if self._filters_by_side.pop(side, None) is not None:
            self._writes.append(Delete(ASKED, SIDES[side]))
        for place in [each for each in self._sent if each[0] == side]:
            del self._sent[place]
            self._writes.append(Delete(SENT, _key(*place)))
        for place in sorted(each for each in self._done if each[0] == side):
            self._done.discard(place)
            self._writes.append(Delete(DONE, _key(*place)))
        for (other, identifier), exchange in list(self._sent.items()):
            if exchange.source_identifier and SOURCES[exchange.direction] == side:
                self._put_sent(other, identifier, replace(exchange, source_identifier=0))

    # Start

    def restore(self, sent: Rows, done: Rows, filters: Rows) -> int:
        """Restore sessions, ends and flows from the rows; return the number of resumed exchanges.

        Raises:
          DamagedExchangeRow: A row is invalid.
        """
        self._done = {_parse_key(key) for key, _ in done}
        self._filters_by_side = {
            side: value for key, value in filters for side, letter in SIDES.items() if key == letter
        }
        rows = sorted(
            ((_parse_key(key), SinkExchange.decode(value)) for key, value in sent), key=lambda row: row[1].number
        )
        opened: dict[str, dict[int, OpenPublish]] = {side: {} for side in self._ends}
        held: dict[str, list[Publish]] = {side: [] for side in self._ends}
        for (side, identifier), exchange in rows:
            self._sent[side, identifier] = exchange
            self._next_number = exchange.number + 1
            packet = exchange.packet
            if packet is None:
                released = Publish("", b"", 2, packet_identifier=identifier)
                opened[side][identifier] = OpenPublish(ORPHAN, released, released=True)
            else:
                packet.packet_identifier = identifier
                opened[side][identifier] = OpenPublish(self._restore_exchange(side, exchange, packet, held), packet)
        for side, session in self._sessions.items():
            session.restore(opened[side], [identifier for where, identifier in self._done if where == side], held[side])
        return len(rows)

    def _restore_exchange(
        self, side: str, exchange: SinkExchange, packet: Publish, held: dict[str, list[Publish]]
    ) -> int:
        """Return an open exchange to its flow; return its token in the session."""
        flow = self._flows.get(exchange.direction)
        if flow is None:
            return ORPHAN  # the configuration no longer has this direction
        source, reference = SOURCES[exchange.direction], 0
        end = self._ends[source]
        origin: Publish | None = None
        if exchange.source_identifier:
            origin = Publish(exchange.source_topic, packet.payload, 2, packet_identifier=exchange.source_identifier)
            held[source].append(origin)
        reference = end.register(origin)
        message = BridgeMessage(
            exchange.source_topic,
            packet.payload,
            2,
            packet.retain,
            self._original_properties(packet),
            at_ms=exchange.at_ms,
        )
        target = exchange.source_topic if exchange.is_dead_letter else packet.topic_name
        record = SinkRecord(target, packet.payload, target, message, None, 2, packet.retain)
        reason = ""
        if exchange.is_dead_letter:
            reason = dict(user_properties(packet.properties)).get(REASON, "rejected")
            message.properties = {}
        return self._ends[side].get_token(
            flow, flow.restore(reference, message, record, reason), exchange.is_dead_letter
        )

    def _original_properties(self, packet: Publish) -> dict[int, object]:
        """Return the properties without this bridge's entry in ``bridge-path``: a retry adds it again."""
        properties = dict(packet.properties)
        users = []
        for name, value in user_properties(packet.properties):
            if name == "bridge-path" and value.split(",")[-1] == self._name:
                value = value.rpartition(",")[0]
            if name != "bridge-path" or value:
                users.append((name, value))
        properties.pop(PropertyId.USER_PROPERTY, None)
        if users:
            properties[PropertyId.USER_PROPERTY] = users
        return properties


def _filters(filters: Sequence[SubscriptionRequest]) -> bytes:
    return "\n".join(f"{each.qos} {each.topic_filter}" for each in filters).encode()


def _key(side: str, identifier: int) -> bytes:
    return SIDES[side] + identifier.to_bytes(2, "big")


def _parse_key(key: bytes) -> tuple[str, int]:
    for side, letter in SIDES.items():
        if key[:1] == letter and len(key) == 3:
            return side, int.from_bytes(key[1:], "big")
    raise DamagedExchangeRow(f"key {key.hex()}")
