"""Queries of a running cluster, one function each, shared by the command line and the HTTP service.

Selects the nodes to query: the tiers that hold a kind of row, or the nodes that the map or an earlier result names for
a client or topic. A partition or shard without an owner is reported like a silent node. Links are an argument
(``admin/links.py``).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from admin.cursors import digest_of, read_cursor, write_cursor
from admin.scatter_gather import (
    BEST_MAX,
    EVERY_ROW,
    NODE_S,
    TOTAL_S,
    Event,
    MissingRows,
    QueryTarget,
    QueryTemplate,
    ResultPage,
    ScatterGather,
)
from conf.errors import ExitCode, UserError
from wire.messages.client_rows import ClientDetail, QueuedMessageRow, SessionDetail, SubscriptionListRow
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.queries import WHERE_MAX
from wire.messages.query_kinds import LOOK_KINDS, columns_of
from wire.messages.topic_rows import MatchRow, ResolvedRouteRow, RouteRow, ShareMemberRow, ShareRow

__all__ = [
    "EVERY_ROW",
    "PLACE_ROWS",
    "ClientView",
    "Cluster",
    "ListQuery",
    "ListResult",
    "TopicView",
    "check",
    "client",
    "place",
    "queue",
    "route",
    "share",
    "subscriptions",
    "topic",
    "walk",
]

WITH_PARTITIONS = ("sessions", "session", "queue", "retained", "shares", "matches")  # rows of primaries
TEXT_MAX = 65_535  # characters of a client ID, a topic or a pattern
OLDEST = "age"  # s: age of the oldest unacknowledged or unsent byte at an edge, of the oldest queued message at storage
SLOW_BY = {OLDEST: "", "window": "", "unsent": TIER_EDGE, "queued": TIER_STORAGE, "bytes": TIER_STORAGE}  # "": both
PARTITIONS_NAMED = 8  # in one message
UNKNOWN_CLIENT = re.compile(r"has no (session|stored session|connection)\b")  # reply of a node that has no such client
PLACE_ROWS = 1000  # of one session or one topic, if all are needed


class QueryLinks(Protocol):
    """The links of an operator."""

    @property
    def map(self) -> ClusterMap:
        """The map that was read last."""
        ...

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        """Run a scatter-gather; return its page."""
        ...

    async def query_node(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        """Query one node once; return its result or the failure."""
        ...


class Cluster(NamedTuple):
    """Links, operator and time limit of queries."""

    links: QueryLinks
    total_s: float = TOTAL_S
    actor: str = ""
    role: str = "admin"

    @property
    def map(self) -> ClusterMap:
        """The map of the links."""
        return self.links.map

    @property
    def placement(self) -> ClusterMap:
        """The map, if it has partitions.

        Raises:
            UserError: The map is empty: the router has none yet.
        """
        if not self.map.partitions:
            raise UserError("the map is empty: ask again once a majority of the routers runs", ExitCode.NOT_READY)
        return self.map


class ListQuery(NamedTuple):
    """Selection of the rows of a list."""

    where: Mapping[str, str] = {}
    nodes: Sequence[str] = ()  # none: all nodes with such rows
    limit: int = 100  # EVERY_ROW: no bound
    cursor: str = ""
    columns: Sequence[str] = ()
    best: str = ""  # sort by this column, greatest first; "": in the order of the nodes
    tier: str = ""  # "": every tier with such rows


class ListResult(NamedTuple):
    """Rows with the node of each, and the missing parts."""

    rows: tuple[tuple[str, Any], ...]
    cursor: str = ""  # "": no row remains
    partial: tuple[MissingRows, ...] = ()
    restarted: tuple[str, ...] = ()
    total_about: int = 0
    overtime: bool = False


async def walk(cluster: Cluster, what: str, selection: ListQuery) -> ListResult:
    """Return one page of a list.

    Raises:
        UserError: A column or node does not exist, or the cursor is invalid.
    """
    check(what, selection)
    if selection.best and selection.cursor:
        raise UserError("a cursor works in node order only: leave out --best or the cursor", ExitCode.USAGE)
    if what == "slow":
        selection = _with_measure(selection)
    nodes = _nodes_of(cluster.map, what, selection.nodes, selection.tier)
    digest = digest_of(what, selection.where, selection.nodes)
    here = cluster.map.cluster
    after = read_cursor(selection.cursor, here, what, digest) if selection.cursor else None
    key = _greatest(selection.best) if selection.best else None
    targets = [QueryTarget(node, cluster.map.nodes[node].incarnation) for node in nodes]
    limit = min(selection.limit, BEST_MAX) if key is not None else selection.limit
    gather = ScatterGather(targets, limit, after=after, best=key, node_s=NODE_S, total_s=cluster.total_s)
    page = await cluster.links.gather(gather, _question(cluster, what, selection.where, selection.columns))
    missing = page.partial
    if page.after is None and not selection.nodes:
        missing += _missing_partitions(cluster.map, what)
    cursor = "" if page.after is None else write_cursor(here, what, digest, page.after)
    return ListResult(page.rows, cursor, missing, page.restarted, page.total_about, page.overtime)


def _question(cluster: Cluster, what: str, where: Mapping[str, str], columns: Sequence[str] = ()) -> QueryTemplate:
    """Return a query within the bounds of a node; a node closes the link on a longer one.

    Raises:
        UserError: A filter is too long, or there are too many.
    """
    for name, value in where.items():
        if len(value) > TEXT_MAX:
            raise UserError(f"{name} of {len(value)} characters: at most {TEXT_MAX}", ExitCode.USAGE)
    if len(where) > WHERE_MAX:
        raise UserError(f"{len(where)} conditions: at most {WHERE_MAX}", ExitCode.USAGE)
    return QueryTemplate(what, where, [*dict.fromkeys(columns)], cluster.actor, cluster.role)


def _greatest(column: str) -> Callable[[Any], Any]:
    def key(row: Any) -> Any:
        value = getattr(row, column)
        return value if isinstance(value, int | float) else -1

    return key


def check(what: str, selection: ListQuery) -> None:
    """Check columns and filters before nodes are queried.

    Raises:
        UserError: The kind lacks one of them.
    """
    known = columns_of(what)
    for word, names, existing in (
        ("column", [*selection.columns, *([selection.best] if selection.best else [])], known),
        ("filter key", [*selection.where], [*known, *LOOK_KINDS[what].takes]),
    ):
        for name in names:
            if name not in existing:
                raise UserError(f"no {word} {name!r}; there are {', '.join(existing)}", ExitCode.USAGE)


def _with_measure(selection: ListQuery) -> ListQuery:
    """Return the query with measure and tier: values of two measures cannot be compared.

    Raises:
        UserError: The measure does not exist.
    """
    by = selection.where.get("by", OLDEST)
    if by not in SLOW_BY:
        known = ", ".join(SLOW_BY)
        raise UserError(f"slow clients are measured by {known}, not by {by[:64]!r}", ExitCode.USAGE)
    return selection._replace(where={**selection.where, "by": by}, tier=selection.tier or SLOW_BY[by])


def _nodes_of(cluster_map: ClusterMap, what: str, named: Sequence[str], tier: str) -> list[str]:
    """Return the nodes to query, by name.

    Raises:
        UserError: A name is not in the cluster, or its tier has no such rows.
    """
    tiers = frozenset({tier}) if tier else LOOK_KINDS[what].tiers
    existing = [entry.node for one in sorted(tiers) for entry in cluster_map.live(one)]
    for name in named:
        entry = cluster_map.nodes.get(name)
        if entry is None:
            known = ", ".join(sorted(cluster_map.nodes))
            raise UserError(f"no node {name[:64]!r} in this cluster; there are {known}", ExitCode.USAGE)
        if entry.tier not in tiers:
            raise UserError(
                f"{name} is a node of tier {entry.tier}: only {_tier_names(tiers)} have {what}", ExitCode.USAGE
            )
    return sorted(set(named)) or sorted(existing)


def _tier_names(tiers: frozenset[str]) -> str:
    return " and ".join(f"{tier} nodes" for tier in sorted(tiers))


def _missing_partitions(cluster_map: ClusterMap, what: str) -> tuple[MissingRows, ...]:
    if what not in WITH_PARTITIONS:
        return ()
    numbers = [number for number, placement in enumerate(cluster_map.partitions) if not placement.primary]
    if not numbers:
        return ()
    named = ", ".join(map(str, numbers[:PARTITIONS_NAMED])) + (", ..." if len(numbers) > PARTITIONS_NAMED else "")
    return (MissingRows(f"partition {named}", f"no primary ({len(numbers)} of {len(cluster_map.partitions)})"),)


# -- single nodes


class ClientView(NamedTuple):
    """One client: its session at its partition's primary, and its connection at the edge that the session names."""

    client_id: str
    partition: int
    primary: str  # "": no primary
    session: SessionDetail | None
    connection: ClientDetail | None
    edge: str  # "": not connected, as far as known
    partial: tuple[MissingRows, ...]
    asked: tuple[str, ...]


