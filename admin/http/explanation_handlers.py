"""Paths about one client, its session and queue, and the explanations of a client, a topic and a message."""

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.commands import OperatorRole
from admin import explanations, queries
from admin.api_rows import Timestamp, format_timestamp_ms, told, told_rows, told_type
from admin.explain.explanation import Explanation, ExplanationStep
from admin.explain.message import check_origin
from admin.http.partial import PartialResult
from admin.http.problems import Problem
from admin.http.row_handlers import ClusterOf, refused
from conf.errors import UserError
from wire.messages.client_rows import (
    ClientDetail,
    InFlightRow,
    QueuedMessageRow,
    SessionDetail,
    SubscriptionListRow,
)

__all__ = ["explanation_handlers"]

TOTAL_S = 5.0
Topic = Annotated[str, Parameter(min_length=1, max_length=65_535, description="A topic name, without wildcards.")]
Name = Annotated[str, Parameter(max_length=65_535)]
Limit = Annotated[int, Parameter(ge=1, le=1_000)]
Payload = Annotated[
    Literal["none", "head"], Parameter(description="head: the first 256 bytes; needs the role operator.")
]


class ClientNow(msgspec.Struct):
    """One client: its session at its partition's primary, and its connection at the edge that the session names."""

    client_id: str
    partition: int
    primary: str
    edge: str
    session: told_type(SessionDetail) | None  # type: ignore[valid-type]  # derived from the row
    connection: told_type(ClientDetail) | None  # type: ignore[valid-type]
    complete: bool
    partial: list[PartialResult]


class ApiExplanationStep(msgspec.Struct):
    """A step of an explanation."""

    at: Timestamp | None
    node: str
    what: str
    why: str
    facts: dict[str, Any]


class ApiExplanation(msgspec.Struct):
    """An explanation: steps in order, the deciding one, sources, and nodes that did not answer.

    ``verdict`` is the deciding sentence; it is set even if no problem was found.
    """

    question: str
    verdict: str
    cause: ApiExplanationStep | None
    steps: list[ApiExplanationStep]
    had: list[str]
    complete: bool
    partial: list[PartialResult]


class SubscriptionList(msgspec.Struct):
    """Subscriptions of one client."""

    rows: list[told_type(SubscriptionListRow)]  # type: ignore[valid-type]
    complete: bool
    partial: list[PartialResult]


class QueuedMessages(msgspec.Struct):
    """The first entries of a session's queue."""

    rows: list[told_type(QueuedMessageRow)]  # type: ignore[valid-type]
    complete: bool
    partial: list[PartialResult]


class InFlightMessages(msgspec.Struct):
    """In-flight messages to and from a client."""

    rows: list[told_type(InFlightRow)]  # type: ignore[valid-type]
    complete: bool
    partial: list[PartialResult]


def _completeness(missing: Any) -> tuple[bool, list[PartialResult]]:
    """Return whether the result is complete, and the missing nodes."""
    partial = [PartialResult(*one) for one in dict.fromkeys(missing)]
    return not partial, partial


def _to_api(story: Explanation) -> ApiExplanation:
    cause = _step(story.cause) if story.cause is not None else None
    steps = [_step(step) for step in story.steps]
    return ApiExplanation(story.question, story.verdict, cause, steps, list(story.had), *_completeness(story.lacked))


def _step(step: ExplanationStep) -> ApiExplanationStep:
    return ApiExplanationStep(format_timestamp_ms(step.at_ms), step.node, step.what, step.why, dict(step.facts))


