"""Queries to nodes through the HTTP service: replaces ``NodeLinks`` for an operator with a token only.

It runs the same scatter-gather. Each query to a node is a call of ``/looks/<kind>``, which queries that node once. A
node that does not answer the service is named as over a link. If the service refuses or does not respond, the command
ends.
"""

import trio
from msgspec import json

from admin.api import Api, ApiCall, read_answer
from admin.links import carry
from admin.scatter_gather import Event, NodeQuery, QueryTemplate, ResultPage, ScatterGather
from admin.single_query import SingleQuery, event_of
from wire.messages.cluster_map import ClusterMap

__all__ = ["ApiLinks"]

CALL_S = 10.0  # a query itself takes at most 1 s, plus the requested wait
WAITS_MAX = 200  # concurrent waiting queries, a thread each; more are queued


class ApiLinks:
    """One HTTP service, with the interface that ``admin/queries.py`` needs.

    Args:
        nursery: Runs the calls.
        api: Client of the service.
    """

    def __init__(self, nursery: trio.Nursery, api: Api) -> None:
        self._nursery, self._api = nursery, api
        # a limiter of their own: waiting queries must not delay other calls
        self._waiting = trio.CapacityLimiter(WAITS_MAX)
        self.map = ClusterMap("")

    async def read_map(self) -> None:
        """Read the map from the service.

        Raises:
            UserError: The service refuses, or does not respond.
        """
        self.map = read_answer(self._api.address, await self._ask(ApiCall.of("GET", "map")), ClusterMap)

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        """Run a scatter-gather; return its page."""

        def start(ask: NodeQuery, events: trio.MemorySendChannel[Event]) -> None:
            self._nursery.start_soon(self._send_result, ask, question, events)

        return await carry(gather, start)

    async def query_node(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        """Query one node once."""
        del timeout_s  # the service has its own timeout
        return await self._query(NodeQuery(0, node, after, limit), question)

    async def _send_result(
        self, ask: NodeQuery, question: QueryTemplate, events: trio.MemorySendChannel[Event]
    ) -> None:
        events.send_nowait(await self._query(ask, question))

    async def _query(self, ask: NodeQuery, question: QueryTemplate) -> Event:
        call = ApiCall.of(
            "GET",
            "looks",
            question.what,
            node=ask.node,
            after=ask.after,
            limit=str(ask.limit),
            columns=",".join(question.columns),
            where=json.encode(dict(question.where)).decode(),
            **({"wait_ms": str(question.wait_ms)} if question.wait_ms else {}),
        )
        answer = read_answer(self._api.address, await self._ask(call, question.wait_ms), SingleQuery)
        return event_of(answer, question.what, ask.node, ask.request)

    async def _ask(self, call: ApiCall, wait_ms: int = 0) -> bytes:
        limiter = self._waiting if wait_ms else None
        _, data = await trio.to_thread.run_sync(
            self._api.ask, call, CALL_S + wait_ms / 1_000, abandon_on_cancel=True, limiter=limiter
        )
        return data
