"""Turns of an agent: events go to the core, one synced transaction follows, then everything leaves that rests on it.

Decides the order of these three, which is custody (PROTOCOL.md section 9). While a transaction is under way events
gather, and the next turn has them all together. A spool without room is tried again until it has some: its broker and
its neighbours wait, for nothing is acknowledged meanwhile.
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

__all__ = ["LeadershipTurns"]

logger = logging.getLogger(__name__)

AGAIN_S = 1.0  # between attempts at a spool without room


class LeadershipTurns:
    """See the module.

    Attributes:
        is_full: The spool had no room at the last attempt.
        events: Those that wait for the next turn.
    """

    def __init__(self, agent: Agent, spool: Spool) -> None:
        self.agent, self.spool = agent, spool
        self.host: LocalBroker | None = None
        self.links: FederationLinks | None = None
        self.is_full = False
        self.events = EventQueue()
        self._rows: list[Write] = []
        self._held: list[Callable[[], None]] = []
        self._stirred = trio.Event()
        self._taken = trio.Event()

    def put_event(self, event: Event) -> None:
        """Take an event for the next turn."""
        self.events.put(event)
        self._stirred.set()

    def put_events(self, events: list[Event]) -> None:
        """Take several, in their order."""
        for event in events:
            self.events.put(event)
        self._stirred.set()

    def hold(self, rows: list[Write], then: Callable[[], None]) -> None:
        """Take rows of the broker's sessions for the next transaction, and what leaves after it."""
        self._rows += rows
        self._held.append(then)
        self._stirred.set()

    def room(self) -> Awaitable[None] | None:
        """Return what to wait for before more is read; None: nothing."""
        return self._taken.wait() if self.events.is_full else None

    async def run(self) -> None:
        """Take turns, for ever."""
        deadline = 0.0
        while True:
            if not self.events and not self._held:
                with trio.move_on_after(max(0.0, deadline - boot_time())):
                    await self._stirred.wait()
            self._stirred = trio.Event()
            events = self.events.take()  # all: rows of the sessions belong to the events they came with
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
                if type(effect) is Send:  # most of them
                    self.links.send(effect)
                else:
                    self._finish(effect)
            self._taken.set()
            self._taken = trio.Event()
            await trio.lowlevel.checkpoint()

    def _begin(self, ready: FederationReady) -> None:
        """Perform the effects at the broker: what they write joins this transaction, what they send waits for it."""
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
                await self.spool.commit(writes, drains=True)  # the core keeps to its own bound below it
            except SpoolFull as error:
                if not self.is_full:
                    say(logger, "federation.spool_full", problem=error)
                self.is_full = True
                await trio.sleep(AGAIN_S)
            else:
                self.is_full = False
                return
