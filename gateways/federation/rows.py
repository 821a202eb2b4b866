"""Messages in an agent's custody, as they lie in its spool: who is still to get each, and the ids that were seen.

Keeps rows and their sizes; ``courier.py`` decides what becomes of them. Source: docs/protocol.md, custody.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from gateways.federation.messages import HOPS_MAX, Malformed, TopicMessage, decode, encode
from gateways.federation.parts import Parts

__all__ = ["HOST", "Rows", "Stored", "message_key"]

HOST = ""  # destination: the agent's own broker
HOP_BYTES_MIN = 4096
ROW_BYTES = 200  # of a row beside its value
SEEN_SLACK_S = 120.0  # that ages may be counted too young, in frames of a link that was away
SEEN_ENDED_MAX = 1_000  # in one step
_ids = struct.Struct(">QQ")
_u64 = struct.Struct(">Q")


def message_key(agent: str, incarnation: int, number: int) -> bytes:
    """Return the id of a message as rows have it; the order of one agent's ids is that of its numbers."""
    return agent.encode() + b"\0" + _ids.pack(incarnation, number)


class Stored:
    """A message in custody.

    Attributes:
        born_ms: When it was captured, by this agent's clock.
        owed: Destinations; the neighbour that has it and did not say that it kept it, None while it waits.
        ref: Of ``Inject``, if the broker is owed it.
        source: The neighbour that it came from.
    """

    __slots__ = ("born_ms", "key", "length", "message", "owed", "ref", "source")

    def __init__(self, key: bytes, message: TopicMessage, born_ms: int, source: str) -> None:
        self.key, self.message, self.born_ms, self.source = key, message, born_ms, source
        self.owed: dict[str, str | None] = {}
        self.ref = 0
        self.length = ROW_BYTES + len(message.payload) + 2 * len(message.topic) + len(message.properties)


class Rows:
    """See the module.

    Attributes:
        stored: Messages by id, in the order in which they came.
        length: Bytes of all of them.
        forgotten_ms: Ids of messages born before it may have been forgotten although they are young.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.stored: dict[bytes, Stored] = {}
        self.length = 0
        self.forgotten_ms = 0
        self._seen: dict[bytes, int] = {}  # id: when, in milliseconds UTC; oldest first

    # --- rows

    def restore(self, rows: Mapping[str, Iterable[tuple[bytes, bytes]]]) -> None:
        """Take back what the spool has; rows that nothing belongs to are deleted."""
        for key, value in sorted(rows.get("message", ())):
            (born_ms,) = _u64.unpack_from(value)
            try:
                message = decode(value[8:])
            except Malformed as malformed:
                self._parts.drop(f"row_{malformed.reason}")
                self._parts.delete("message", key)
                continue
            if not isinstance(message, TopicMessage):
                raise ValueError(f"a message row has {type(message).__name__}")
            self._hold(Stored(key, message, born_ms, ""))
        for key, value in sorted(rows.get("owed", ())):
            id_length = key.index(b"\0") + 1 + _ids.size
            stored = self.stored.get(key[:id_length])
            if stored is None:
                self._parts.delete("owed", key)
                continue
            destination = key[id_length:].decode()
            stored.owed[destination] = None
            if destination == HOST:
                (stored.ref,) = _u64.unpack(value)
        for stored in [each for each in self.stored.values() if not each.owed]:
            self._end(stored)
        seen = sorted((_u64.unpack(value)[0], key) for key, value in rows.get("seen", ()))
        self._seen = {key: when for when, key in seen}

    def _hold(self, stored: Stored) -> None:
        self.stored[stored.key] = stored
        self.length += stored.length

    def owe(self, stored: Stored, destination: str, ref: int = 0) -> None:
        """Store that a destination is to get a message; its first row stores the message too."""
        if stored.key not in self.stored:
            self._hold(stored)
            self._parts.put("message", stored.key, _u64.pack(stored.born_ms) + encode(stored.message))
        stored.owed[destination] = None
        value = b""
        if destination == HOST:
            stored.ref = ref
            value = _u64.pack(ref)
        self._parts.put("owed", stored.key + destination.encode(), value)

    def settle(self, stored: Stored, destination: str) -> None:
        """Delete a destination's row, and with the last one the message."""
        if destination in stored.owed:
            del stored.owed[destination]
            self._parts.delete("owed", stored.key + destination.encode())
            if not stored.owed:
                self._end(stored)

    def _end(self, stored: Stored) -> None:
        del self.stored[stored.key]
        self.length -= stored.length
        self._parts.delete("message", stored.key)

    def is_full(self, hops: int = 0) -> bool:
        """Return whether a message that made so many hops is not taken into custody now.

        Each hop has room of its own above the bound, so that agents whose spools are full do not wait for each other.
        """
        bound = self._parts.settings.spool_bytes_max
        return self.length >= bound + hops * max(bound // HOPS_MAX, HOP_BYTES_MIN)

    # --- ids

    def is_seen(self, key: bytes) -> bool:
        """Return whether a message was handed to this broker before."""
        return key in self._seen

    def see(self, now: float, key: bytes, is_durable: bool) -> None:
        """Remember an id, in the transaction that stores its message."""
        when = self._parts.wall_ms(now)
        self._seen[key] = when
        if is_durable:
            self._parts.put("seen", key, _u64.pack(when))

    def forget_seen(self, now: float) -> bool:
        """Forget ids that are older than the window, or above the bound; return True if more are due."""
        over_ms = self._parts.wall_ms(now) - int((self._parts.dedup_s + SEEN_SLACK_S) * 1000)
        excess = len(self._seen) - self._parts.settings.dedup_ids_max
        ended = 0
        for key in list(self._first_seen(SEEN_ENDED_MAX)):
            if self._seen[key] >= over_ms:
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
        """Return whether a message is so old that its id may have been forgotten."""
        window_ms = int(self._parts.dedup_s * 1000)
        return born_ms <= self.forgotten_ms or self._parts.wall_ms(now) - born_ms > window_ms
