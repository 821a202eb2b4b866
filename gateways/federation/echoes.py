"""Echoes of an agent's own messages, for brokers without No Local: each message that was handed to the broker may come
back once.

Equal messages are interchangeable, so a count per content is exact unless an echo is lost. One that does not come is
forgotten after ``echo_s`` with the broker, so that a client's equal message is not taken for it for ever. Counts are
rows of the spool: an echo may wait in the broker's queue while the agent is dead. Pure logic.
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
        self._taken: dict[tuple[str, bytes, int], int] = {}  # of those, came back: their end means nothing

    def __len__(self) -> int:
        """Return how many echoes are expected."""
        return sum(self._expected.values())

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take back what the spool has."""
        for row, value in rows:
            key = row[DIGEST_BYTES + 1 :].decode(), row[:DIGEST_BYTES], row[DIGEST_BYTES]
            self._expected[key] = int.from_bytes(value, "big")

    def host_up(self, now: float, is_present: bool) -> None:
        """Count the time anew, for nothing came while the broker was away; without a session nothing comes at all."""
        self._taken.clear()
        self._ends.clear()
        for key, count in list(self._expected.items()):
            if is_present:
                self._ends.extend([(now + self._echo_s, key)] * count)
            else:
                self._set(key, 0)

    def add(self, now: float, topic: str, payload: bytes, qos: int) -> None:
        """Expect an echo of what is handed to the broker."""
        key = _key(topic, payload, qos)
        self._set(key, self._expected.get(key, 0) + 1)
        self._ends.append((now + self._echo_s, key))

    def take(self, now: float, topic: str, payload: bytes, qos: int) -> bool:
        """Return whether a captured message is an echo, and expect one less if so."""
        self.expire(now)
        key = _key(topic, payload, qos)
        if key not in self._expected:
            return False
        self._less(key)
        self._taken[key] = self._taken.get(key, 0) + 1
        return True

    def expire(self, now: float) -> None:
        """Forget echoes that did not come."""
        while self._ends and self._ends[0][0] <= now:
            _, key = self._ends.popleft()
            taken = self._taken.get(key, 0)
            if taken > 1:
                self._taken[key] = taken - 1
            elif taken:
                del self._taken[key]
            else:
                self._less(key)

    def _less(self, key: tuple[str, bytes, int]) -> None:
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
