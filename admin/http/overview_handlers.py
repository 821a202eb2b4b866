"""Paths about the cluster as a whole: the first page, alarms, the live stream, and Prometheus' discovery."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import trio
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from access.operators.verbs import Role
from admin.alarms import Active, Ended
from admin.http.watching import Overview, Watching

__all__ = ["AlarmList", "overview_handlers"]

QUIET_S = 15.0  # a stream says something at least so often, so that both ends notice a dead one
STREAM_S = 3_600.0  # a stream ends then, and the browser opens another: its caller is judged anew


class AlarmList(msgspec.Struct):
    """Alarms that stand, and those that stood since the service began."""

    active: list[Active]
    past: list[Ended]


class Discovered(msgspec.Struct):
    """One entry of Prometheus' HTTP discovery."""

    targets: list[str]
    labels: dict[str, str]


def overview_handlers(watching: Watching) -> list[HTTPRouteHandler]:
    """Return the handlers."""

    @get("/overview", opt={"role": Role.VIEWER}, summary="Figures, alarms and the last hour", operation_id="overview")
    async def overview() -> Overview:
        return await watching.fresh()

    @get("/alarms", opt={"role": Role.VIEWER}, summary="Alarms of now, and past ones", operation_id="alarms")
    async def alarms() -> AlarmList:
        await watching.fresh()
        return AlarmList(watching.alarms.active, watching.alarms.past)

    @get("/sd", opt={"role": Role.VIEWER}, summary="Prometheus' HTTP discovery", operation_id="discovery")
    async def discover() -> list[Discovered]:
        await watching.fresh()
        return [
            Discovered([address], {"node": node, "tier": tier, "zone": zone})
            for node, tier, zone, address in watching.pages
        ]

    @get("/live", opt={"role": Role.VIEWER}, include_in_schema=False)
    async def live() -> Response[Any]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Stream(_beats(watching), media_type="text/event-stream", headers=headers)

    return [overview, alarms, discover, live]


async def _beats(watching: Watching) -> AsyncIterator[bytes]:
    """Yield an event for each look at the cluster, and a comment where none comes."""
    until = trio.current_time() + STREAM_S
    async with watching.looking():
        yield b"retry: 1000\n\n"
        while trio.current_time() < until:
            came = False
            with trio.move_on_after(QUIET_S):
                await watching.next_beat()
                came = True
            yield _event(watching.overview) if came else b": quiet\n\n"


def _event(overview: Overview) -> bytes:
    figures = overview.figures
    said = {
        "beat": overview.beat,
        "at_ms": figures.at_ms,
        "connections": figures.connections,
        "in_per_s": round(figures.in_per_s, 1),
        "out_per_s": round(figures.out_per_s, 1),
        "alarms": len(overview.alarms),
    }
    return b"event: figures\ndata: " + msgspec.json.encode(said) + b"\n\n"
