"""Questions about a running cluster, one function each; the command line and the HTTP service ask the same ones.

Decides which nodes are asked: those of the tiers that hold a kind of row, or those that a map and an answer name for
one client or one topic. A partition or shard without an owner is named as a silent node is. Links are handed in
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

WITH_PARTITIONS = ("sessions", "session", "queue", "retained", "shares", "matches")  # rows that a primary holds
TEXT_MAX = 65_535  # characters of a client ID, a topic or a pattern
OLDEST = "age"  # s: of the oldest unacknowledged or unsent byte at an edge, of the oldest queued message at storage
SLOW_BY = {OLDEST: "", "window": "", "unsent": TIER_EDGE, "queued": TIER_STORAGE, "bytes": TIER_STORAGE}  # "": both
PARTITIONS_NAMED = 8  # in one line
NOT_THERE = re.compile(r"has no (session|stored session|connection)\b")  # an answer: the node knows of no such client
PLACE_ROWS = 1000  # of one session or one topic, where all of them are wanted


class QueryLinks(Protocol):
    """The links of an operator."""

    @property
    def map(self) -> ClusterMap:
        """The map that was read last."""
        ...

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        """Carry a gather to its page."""
        ...

    async def look(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        """Ask one node once, and return its answer, or that there is none."""
        ...


class Cluster(NamedTuple):
    """Where questions go, as whom, and how long one may take."""

    links: QueryLinks
    total_s: float = TOTAL_S
    actor: str = ""
    role: str = "admin"

    @property
    def map(self) -> ClusterMap:
        """The map that the links have."""
        return self.links.map

    @property
    def placement(self) -> ClusterMap:
        """The map, once it says where clients and topics are.

        Raises:
            UserError: It is empty: the router that was asked has none yet.
        """
        if not self.map.partitions:
            raise UserError("the map is empty: ask again once a majority of the routers runs", ExitCode.NOT_READY)
        return self.map


class ListQuery(NamedTuple):
    """Rows of a list that are wanted."""

    where: Mapping[str, str] = {}
    nodes: Sequence[str] = ()  # none: all that have such rows
    limit: int = 100  # EVERY_ROW: all that there are
    cursor: str = ""
    columns: Sequence[str] = ()
    best: str = ""  # column whose greatest values are wanted; "": in the order of the nodes
    tier: str = ""  # "": every tier that has such rows


class ListResult(NamedTuple):
    """Rows with the node of each, and what they lack."""

    rows: tuple[tuple[str, Any], ...]
    cursor: str = ""  # "": no row is left
    partial: tuple[MissingRows, ...] = ()
    restarted: tuple[str, ...] = ()
    total_about: int = 0
    overtime: bool = False


async def walk(cluster: Cluster, what: str, wanted: ListQuery) -> ListResult:
    """Return one page of a list.

    Raises:
        UserError: There is no such column or node, or the cursor cannot be followed.
    """
    check(what, wanted)
    if wanted.best and wanted.cursor:
        raise UserError("a cursor goes on in the order of the nodes: the greatest rows have none", ExitCode.USAGE)
    if what == "slow":
        wanted = _measured(wanted)
    nodes = _nodes_of(cluster.map, what, wanted.nodes, wanted.tier)
    digest = digest_of(what, wanted.where, wanted.nodes)
    here = cluster.map.cluster
    after = read_cursor(wanted.cursor, here, what, digest) if wanted.cursor else None
    key = _greatest(wanted.best) if wanted.best else None
    targets = [QueryTarget(node, cluster.map.nodes[node].incarnation) for node in nodes]
    limit = min(wanted.limit, BEST_MAX) if key is not None else wanted.limit
    gather = ScatterGather(targets, limit, after=after, best=key, node_s=NODE_S, total_s=cluster.total_s)
    page = await cluster.links.gather(gather, _question(cluster, what, wanted.where, wanted.columns))
    missing = page.partial
    if page.after is None and not wanted.nodes:
        missing += _without_primary(cluster.map, what)
    cursor = "" if page.after is None else write_cursor(here, what, digest, page.after)
    return ListResult(page.rows, cursor, missing, page.restarted, page.total_about, page.overtime)


def _question(cluster: Cluster, what: str, where: Mapping[str, str], columns: Sequence[str] = ()) -> QueryTemplate:
    """Return a question that a node can read: one with too long a text would end the link.

    Raises:
        UserError: It is no such question.
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


def check(what: str, wanted: ListQuery) -> None:
    """Look whether a kind has what is wanted of it, before anybody is asked.

    Raises:
        UserError: It has no such column.
    """
    known = columns_of(what)
    for word, names, there in (
        ("column", [*wanted.columns, *([wanted.best] if wanted.best else [])], known),
        ("filter key", [*wanted.where], [*known, *LOOK_KINDS[what].takes]),
    ):
        for name in names:
            if name not in there:
                raise UserError(f"no {word} {name!r}; there are {', '.join(there)}", ExitCode.USAGE)


def _measured(wanted: ListQuery) -> ListQuery:
    """Return which nodes measure slow clients so, and by what: values of two measures cannot be compared.

    Raises:
        UserError: Nobody measures so.
    """
    by = wanted.where.get("by", OLDEST)
    if by not in SLOW_BY:
        known = ", ".join(SLOW_BY)
        raise UserError(f"slow clients are measured by {known}, not by {by[:64]!r}", ExitCode.USAGE)
    return wanted._replace(where={**wanted.where, "by": by}, tier=wanted.tier or SLOW_BY[by])


