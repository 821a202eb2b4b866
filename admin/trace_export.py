"""Reads the traces that run, and hands their messages as spans to a sender: nodes know nothing of OpenTelemetry."""

import time
from collections.abc import Awaitable, Callable

import trio

from admin import queries, traces
from admin.otlp import SpanSender
from admin.queries import Cluster
from admin.spans import SpanBuilder
from conf.errors import UserError

__all__ = ["TraceExport"]

PERIOD_S = 1.0
TRACES_MAX = 64
CLOCKS_S = 30.0  # how old the clocks' differences may be


class TraceExport:
    """All traces of a cluster, read once each.

    Args:
        cluster: Returns the cluster, to be asked as an operator; raises UserError where no router answers.
        sender: Takes the spans.

    Attributes:
        unread: Looks at the traces that found no router, or no node that has them.
    """

    def __init__(self, cluster: Callable[[], Awaitable[Cluster]], sender: SpanSender) -> None:
        self._cluster = cluster
        self._sender = sender
        self.unread = 0
        self._builders: dict[str, SpanBuilder] = {}
        self._places: dict[str, dict[str, str]] = {}  # of each trace: where each node's events were read to
        self._counts: dict[str, int] = {}  # events of each trace when it was read last
        self._clocks: dict[str, traces.ClockOffset] = {}
        self._clocks_at = -CLOCKS_S

    async def run(self) -> None:
        """Read, for ever; a cluster that does not answer is asked again."""
        while True:
            try:
                await self.once()
            except UserError:  # the service's alarms and pages tell why nobody answers
                self.unread += 1
            await trio.sleep(PERIOD_S)

    async def once(self) -> None:
        """Read what is new of every trace, and hand on the messages that are quiet."""
        cluster = await self._cluster()
        listed = await queries.walk(cluster, "traces", queries.ListQuery(limit=1_000))
        counts: dict[str, int] = {}
        for _, row in listed.rows:
            counts[row.trace] = counts.get(row.trace, 0) + (row.events or 0)
        for name in [name for name in self._places if name not in counts]:
            del self._places[name], self._counts[name], self._builders[name]
        for name in list(counts)[:TRACES_MAX]:
            if name not in self._builders:
                self._builders[name], self._places[name], self._counts[name] = SpanBuilder(self._sender.drop), {}, 0
            if counts[name] != self._counts[name]:
                await self._read(cluster, name)
                self._counts[name] = counts[name]
            self._sender.put(self._builders[name].ready(self._clocks, time.time_ns() // 1_000))

    async def _read(self, cluster: Cluster, name: str) -> None:
        found = await traces.read(cluster, name, self._places[name])
        self._places[name] = found.after
        nodes = {node for node, _ in found.rows}
        now = trio.current_time()
        if now - self._clocks_at >= CLOCKS_S or nodes - self._clocks.keys():
            self._clocks = await traces.clocks_of(cluster, sorted(nodes | self._clocks.keys()))
            self._clocks_at = now
        self._builders[name].take(found.rows, time.time_ns() // 1_000)
