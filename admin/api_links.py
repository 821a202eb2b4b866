"""Questions to the nodes of a cluster through the HTTP service: the place of ``NodeLinks`` for who has a token alone.

Carries the same gathers: each look that one asks is a call of ``/looks/<kind>``, which asks that node once. A node that
does not answer the service is named as over a link; where the service itself refuses or is gone, the command ends.
"""

import trio
from msgspec import json

from admin.api import Api, ApiCall, read_answer
from admin.links import carry
from admin.scatter_gather import Event, NodeQuery, QueryTemplate, ResultPage, ScatterGather
from admin.single_query import SingleQuery, event_of
from wire.messages.cluster_map import ClusterMap

__all__ = ["ApiLinks"]

CALL_S = 10.0  # a look itself takes a second at most, and what it waits for news
WAITS_MAX = 200  # looks that wait at once, a thread each; the rest wait for those


class ApiLinks:
    """One service, as ``admin/queries.py`` asks links.

    Args:
        nursery: Where calls run.
        api: Called.
    """

    def __init__(self, nursery: trio.Nursery, api: Api) -> None:
        self._nursery, self._api = nursery, api
        self._waiting = trio.CapacityLimiter(WAITS_MAX)  # apart: what waits must not hold up other calls
        self.map = ClusterMap("")

    async def read_map(self) -> None:
        """Have the map as the service has it.

        Raises:
            UserError: It refuses, or does not answer.
        """
        self.map = read_answer(self._api.address, await self._ask(ApiCall.of("GET", "map")), ClusterMap)

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        """Carry a gather to its page."""

        def begin(ask: NodeQuery, tell: trio.MemorySendChannel[Event]) -> None:
            self._nursery.start_soon(self._tell, ask, question, tell)

        return await carry(gather, begin)

    async def look(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        """Have one node asked once."""
        del timeout_s  # the service has one of its own
        return await self._look(NodeQuery(0, node, after, limit), question)

    async def _tell(self, ask: NodeQuery, question: QueryTemplate, tell: trio.MemorySendChannel[Event]) -> None:
        tell.send_nowait(await self._look(ask, question))

    async def _look(self, ask: NodeQuery, question: QueryTemplate) -> Event:
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
