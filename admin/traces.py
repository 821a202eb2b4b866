"""Traces of a running cluster: the events that its nodes kept of one, put together and ordered by cause.

Events of one message are told by its origin, those of a push by the session and entry that it names. Within a message
the order is that of its way (received before forwarded before committed), whatever clocks say; messages follow each
other by the time of their first event. A trace of clients gets, at nodes that cannot know them, the events of every
marked message: those of other messages are left out here.
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

ORIGINS_MAX = 16_384  # kept between two calls
NO_TRACE = " has no trace "  # an answer: it was not begun there, or has made room for others
LATEST_US = 2**53  # the year 2255: also nanoseconds of it fit a span's field
Row = tuple[str, TraceEventRow]


class ClockOffset(NamedTuple):
    """How far a node's clock is ahead of ours, and by how much that may be wrong."""

    ahead_us: int
    error_us: int


class NodeTraceEvent(NamedTuple):
    """An event with the node that told it, its time by our clock, and how wrong that may be."""

    node: str
    event: TraceEventRow
    at_us: int
    error_us: int


class TraceRead(NamedTuple):
    """Events of a trace behind some places, and where each node's end."""

    rows: tuple[Row, ...]
    after: dict[str, str]
    missing: tuple[MissingRows, ...]


async def read(cluster: Cluster, name: str, after: Mapping[str, str]) -> TraceRead:
    """Return the events that nodes have behind the given places.

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
        if any(NO_TRACE in one.why for one in silent):
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
    """Return the clocks of nodes that answer, by the time that an answer took."""
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
            ahead_us = page.rows[0][1].at_ms * 1_000 + 500 - middle_us  # it tells whole milliseconds
            error_us = (ended_us - began_us) // 2 + 500
            # Less than the error is nothing that is known.
            found[node] = ClockOffset(ahead_us if abs(ahead_us) > error_us else 0, error_us)
    return found


def in_order(
    rows: Sequence[Row], clocks: Mapping[str, ClockOffset], own: dict[str, None] | None = None
) -> list[NodeTraceEvent]:
    """Return events ordered by cause, without those of messages that the trace is not about.

    ``own``: origins of messages that it is about, kept from one call to the next where events come in parts.
    """
    named = _of_one_message(_with_origins(rows))
    own = {} if own is None else own
    own.update((event.origin, None) for _, event in named if event.origin and not event.carried)
    while len(own) > ORIGINS_MAX and len(own) > len(rows):
        del own[next(iter(own))]
    told = []
    for node, event in named:
        if event.carried and event.origin not in own:
            continue
        clock = clocks.get(node, ClockOffset(0, 0))
        at_us = min(max((event.at_us or 0) - clock.ahead_us, 0), LATEST_US)  # a node may tell any number
        told.append(NodeTraceEvent(node, event, at_us, clock.error_us))
    first: dict[str, int] = {}
    for one in told:
        if one.event.origin:
            first[one.event.origin] = min(first.get(one.event.origin, one.at_us), one.at_us)
    return sorted(told, key=lambda one: _key(one, first))


def _key(one: NodeTraceEvent, first: Mapping[str, int]) -> tuple[int, str, int, int, int]:
    event = one.event
    begins = first.get(event.origin or "", one.at_us)
    return begins, event.origin or "", rank(event.stage), one.at_us, event.number or 0


def rank(stage: str | None) -> int:
    """Return the place of a stage on a message's way."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def _of_one_message(rows: list[Row]) -> list[Row]:
    """Give the copies of shared groups the origin of their message."""
    messages = {
        event.origin: event.detail.removeprefix(COPY_OF).partition(" ")[0]
        for _, event in rows
        if event.detail is not None and event.detail.startswith(COPY_OF)
    }
    for _, event in rows:
        event.origin = messages.get(event.origin, event.origin)
    return rows


def _with_origins(rows: Sequence[Row]) -> list[Row]:
    """Give events of pushes the origin of the entry that they name."""
    of_entry = {(event.session, event.seq): event.origin for _, event in rows if event.origin and event.seq is not None}
    for _, event in rows:
        if not event.origin and event.seq is not None:
            event.origin = of_entry.get((event.session, event.seq))
    return list(rows)


def sent_here(told: Sequence[NodeTraceEvent]) -> list[NodeTraceEvent]:
    """Return the events of the newest message that an edge published itself, as an operator's is."""
    origins = [one.event.origin for one in told if one.event.stage == "received" and one.event.detail == BY_NODE]
    return [one for one in told if origins and one.event.origin == origins[-1]]


def way_of(told: Sequence[NodeTraceEvent]) -> list[tuple[int, NodeTraceEvent]]:
    """Return the events of one message as a tree, each with its depth, in the order in which they are printed.

    Under the edge that received it stand its own clients, the other edges with theirs, and partitions with the entries
    of their sessions; what became of a copy stands under it.
    """
    lines: list[tuple[int, NodeTraceEvent]] = []
    last: list[tuple[int, NodeTraceEvent]] = []
    places: dict[tuple[int, str], list[NodeTraceEvent]] = {}  # an edge, or a partition
    chains: dict[tuple[int, str], dict[str, list[NodeTraceEvent]]] = {}  # under it, by client
    home = next((one.node for one in told if one.event.stage == "received"), "")
    partitions = {one.event.session: one.event.partition for one in told if one.event.partition is not None}
    for one in told:
        stage, session = one.event.stage, one.event.session
        if stage in ("received", "refused", "forwarded"):
            lines.append((0 if stage == "received" else 1, one))
        elif stage == "acknowledged":
            last.append((1, one))
        else:
            partition = one.event.partition if one.event.partition is not None else partitions.get(session)
            place = (0, "") if one.node == home and session is None else (1, one.node)
            if session is not None or one.event.partition is not None:
                place = (2, str(partition))
            whose = "" if stage in ("accepted", "committed") else f"{one.event.client_id} {session} {one.event.seq}"
            if whose:
                chains.setdefault(place, {}).setdefault(whose, []).append(one)
            else:
                places.setdefault(place, []).append(one)
    for place in sorted({*places, *chains}):
        lines += [(1, one) for one in places.get(place, ())]
        depth = 1 if place == (0, "") else 2
        for chain in chains.get(place, {}).values():
            lines += [(depth + _steps(chain, at), one) for at, one in enumerate(chain)]
    return lines + last


def _steps(chain: Sequence[NodeTraceEvent], at: int) -> int:
    """Return how many different stages a copy went through before an event: two nodes may tell of one."""
    return len({one.event.stage for one in chain[: at + 1]}) - 1
