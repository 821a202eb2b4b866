"""Traces of a running cluster: the nodes' events of one trace, merged in causal order.

Events of one message share its origin; events of a push are matched by session and entry. Within a message, stages
define the order (received before forwarded before committed), not clocks. Messages are ordered by their first event.
Nodes that cannot filter by client record every marked message; events of other messages are removed here.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from admin.cursors import Position
from admin.explain.message import STAGES
from admin.queries import PLACE_ROWS, Cluster
from admin.scatter_gather import MissingRows, QueryTarget, QueryTemplate, ScatterGather
from conf.errors import ExitCode, UserError
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.node_rows import TraceEventRow
from wire.queries.traces import BY_NODE, COPY_OF

__all__ = [
    "LATEST_US",
    "NO_TRACE",
    "ClockOffset",
    "NodeTraceEvent",
    "Row",
    "TraceRead",
    "clocks_of",
    "in_order",
    "read",
    "sent_here",
    "way_of",
]

ORIGINS_MAX = 16_384  # stored between two calls
NO_TRACE = " has no trace "  # reply of a node without this trace: it was not started there, or was evicted
LATEST_US = 2**53  # the year 2255: its nanoseconds still fit a span's field
Row = tuple[str, TraceEventRow]


class ClockOffset(NamedTuple):
    """How far a node's clock is ahead of this one, and the maximum error."""

    ahead_us: int
    error_us: int


class NodeTraceEvent(NamedTuple):
    """An event with its node, its time by this clock, and the maximum error."""

    node: str
    event: TraceEventRow
    at_us: int
    error_us: int


class TraceRead(NamedTuple):
    """Events of a trace after the given positions, and each node's new position."""

    rows: tuple[Row, ...]
    after: dict[str, str]
    missing: tuple[MissingRows, ...]


async def read(cluster: Cluster, name: str, after: Mapping[str, str]) -> TraceRead:
    """Return the nodes' events after the given positions.

    Raises:
        UserError: No node has a trace of this name.
    """
    rows: list[Row] = []
    places = dict(after)
    missing: list[MissingRows] = []
    without = 0
    entries = [entry for tier in (TIER_EDGE, TIER_STORAGE) for entry in cluster.map.live(tier)]
    for entry in entries:
        found, silent = await _of_node(cluster, name, entry.node, entry.incarnation, places.get(entry.node, ""))
        rows += [(entry.node, row) for row in found]
        if found and found[-1].number is not None:
            places[entry.node] = str(found[-1].number)
        if any(NO_TRACE in item.why for item in silent):
            without += 1
        else:
            missing += silent
    if entries and without == len(entries):
        raise UserError(f"no node has a trace {name[:64]!r}: see `trace list`", ExitCode.USAGE)
    return TraceRead(tuple(rows), places, tuple(missing))


async def _of_node(
    cluster: Cluster, name: str, node: str, incarnation: int, after: str
) -> tuple[list[TraceEventRow], tuple[MissingRows, ...]]:
    rows: list[TraceEventRow] = []
    while True:
        target = [QueryTarget(node, incarnation)]
        gather = ScatterGather(target, PLACE_ROWS, after=Position(node, incarnation, after), total_s=cluster.total_s)
        question = QueryTemplate("trace", {"trace": name}, (), cluster.actor, cluster.role)
        page = await cluster.links.gather(gather, question)
        found = [row for _, row in page.rows]
        rows += found
        if len(found) < PLACE_ROWS or page.partial or found[-1].number is None:
            return rows, page.partial
        after = str(found[-1].number)


async def clocks_of(cluster: Cluster, nodes: Sequence[str]) -> dict[str, ClockOffset]:
    """Return the clock offsets of the answering nodes, from request and response times."""
    found: dict[str, ClockOffset] = {}
    for node in sorted(set(nodes)):
        entry = cluster.map.nodes.get(node)
        if entry is None:
            continue
        gather = ScatterGather([QueryTarget(node, entry.incarnation)], 1, total_s=cluster.total_s)
        began_us = time.time_ns() // 1_000
        page = await cluster.links.gather(gather, QueryTemplate("stats", {}, ("at_ms",), cluster.actor, cluster.role))
        ended_us = time.time_ns() // 1_000
        if page.rows and page.rows[0][1].at_ms:
            middle_us = (began_us + ended_us) // 2
            ahead_us = page.rows[0][1].at_ms * 1_000 + 500 - middle_us  # a node reports whole milliseconds
            error_us = (ended_us - began_us) // 2 + 500
            # An offset below the error is not significant.
            found[node] = ClockOffset(ahead_us if abs(ahead_us) > error_us else 0, error_us)
    return found


