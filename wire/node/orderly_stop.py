"""How a node ends in order: relieved of its roles, it waits until that is in force everywhere, and leaves.

    serving -> draining -> leaving -> ended

*Draining*: the node serves on. The leader gives its roles, in one committed step, to nodes that stay; the node waits
until every live node has acknowledged that step and it has nothing more to do itself. Where no node of its tier stays
(the whole tier stops, or it is alone) there is nobody to hand anything to, and nothing is said: the map keeps every
role where it is for the next start. *Leaving*: the node gives its lease back and decides nothing any more; its death is
committed at its own word, so that nobody waits for its lease. Each wait has a bound. Sans-IO; docs/adr/0024.
"""

import logging
from collections.abc import Callable

from conf.events import say
from wire.node.lease_holder import LeaseHolder

__all__ = ["OrderlyStop", "StopPhase"]

logger = logging.getLogger(__name__)

LEAVE_S = 1.0  # for the commit of our own death; without it the lease runs out
LAST_S = 0.1  # of a node that hands over to nobody: the others hear of the same step from it
LOOK_S = 0.02


class StopPhase:
    """Where an orderly stop stands."""

    SERVING = "serving"
    DRAINING = "draining"
    LEAVING = "leaving"
    ENDED = "ended"


class OrderlyStop:
    """The end of one incarnation, step by step.

    Args:
        holder: This node's side of lease and map.
        limit_s: From ``begin`` to the end, whatever others do; below what a process is given to stop.
        idle: Whether this node has nothing more to do that somebody waits for.
        hands_over: Whether others are asked to take over roles first; an edge has none.
    """

    def __init__(
        self, holder: LeaseHolder, limit_s: float, *, idle: Callable[[], bool] = lambda: True, hands_over: bool = True
    ) -> None:
        self.phase = StopPhase.SERVING
        self._holder = holder
        self._limit_s = limit_s
        self._idle = idle
        self._hands_over = hands_over
        self._until = float("inf")  # the end of this phase at the latest
        self._relieved_at = -1  # map epoch that said so
        self._alone = False  # nobody stays: nothing is handed over, and nothing said
        self._next = float("inf")

    @property
    def begun(self) -> bool:
        """True from the order to stop on."""
        return self.phase != StopPhase.SERVING

    @property
    def ended(self) -> bool:
        """True when the process should end."""
        return self.phase == StopPhase.ENDED

    @property
    def relieved(self) -> bool:
        """True once the map has given to others what they take over."""
        return self._relieved_at >= 0

    @property
    def settled(self) -> bool:
        """True once every live node has acknowledged that."""
        return self.relieved and self._holder.settled_epoch >= self._relieved_at

    def next_deadline(self) -> float:
        """Return when ``step`` wants to be called next."""
        return self._next

    def begin(self, now: float) -> None:
        """The node was told to stop."""
        if self.begun:
            return
        self.phase, self._until, self._next = StopPhase.DRAINING, now + self._limit_s, now
        if self._hands_over:
            self._holder.drain(now)

    def step(self, now: float) -> None:
        """Go on as far as the others allow; call it in every turn."""
        holder = self._holder
        if (now < self._next and not holder.ended) or self.phase not in (StopPhase.DRAINING, StopPhase.LEAVING):
            return
        self._next = now + LOOK_S
        if holder.ended or not holder.active:
            unlisted = (
                "the map does not list this incarnation any more"
                if holder.ended
                else "this incarnation had not joined yet"
            )
            self._end("" if self.phase == StopPhase.LEAVING else unlisted)
        elif now >= self._until:
            self._end("" if self._alone else f"{self.phase} took too long; leases run out instead")
        elif self.phase == StopPhase.DRAINING and self._drain(now):
            holder.leave(now)
            self.phase, self._until, self._next = StopPhase.LEAVING, now + LEAVE_S, now

    def _drain(self, now: float) -> bool:
        """Go on with draining; return whether nothing is left here."""
        holder = self._holder
        if self._hands_over and not self.relieved:
            if not holder.drains:
                return False
            self._relieved_at = holder.map.epoch
            if not any(not entry.stops for entry in holder.map.live(holder.entry.tier)):
                say(logger, "node.hands_nothing_over", tier=holder.entry.tier)
                self._alone, self._relieved_at = True, -1
                self.phase, self._until = StopPhase.LEAVING, now + LAST_S
                return False
        return (self.settled or not self._hands_over) and self._idle()

    def _end(self, why: str) -> None:
        if why:
            say(logger, "node.handed_over", outcome=why)
        self.phase, self._next = StopPhase.ENDED, float("inf")
