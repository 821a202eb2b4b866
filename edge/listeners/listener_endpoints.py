"""All listeners of one edge: open, shut while clients are refused, or paused one by one.

| an edge | a listener | its clients |
|---|---|---|
| admits clients | open | are accepted |
| admits clients | paused by an operator | are refused by the system; present ones stay |
| is drained, or not ready | shut, paused or not | are refused by the system |

The loop accepts on them. ``edge/drain.py`` decides when all open and shut; an operator pauses one, until the process
ends. Decision: docs/adr/0183-paused-listeners.md.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from conf.errors import UserError
from conf.events import say
from edge.listeners.listeners import EdgeListener, address_of
from edge.loop.loop import Loop
from edge.node.node import EdgeNode
from wire.messages.orders import NodeOrdered, OrderNode
from wire.queries.source import Place, RowScan, RowSource

__all__ = ["LISTENER_VERBS", "ListenerEndpoints"]

logger = logging.getLogger(__name__)

PAUSE, RESUME = "listener pause", "listener resume"
LISTENER_VERBS = (PAUSE, RESUME)


class ListenerEndpoints:
    """The listeners.

    Args:
        node: This edge; its journal records pauses.
        listening: Each of them.
        loop: Accepts.
        accept: Handles a connection (listener, descriptor, address).
    """

    def __init__(
        self,
        node: EdgeNode,
        listening: Sequence[EdgeListener],
        loop: Loop,
        accept: Callable[[object, int, str], None],
    ) -> None:
        self._node = node
        self._listening, self._loop, self._accept = listening, loop, accept
        self._paused: set[str] = set()  # names
        self._open = False

    def is_paused(self, name: str) -> bool:
        """Return whether an operator paused the listener of this name."""
        return name in self._paused

    def open(self) -> None:
        """Accept connections at each listener that is not paused.

        Raises:
            UserError: Another process took an address meanwhile.
        """
        self._open = True
        for listener in self._listening:
            if listener.policy.name not in self._paused:
                self._open_one(listener)

    def shut(self) -> None:
        """Refuse connections; keep the addresses, and accept those already in the kernel's backlog."""
        self._open = False
        for listener in self._listening:
            if listener.policy.name not in self._paused:
                self._shut_one(listener)
        self._loop.kick()

    def order(self, order: OrderNode) -> NodeOrdered:
        """Pause or resume one listener, or return the effect; no effect without a listener of that name.

        The lines are ``state S`` (after the order) and ``connections N`` (that stay).
        """
        name = order.subject
        listener = next((each for each in self._listening if each.policy.name == name), None)
        if listener is None:
            return NodeOrdered(order.request)
        pauses = order.verb == PAUSE
        if pauses != (name in self._paused) and not order.dry_run:
            try:
                self._change(listener, pauses=pauses)
            except UserError as error:
                return NodeOrdered(order.request, error=error.message[:512])
            if pauses:
                say(logger, "listener.paused", listener=name, actor=order.actor)
            else:
                say(logger, "listener.resumed", listener=name, actor=order.actor)
            self._node.journal.note("listener", "paused" if pauses else "resumed", detail=f"{name} by {order.actor}")
        state = "paused" if pauses else ("open" if self._open else "drained")
        return NodeOrdered(order.request, 1, [f"state {state}", f"connections {len(listener.admission)}"])

    def look(self) -> RowSource:
        """Return the rows of the listeners for operators' queries."""

        def walk(ask: RowScan) -> Iterator[tuple[Place, Any]]:
            (after,) = ask.numbers(1)
            return ((place, each) for place, each in enumerate(self._listening) if place > after)

        columns: dict[str, Callable[[EdgeListener], object]] = {
            "listener": lambda each: each.policy.name,
            "kind": lambda each: each.settings.protocol,
            "bind": lambda each: address_of(each.socket),
            "state": self._state,
            "connections": lambda each: len(each.admission),
            "connections_max": lambda each: each.admission.connections_max or None,
            "node": lambda _: self._node.name,
            "tls": lambda each: each.settings.tls,
            "client_certificates": lambda each: each.settings.require_client_certificate,
            "anonymous": lambda each: each.policy.allow_anonymous,
        }
        return RowSource(walk, columns, total=lambda: len(self._listening))

    def _state(self, listener: EdgeListener) -> str:
        if listener.policy.name in self._paused:
            return "paused"
        return "open" if self._open else "drained"

    def _change(self, listener: EdgeListener, *, pauses: bool) -> None:
        if not pauses:
            if self._open:
                self._open_one(listener)
            self._paused.discard(listener.policy.name)
            return
        self._paused.add(listener.policy.name)
        if self._open:
            self._shut_one(listener)

    def _open_one(self, listener: EdgeListener) -> None:
        listener.open()
        self._loop.listen(listener.socket, listener)

    def _shut_one(self, listener: EdgeListener) -> None:
        self._loop.forget_listener(listener.socket)
        listener.shut(self._accept)
