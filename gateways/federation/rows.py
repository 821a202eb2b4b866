"""Messages in an agent's custody, as stored in its spool: pending destinations of each, and the seen ids.

A message is one row with its destinations, written at the end of its step. A message for one destination is thus one
write and one delete. Of several destinations, each finished one gets a row of kind ``settled``
(docs/adr/0167-one-row-a-message.md). Holds rows and their sizes; ``forwarder.py`` handles the messages.
Source: docs/protocol.md, custody.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from gateways.federation.agent_context import AgentContext
from gateways.federation.messages import HOPS_MAX, MalformedFederationMessage, TopicMessage, decode, encode

__all__ = ["HOST", "Rows", "StoredMessage", "message_key"]

NO_NAMES: frozenset[str] = frozenset()
HOST = ""  # destination: the agent's own broker
DIVIDER = "\0"
HOP_BYTES_MIN = 4096
ROW_BYTES = 200  # overhead of a row
SEEN_SLACK_S = 120.0  # error of message ages, from frames delayed in a disconnected link
SEEN_ENDED_MAX = 1_000  # in one step
_ids = struct.Struct(">QQ")
# Of a message row: born_ms, ref, bytes of the names after it. born_ms may be negative if the clock starts at 1970.
_head = struct.Struct(">qQI")
_u64 = struct.Struct(">Q")


def message_key(agent: str, incarnation: int, number: int) -> bytes:
    """Return the id of a message as in rows; ids of one agent are ordered by number."""
    return agent.encode() + b"\0" + _ids.pack(incarnation, number)


class StoredMessage:
    """A message in custody.

    Attributes:
      born_ms: When it was captured, by this agent's clock.
      owed: Destinations, each with the neighbour that it is in flight to, None while queued.
      ref: Of ``Inject``, if the broker is a destination.
      source: The neighbour that sent it.
      named: Destinations in its row.
      settled: Finished destinations with a row of their own.
      encoded: The received bytes, until its row is written; empty: encoded then.
    """

    __slots__ = (
        "born_ms",
        "encoded",
        "key",
        "length",
        "message",
        "named",
        "owed",
        "ref",
        "settled",
        "source",
        "written",
    )

    def __init__(self, key: bytes, message: TopicMessage, born_ms: int, source: str, encoded: bytes = b"") -> None:
        self.key, self.message, self.born_ms, self.source = key, message, born_ms, source
        self.owed: dict[str, str | None] = {}
        self.named: list[str] = []
        self.settled: frozenset[str] = NO_NAMES
        self.written = False  # its row is written
        self.ref = 0
        self.length = length = ROW_BYTES + len(message.payload) + 2 * len(message.topic) + len(message.properties)
        # longer ones may have unknown extra fields
        self.encoded = encoded if len(encoded) < length + ROW_BYTES else b""


class Rows:
    """See the module.

    Attributes:
      stored: Messages by id, in the order of arrival.
      length: Bytes of all messages.
      forgotten_ms: Ids of messages born before it may have been removed early.
    """

    def __init__(self, parts: AgentContext) -> None:
        self._parts = parts
        self.stored: dict[bytes, StoredMessage] = {}
        self.length = 0
        self.forgotten_ms = 0
        self._changed: dict[bytes, StoredMessage] = {}  # to be written in this step
        self._seen: dict[bytes, int] = {}  # id: milliseconds UTC; oldest first

    # --- rows

    def restore(self, rows: Mapping[str, Iterable[tuple[bytes, bytes]]]) -> None:
        """Restore the spool's rows; orphaned rows are deleted."""
        for key, value in sorted(rows.get("message", ())):
            born_ms, ref, length = _head.unpack_from(value)
            begin = _head.size + length
            try:
                message = decode(value[begin:])
            except MalformedFederationMessage as malformed:
                self._parts.drop(f"row_{malformed.reason}")
                self._parts.delete("message", key)
                continue
            if not isinstance(message, TopicMessage):
                raise ValueError(f"a message row has {type(message).__name__}")
            stored = StoredMessage(key, message, born_ms, "")
            stored.ref, stored.written = ref, True
            stored.named = value[_head.size : begin].decode().split(DIVIDER)
            stored.owed = dict.fromkeys(stored.named)
            self._hold(stored)
        for key, _ in sorted(rows.get("settled", ())):
            id_length = key.index(b"\0") + 1 + _ids.size
            known = self.stored.get(key[:id_length])
            if known is None:
                self._parts.delete("settled", key)
                continue
            destination = key[id_length:].decode()
            known.owed.pop(destination, None)
            known.settled |= {destination}
        for stored in [each for each in self.stored.values() if not each.owed]:
            self._end(stored)
        seen = sorted((_u64.unpack(value)[0], key) for key, value in rows.get("seen", ()))
        self._seen = {key: when for when, key in seen}

    def _hold(self, stored: StoredMessage) -> None:
        self.stored[stored.key] = stored
        self.length += stored.length

    def add_destination(self, stored: StoredMessage, destination: str, ref: int = 0) -> None:
        """Add a destination of a message; ``write`` stores it."""
        if stored.key not in self.stored:
            self._hold(stored)
        elif destination in stored.settled:
            stored.settled -= {destination}
            self._parts.delete("settled", stored.key + destination.encode())
        stored.owed[destination] = None
        if destination not in stored.named:
            stored.named.append(destination)
            self._changed[stored.key] = stored
        if destination == HOST and ref != stored.ref:
            stored.ref = ref
            self._changed[stored.key] = stored

    def settle(self, stored: StoredMessage, destination: str) -> None:
        """Remove a destination; with the last one the message ends."""
        if destination not in stored.owed:
            return
        del stored.owed[destination]
        if not stored.owed:
            self._end(stored)
        elif stored.key in self._changed:
            stored.named.remove(destination)
        else:
            stored.settled |= {destination}
            self._parts.put("settled", stored.key + destination.encode(), b"")

    def write(self) -> None:
        """Write the rows of messages with new destinations."""
        for key, stored in self._changed.items():
            names = DIVIDER.join(stored.named).encode()
            head = _head.pack(stored.born_ms, stored.ref, len(names))
            self._parts.put("message", key, b"".join((head, names, stored.encoded or encode(stored.message))))
            stored.written, stored.encoded = True, b""
        self._changed.clear()

    def _end(self, stored: StoredMessage) -> None:
        del self.stored[stored.key]
        self.length -= stored.length
        self._changed.pop(stored.key, None)
        if stored.written:
            self._parts.delete("message", stored.key)
        for destination in stored.settled:
            self._parts.delete("settled", stored.key + destination.encode())

    def count_pending(self, destination: str) -> int:
        """Return the number of messages for a destination."""
        return sum(destination in each.owed for each in self.stored.values())

    def is_full(self, hops: int = 0) -> bool:
        """Return whether a message with this many hops is refused custody now.

        Each hop has space of its own above the bound, so that agents with full spools do not block each other.
        """
        bound = self._parts.settings.spool_bytes_max
        return self.length >= bound + hops * max(bound // HOPS_MAX, HOP_BYTES_MIN)

    # --- ids

    def is_seen(self, key: bytes) -> bool:
        """Return whether a message was passed to this broker before."""
        return key in self._seen

    def mark_seen(self, now: float, key: bytes, is_durable: bool) -> None:
        """Store an id, in the transaction of its message."""
        when = self._parts.wall_ms(now)
        self._seen[key] = when
        if is_durable:
            self._parts.put("seen", key, _u64.pack(when))

    def expire_seen(self, now: float) -> bool:
        """Remove ids older than the window, or above the bound; return True if more are due."""
        expired_ms = self._parts.wall_ms(now) - int((self._parts.dedup_s + SEEN_SLACK_S) * 1000)
        excess = len(self._seen) - self._parts.settings.dedup_ids_max
        ended = 0
        for key in list(self._first_seen(SEEN_ENDED_MAX)):
            if self._seen[key] >= expired_ms:
                if excess <= 0:
                    return False
                self.forgotten_ms = max(self.forgotten_ms, self._seen[key])
                self._parts.drop("ids_over_bound")
            del self._seen[key]
            self._parts.delete("seen", key)
            excess -= 1
            ended += 1
        return ended == SEEN_ENDED_MAX

    def _first_seen(self, count: int) -> Iterable[bytes]:
        for index, key in enumerate(self._seen):
            if index == count:
                return
            yield key

    def may_be_repeat(self, now: float, born_ms: int) -> bool:
        """Return whether a message is so old that its id may have been removed."""
        window_ms = int(self._parts.dedup_s * 1000)
        return born_ms <= self.forgotten_ms or self._parts.wall_ms(now) - born_ms > window_ms
