"""QoS 2 exchanges of a bridge between two brokers, so that they go on in its next process: exactly once.

Decides which rows of a spool stand for them, what is written at each change, and what two sessions, two ends and the
flows between them are after a start. Nothing leaves before the rows behind it are on disk; the spool and its waiting
are the shell's (``gateways/bridges/exactly_once.py``). Kinds of rows, by side and, but for the last, packet identifier:

    sent   a PUBLISH uses the identifier, and comes from this message of the other side; or PUBREC came, PUBREL is next
    done   a message of this side was handed over: PUBREC is its answer, until PUBREL comes
    asked  the session of this side has these filters: at 3.1.1 another SUBSCRIBE would bring retained messages again

What the sink takes is "released" and "done" in one commit, so no crash separates them. Source: MQTT 5.0 section 4.3.3,
PROTOCOL.md section 9.
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
ORPHAN = -1  # token of an exchange that nobody waits for


Rows = Sequence[tuple[bytes, bytes]]


class DamagedExchangeRow(ValueError):
    """A row is none of ours."""


@dataclass(frozen=True, slots=True)
class SinkExchange:
    """One open exchange towards a sink, as its row has it.

    Attributes:
        number: Grows with the order of sending.
        direction: Of the flow; "" for a message of no flow.
        is_dead_letter: It is published for the flow's dead letter.
        source_identifier: Of the QoS 2 message that it comes from; 0: nobody waits for an answer.
        source_topic: Of that message.
        at_ms: When the bridge read that.
        packet: As it was sent; None after PUBREC.
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
            DamagedExchangeRow: It is none.
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
    """All of one bridge.

    Args:
        ends, sessions: By side, "cluster" and "remote".
        flows: Of the bridge.
        name: Of the bridge in ``bridge-path``.
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
        self._asked: dict[str, bytes] = {}
        self._writes: list[Write] = []
        self._waiting: list[Callable[[], None]] = []  # output behind those writes, of both sides in turn
        self._behind_commit: list[Callable[[], None]] = []  # and behind the writes of the commit that is under way
        self._is_committing = False
        self.waker: Callable[[], None] = lambda: None  # there is something to commit

    # Order of commits and of what leaves

    def keep(self, side: str, changes: Sequence[StateChange], then: Callable[[], None]) -> None:
        """Take the changes of a side's session, and what lets go the output behind them; see ``client.Keep``."""
        self._note(side, changes)
        self._waiting.append(then)
        if self._writes or self._is_committing:
            self.waker()
        else:
            self._let_go(self._waiting)

    def begin_commit(self) -> list[Write]:
        """Return what is committed next, in one commit: whole turns, of both sides; nothing for nothing to do."""
        assert not self._is_committing
        writes, self._writes = self._writes, []
        self._is_committing = bool(writes)
        if writes:
            self._behind_commit, self._waiting = self._waiting, []
        return writes

    def committed(self) -> None:
        """Let go what stood behind the commit: it is on disk."""
        self._is_committing = False
        self._let_go(self._behind_commit)
        if not self._writes:
            self._let_go(self._waiting)

    def _let_go(self, waiting: list[Callable[[], None]]) -> None:
        calls = list(waiting)
        waiting.clear()
        for call in calls:
            call()

    # At each change

    def asked(self, side: str, filters: Sequence[SubscriptionRequest]) -> None:
        """Note that a side's session has filters."""
        if not self.is_asked(side, filters):
            self._asked[side] = _filters(filters)
            self._writes.append(Put(ASKED, SIDES[side], self._asked[side]))
            self.waker()

    def is_asked(self, side: str, filters: Sequence[SubscriptionRequest]) -> bool:
        """Whether a side's session has these filters, and no others."""
        return self._asked.get(side) == _filters(filters)

    def _note(self, side: str, changes: Sequence[StateChange]) -> None:
        """Take the changes of a side's session."""
        for change in changes:
            identifier = change.identifier
            match change.kind:
                case "sent":
                    self._note_sent(side, identifier, change.token)
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
                    self._forget(side)

    def finished(self, side: str, identifier: int) -> None:
        """Note that a QoS 2 message of a side was handed over: it must not be a second time."""
        if (side, identifier) not in self._done:
            self._done.add((side, identifier))
            self._writes.append(Put(DONE, _key(side, identifier), b""))
            self.waker()

    def _note_sent(self, side: str, identifier: int, token: int) -> None:
        publish = self._sessions[side].outbound.get(identifier)
        if publish is None or publish.packet.qos != 2:
            return  # a broker keeps nothing of QoS 1: the identifier may be used again at once
        exchange = SinkExchange(self._next_number, packet=publish.packet, source_topic=publish.packet.topic_name)
        self._next_number += 1
        publisher, inner = self._ends[side].publisher_of(token)
        flow = publisher.flow
        if flow is not None:
            reference, message = flow.pump.origin_of(inner)
            source = self._ends[SOURCES[flow.direction]].taken(reference)
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

    def _forget(self, side: str) -> None:
        """Discard what belonged to a session that its broker has forgotten; its identifiers mean others from now on."""
        if self._asked.pop(side, None) is not None:
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

    # At the start

    def restore(self, sent: Rows, done: Rows, asked: Rows) -> int:
        """Put sessions, ends and flows in the state that the rows stand for; return how many exchanges go on.

        Raises:
            DamagedExchangeRow: A row is none of ours.
        """
        self._done = {_place(key) for key, _ in done}
        self._asked = {side: value for key, value in asked for side, letter in SIDES.items() if key == letter}
        rows = sorted(((_place(key), SinkExchange.decode(value)) for key, value in sent), key=lambda row: row[1].number)
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
                opened[side][identifier] = OpenPublish(self._take_up(side, exchange, packet, held), packet)
        for side, session in self._sessions.items():
            session.restore(opened[side], [identifier for where, identifier in self._done if where == side], held[side])
        return len(rows)

    def _take_up(self, side: str, exchange: SinkExchange, packet: Publish, held: dict[str, list[Publish]]) -> int:
        """Give an open exchange back to its flow; return its token in the session."""
        flow = self._flows.get(exchange.direction)
        if flow is None:
            return ORPHAN  # the configuration has no such direction any more
        source, reference = SOURCES[exchange.direction], 0
        end = self._ends[source]
        origin: Publish | None = None
        if exchange.source_identifier:
            origin = Publish(exchange.source_topic, packet.payload, 2, packet_identifier=exchange.source_identifier)
            held[source].append(origin)
        reference = end.hold(origin)
        message = BridgeMessage(
            exchange.source_topic, packet.payload, 2, packet.retain, self._before(packet), at_ms=exchange.at_ms
        )
        target = exchange.source_topic if exchange.is_dead_letter else packet.topic_name
        record = SinkRecord(target, packet.payload, target, message, None, 2, packet.retain)
        reason = ""
        if exchange.is_dead_letter:
            reason = dict(user_properties(packet.properties)).get(REASON, "rejected")
            message.properties = {}
        return self._ends[side].token_of(
            flow, flow.restore(reference, message, record, reason), exchange.is_dead_letter
        )

    def _before(self, packet: Publish) -> dict[int, object]:
        """Return the properties as they were before this bridge stood in ``bridge-path``: a retry adds it again."""
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


def _place(key: bytes) -> tuple[str, int]:
    for side, letter in SIDES.items():
        if key[:1] == letter and len(key) == 3:
            return side, int.from_bytes(key[1:], "big")
    raise DamagedExchangeRow(f"key {key.hex()}")
