"""Paths for programs that merge rows themselves, such as the command line with ``--api``: the map, and single queries.

A query goes to one node, once, with the caller's role. The program decides which nodes to query, in which order and for
how long; the node bounds the cost. A query that waits for events has its own slots (``waits``), so that it does not
block others.
"""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.commands import ROLES, OperatorRole
from admin.http.problems import Problem
from admin.http.row_handlers import ClusterOf
from admin.scatter_gather import NODE_S, QueryTemplate
from admin.single_query import SingleQuery, to_single_query
from wire.decoding import strictly
from wire.messages.queries import WAIT_MS_MAX
from wire.messages.query_kinds import LOOK_KINDS

__all__ = ["query_handlers", "waits"]

LIMIT_MAX = 1_000
WAIT = b"wait_ms="
TEXT_MAX = 65_535
Text = Annotated[str, Parameter(max_length=TEXT_MAX)]
Node = Annotated[str, Parameter(min_length=1, max_length=256, description="The node to query.")]
Limit = Annotated[int, Parameter(ge=1, le=LIMIT_MAX, description="Maximum number of rows.")]
Where = Annotated[str, Parameter(max_length=TEXT_MAX, description="Filters: a JSON object of column to pattern.")]
Wait = Annotated[
    int,
    Parameter(
        ge=0,
        le=WAIT_MS_MAX,
        description="Only log, journal and trace: time to wait if there are no rows after `after`.",
    ),
]
Columns = Annotated[str, Parameter(max_length=TEXT_MAX, description="Columns, separated by commas; empty: all.")]

_conditions = strictly(msgspec.json.Decoder(dict[str, str]).decode, "object")


def query_handlers(cluster_of: ClusterOf) -> list[HTTPRouteHandler]:
    """Return the handler of the map, and one for each kind of query."""

    @get("/map", opt={"role": OperatorRole.VIEWER}, summary="The whole map, for programs", operation_id="map")
    async def get_map(request: Request[Any, Any, Any]) -> Response[msgspec.Raw]:
        cluster = await cluster_of(request.state.caller, NODE_S)
        return Response(msgspec.Raw(msgspec.json.encode(cluster.map)), media_type="application/json")

    return [get_map, *(_handler(what, cluster_of) for what in LOOK_KINDS)]


def _handler(what: str, cluster_of: ClusterOf) -> HTTPRouteHandler:
    role = LOOK_KINDS[what].role

    @get(
        f"/looks/{what}",
        opt={"role": ROLES[role]},
        summary=f"One query of {what} at one node",
        description=f"For programs; needs the role {role}. `failed` is the reason if the node did not answer.",
        operation_id=f"look_{what}",
    )
    async def look(
        request: Request[Any, Any, Any],
        node: Node,
        after: Text = "",
        limit: Limit = 100,
        columns: Columns = "",
        where: Where = "{}",
        wait_ms: Wait = 0,
    ) -> SingleQuery:
        try:
            conditions = _conditions(where.encode())
        except ValueError as error:
            raise Problem(400, "bad_request", f"where: {error}") from None
        cluster = await cluster_of(request.state.caller, NODE_S)
        names = [name for name in columns.split(",") if name]
        question = QueryTemplate(what, conditions, names, cluster.actor, cluster.role, wait_ms)
        return to_single_query(await cluster.links.query_node(node, question, after, limit, NODE_S + wait_ms / 1_000))

    return look


def waits(path: str, query: bytes) -> bool:
    """Return whether a request may wait for events."""
    return "/looks/" in path and any(part.startswith(WAIT) and part != WAIT + b"0" for part in query.split(b"&"))
