"""Filters of large resumed sessions: read in pages after CONNECT, authorized, and removed if refused.

No other work waits for it. Each push to such a client is authorized until its connection ends, unless it may receive
all topics. A refused copy of a shared subscription goes to another member, because the partition removes this one at
the first refusal. This module removes the other filters, with their routes.
Decision: docs/adr/0134-filters-of-large-sessions.md.
"""

import math
from collections import Counter, deque
from functools import partial

from edge.clients.client import Client
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.rights.sweep import ReauthorizationPass
from wire.messages.control import Control
from wire.messages.sessions import FiltersListed, ListFilters, SessionSubscription

__all__ = ["ANSWER_S", "CONCURRENT_READS_MAX", "WAITING_MIN", "SessionFilterReads"]

CONCURRENT_READS_MAX = 4  # sessions of responsive partitions; each has one page requested or unchecked
ANSWER_S = 2.0  # for a partition; then others are read, and it does not count until it responds
RETRY_S = 1.0  # retry delay while too many requests are pending
WAITING_MIN = 64  # clients, above which closed ones are removed: a reconnecting client must not accumulate entries


class SessionFilterReads:
    """The sessions of one edge with filters to read.

    Args:
        node: This edge.
        requests: To partitions.
        sweep: Lists the clients with unknown filters, and removes refused ones.

    A client that disconnects before the check of all its filters is passed to the sweep's ``left``.
    """

    def __init__(self, node: EdgeNode, requests: PartitionRequests, sweep: ReauthorizationPass[Client]) -> None:
        self._node = node
        self._requests = requests
        self._sweep = sweep
        self._waiting: dict[int, deque[Client]] = {}  # by partition
        self._reading: Counter[int] = Counter()  # unanswered pages, by partition
        self._answer_by: dict[int, float] = {}  # of those partitions
        self._pages: deque[tuple[Client, list[str], int]] = deque()  # unchecked: filters, and start of the next page
        self._next_at = 0.0
        self._waiting_max = WAITING_MIN

    def step(self, now: float) -> None:
        """Check a page, and request the filters of the next client."""
        if self._pages:
            client, names, next_skip = self._pages.popleft()
            if client.conn.closed:
                self._sweep.left(client)
            else:
                self._sweep.authorize_filters(client, names)
                if next_skip:
                    self._ask(client, next_skip, now)
        self._queue_new()
        while now >= self._next_at and self._may_read() and (partition := self._next_partition()) is not None:
            client = self._waiting[partition].popleft()
            if not self._waiting[partition]:
                del self._waiting[partition]
            if client.conn.closed:
                self._sweep.left(client)
            else:
                self._ask(client, 0, now)

    def _queue_new(self) -> None:
        """Queue new clients of the sweep, and remove some closed ones."""
        untold = self._sweep.untold
        while untold:
            client = untold.popleft()
            self._waiting.setdefault(client.partition, deque()).append(client)
        if self.waiting > self._waiting_max:
            for partition, clients in list(self._waiting.items()):
                stay: deque[Client] = deque()
                for client in clients:
                    if client.conn.closed:
                        self._sweep.left(client)
                    else:
                        stay.append(client)
                self._waiting[partition] = stay
                if not stay:
                    del self._waiting[partition]
            self._waiting_max = max(WAITING_MIN, 2 * self.waiting)

    @property
    def waiting(self) -> int:
        """Number of clients without a request for their filters."""
        return sum(map(len, self._waiting.values()))

    def _has_primary(self, partition: int) -> bool:
        partitions = self._node.map.partitions
        return partition < len(partitions) and partitions[partition].primary != ""

    def _answers(self, partition: int) -> bool:
        """Return whether a partition has a primary that responds in time."""
        return self._has_primary(partition) and self._node.now < self._answer_by.get(partition, math.inf)

    def _may_read(self) -> bool:
        """Return whether another page may be requested; an unresponsive partition does not delay the others."""
        reading = sum(count for partition, count in self._reading.items() if count and self._answers(partition))
        return reading + len(self._pages) < CONCURRENT_READS_MAX

    def _next_partition(self) -> int | None:
        return next((partition for partition in self._waiting if self._answers(partition)), None)

    def _ask(self, client: Client, skip: int, now: float) -> None:
        request = ListFilters(
            self._requests.next_number(), client.partition, 0, client.session, client.owner_epoch, skip
        )
        if self._requests.ask(request, partial(self._listed, client), now):
            self._reading[client.partition] += 1
            self._answer_by.setdefault(client.partition, now + ANSWER_S)
        else:
            self._sweep.untold.append(client)  # from its first page: a repeated check is harmless
            self._next_at = now + RETRY_S

    def _listed(self, client: Client, answer: Control) -> None:
        self._answered(client.partition)
        if client.conn.closed:
            self._sweep.left(client)
        if client.conn.closed or not isinstance(answer, FiltersListed):
            return
        if answer.again:
            self._sweep.untold.append(client)
            return
        held: dict[str, SessionSubscription] = client.subscriptions
        fresh = [one for one in answer.subscriptions if one.topic_filter not in held]  # its own SUBSCRIBEs are newer
        held.update((one.topic_filter, one) for one in fresh)
        self._pages.append((client, [one.topic_filter for one in fresh], answer.next_skip))

    def _answered(self, partition: int) -> None:
        self._reading[partition] -= 1
        if self._reading[partition]:
            self._answer_by[partition] = self._node.now + ANSWER_S
        else:
            del self._reading[partition], self._answer_by[partition]
        self._node.wake()

    def next_deadline(self) -> float:
        """Return when the next step is due: at once while filters can be checked or requested."""
        if self._pages:
            return 0.0
        if self._sweep.untold or (self._waiting and self._may_read() and self._next_partition() is not None):
            return self._next_at
        if not self._waiting:
            return math.inf
        return min((by for by in self._answer_by.values() if by > self._node.now), default=math.inf)
