"""Requests of edges that know more of the map than this node: kept, in order, until its own map has moved.

An edge sends to the primary that its map names, once per epoch. What arrives before this node knows that it is the
primary must neither be dropped (the edge would not send it again) nor overtaken by what comes later (its origin would
then count as a repeat). If the edge's map was the older one it sends again, to the primary of the newer map, and may be
told there that it is refused: such requests are forgotten as soon as this node knows that nobody had a newer map when
they came. A request that waits longer than ``EARLY_S`` for want of that is refused, never dropped: its edge would not
send it again by itself, and behind later messages of that edge a repeat of it would be acknowledged and not stored.
Whoever takes a request asks whether its edge still lives.
"""

from collections import deque

from storage.hosting.pending_until_serving import WaitingCopy, WaitingMessage, WaitingRequest

__all__ = ["EARLY_S", "Early", "PendingUntilMap"]

EARLY_MAX = 10_000  # of all partitions together
EARLY_BYTES_MAX = 64 * 1024 * 1024  # likewise
EARLY_S = 8.0  # four leases, for so long a partition remembers publishers; the map of a node with a lease lags less

Early = WaitingMessage | WaitingRequest | WaitingCopy


class PendingUntilMap:
    """Requests that wait for this node's map, by partition."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Early]] = {}
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def partitions(self) -> list[int]:
        """Return the partitions for which something waits."""
        return sorted(self._waiting)

    def keep(self, partition: int, request: Early) -> bool:
        """Keep a request; False if there is no room: refuse it, and everything of its partition that comes later."""
        size = request.size
        if self._count >= EARLY_MAX or self._bytes + size > EARLY_BYTES_MAX:
            return False
        self._waiting.setdefault(partition, deque()).append(request)
        self._count += 1
        self._bytes += size
        return True

    def put_back(self, partition: int, requests: list[WaitingMessage]) -> None:
        """Keep, in front of the others, what waited at a partition that this node stopped to be the primary of.

        The edge's map may be that of the next time: it would not send again. They were within bounds there.
        """
        self._waiting[partition] = deque([*requests, *self._waiting.get(partition, ())])
        self._count += len(requests)
        self._bytes += sum(request.size for request in requests)

    def take(self, partition: int) -> list[Early]:
        """Return, in order, what waited for a partition that this node serves now."""
        taken = list(self._waiting.pop(partition, ()))
        self._gone(taken)
        return taken

    def forget_before(self, until: float) -> None:
        """Forget what came before ``until``: no map was newer then than the one in which this node is no primary."""
        for partition in list(self._waiting):
            waiting = self._waiting[partition]
            while waiting and waiting[0].since < until:
                self._gone([waiting.popleft()])
            if not waiting:
                del self._waiting[partition]

    def take_overdue(self, now: float) -> list[Early]:
        """Return, in order, what waited for the partitions whose oldest request waits for too long: to be refused.

        The later requests of such a partition are refused as well: no message may overtake one that is refused.
        """
        overdue = [number for number, waiting in self._waiting.items() if waiting[0].since < now - EARLY_S]
        return [request for number in sorted(overdue) for request in self.take(number)]

    def _gone(self, requests: list[Early]) -> None:
        self._count -= len(requests)
        self._bytes -= sum(request.size for request in requests)
        assert self._count >= 0 and self._bytes >= 0, "more left than came"
