"""Detection of our own messages that a broker without No Local (MQTT 3.1.1) sends back on a matching filter.

Each published message accounts for one echo, for a limited time. A later message is treated as another client's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b

from mqtt.packets import Publish
from mqtt.topics import matches

__all__ = ["BridgeEchoes", "digest"]

ECHOES_MAX = 65_536  # pending echoes
ECHO_S = 60.0  # largest delay of an echo


class BridgeEchoes:
    """Published messages that may be sent back."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = filters
        self._expected: OrderedDict[bytes, deque[float]] = OrderedDict()  # -> timestamps of publishing
        self._count = 0

    def expect(self, packet: Publish, now: float) -> None:
        """Record a published message."""
        if any(matches(each, packet.topic_name) for each in self._filters):
            key = digest(packet)
            self._expected.setdefault(key, deque()).append(now)
            self._expected.move_to_end(key)
            self._count += 1
            while self._count > ECHOES_MAX:
                self._forget(next(iter(self._expected)))

    def take(self, packet: Publish, now: float) -> bool:
        """Return whether a message is an echo; an echo is counted off."""
        key = digest(packet)
        while (published := self._expected.get(key)) and published[0] < now - ECHO_S:
            self._forget(key)
        if not published:
            return False
        self._forget(key)
        return True

    def _forget(self, key: bytes) -> None:
        published = self._expected[key]
        published.popleft()
        self._count -= 1
        if not published:
            del self._expected[key]


def digest(packet: Publish) -> bytes:
    """Return a hash of topic and payload."""
    topic = packet.topic_name.encode()
    return blake2b(b"%d %b%b" % (len(topic), topic, packet.payload), digest_size=16).digest()