def in_order(
    rows: Sequence[Row], clocks: Mapping[str, ClockOffset], own: dict[str, None] | None = None
) -> list[NodeTraceEvent]:
    """Return events in causal order, without those of messages outside the trace.

    ``own``: origins of the trace's messages, kept between calls if events arrive in parts.
    """
    named = _of_one_message(_with_origins(rows))
    own = {} if own is None else own
    own.update((event.origin, None) for _, event in named if event.origin and not event.carried)
    while len(own) > ORIGINS_MAX and len(own) > len(rows):
        del own[next(iter(own))]
    events = []
    for node, event in named:
        if event.carried and event.origin not in own:
            continue
        clock = clocks.get(node, ClockOffset(0, 0))
        at_us = min(max((event.at_us or 0) - clock.ahead_us, 0), LATEST_US)  # a node may send any number
        events.append(NodeTraceEvent(node, event, at_us, clock.error_us))
    first: dict[str, int] = {}
    for item in events:
        if item.event.origin:
            first[item.event.origin] = min(first.get(item.event.origin, item.at_us), item.at_us)
    return sorted(events, key=lambda item: _key(item, first))


def _key(item: NodeTraceEvent, first: Mapping[str, int]) -> tuple[int, str, int, int, int]:
    event = item.event
    begins = first.get(event.origin or "", item.at_us)
    return begins, event.origin or "", rank(event.stage), item.at_us, event.number or 0


def rank(stage: str | None) -> int:
    """Return the position of a stage in a message's path."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def _of_one_message(rows: list[Row]) -> list[Row]:
    """Replace the origin of shared-subscription copies by that of their message."""
    messages = {
        event.origin: event.detail.removeprefix(COPY_OF).partition(" ")[0]
        for _, event in rows
        if event.detail is not None and event.detail.startswith(COPY_OF)
    }
    for _, event in rows:
        event.origin = messages.get(event.origin, event.origin)
    return rows


def _with_origins(rows: Sequence[Row]) -> list[Row]:
    """Set the origin of push events from the queue entry that they name."""
    of_entry = {(event.session, event.seq): event.origin for _, event in rows if event.origin and event.seq is not None}
    for _, event in rows:
        if not event.origin and event.seq is not None:
            event.origin = of_entry.get((event.session, event.seq))
    return list(rows)


def sent_here(events: Sequence[NodeTraceEvent]) -> list[NodeTraceEvent]:
    """Return the events of the newest message that an edge published itself for an operator."""
    origins = [item.event.origin for item in events if item.event.stage == "received" and item.event.detail == BY_NODE]
    return [item for item in events if origins and item.event.origin == origins[-1]]


def way_of(events: Sequence[NodeTraceEvent]) -> list[tuple[int, NodeTraceEvent]]:
    """Return the events of one message as a tree in print order, each with its depth.

    Below the receiving edge come its own clients, the other edges with their clients, and partitions with the entries
    of their sessions. Events of a copy follow it one level deeper.
    """
    lines: list[tuple[int, NodeTraceEvent]] = []
    last: list[tuple[int, NodeTraceEvent]] = []
    places: dict[tuple[int, str], list[NodeTraceEvent]] = {}  # an edge, or a partition
    chains: dict[tuple[int, str], dict[str, list[NodeTraceEvent]]] = {}  # below it, by client
    home = next((item.node for item in events if item.event.stage == "received"), "")
    partitions = {item.event.session: item.event.partition for item in events if item.event.partition is not None}
    for item in events:
        stage, session = item.event.stage, item.event.session
        if stage in ("received", "refused", "forwarded"):
            lines.append((0 if stage == "received" else 1, item))
        elif stage == "acknowledged":
            last.append((1, item))
        else:
            partition = item.event.partition if item.event.partition is not None else partitions.get(session)
            place = (0, "") if item.node == home and session is None else (1, item.node)
            if session is not None or item.event.partition is not None:
                place = (2, str(partition))
            copy_key = (
                "" if stage in ("accepted", "committed") else f"{item.event.client_id} {session} {item.event.seq}"
            )
            if copy_key:
                chains.setdefault(place, {}).setdefault(copy_key, []).append(item)
            else:
                places.setdefault(place, []).append(item)
    for place in sorted({*places, *chains}):
        lines += [(1, item) for item in places.get(place, ())]
        depth = 1 if place == (0, "") else 2
        for chain in chains.get(place, {}).values():
            lines += [(depth + _steps(chain, at), item) for at, item in enumerate(chain)]
    return lines + last


def _steps(chain: Sequence[NodeTraceEvent], at: int) -> int:
    """Return the number of different stages of a copy before an event: two nodes may report one stage."""
    return len({item.event.stage for item in chain[: at + 1]}) - 1
