"""Follows a trace: each node holds the query until it has events.

A node is queried at most once in ``every_s``, and may hold the query for ``WAIT_S``. Events that arrive within
``TOGETHER_S`` are shown together, so that they can be sorted. A node that does not answer is named, and queried again
while others run the trace.
"""

from collections.abc import Awaitable, Callable

import trio

from admin.queries import PLACE_ROWS, Cluster, place
from admin.scatter_gather import NODE_S, MissingRows, QueryAnswered, QueryTemplate
from admin.traces import NO_TRACE, TraceRead, read
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import TIER_EDGE, TIER_STORAGE

__all__ = ["follow"]

WAIT_S = 5.0  # for one node; it checks every 0.1 s, and answers at once when the trace ends there
TOGETHER_S = 0.3
WAITING_MAX = 1_000  # answers not yet shown


async def follow(cluster: Cluster, name: str, every_s: float, show: Callable[[TraceRead], Awaitable[None]]) -> None:
    """Show the recorded and new events of a trace until no answering node runs it.

    Raises:
        UserError: No node has a trace of this name.
    """
    begun = await read(cluster, name, {})
    await show(begun)
    tail = _Tail(cluster, name, every_s)
    send, receive = trio.open_memory_channel[TraceRead](WAITING_MAX)
    async with trio.open_nursery() as nursery:
        async with send:
            for tier in (TIER_EDGE, TIER_STORAGE):
                for entry in cluster.map.live(tier):
                    tail.running.add(entry.node)
                    nursery.start_soon(tail.read, entry, begun.after.get(entry.node, ""), send.clone())
        async with receive:
            async for found in receive:
                rows, missing = [*found.rows], [*found.missing]
                with trio.move_on_after(TOGETHER_S):
                    async for more in receive:
                        rows += more.rows
                        missing += more.missing
                await show(TraceRead(tuple(rows), {}, tuple(missing)))


class _Tail:
    """Reads one trace at each node.

    Attributes:
        running: Nodes that ran the trace at their last answer.
    """

    def __init__(self, cluster: Cluster, name: str, every_s: float) -> None:
        self._cluster, self._name, self._every_s = cluster, name, every_s
        self.running: set[str] = set()

    async def read(self, entry: NodeEntry, after: str, send: trio.MemorySendChannel[TraceRead]) -> None:
        """Read at one node until the trace ends there."""
        node, began, last = entry.node, trio.current_time(), False
        wait_s = WAIT_S  # 0: do not hold the query, read the remaining events
        async with send:
            while True:
                answer = await self._query(node, after, wait_s)
                if isinstance(answer, MissingRows):
                    self.running.discard(node)
                    await send.send(TraceRead((), {}, (answer,)))
                    if not self.running:
                        return
                elif answer.rows:
                    self.running.add(node)
                    after = str(answer.rows[-1].number)
                    await send.send(TraceRead(tuple((node, row) for row in answer.rows), {}, ()))
                    if wait_s or answer.after:
                        wait_s = 0.0
                        continue
                elif last or answer.error:
                    self.running.discard(node)
                    return
                if not isinstance(answer, MissingRows) and not await self._runs(node):
                    wait_s, last = 0.0, True  # read again: events recorded before the end
                    continue
                wait_s = WAIT_S
                await trio.sleep_until(began + self._every_s)
                began = trio.current_time()

    async def _query(self, node: str, after: str, wait_s: float) -> QueryAnswered | MissingRows:
        cluster = self._cluster
        where = {"trace": self._name}
        question = QueryTemplate("trace", where, (), cluster.actor, cluster.role, int(1_000 * wait_s))
        answer = await cluster.links.query_node(node, question, after, PLACE_ROWS, wait_s + NODE_S)
        if not isinstance(answer, QueryAnswered):
            return MissingRows(node, getattr(answer, "why", "no answer"))
        if answer.busy_ms:
            return MissingRows(node, "busy")
        return MissingRows(node, answer.error) if answer.error and NO_TRACE not in answer.error else answer

    async def _runs(self, node: str) -> bool:
        where = {"trace": self._name, "state": "running"}
        rows, silent = await place(self._cluster, node, "traces", where, 1)
        return bool(rows or silent)
