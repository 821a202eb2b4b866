"""Expected echoes of an agent's own messages, for brokers without No Local.

Equal messages are interchangeable, so a count per content is exact unless an echo is lost. A missing echo expires after
``echo_s`` of connection to the broker, so that a client's equal message is not dropped later. Counts are rows of the
spool: an echo may be in the broker's queue while the agent is down. Pure logic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b

from gateways.federation.agent_context import AgentContext

__all__ = ["ExpectedEchoes"]

KIND = "echo"
DIGEST_BYTES = 16


class ExpectedEchoes:
    """Expected echoes, by topic, content and QoS."""

    def __init__(self, parts: AgentContext) -> None:
        self._parts, self._echo_s = parts, parts.settings.echo_s
        self._expected: dict[tuple[str, bytes, int], int] = {}
        self._ends: deque[tuple[float, tuple[str, bytes, int]]] = deque()
        self._received: dict[tuple[str, bytes, int], int] = {}  # received echoes, whose expiry entries are void

    def __len__(self) -> int:
        """Return the number of expected echoes."""
        return sum(self._expected.values())

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the spool's rows."""
        for row, value in rows:
            key = row[DIGEST_BYTES + 1 :].decode(), row[:DIGEST_BYTES], row[DIGEST_BYTES]
            self._expected[key] = int.from_bytes(value, "big")

    def host_up(self, now: float, is_present: bool) -> None:
        """Restart the expiry after an absence; without a session no echo will be received."""
        self._received.clear()
        self._ends.clear()
        for key, count in list(self._expected.items()):
            if is_present:
                self._ends.extend([(now + self._echo_s, key)] * count)
            else:
                self._set(key, 0)

    def add(self, now: float, topic: str, payload: bytes, qos: int) -> None:
        """Expect an echo of a published message."""
        key = _key(topic, payload, qos)
        self._set(key, self._expected.get(key, 0) + 1)
        self._ends.append((now + self._echo_s, key))

    def take(self, now: float, topic: str, payload: bytes, qos: int) -> bool:
        """Return whether a captured message is an echo; it is then counted off."""
        self.expire(now)
        key = _key(topic, payload, qos)
        if key not in self._expected:
            return False
        self._decrement(key)
        self._received[key] = self._received.get(key, 0) + 1
        return True

    def expire(self, now: float) -> None:
        """Remove echoes that were not received."""
        while self._ends and self._ends[0][0] <= now:
            _, key = self._ends.popleft()
            received = self._received.get(key, 0)
            if received > 1:
                self._received[key] = received - 1
            elif received:
                del self._received[key]
            else:
                self._decrement(key)

    def _decrement(self, key: tuple[str, bytes, int]) -> None:
        self._set(key, self._expected[key] - 1)

    def _set(self, key: tuple[str, bytes, int], count: int) -> None:
        topic, digest, qos = key
        row = b"".join((digest, bytes((qos,)), topic.encode()))
        if count:
            self._expected[key] = count
            self._parts.put(KIND, row, count.to_bytes(4, "big"))
        else:
            del self._expected[key]
            self._parts.delete(KIND, row)


def _key(topic: str, payload: bytes, qos: int) -> tuple[str, bytes, int]:
    return topic, blake2b(payload, digest_size=DIGEST_BYTES).digest(), qos