async def client(cluster: Cluster, client_id: str, about: Mapping[str, str] | None = None) -> ClientView:
    """Return a client's session and connection from two nodes.

    Args:
        about: ``topic`` and ``qos`` of a message to authorize; none: no message.
    """
    partition = cluster.placement.partition_for(client_id)
    primary = cluster.map.partitions[partition].primary
    if not primary:
        missing = (MissingRows(f"partition {partition}", "no primary"),)
        return ClientView(client_id, partition, "", None, None, "", missing, ())
    where = {"client_id": client_id}
    sessions, partial = await place(cluster, primary, "session", where, 1)
    session: SessionDetail | None = sessions[0] if sessions else None
    edge = session.node or "" if session is not None and session.online else ""
    connections: list[ClientDetail] = []
    if edge:
        connections, more = await place(cluster, edge, "client", {**where, **(about or {})}, 1)
        partial += more
    nodes = (primary, edge) if edge else (primary,)
    return ClientView(
        client_id, partition, primary, session, connections[0] if connections else None, edge, partial, nodes
    )


async def place(
    cluster: Cluster, node: str, what: str, where: Mapping[str, str], limit: int
) -> tuple[list[Any], tuple[MissingRows, ...]]:
    """Return rows of one node, or the node if it did not answer."""
    entry = cluster.map.nodes.get(node)
    if entry is None:
        return [], (MissingRows(node, "it is not in the map"),)
    gather = ScatterGather([QueryTarget(node, entry.incarnation)], limit, total_s=cluster.total_s)
    page = await cluster.links.gather(gather, _question(cluster, what, where))
    return [row for _, row in page.rows], tuple(one for one in page.partial if UNKNOWN_CLIENT.search(one.why) is None)


