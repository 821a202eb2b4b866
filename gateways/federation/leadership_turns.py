"""Event loop of an agent: the core handles events, one synced transaction follows, then all dependent output is sent.

This order is the custody rule (PROTOCOL.md section 9). Events that are received during a transaction are handled
together in the next iteration. A full spool is retried: broker and neighbours wait, since no message is acknowledged
meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from conf.events import say
from gateways.federation.event_queue import EventQueue
from gateways.federation.events import (
    AckHost,
    CloseLink,
    Effect,
    Event,
    FederationReady,
    HoldLink,
    Inject,
    Log,
    Recapture,
    Send,
)
from gateways.spool import SpoolFull
from gateways.spool_rows import Write
from gateways.spool_thread import Spool
from wire.clock import boot_time

if TYPE_CHECKING:
    from gateways.federation.agent import Agent
    from gateways.federation.host import LocalBroker
    from gateways.federation.links import FederationLinks

__all__ = ["AgentLoop"]

logger = logging.getLogger(__name__)

RETRY_S = 1.0  # retry interval of a full spool


class AgentLoop:
    """See the module.

    Attributes:
      is_full: The spool was full at the last attempt.
      events: Queued for the next iteration.
    """

    def __init__(self, agent: Agent, spool: Spool) -> None:
        self.agent, self.spool = agent, spool
        self.host: LocalBroker | None = None
        self.links: FederationLinks | None = None
        self.is_full = False
        self.events = EventQueue()
        self._rows: list[Write] = []
        self._held: list[Callable[[], None]] = []
        self._has_events = trio.Event()
        self._drained = trio.Event()

    def put_event(self, event: Event) -> None:
        """Queue an event for the next iteration."""
        self.events.put(event)
        self._has_events.set()

    def put_events(self, events: list[Event]) -> None:
        """Queue several events in order."""
        for event in events:
            self.events.put(event)
        self._has_events.set()

    def hold(self, rows: list[Write], then: Callable[[], None]) -> None:
        """Queue rows of the broker's sessions for the next transaction, and the output that depends on them."""
        self._rows += rows
        self._held.append(then)
        self._has_events.set()

    def room(self) -> Awaitable[None] | None:
        """Return an awaitable that delays further reads; None: no delay."""
        return self._drained.wait() if self.events.is_full else None

    async def run(self) -> None:
        """Run iterations until cancelled."""
        deadline = 0.0
        while True:
            if not self.events and not self._held:
                with trio.move_on_after(max(0.0, deadline - boot_time())):
                    await self._has_events.wait()
            self._has_events = trio.Event()
            events = self.events.take()  # all: rows of the sessions belong to the events received with them
            ready = self.agent.handle(boot_time(), events)
            deadline = ready.deadline
            self._begin(ready)
            rows, self._rows = self._rows, []
            held, self._held = self._held, []
            await self._commit([*ready.writes, *rows])
            for call in held:
                call()
            assert self.links is not None
            for effect in ready.effects:
                if type(effect) is Send:  # the most frequent effect
                    self.links.send(effect)
                else:
                    self._finish(effect)
            self._drained.set()
            self._drained = trio.Event()
            await trio.lowlevel.checkpoint()

    def _begin(self, ready: FederationReady) -> None:
        """Perform the effects at the broker: their rows join this transaction, their output is held for it."""
        assert self.host is not None
        for effect in ready.effects:
            if type(effect) is Send:
                continue
            match effect:
                case AckHost(ref):
                    self.host.acknowledge(ref)
                case Inject():
                    self.host.inject(effect)
                case Recapture():
                    self.host.recapture(effect)

    def _finish(self, effect: Effect) -> None:
        assert self.links is not None
        match effect:
            case HoldLink(neighbour, until):
                self.links.hold(neighbour, until)
            case CloseLink(neighbour, reason):
                self.links.close(neighbour, reason)
            case Log(event, values):
                say(logger, event, level=0, exc_info=False, **values)

    async def _commit(self, writes: list[Write]) -> None:
        while writes:
            try:
                await self.spool.commit(writes, drains=True)  # the core enforces its own lower bound
            except SpoolFull as error:
                if not self.is_full:
                    say(logger, "federation.spool_full", problem=error)
                self.is_full = True
                await trio.sleep(RETRY_S)
            else:
                self.is_full = False
                return
