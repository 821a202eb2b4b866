"""Requests of edges with a newer map than this node's: pending, in order, until its own map has changed.

An edge sends to its map's primary once per epoch. A request may arrive before this node knows that it is the primary.
It must not be dropped, because the edge would not send it again. Later messages must not overtake it, because its
origin would then count as a repeat.

If the edge's map was the older one, it sends the request again to the newer map's primary, where it may be refused.
Such requests are forgotten once this node knows that no newer map existed when they arrived. A request that waits
longer than ``EARLY_S`` is refused, never dropped: a repeat of it after later messages of that edge would be
acknowledged and not stored. The code that processes a request checks whether its edge is alive.
"""

from collections import deque

from storage.hosting.pending_until_serving import WaitingCopy, WaitingMessage, WaitingRequest

__all__ = ["EARLY_S", "Early", "PendingUntilMap"]

EARLY_MAX = 10_000  # of all partitions together
EARLY_BYTES_MAX = 64 * 1024 * 1024  # of all partitions together
EARLY_S = 8.0  # four leases, as long as a partition remembers publishers; a leased node's map lags less

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
        """Return the partitions with pending requests."""
        return sorted(self._waiting)

    def keep(self, partition: int, request: Early) -> bool:
        """Keep a request; False if a bound is reached: refuse it, and all later ones of its partition."""
        size = request.size
        if self._count >= EARLY_MAX or self._bytes + size > EARLY_BYTES_MAX:
            return False
        self._waiting.setdefault(partition, deque()).append(request)
        self._count += 1
        self._bytes += size
        return True

    def requeue(self, partition: int, requests: list[WaitingMessage]) -> None:
        """Requeue, before the others, messages that were pending at a partition that this node stopped serving.

        The edge's map may be that of the next epoch: it would not send them again. They were within the bounds there.
        """
        self._waiting[partition] = deque([*requests, *self._waiting.get(partition, ())])
        self._count += len(requests)
        self._bytes += sum(request.size for request in requests)

    def take(self, partition: int) -> list[Early]:
        """Return, in order, the pending requests of a partition that this node serves now."""
        taken = list(self._waiting.pop(partition, ()))
        self._gone(taken)
        return taken

    def forget_before(self, until: float) -> None:
        """Forget requests before ``until``: no map was newer then than the one without this node as primary."""
        for partition in list(self._waiting):
            waiting = self._waiting[partition]
            while waiting and waiting[0].since < until:
                self._gone([waiting.popleft()])
            if not waiting:
                del self._waiting[partition]

    def take_overdue(self, now: float) -> list[Early]:
        """Return, in order, all requests of the partitions whose oldest one is overdue: to be refused.

        Later requests of such a partition are refused as well, because no message may overtake a refused one.
        """
        overdue = [number for number, waiting in self._waiting.items() if waiting[0].since < now - EARLY_S]
        return [request for number in sorted(overdue) for request in self.take(number)]

    def _gone(self, requests: list[Early]) -> None:
        self._count -= len(requests)
        self._bytes -= sum(request.size for request in requests)
        assert self._count >= 0 and self._bytes >= 0, "more left than came"