def explanation_handlers(cluster_of: ClusterOf) -> list[HTTPRouteHandler]:
    """Return the handlers."""
    viewer = {"role": OperatorRole.VIEWER}

    async def open_cluster(request: Request[Any, Any, Any]) -> queries.Cluster:
        cluster: queries.Cluster = await cluster_of(request.state.caller, TOTAL_S)
        return cluster

    async def found(request: Request[Any, Any, Any], client_id: str) -> tuple[queries.Cluster, queries.ClientView]:
        cluster = await open_cluster(request)
        return cluster, await queries.client(cluster, client_id)

    @get("/clients/{client_id:str}", opt=viewer, summary="One client, now", operation_id="show_client")
    async def show(request: Request[Any, Any, Any], client_id: Name) -> ClientNow:
        _, view = await found(request, client_id)
        if view.session is None and view.connection is None and not view.partial:
            raise Problem(404, "not_found", "no connection and no session has this client identifier")
        places = view.partition, view.primary, view.edge
        return ClientNow(client_id, *places, told(view.session), told(view.connection), *_completeness(view.partial))

    @get(
        "/clients/{client_id:str}/explain",
        opt=viewer,
        summary="Why it receives no messages",
        operation_id="explain_client",
    )
    async def explain(request: Request[Any, Any, Any], client_id: Name, topic: Name = "") -> ApiExplanation:
        now_ms = int(time.time() * 1000)
        return _to_api(
            await _result_of(explanations.client_explained(await open_cluster(request), client_id, now_ms, topic))
        )

    @get("/clients/{client_id:str}/subscriptions", opt=viewer, summary="Its subscriptions", operation_id="subscribed")
    async def subscribed(request: Request[Any, Any, Any], client_id: Name) -> SubscriptionList:
        cluster, view = await found(request, client_id)
        rows, missing = await queries.subscriptions(cluster, view)
        return SubscriptionList(told_rows(rows), *_completeness((*view.partial, *missing)))

    @get("/clients/{client_id:str}/inflight", opt=viewer, summary="In-flight messages", operation_id="under_way")
    async def in_flight(request: Request[Any, Any, Any], client_id: Name) -> InFlightMessages:
        cluster, view = await found(request, client_id)
        rows: list[InFlightRow] = []
        missing = [*view.partial]
        for node in view.asked:
            more, silent = await queries.place(cluster, node, "inflight", {"client_id": client_id}, queries.PLACE_ROWS)
            rows += more
            missing += silent
        return InFlightMessages(told_rows(rows), *_completeness(missing))

    @get("/sessions/{client_id:str}/queue", opt=viewer, summary="First entries of its queue", operation_id="queue")
    async def queue(
        request: Request[Any, Any, Any], client_id: Name, limit: Limit = 100, payload: Payload = "none"
    ) -> QueuedMessages:
        cluster, view = await found(request, client_id)
        rows, missing = await queries.queue(cluster, view, limit, "" if payload == "none" else payload)
        return QueuedMessages(told_rows(rows), *_completeness((*view.partial, *missing)))

    return [show, explain, subscribed, in_flight, queue, *_explaining(open_cluster)]


def _explaining(open_cluster: Callable[[Request[Any, Any, Any]], Awaitable[queries.Cluster]]) -> list[HTTPRouteHandler]:
    """Return the handlers about a topic and a message."""
    viewer = {"role": OperatorRole.VIEWER}

    @get("/topics/explain", opt=viewer, summary="The receivers of a topic, with reasons", operation_id="explain_topic")
    async def explain_topic(
        request: Request[Any, Any, Any],
        topic: Topic,
        publisher: Annotated[str, Parameter(query="from", max_length=65_535)] = "",
        qos: Annotated[int, Parameter(ge=0, le=2)] = 1,
    ) -> ApiExplanation:
        _, story = await _result_of(
            explanations.topic_explained(await open_cluster(request), topic, publisher=publisher, qos=qos)
        )
        return _to_api(story)

    @get("/messages/explain", opt=viewer, summary="The deliveries of a message", operation_id="explain_message")
    async def explain_message(
        request: Request[Any, Any, Any],
        origin: Name = "",
        client: Name = "",
        packet: Annotated[int, Parameter(ge=0, le=65_535)] = 0,
        session: Name = "",
        seq: Annotated[int, Parameter(ge=0, lt=1 << 62)] = 0,
        topic: Name = "",
    ) -> ApiExplanation:
        try:
            checked = check_origin(origin) if origin else ""
        except UserError as error:
            raise refused(error) from None
        cluster = await open_cluster(request)
        if checked:
            return _to_api(await _result_of(explanations.by_origin(cluster, checked, topic)))
        if client and packet:
            return _to_api(await _result_of(explanations.by_packet(cluster, client, packet)))
        if session and seq:
            return _to_api(await _result_of(explanations.by_sequence(cluster, session, seq)))
        raise Problem(400, "bad_request", "name an origin, a client and a packet, or a session and an entry")

    return [explain_topic, explain_message]


async def _result_of(open_cluster: Any) -> Any:
    """Return the result of a query.

    Raises:
        Problem: The query was refused.
    """
    try:
        return await open_cluster
    except UserError as error:
        raise refused(error) from None
