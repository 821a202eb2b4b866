"""Two paths that answer as Mosquitto 2.1's do, for tools that were made for it: ``/systree`` and ``/listeners``.

Source: Mosquitto's ``src/http_api.c`` and ``src/sys_tree.c``. Figures are the cluster's; docs/dashboard.md says which
name is what here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from access.operators.commands import OperatorRole
from admin import queries
from admin.http.cluster_metrics import sums, total
from admin.http.overview_poller import OverviewPoller
from admin.http.partial import PartialResult
from admin.http.row_handlers import ClusterOf, refused
from conf.errors import UserError
from wire.messages.client_rows import ListenerRow
from wire.messages.node_rows import SlowSubscriberRow, StatsRow

__all__ = ["ListenerPage", "door_of", "mosquitto_handlers", "tree_of"]

PREFIX = "$SYS/broker/"
PROTOCOLS = {"ws": "websockets"}
ROWS_MAX = 1_000
LOOK_S = 5.0


class ListenerPage(msgspec.Struct, omit_defaults=True):
    """A listener; one at a path of this host has no port."""

    protocol: str
    tls: bool
    mtls: bool
    allow_anonymous: bool
    port: int | None = None
    path: str | None = None


class ListenerPages(msgspec.Struct):
    """Listeners of all edges, one after the other."""

    listeners: list[ListenerPage]


def door_of(row: ListenerRow) -> ListenerPage:
    """Return a listener in Mosquitto's words."""
    kind, bind = row.kind or "", row.bind or ""
    door = ListenerPage(PROTOCOLS.get(kind, kind), bool(row.tls), bool(row.client_certificates), bool(row.anonymous))
    port = bind.rpartition(":")[2]
    if port.isdecimal():
        door.port = int(port)
    else:
        door.path = bind
    return door


def tree_of(
    rows: Iterable[StatsRow], now_ms: int, clients_max: int, unsent: Sequence[SlowSubscriberRow]
) -> dict[str, int]:
    """Return Mosquitto's topics with the figures of all nodes together.

    Args:
        rows: What each node counts, since its own start.
        now_ms: UTC.
        clients_max: The most clients that were seen connected at once.
        unsent: Clients with output that their sockets have not taken; a packet at least waits for each.
    """
    known = list(rows)
    connected = _sum(known, "clients")
    absent = _sum(known, "sessions", 'state="absent"')
    retained = _sum(known, "retained_messages")
    found = {
        "clients/total": connected + absent,
        "clients/maximum": max(connected, clients_max),
        "clients/disconnected": absent,
        "clients/connected": connected,
        "clients/expired": _sum(known, "storage_events_total", 'event="sessions_expired"'),
        "messages/stored": retained + _sum(known, "queued_messages"),
        "subscriptions/count": _sum(known, "subscriptions", 'kind="ephemeral"', 'kind="stored"'),
        "shared_subscriptions/count": _sum(known, "subscriptions", 'kind="ephemeral_shared"'),
        "store/messages/bytes": _sum(known, "queued_bytes") + _sum(known, "retained_bytes"),
        "retained messages/count": retained,
        "messages/received": _sum(known, "packets_total", 'direction="in"'),
        "messages/sent": _sum(known, "packets_total", 'direction="out"'),
        "bytes/received": _sum(known, "bytes_total", 'direction="in"'),
        "bytes/sent": _sum(known, "bytes_total", 'direction="out"'),
        "connections/socket/count": _sum(known, "connects_total"),
        "publish/messages/dropped": _sum(known, "messages_dropped_total"),
        "publish/messages/received": _sum(known, "messages_received_total"),
        "publish/messages/sent": _sum(known, "messages_delivered_total"),
        "publish/bytes/received": _sum(known, "payload_bytes_total", 'direction="in"'),
        "publish/bytes/sent": _sum(known, "payload_bytes_total", 'direction="out"'),
        "uptime": max((now_ms - row.started_at_ms for row in known if row.started_at_ms), default=0) // 1000,
    }
    found |= {"packet/out/count": len(unsent), "packet/out/bytes": int(sum(row.value or 0.0 for row in unsent))}
    return {PREFIX + name: value for name, value in found.items()}


def _sum(rows: Iterable[StatsRow], name: str, *labels: str) -> int:
    """Return the sum of a family over nodes, of those rows alone that have one of the labels."""
    found = 0.0
    for row in rows:
        for figures in (row.counters or {}, row.gauges or {}):
            chosen = {key: of for key, of in figures.items() if not labels or any(label in key for label in labels)}
            found += total(sums(chosen), (name,))
    return int(found)


def mosquitto_handlers(cluster_of: ClusterOf, watching: OverviewPoller) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    async def _listed(request: Request[Any, Any, Any], what: str, wanted: queries.ListQuery) -> queries.ListResult:
        cluster = await cluster_of(request.state.caller, LOOK_S)
        try:
            return await queries.walk(cluster, what, wanted)
        except UserError as error:
            raise refused(error) from None

    @get("/systree", opt={"role": OperatorRole.VIEWER}, summary="Figures by Mosquitto's topics", operation_id="systree")
    async def tell_tree(request: Request[Any, Any, Any]) -> Response[dict[str, int]]:
        overview = await watching.fresh()
        unsent = await _listed(request, "slow", queries.ListQuery({"by": "unsent"}, limit=ROWS_MAX, best="value"))
        waiting = [row for _, row in unsent.rows if row.value]
        tree = tree_of(watching.stats, overview.figures.at_ms, watching.clients_max, waiting)
        partial = dict.fromkeys([*overview.partial, *(PartialResult(*missing) for missing in unsent.partial)])
        return Response(tree, headers=_partial(partial))

    @get(
        "/listeners",
        opt={"role": OperatorRole.VIEWER},
        summary="Listeners in Mosquitto's words",
        operation_id="listeners",
    )
    async def tell_listeners(request: Request[Any, Any, Any]) -> Response[ListenerPages]:
        listed = await _listed(request, "listeners", queries.ListQuery(limit=ROWS_MAX))
        doors = [door_of(row) for _, row in listed.rows]
        return Response(ListenerPages(doors), headers=_partial([PartialResult(*missing) for missing in listed.partial]))

    return [tell_tree, tell_listeners]


def _partial(partial: Iterable[PartialResult]) -> dict[str, str]:
    """Return the header that names nodes without an answer; a form of Mosquitto's has no place for them."""
    named = ", ".join(missing.node for missing in partial)
    return {"PartialResult": named} if named else {}
