"""Questions to the nodes of a cluster through the HTTP service: the place of ``NodeLinks`` for who has a token alone.

Carries the same gathers: each look that one asks is a call of ``/looks/<kind>``, which asks that node once. A node that
does not answer the service is named as over a link; where the service itself refuses or is gone, the command ends.
"""

from typing import TypeVar

import trio
from msgspec import DecodeError, json

from admin.api import Api, Call
from admin.gather import Event, Gather, Page, Question, Tick
from admin.one_look import OneLook, event_of
from conf.errors import UserError
from wire.messages.cluster_map import ClusterMap

__all__ = ["ApiLinks"]

T = TypeVar("T")
CALL_S = 10.0  # a look itself takes a second at most
EVENTS_MAX = 4096


class ApiLinks:
    """One service, as ``admin/queries.py`` asks links.

    Args:
        nursery: Where calls run.
        api: Called.
    """

    def __init__(self, nursery: trio.Nursery, api: Api) -> None:
        self._nursery, self._api = nursery, api
        self.map = ClusterMap("")

    async def read_map(self) -> None:
        """Have the map as the service has it.

        Raises:
            UserError: It refuses, or does not answer.
        """
        self.map = _read(await self._ask(Call.of("GET", "map")), ClusterMap, self._api)

    async def gather(self, gather: Gather, question: Question) -> Page:
        """Carry a gather to its page."""
        tell, events = trio.open_memory_channel[Event](EVENTS_MAX)
        ready = gather.handle(trio.current_time(), Tick())
        while ready.page is None:
            for ask in ready.asks:
                call = Call.of(
                    "GET",
                    "looks",
                    question.what,
                    node=ask.node,
                    after=ask.after,
                    limit=str(ask.limit),
                    columns=",".join(question.columns),
                    where=json.encode(dict(question.where)).decode(),
                )
                self._nursery.start_soon(self._look, call, question.what, ask.node, ask.request, tell)
            event: Event = Tick()
            with trio.move_on_at(ready.next_deadline):
                event = await events.receive()
            ready = gather.handle(trio.current_time(), event)
        return ready.page

    async def _look(self, call: Call, what: str, node: str, request: int, tell: trio.MemorySendChannel[Event]) -> None:
        answer = _read(await self._ask(call), OneLook, self._api)
        tell.send_nowait(event_of(answer, what, node, request))

    async def _ask(self, call: Call) -> bytes:
        _, data = await trio.to_thread.run_sync(self._api.ask, call, CALL_S, abandon_on_cancel=True)
        return data


def _read(data: bytes, of: type[T], api: Api) -> T:
    try:
        return json.decode(data, type=of)
    except DecodeError as error:
        raise UserError(f"{api.address} is no service of this release: {error}") from None
