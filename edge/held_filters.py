"""Filters of a resumed session that were too many for the answer to its CONNECT: read in pages, judged, and taken.

Nothing waits for it. Each push to such a client is judged until its connection ends, unless it may receive everything;
a copy for a group that it may not have goes to another member, for its partition takes its place in that group at the
first refusal. This takes the other filters, with their routes. Decision: docs/adr/0134-filters-of-large-sessions.md.
"""

import math
from collections import deque
from functools import partial

from edge.clients.client import Client
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.rights.sweep import Sweep
from wire.messages.control import Control
from wire.messages.sessions import FiltersListed, ListFilters, Subscription

__all__ = ["READ_AT_ONCE", "WAITING_MIN", "HeldFilters"]

READ_AT_ONCE = 4  # sessions; of each one page is under way, or waits to be judged
AGAIN_S = 1.0  # where too many requests wait
WAITING_MIN = 64  # clients, above which those that are gone are looked for: who comes again and again waits once


class HeldFilters:
    """The sessions of one edge whose filters are being read.

    Args:
        node: This edge.
        requests: To partitions.
        sweep: Names the clients whose filters were not told, and takes what is not granted.
    """

    def __init__(self, node: EdgeNode, requests: PartitionRequests, sweep: Sweep[Client]) -> None:
        self._node = node
        self._requests = requests
        self._sweep = sweep
        self._reading = 0  # pages that are not answered
        self._pages: deque[tuple[Client, list[str], int]] = deque()  # to be judged: filters, and where the next begins
        self._next_at = 0.0
        self._waiting_max = WAITING_MIN

    def step(self, now: float) -> None:
        """Judge a page, and ask for the filters of the next client."""
        if self._pages:
            client, names, next_skip = self._pages.popleft()
            if not client.conn.closed:
                self._sweep.judge_some(client, names)
                if next_skip:
                    self._ask(client, next_skip, now)
        waiting = self._sweep.untold
        if len(waiting) > self._waiting_max:
            left = [client for client in waiting if not client.conn.closed]
            waiting.clear()
            waiting.extend(left)
            self._waiting_max = max(WAITING_MIN, 2 * len(left))
        while waiting and self._reading + len(self._pages) < READ_AT_ONCE and now >= self._next_at:
            client = waiting.popleft()
            if not client.conn.closed:
                self._ask(client, 0, now)

    def _ask(self, client: Client, skip: int, now: float) -> None:
        request = ListFilters(
            self._requests.next_number(), client.partition, 0, client.session, client.owner_epoch, skip
        )
        if self._requests.ask(request, partial(self._listed, client), now):
            self._reading += 1
        else:
            self._sweep.untold.append(client)  # from its beginning: what was judged is judged once more
            self._next_at = now + AGAIN_S

    def _listed(self, client: Client, answer: Control) -> None:
        self._reading -= 1
        self._node.wake()
        if client.conn.closed or not isinstance(answer, FiltersListed):
            return
        if answer.again:
            self._sweep.untold.append(client)
            return
        held: dict[str, Subscription] = client.subscriptions
        fresh = [one for one in answer.subscriptions if one.topic_filter not in held]  # what it subscribed to is newer
        held.update((one.topic_filter, one) for one in fresh)
        self._pages.append((client, [one.topic_filter for one in fresh], answer.next_skip))

    def next_deadline(self) -> float:
        """Return when this goes on: at once while something can be judged or asked for."""
        if self._pages:
            return 0.0
        if self._sweep.untold and self._reading < READ_AT_ONCE:
            return self._next_at
        return math.inf
