"""Rows of a spool for the sessions of an agent at its broker, so that QoS 2 goes on exactly in the next process.

Decides which row stands for a change of a session and what a session is after a start. Kinds of rows, by lane and
packet identifier:

    sent   a PUBLISH of QoS 2 uses the identifier; or PUBREC came, and PUBREL is next
    taken  a message of the broker is ours: PUBREC is its answer, until PUBREL comes

Pure logic. The rows join the transaction of the core's step that they belong to (PROTOCOL.md section 9).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from gateways.spool_rows import Delete, Put, Write
from mqtt import StreamDecoder, encode_packet
from mqtt.client_session import ClientSession, OpenPublish, StateChange
from mqtt.errors import MqttError
from mqtt.packets import Publish

__all__ = ["SENT", "TAKEN", "SessionRows", "restore_session"]

SENT, TAKEN = "sent", "taken"
KEY = struct.Struct(">BH")  # lane, packet identifier
HEADER = struct.Struct(">BQQ")  # released, order of sending, token
VERSION = 5  # of the packet in a row; one of 3.1.1 has no properties

Rows = Iterable[tuple[bytes, bytes]]


class SessionRows:
    """Rows of one session.

    Attributes:
        lane: Number of the connection.
        order: Of the latest PUBLISH.
    """

    def __init__(self, session: ClientSession, lane: int) -> None:
        self.session, self.lane, self.order = session, lane, 0
        self._sent: dict[int, tuple[int, int]] = {}  # identifier -> order, token
        self._taken: set[int] = set()

    def writes(self, changes: Sequence[StateChange]) -> list[Write]:
        """Return the rows that changes of the session write."""
        found: list[Write] = []
        for change in changes:
            identifier, key = change.identifier, KEY.pack(self.lane, change.identifier)
            match change.kind:
                case "sent":
                    publish = self.session.outbound.get(identifier)
                    if publish is not None and publish.packet.qos == 2:
                        self.order += 1
                        self._sent[identifier] = self.order, change.token
                        packet = encode_packet(publish.packet, VERSION)
                        found.append(Put(SENT, key, HEADER.pack(0, self.order, change.token) + packet))
                case "released":
                    if identifier in self._sent:
                        found.append(Put(SENT, key, HEADER.pack(1, *self._sent[identifier])))
                case "ended":
                    if self._sent.pop(identifier, None) is not None:
                        found.append(Delete(SENT, key))
                case "taken":
                    self._taken.add(identifier)
                    found.append(Put(TAKEN, key, b""))
                case "finished":
                    self._taken.discard(identifier)
                    found.append(Delete(TAKEN, key))
                case "forgotten":
                    found += [Delete(SENT, KEY.pack(self.lane, each)) for each in sorted(self._sent)]
                    found += [Delete(TAKEN, KEY.pack(self.lane, each)) for each in sorted(self._taken)]
                    self._sent.clear()
                    self._taken.clear()
        return found

    def known(self, sent: dict[int, tuple[int, int]], taken: Iterable[int]) -> None:
        """Note the rows that a former process wrote."""
        self._sent, self._taken = sent, set(taken)
        self.order = max((order for order, _ in sent.values()), default=0)


def restore_session(session: ClientSession, lane: int, sent: Rows, taken: Rows) -> SessionRows:
    """Put a session in the state that the rows stand for.

    Raises:
        ValueError: A row is none of ours.
    """
    found: list[tuple[int, int, int, OpenPublish]] = []
    try:
        for key, value in sent:
            row_lane, identifier = KEY.unpack(key)
            is_released, order, token = HEADER.unpack_from(value)
            packet = Publish("", b"", 2, packet_identifier=identifier)
            if not is_released:
                (decoded,) = StreamDecoder(VERSION).feed(value[HEADER.size :])
                if not isinstance(decoded, Publish):
                    raise ValueError("no PUBLISH")
                packet = decoded
            if row_lane == lane:
                found.append((order, identifier, token, OpenPublish(token, packet, bool(is_released))))
        identifiers = [identifier for row_lane, identifier in (KEY.unpack(key) for key, _ in taken) if row_lane == lane]
    except (struct.error, MqttError, ValueError) as error:
        raise ValueError(f"a row of the broker's session cannot be read: {error}") from None
    found.sort(key=lambda each: each[0])
    session.restore({identifier: publish for _, identifier, _, publish in found}, identifiers)
    rows = SessionRows(session, lane)
    rows.known({identifier: (order, token) for order, identifier, token, _ in found}, identifiers)
    return rows
