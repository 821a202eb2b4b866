"""Two paths in the format of Mosquitto 2.1, for its tools: ``/systree`` and ``/listeners``.

Source: Mosquitto's ``src/http_api.c`` and ``src/sys_tree.c``. Values are the cluster's; docs/dashboard.md maps the
names.
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

__all__ = ["ListenerPage", "mosquitto_handlers", "to_mosquitto_listener", "tree_of"]

PREFIX = "$SYS/broker/"
PROTOCOLS = {"ws": "websockets"}
ROWS_MAX = 1_000
LOOK_S = 5.0


class ListenerPage(msgspec.Struct, omit_defaults=True):
    """A listener; a Unix socket has no port."""

    protocol: str
    tls: bool
    mtls: bool
    allow_anonymous: bool
    port: int | None = None
    path: str | None = None


class ListenerPages(msgspec.Struct):
    """Listeners of all edges."""

    listeners: list[ListenerPage]


def to_mosquitto_listener(row: ListenerRow) -> ListenerPage:
    """Return a listener in Mosquitto's format."""
    kind, bind = row.kind or "", row.bind or ""
    page = ListenerPage(PROTOCOLS.get(kind, kind), bool(row.tls), bool(row.client_certificates), bool(row.anonymous))
    port = bind.rpartition(":")[2]
    if port.isdecimal():
        page.port = int(port)
    else:
        page.path = bind
    return page


def tree_of(
    rows: Iterable[StatsRow], now_ms: int, clients_max: int, unsent: Sequence[SlowSubscriberRow]
) -> dict[str, int]:
    """Return Mosquitto's topics with the sums of all nodes.

    Args:
        rows: Statistics of each node since its start.
        now_ms: UTC.
        clients_max: Maximum number of connected clients that was measured.
        unsent: Clients with unsent output; at least one packet each.
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
    """Return the sum of a family over nodes; with labels, of those rows only."""
    found = 0.0
    for row in rows:
        for figures in (row.counters or {}, row.gauges or {}):
            chosen = {key: of for key, of in figures.items() if not labels or any(label in key for label in labels)}
            found += total(sums(chosen), (name,))
    return int(found)


def mosquitto_handlers(cluster_of: ClusterOf, watching: OverviewPoller) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    async def _listed(request: Request[Any, Any, Any], what: str, selection: queries.ListQuery) -> queries.ListResult:
        cluster = await cluster_of(request.state.caller, LOOK_S)
        try:
            return await queries.walk(cluster, what, selection)
        except UserError as error:
            raise refused(error) from None

    @get("/systree", opt={"role": OperatorRole.VIEWER}, summary="Metrics by Mosquitto's topics", operation_id="systree")
    async def get_tree(request: Request[Any, Any, Any]) -> Response[dict[str, int]]:
        overview = await watching.fresh()
        unsent = await _listed(request, "slow", queries.ListQuery({"by": "unsent"}, limit=ROWS_MAX, best="value"))
        waiting = [row for _, row in unsent.rows if row.value]
        tree = tree_of(watching.stats, overview.figures.at_ms, watching.clients_max, waiting)
        partial = dict.fromkeys([*overview.partial, *(PartialResult(*missing) for missing in unsent.partial)])
        return Response(tree, headers=_partial(partial))

    @get(
        "/listeners",
        opt={"role": OperatorRole.VIEWER},
        summary="Listeners in Mosquitto's format",
        operation_id="listeners",
    )
    async def get_listeners(request: Request[Any, Any, Any]) -> Response[ListenerPages]:
        listed = await _listed(request, "listeners", queries.ListQuery(limit=ROWS_MAX))
        pages = [to_mosquitto_listener(row) for _, row in listed.rows]
        return Response(ListenerPages(pages), headers=_partial([PartialResult(*missing) for missing in listed.partial]))

    return [get_tree, get_listeners]


def _partial(partial: Iterable[PartialResult]) -> dict[str, str]:
    """Return the header that names missing nodes; Mosquitto's format has no field for them."""
    named = ", ".join(missing.node for missing in partial)
    return {"PartialResult": named} if named else {}
