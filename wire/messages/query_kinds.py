"""The table of query kinds: row type, answering tiers, least role, and mandatory filters.

``rows_of`` decodes ``QueryResult.rows``. A node answers a kind that is not listed here, or not for its tier, with an
error. Decision: docs/adr/0093-looks.md.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from wire.decoding import Payload, strictly
from wire.messages import client_rows as clients
from wire.messages import node_rows as nodes
from wire.messages import topic_rows as topics
from wire.messages.hello import OPERATOR_ROLES, TIER_EDGE, TIER_ROUTER, TIER_STORAGE
from wire.messages.queries import QueryResult

__all__ = ["LOOK_KINDS", "QueryKind", "columns_of", "lower_role", "may_look", "rows_of"]

VIEWER, OPERATOR, ADMIN = OPERATOR_ROLES
_EDGE = frozenset({TIER_EDGE})
_STORAGE = frozenset({TIER_STORAGE})
_ROUTER = frozenset({TIER_ROUTER})
_DATA = _EDGE | _STORAGE
_ALL = _DATA | _ROUTER


class QueryKind(msgspec.Struct, frozen=True):
    """One kind: ``demands`` are mandatory filters, ``takes`` are filters that are not columns."""

    row: type[msgspec.Struct]
    tiers: frozenset[str]
    role: str = VIEWER
    demands: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    waits: bool = False  # a query may wait for new rows


LOOK_KINDS: dict[str, QueryKind] = {
    "clients": QueryKind(clients.ClientRow, _EDGE),
    "client": QueryKind(clients.ClientDetail, _EDGE, demands=("client_id",), takes=("topic", "qos")),
    "sessions": QueryKind(clients.SessionSummaryRow, _STORAGE),
    "session": QueryKind(clients.SessionDetail, _STORAGE, demands=("client_id",)),
    "subscriptions": QueryKind(clients.SubscriptionListRow, _DATA),
    "queue": QueryKind(
        clients.QueuedMessageRow, _STORAGE, demands=("client_id",), takes=("payload",)
    ),  # "head": OPERATOR
    "inflight": QueryKind(clients.InFlightRow, _DATA, demands=("client_id",)),
    "listeners": QueryKind(clients.ListenerRow, _EDGE),
    "stats": QueryKind(nodes.StatsRow, _ALL),
    "retained": QueryKind(
        topics.RetainedMessageRow, _STORAGE, takes=("payload", "matches")
    ),  # "full": OPERATOR, of one topic
    "shares": QueryKind(topics.ShareRow, _DATA),
    "routes": QueryKind(topics.RouteRow, _EDGE | _ROUTER),
    "resolve": QueryKind(topics.ResolvedRouteRow, _ROUTER, demands=("topic",)),
    "matches": QueryKind(topics.MatchRow, _DATA, demands=("topic",), takes=("from", "qos", "retain", "bytes", "near")),
    "replicas": QueryKind(nodes.ReplicaRow, _STORAGE),
    "raft": QueryKind(nodes.RaftRow, _ROUTER),
    "slow": QueryKind(nodes.SlowSubscriberRow, _DATA, takes=("by",)),
    "drops": QueryKind(nodes.DropRow, _DATA),
    "config": QueryKind(nodes.ConfigRow, _ALL),
    "log": QueryKind(nodes.LogLineRow, _ALL, OPERATOR, waits=True),
    "journal": QueryKind(nodes.JournalRow, _ALL, waits=True),
    "traces": QueryKind(nodes.TraceRow, _DATA),
    "trace": QueryKind(nodes.TraceEventRow, _DATA, OPERATOR, demands=("trace",), waits=True),
}


def columns_of(what: str) -> tuple[str, ...]:
    """Return the columns of a kind, in their order."""
    return LOOK_KINDS[what].row.__struct_fields__


def lower_role(one: str, other: str) -> str:
    """Return the lower one of two roles; an unknown word is the lowest."""
    ranks = {role: rank for rank, role in enumerate(OPERATOR_ROLES)}
    return OPERATOR_ROLES[min(ranks.get(one, 0), ranks.get(other, 0))]


def may_look(what: str, role: str) -> bool:
    """Return whether a role suffices for a kind."""
    return lower_role(LOOK_KINDS[what].role, role) == LOOK_KINDS[what].role


@cache
def _reader(what: str) -> Callable[[Payload], msgspec.Struct]:
    return strictly(msgspec.msgpack.Decoder(LOOK_KINDS[what].row).decode, f"row of {what}")


def rows_of(what: str, seen: QueryResult) -> list[Any]:
    """Return the decoded rows of a reply.

    Raises:
        Unreadable: A row does not have the type of that kind.
    """
    read = _reader(what)
    return [read(row) for row in seen.rows]