async def subscriptions(
    cluster: Cluster, view: ClientView
) -> tuple[list[SubscriptionListRow], tuple[MissingRows, ...]]:
    """Return the subscriptions of a client: from its primary if its session is durable, else from its edge."""
    durable = view.session is not None and bool(view.session.durable)
    node = view.primary if durable else view.edge
    if not node:
        return [], ()
    rows, partial = await place(cluster, node, "subscriptions", {"client_id": view.client_id}, PLACE_ROWS)
    # an asterisk in the client ID is a pattern there
    return [row for row in rows if row.client_id == view.client_id], partial


async def queue(
    cluster: Cluster, view: ClientView, limit: int, payload: str = ""
) -> tuple[list[QueuedMessageRow], tuple[MissingRows, ...]]:
    """Return the first entries of a session's queue."""
    if not view.primary:
        return [], view.partial
    where = {"client_id": view.client_id} | ({"payload": payload} if payload else {})
    return await place(cluster, view.primary, "queue", where, limit)


async def share(
    cluster: Cluster, group: str, topic_filter: str
) -> tuple[list[ShareRow], list[tuple[str, ShareMemberRow]], tuple[MissingRows, ...]]:
    """Return the parts of a shared group, and its members with the filter of each.

    Args:
        topic_filter: Without ``$share/<group>/``; empty: all filters of the group.
    """
    where = {"group": group} | ({"filter": topic_filter} if topic_filter else {})
    found = await walk(cluster, "shares", ListQuery(where, limit=PLACE_ROWS))
    parts = [row for _, row in found.rows if row.group == group and topic_filter in ("", row.filter)]
    partial = found.partial
    members: list[tuple[str, ShareMemberRow]] = []
    for name in sorted({row.filter or "" for row in parts}):
        named = await walk(cluster, "shares", ListQuery({"group": group, "filter": name}, limit=PLACE_ROWS))
        partial += tuple(missing for missing in named.partial if missing not in partial)
        parts_here = [row for _, row in named.rows if (row.group, row.filter) == (group, name)]
        members += [(name, member) for row in parts_here for member in row.who or ()]
    return parts, members, partial


