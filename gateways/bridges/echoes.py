"""Our own messages that a broker without No Local (MQTT 3.1.1) sends back, where a filter of the bridge matches.

As many as were published are taken for echoes, and each for a while only: what comes later is somebody's message.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b

from mqtt.packets import Publish
from mqtt.topics import matches

__all__ = ["BridgeEchoes", "digest"]

ECHOES_MAX = 65_536  # awaited at once
ECHO_S = 60.0  # an echo comes sooner, or not at all


class BridgeEchoes:
    """Published messages that may come back."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = filters
        self._awaited: OrderedDict[bytes, deque[float]] = OrderedDict()  # -> when each was published
        self._count = 0

    def expect(self, packet: Publish, now: float) -> None:
        """Note a message that was published."""
        if any(matches(each, packet.topic_name) for each in self._filters):
            key = digest(packet)
            self._awaited.setdefault(key, deque()).append(now)
            self._awaited.move_to_end(key)
            self._count += 1
            while self._count > ECHOES_MAX:
                self._forget(next(iter(self._awaited)))

    def take(self, packet: Publish, now: float) -> bool:
        """Return whether a message is an echo; it is awaited once less then."""
        key = digest(packet)
        while (published := self._awaited.get(key)) and published[0] < now - ECHO_S:
            self._forget(key)
        if not published:
            return False
        self._forget(key)
        return True

    def _forget(self, key: bytes) -> None:
        published = self._awaited[key]
        published.popleft()
        self._count -= 1
        if not published:
            del self._awaited[key]


def digest(packet: Publish) -> bytes:
    """Return a name of topic and payload, the whole of both."""
    topic = packet.topic_name.encode()
    return blake2b(b"%d %b%b" % (len(topic), topic, packet.payload), digest_size=16).digest()
