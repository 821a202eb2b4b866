"""Messages of nodes that this router's map does not have yet: kept, in order, until it has them, or for a while.

A node registers at the leader and then talks to every router. A router whose map is the older one must neither carry
out what an unregistered holder of a certificate says, nor drop what a registered node sends only once. Source:
docs/protocol.md rule 1.12.
"""

from collections import deque
from typing import NamedTuple

from wire.messages.control import Control
from wire.messages.hello import PeerKey

__all__ = ["EarlyMessages"]

EARLY_S = 8.0  # four leases: longer than the map of a router with a lease lags behind
PEER_MAX = 2_000  # messages of one incarnation
EARLY_MAX = 10_000  # of all together
EARLY_BYTES_MAX = 16 * 1024 * 1024


class _Early(NamedTuple):
    since: float
    message: Control
    octets: int


class EarlyMessages:
    """The messages that wait at one router."""

    def __init__(self) -> None:
        self._waiting: dict[PeerKey, deque[_Early]] = {}
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def peers(self) -> list[PeerKey]:
        """Return the incarnations of which something waits."""
        return list(self._waiting)

    def keep(self, now: float, peer: PeerKey, message: Control, octets: int) -> bool:
        """Keep a message behind the others of its sender; False if there is no room."""
        waiting = self._waiting.get(peer, ())
        if len(waiting) >= PEER_MAX or self._count >= EARLY_MAX or self._bytes + octets > EARLY_BYTES_MAX:
            return False
        self._waiting.setdefault(peer, deque()).append(_Early(now, message, octets))
        self._count += 1
        self._bytes += octets
        return True

    def take(self, peer: PeerKey) -> list[Control]:
        """Return, in order, what waits of an incarnation."""
        taken = self._waiting.pop(peer, ())
        self._gone(taken)
        return [each.message for each in taken]

    def take_late(self, now: float) -> list[tuple[PeerKey, Control]]:
        """Return what has waited for too long."""
        late = []
        for peer in list(self._waiting):
            waiting = self._waiting[peer]
            while waiting and now - waiting[0].since > EARLY_S:
                self._gone([waiting[0]])
                late.append((peer, waiting.popleft().message))
            if not waiting:
                del self._waiting[peer]
        return late

    def _gone(self, messages: "deque[_Early] | list[_Early] | tuple[()]") -> None:
        self._count -= len(messages)
        self._bytes -= sum(each.octets for each in messages)