class TopicView(NamedTuple):
    """One topic: the owner of its shard, and the subscriptions that match or nearly match."""

    topic: str
    shard: int
    owner: str  # "": no owner
    resolved: ResolvedRouteRow | None
    matches: tuple[tuple[str, MatchRow], ...]
    partial: tuple[MissingRows, ...]


async def route(cluster: Cluster, name: str) -> tuple[ResolvedRouteRow | None, list[RouteRow], tuple[MissingRows, ...]]:
    """Return a topic's route at the owner of its shard, and the routes that edges cache."""
    shard = cluster.placement.shard_for_topic(name)
    owner = cluster.map.shards[shard].owner
    if not owner:
        return None, [], (MissingRows(f"shard {shard}", "no owner"),)
    resolved, partial = await place(cluster, owner, "resolve", {"topic": name}, 1)
    routes: list[RouteRow] = []
    for edge in resolved[0].cached_at or () if resolved else ():
        found, more = await place(cluster, edge, "routes", {"topic": name}, PLACE_ROWS)
        routes += [row for row in found if row.topic == name]
        partial += more
    return resolved[0] if resolved else None, routes, partial


async def topic(cluster: Cluster, name: str, about: Mapping[str, str]) -> TopicView:
    """Return a topic's receivers: one query to its owner, then one to each node that may have a subscriber.

    Args:
        cluster: Cluster to query.
        name: The topic.
        about: ``from``, ``qos``, ``retain``, ``bytes``, ``near`` of the kind ``matches``.
    """
    shard = cluster.placement.shard_for_topic(name)
    owner = cluster.map.shards[shard].owner
    resolved: list[ResolvedRouteRow] = []
    partial: tuple[MissingRows, ...] = ()
    if owner:
        resolved, partial = await place(cluster, owner, "resolve", {"topic": name}, 1)
    else:
        partial = (MissingRows(f"shard {shard}", "no owner"),)
    found, more = await _matches(cluster, name, resolved[0] if resolved else None, about)
    return TopicView(name, shard, owner, resolved[0] if resolved else None, found, partial + more)


async def _matches(
    cluster: Cluster, name: str, resolved: ResolvedRouteRow | None, about: Mapping[str, str]
) -> tuple[tuple[tuple[str, MatchRow], ...], tuple[MissingRows, ...]]:
    """Return the matching subscriptions of the nodes that the owner named; near misses need every node."""
    if resolved is None or about.get("near"):
        nodes = [*LOOK_KINDS["matches"].tiers]
        nodes = [entry.node for tier in nodes for entry in cluster.map.live(tier)]
    else:
        primaries = [cluster.map.partitions[number].primary for number in resolved.partitions or ()]
        nodes = sorted({node for node in (*(resolved.edges or ()), *primaries) if node})
    if not nodes:
        return (), ()
    targets = [QueryTarget(node, cluster.map.nodes[node].incarnation) for node in nodes if node in cluster.map.nodes]
    gather = ScatterGather(targets, PLACE_ROWS, total_s=cluster.total_s)
    page = await cluster.links.gather(gather, _question(cluster, "matches", {"topic": name, **about}))
    lacking = _missing_partitions(cluster.map, "matches") if about.get("near") else ()
    if page.after is not None and not page.overtime:
        lacking += (MissingRows("subscriptions", f"only the first {PLACE_ROWS} are listed"),)
    return page.rows, page.partial + lacking
