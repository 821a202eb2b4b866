"""Echoes of an agent's own messages, for brokers without No Local: each message that was handed to the broker may come
back once.

Equal messages are interchangeable, so a count per content is exact unless an echo is lost. One that does not come is
forgotten after ``echo_s``, so that a client's equal message is not taken for it for ever. Pure logic.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

__all__ = ["Echoes"]


class Echoes:
    """Expected echoes, by topic, content and QoS."""

    def __init__(self, echo_s: float) -> None:
        self._echo_s = echo_s
        self._expected: dict[tuple[str, bytes, int], int] = {}
        self._ends: deque[tuple[float, tuple[str, bytes, int]]] = deque()
        self._taken: dict[tuple[str, bytes, int], int] = {}  # of those, came back: their end means nothing

    def __len__(self) -> int:
        """Return how many echoes are expected."""
        return sum(self._expected.values())

    def add(self, now: float, topic: str, payload: bytes, qos: int) -> None:
        """Expect an echo of what is handed to the broker."""
        key = _key(topic, payload, qos)
        self._expected[key] = self._expected.get(key, 0) + 1
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
        if self._expected[key] > 1:
            self._expected[key] -= 1
        else:
            del self._expected[key]


def _key(topic: str, payload: bytes, qos: int) -> tuple[str, bytes, int]:
    return topic, blake2b(payload, digest_size=16).digest(), qos