def _nodes_of(cluster_map: ClusterMap, what: str, named: Sequence[str], tier: str) -> list[str]:
    """Return the nodes to ask, by name.

    Raises:
        UserError: A name is none of the cluster's, or of a tier that has no such rows.
    """
    tiers = frozenset({tier}) if tier else LOOK_KINDS[what].tiers
    there = [entry.node for one in sorted(tiers) for entry in cluster_map.live(one)]
    for name in named:
        entry = cluster_map.nodes.get(name)
        if entry is None:
            known = ", ".join(sorted(cluster_map.nodes))
            raise UserError(f"no node {name[:64]!r} in this cluster; there are {known}", ExitCode.USAGE)
        if entry.tier not in tiers:
            raise UserError(f"{name} is a node of tier {entry.tier}: {what} are at {_words(tiers)}", ExitCode.USAGE)
    return sorted(set(named)) or sorted(there)


def _words(tiers: frozenset[str]) -> str:
    return " and ".join(f"{tier} nodes" for tier in sorted(tiers))


def _without_primary(cluster_map: ClusterMap, what: str) -> tuple[MissingRows, ...]:
    if what not in WITH_PARTITIONS:
        return ()
    numbers = [number for number, placement in enumerate(cluster_map.partitions) if not placement.primary]
    if not numbers:
        return ()
    named = ", ".join(map(str, numbers[:PARTITIONS_NAMED])) + (", ..." if len(numbers) > PARTITIONS_NAMED else "")
    return (MissingRows(f"partition {named}", f"no primary ({len(numbers)} of {len(cluster_map.partitions)})"),)


# -- places


class ClientView(NamedTuple):
    """One client: its session at the primary of its partition, and its connection at the edge that this names."""

    client_id: str
    partition: int
    primary: str  # "": there is none
    session: SessionDetail | None
    connection: ClientDetail | None
    edge: str  # "": it is not connected, as far as is known
    partial: tuple[MissingRows, ...]
    asked: tuple[str, ...]


async def client(cluster: Cluster, client_id: str, about: Mapping[str, str] | None = None) -> ClientView:
    """Return what two nodes know of a client.

    Args:
        about: ``topic`` and ``qos`` of a message that it may receive, or not; none: of no message.
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
    asked = (primary, edge) if edge else (primary,)
    return ClientView(
        client_id, partition, primary, session, connections[0] if connections else None, edge, partial, asked
    )


async def place(
    cluster: Cluster, node: str, what: str, where: Mapping[str, str], limit: int
) -> tuple[list[Any], tuple[MissingRows, ...]]:
    """Return rows of one node, and that node where it does not answer."""
    entry = cluster.map.nodes.get(node)
    if entry is None:
        return [], (MissingRows(node, "it is not in the map"),)
    gather = ScatterGather([QueryTarget(node, entry.incarnation)], limit, total_s=cluster.total_s)
    page = await cluster.links.gather(gather, _question(cluster, what, where))
    return [row for _, row in page.rows], tuple(one for one in page.partial if NOT_THERE.search(one.why) is None)


async def subscriptions(
    cluster: Cluster, view: ClientView
) -> tuple[list[SubscriptionListRow], tuple[MissingRows, ...]]:
    """Return the subscriptions of a client: at its primary if its session is durable, else at its edge."""
    durable = view.session is not None and bool(view.session.durable)
    node = view.primary if durable else view.edge
    if not node:
        return [], ()
    rows, partial = await place(cluster, node, "subscriptions", {"client_id": view.client_id}, PLACE_ROWS)
    return [row for row in rows if row.client_id == view.client_id], partial  # an asterisk in it is a pattern there


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
        topic_filter: Of the group, without ``$share/<group>/``; empty: each that it has.
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
    """One topic: the owner of its shard, and the subscriptions that it meets or nearly meets."""

    topic: str
    shard: int
    owner: str  # "": the shard has none
    resolved: ResolvedRouteRow | None
    matches: tuple[tuple[str, MatchRow], ...]
    partial: tuple[MissingRows, ...]


async def route(cluster: Cluster, name: str) -> tuple[ResolvedRouteRow | None, list[RouteRow], tuple[MissingRows, ...]]:
    """Return a topic at the owner of its shard, and the answers of it that edges hold."""
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
    """Return who gets a topic: one question to its owner, then one to each node that may have a subscriber.

    Args:
        cluster: Where.
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
    """Return the subscriptions that a topic meets at the nodes that its owner named; near misses want every node."""
    if resolved is None or about.get("near"):
        nodes = [*LOOK_KINDS["matches"].tiers]
        asked = [entry.node for tier in nodes for entry in cluster.map.live(tier)]
    else:
        primaries = [cluster.map.partitions[number].primary for number in resolved.partitions or ()]
        asked = sorted({node for node in (*(resolved.edges or ()), *primaries) if node})
    if not asked:
        return (), ()
    targets = [QueryTarget(node, cluster.map.nodes[node].incarnation) for node in asked if node in cluster.map.nodes]
    gather = ScatterGather(targets, PLACE_ROWS, total_s=cluster.total_s)
    page = await cluster.links.gather(gather, _question(cluster, "matches", {"topic": name, **about}))
    lacking = _without_primary(cluster.map, "matches") if about.get("near") else ()
    if page.after is not None and not page.overtime:
        lacking += (MissingRows("subscriptions", f"only the first {PLACE_ROWS} of them are shown"),)
    return page.rows, page.partial + lacking
