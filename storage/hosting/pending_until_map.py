"""Requests of edges that know more of the map than this node: kept, in order, until its own map has moved.

An edge sends to the primary that its map names, once per primary. What arrives before this node knows that it is the
primary must neither be dropped (the edge would not send it again) nor overtaken by what comes later (its origin would
then count as a repeat). If the edge's map was the older one it sends again, to the primary of the newer map, and may be
told there that it is refused: such requests are forgotten as soon as this node knows that nobody had a newer map when
they came, and for want of that after a while. Whoever takes one asks whether its edge still lives.
"""

from collections import deque

from storage.hosting.pending_until_serving import WaitingCopy, WaitingMessage, WaitingRequest

__all__ = ["Early", "PendingUntilMap"]

EARLY_MAX = 10_000  # of all partitions together
EARLY_BYTES_MAX = 64 * 1024 * 1024  # likewise
EARLY_S = 8.0  # four leases: longer than any node's map lags behind while it has a lease

Early = WaitingMessage | WaitingRequest | WaitingCopy


class PendingUntilMap:
    """Requests that wait for this node's map, by partition."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Early]] = {}
        self._count = 0
        self._bytes = 0
        self._looked_at = float("-inf")  # of the newest request: a frame of thousands is looked at once

    def __len__(self) -> int:
        return self._count

    def partitions(self) -> list[int]:
        """Return the partitions for which something waits."""
        return sorted(self._waiting)

    def keep(self, partition: int, request: Early) -> bool:
        """Keep a request; False if there is no room: refuse it, and everything of its partition that comes later."""
        size = request.size
        if request.since > self._looked_at:
            self._looked_at = request.since
            self.forget_before(request.since - EARLY_S)
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

    def _gone(self, requests: list[Early]) -> None:
        self._count -= len(requests)
        self._bytes -= sum(request.size for request in requests)
        assert self._count >= 0 and self._bytes >= 0, "more left than came"
