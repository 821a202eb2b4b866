"""Spool rows for the sessions of an agent at its broker, so that the next process resumes QoS 2 exactly once.

Defines the row of each session change and the session restored from rows. Kinds of rows, by connection and packet
identifier:

  sent   a PUBLISH of QoS 2 uses the identifier; or PUBREC was received, and PUBREL is next
  taken  a message of the broker is accepted: the answer is PUBREC, until PUBREL is received

Pure logic. The rows join the transaction of their core step (PROTOCOL.md section 9).
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
KEY = struct.Struct(">BH")  # connection, packet identifier
HEADER = struct.Struct(">BQQ")  # released, order of sending, token
VERSION = 5  # of the packet in a row; a 3.1.1 packet has no properties

Rows = Iterable[tuple[bytes, bytes]]


class SessionRows:
    """Rows of one session.

    Attributes:
        connection: Number of the connection.
        order: Of the latest PUBLISH.
    """

    def __init__(self, session: ClientSession, connection: int) -> None:
        self.session, self.connection, self.order = session, connection, 0
        self._sent: dict[int, tuple[int, int]] = {}  # identifier -> order, token
        self._taken: set[int] = set()

    def writes(self, changes: Sequence[StateChange]) -> list[Write]:
        """Return the rows written by changes of the session."""
        found: list[Write] = []
        for change in changes:
            identifier, key = change.identifier, KEY.pack(self.connection, change.identifier)
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
                    found += [Delete(SENT, KEY.pack(self.connection, each)) for each in sorted(self._sent)]
                    found += [Delete(TAKEN, KEY.pack(self.connection, each)) for each in sorted(self._taken)]
                    self._sent.clear()
                    self._taken.clear()
        return found

    def set_known(self, sent: dict[int, tuple[int, int]], taken: Iterable[int]) -> None:
        """Set the rows of a former process."""
        self._sent, self._taken = sent, set(taken)
        self.order = max((order for order, _ in sent.values()), default=0)


def restore_session(session: ClientSession, connection: int, sent: Rows, taken: Rows) -> SessionRows:
    """Restore a session from rows.

    Raises:
      ValueError: A row is invalid.
    """
    found: list[tuple[int, int, int, OpenPublish]] = []
    try:
        for key, value in sent:
            row_connection, identifier = KEY.unpack(key)
            is_released, order, token = HEADER.unpack_from(value)
            packet = Publish("", b"", 2, packet_identifier=identifier)
            if not is_released:
                (decoded,) = StreamDecoder(VERSION).feed(value[HEADER.size :])
                if not isinstance(decoded, Publish):
                    raise ValueError("no PUBLISH")
                packet = decoded
            if row_connection == connection:
                found.append((order, identifier, token, OpenPublish(token, packet, bool(is_released))))
        identifiers = [
            identifier
            for row_connection, identifier in (KEY.unpack(key) for key, _ in taken)
            if row_connection == connection
        ]
    except (struct.error, MqttError, ValueError) as error:
        raise ValueError(f"a row of the broker's session cannot be read: {error}") from None
    found.sort(key=lambda each: each[0])
    session.restore({identifier: publish for _, identifier, _, publish in found}, identifiers)
    rows = SessionRows(session, connection)
    rows.set_known({identifier: (order, token) for order, identifier, token, _ in found}, identifiers)
    return rows
