"""Query rows of slow clients by several measures, and of an edge's drops by reason.

A walk covers all connections, a bounded number per query; the requester keeps the largest values.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from conf.drop_reasons import REASON_OF, REASONS
from edge.clients.client import Client
from edge.loop.broker_loop import BrokerLoop
from edge.node.node import NS, EdgeNode
from edge.queries.clients import ClientTable
from edge.queries.windows import in_flight, unsent_bytes, waiting_since_ns
from wire.queries.journal import drop_columns
from wire.queries.source import Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["slow_sources"]

MEASURES = ("unsent", "window", "age")


class _SlowClient(NamedTuple):
    """One client with one value."""

    value: float
    number: int
    client: Client
    by: str
    unit: str
    since_ms: int | None


def slow_sources(node: EdgeNode, hot: BrokerLoop, table: ClientTable) -> dict[str, RowSource]:
    """Return the row sources of slow clients and drops."""

    def measured(client: Client, by: str) -> _SlowClient | None:
        conn = client.conn
        since_ns = waiting_since_ns(conn)
        if by == "unsent":
            value, unit, since_ns = float(unsent_bytes(conn)), "bytes", conn.high_since_ns if conn.high else 0
        elif by == "window":
            kept_here = conn.window and not client.session  # storage measures that of a durable session
            value, unit = in_flight(conn) / conn.window if kept_here else 0.0, "ratio"
        else:
            value, unit = (hot.now_ns - since_ns) / NS if since_ns else 0.0, "s"
        since_ms = table.utc_of(since_ns / NS) if since_ns else None
        return _SlowClient(value, client.number, client, by, unit, since_ms) if value > 0 else None

    def slow(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        by = ask.where.get("by", MEASURES[0])
        if by not in MEASURES:
            raise QueryRefused(f"an edge measures slow clients by {', '.join(MEASURES)}, not by {by[:32]!r}", 2)
        for number, client in table.walk(ask):
            yield number, measured(client, by)

    def counts() -> Mapping[str, int]:
        return hot.counters() | dict(node.counts)

    return {
        "slow": RowSource(slow, _slow_columns(node.name)),
        "drops": RowSource(lambda _: _drops(counts()), drop_columns(node.journal, node.name), lambda: len(REASONS)),
    }


def _slow_columns(name: str) -> Columns:
    return {
        "client_id": lambda one: one.client.client_id,
        "node": lambda _: name,
        "by": lambda one: one.by,
        "value": lambda one: one.value,
        "unit": lambda one: one.unit,
        "since_ms": lambda one: one.since_ms,
        "session": lambda one: one.client.session,
        "partition": lambda one: one.client.partition,
        "number": lambda one: one.number,
    }


def _drops(counts: Mapping[str, int]) -> Iterator[tuple[Place, Any]]:
    by_reason = dict.fromkeys(REASONS, 0)
    for name, reason in REASON_OF.items():
        by_reason[reason] += counts.get(name, 0)
    for place, (reason, count) in enumerate(by_reason.items(), 1):
        yield place, (reason, count)
