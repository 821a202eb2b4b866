"""Reads the running traces and passes their messages as spans to a sender; nodes do not use OpenTelemetry."""

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
CLOCKS_S = 30.0  # maximum age of the clock offsets


class TraceExport:
    """Exports all traces of a cluster, each event once.

    Args:
        cluster: Returns the cluster to query; raises UserError if no router answers.
        sender: Sends the spans.

    Attributes:
        unread: Reads that found no router, or no node with the trace.
    """

    def __init__(self, cluster: Callable[[], Awaitable[Cluster]], sender: SpanSender) -> None:
        self._cluster = cluster
        self._sender = sender
        self.unread = 0
        self._builders: dict[str, SpanBuilder] = {}
        self._places: dict[str, dict[str, str]] = {}  # by trace and node: last position that was read
        self._counts: dict[str, int] = {}  # events of each trace at the last read
        self._clocks: dict[str, traces.ClockOffset] = {}
        self._clocks_at = -CLOCKS_S

    async def run(self) -> None:
        """Read and export once a second. Does not return."""
        while True:
            try:
                await self.export_once()
            except UserError:  # the service's alerts and pages show the reason
                self.unread += 1
            await trio.sleep(PERIOD_S)

    async def export_once(self) -> None:
        """Read the new events of every trace, and send the messages that are quiet."""
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
