"""Paths about the whole cluster: overview, alerts, the live stream, and Prometheus' service discovery."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import trio
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from access.operators.commands import OperatorRole
from admin.alerts import ActiveAlert, ClearedAlert
from admin.api_rows import told, told_rows, told_type
from admin.http.cluster_metrics import ClusterMetrics
from admin.http.overview_poller import OverviewPoller
from admin.http.partial import PartialResult
from admin.http.problems import Problem

__all__ = ["AlertList", "overview_handlers"]

Authenticate = Callable[[], Awaitable[Any]]  # raises Problem if the caller is no longer valid

QUIET_S = 15.0  # maximum silence of a stream, so that both ends detect a dead one
STREAM_S = 3_600.0  # a stream ends then, and the browser opens another
RECHECK_S = 5.0  # a stream of a revoked token ends within this time
OVERVIEW_PARTS = ("drops", "history", "complete", "partial", "beat")
UNKNOWN = (401, 403)  # statuses that end a stream


class AlertList(msgspec.Struct):
    """Active alerts, and those that cleared since the service started."""

    active: list[told_type(ActiveAlert)]  # type: ignore[valid-type]  # derived from the row
    past: list[told_type(ClearedAlert)]  # type: ignore[valid-type]


class ApiOverview(msgspec.Struct):
    """The overview, with timestamps as text; ``at`` of the history is in seconds, for charts."""

    figures: told_type(ClusterMetrics)  # type: ignore[valid-type]
    alarms: list[told_type(ActiveAlert)]  # type: ignore[valid-type]
    drops: dict[str, int]
    history: dict[str, list[Any]]
    complete: bool
    partial: list[PartialResult]
    beat: int


class DiscoveryResult(msgspec.Struct):
    """One entry of Prometheus' HTTP discovery."""

    targets: list[str]
    labels: dict[str, str]


def overview_handlers(watching: OverviewPoller) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    @get(
        "/overview",
        opt={"role": OperatorRole.VIEWER},
        summary="Metrics, alerts and the last hour",
        operation_id="overview",
    )
    async def overview() -> ApiOverview:
        found = await watching.fresh()
        parts = {name: getattr(found, name) for name in OVERVIEW_PARTS}
        return ApiOverview(told(found.figures), told_rows(found.alarms), **parts)

    @get("/alarms", opt={"role": OperatorRole.VIEWER}, summary="Active and past alerts", operation_id="alarms")
    async def alarms() -> AlertList:
        await watching.fresh()
        return AlertList(told_rows(watching.alarms.active), told_rows(watching.alarms.past))

    @get("/sd", opt={"role": OperatorRole.VIEWER}, summary="Prometheus' HTTP discovery", operation_id="discovery")
    async def discover() -> list[DiscoveryResult]:
        await watching.fresh()
        return [
            DiscoveryResult([address], {"node": node, "tier": tier, "zone": zone})
            for node, tier, zone, address in watching.pages
        ]

    @get("/live", opt={"role": OperatorRole.VIEWER}, include_in_schema=False)
    async def live(request: Request[Any, Any, Any]) -> Response[Any]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Stream(_events(watching, request.state.authenticate), media_type="text/event-stream", headers=headers)

    return [overview, alarms, discover, live]


async def _events(watching: OverviewPoller, authenticate: Authenticate) -> AsyncIterator[bytes]:
    """Yield an event per poll of the cluster, a comment if none comes; end when the caller is no longer valid."""
    began = judged = trio.current_time()
    async with watching.viewing():
        yield b"retry: 1000\n\n"
        while trio.current_time() - began < STREAM_S:
            came = False
            with trio.move_on_after(QUIET_S):
                await watching.next_beat()
                came = True
            if trio.current_time() - judged >= RECHECK_S:
                judged = trio.current_time()
                if not await _is_known(authenticate):
                    return
            yield _event(watching) if came else b": quiet\n\n"


async def _is_known(authenticate: Authenticate) -> bool:
    """Return whether a caller is still valid; if no router answers, it is."""
    try:
        await authenticate()
    except Problem as problem:
        return problem.status not in UNKNOWN
    return True


def _event(watching: OverviewPoller) -> bytes:
    overview = watching.overview
    figures = overview.figures
    event = {
        "beat": overview.beat,
        "at_ms": figures.at_ms,
        "connections": figures.connections,
        "in_per_s": round(figures.in_per_s, 1),
        "out_per_s": round(figures.out_per_s, 1),
        "alarms": len(overview.alarms),
        "rates": {node: [round(one, 1) for one in rates] for node, rates in watching.history.rates.items()},
    }
    return b"event: figures\ndata: " + msgspec.json.encode(event) + b"\n\n"
