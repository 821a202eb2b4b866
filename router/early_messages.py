"""Messages of nodes that this router's map does not contain yet: queued in order until it does, or until a timeout.

A node registers at the leader, then sends to every router. A router with an older map must not execute messages of an
unregistered certificate holder. It must not drop those that a registered node sends only once. Source:
docs/protocol.md rule 1.12.
"""

from collections import Counter, deque
from typing import NamedTuple

from wire.messages.control import Control
from wire.messages.hello import PeerKey

__all__ = ["EarlyMessages"]

EARLY_S = 8.0  # four leases: longer than the map of a router with a lease can lag
NAME_MAX = 2_000  # messages of all incarnations of one node name; a certificate holder can use many incarnations
NAME_BYTES_MAX = 4 * 1024 * 1024
EARLY_MAX = 10_000  # messages of all nodes
EARLY_BYTES_MAX = 16 * 1024 * 1024


class _Early(NamedTuple):
    since: float
    message: Control
    octets: int


class EarlyMessages:
    """Pending messages at one router."""

    def __init__(self) -> None:
        self._waiting: dict[PeerKey, deque[_Early]] = {}
        self._count = 0
        self._bytes = 0
        self._counts: Counter[str] = Counter()  # by node name; a certificate fixes name and tier
        self._octets: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    def peers(self) -> list[PeerKey]:
        """Return the incarnations with pending messages."""
        return list(self._waiting)

    def add(self, now: float, peer: PeerKey, message: Control, octets: int) -> bool:
        """Queue a message behind its sender's others; False if a limit of its node or of all nodes is reached."""
        if self._counts[peer.node] >= NAME_MAX or self._octets[peer.node] + octets > NAME_BYTES_MAX:
            return False
        if self._count >= EARLY_MAX or self._bytes + octets > EARLY_BYTES_MAX:
            return False
        self._waiting.setdefault(peer, deque()).append(_Early(now, message, octets))
        self._add(peer.node, 1, octets)
        return True

    def take(self, peer: PeerKey) -> list[Control]:
        """Remove and return the pending messages of an incarnation, in order."""
        taken = self._waiting.pop(peer, ())
        self._add(peer.node, -len(taken), -sum(each.octets for each in taken))
        return [each.message for each in taken]

    def take_late(self, now: float) -> list[tuple[PeerKey, Control]]:
        """Remove and return messages that are pending longer than ``EARLY_S``."""
        late = []
        for peer in list(self._waiting):
            waiting = self._waiting[peer]
            while waiting and now - waiting[0].since > EARLY_S:
                self._add(peer.node, -1, -waiting[0].octets)
                late.append((peer, waiting.popleft().message))
            if not waiting:
                del self._waiting[peer]
        return late

    def _add(self, name: str, count: int, octets: int) -> None:
        self._count += count
        self._bytes += octets
        self._counts[name] += count
        self._octets[name] += octets
        if not self._counts[name]:
            del self._counts[name], self._octets[name]
