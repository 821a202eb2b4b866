"""The orderly stop of a node: it hands its roles over, waits until all nodes have acknowledged that, and leaves.

    serving -> draining -> leaving -> ended

*Draining*: the node still serves. The leader moves its roles, in one committed step, to nodes that stay. The node waits
until every live node has acknowledged that step and its own work is done. If no node of its tier stays (the whole
tier stops, or it is alone), no hand-over happens: the map keeps every role for the next start. *Leaving*: the node
returns its lease and decides no more; its own request commits its death, so other nodes need not wait for its
lease. Each wait has a bound. Sans-IO; docs/adr/0024.
"""

import logging
from collections.abc import Callable

from conf.events import say
from wire.node.lease_holder import LeaseHolder

__all__ = ["OrderlyStop", "StopPhase"]

logger = logging.getLogger(__name__)

LEAVE_S = 1.0  # for the commit of our own death; without it the lease expires
LAST_S = 0.1  # without a hand-over: time for the others to receive the same step from this node
STEP_INTERVAL_S = 0.02


class StopPhase:
    """Phase of an orderly stop."""

    SERVING = "serving"
    DRAINING = "draining"
    LEAVING = "leaving"
    ENDED = "ended"


class OrderlyStop:
    """The stop of one incarnation, step by step.

    Args:
        holder: This node's lease and map.
        limit_s: From ``begin`` to the end in any case; below the stop timeout of the process.
        idle: Whether this node has no pending work for others.
        hands_over: Whether other nodes take over roles first; an edge has none.
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
        self._relieved_at = -1  # map epoch of the hand-over
        self._is_last = False  # no node of the tier stays: no hand-over
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
        """True once the map has moved this node's roles to others."""
        return self._relieved_at >= 0

    @property
    def settled(self) -> bool:
        """True once every live node has acknowledged the hand-over."""
        return self.relieved and self._holder.settled_epoch >= self._relieved_at

    def next_deadline(self) -> float:
        """Return when ``step`` has to be called next."""
        return self._next

    def begin(self, now: float) -> None:
        """Start the stop."""
        if self.begun:
            return
        self.phase, self._until, self._next = StopPhase.DRAINING, now + self._limit_s, now
        if self._hands_over:
            self._holder.drain(now)

    def step(self, now: float) -> None:
        """Advance as far as the other nodes allow; called in every iteration."""
        holder = self._holder
        if (now < self._next and not holder.ended) or self.phase not in (StopPhase.DRAINING, StopPhase.LEAVING):
            return
        self._next = now + STEP_INTERVAL_S
        if holder.ended or not holder.active:
            unlisted = (
                "the map no longer lists this incarnation" if holder.ended else "this incarnation had not joined yet"
            )
            self._end("" if self.phase == StopPhase.LEAVING else unlisted)
        elif now >= self._until:
            self._end("" if self._is_last else f"{self.phase} took too long; leases expire instead")
        elif self.phase == StopPhase.DRAINING and self._drain(now):
            holder.leave(now)
            self.phase, self._until, self._next = StopPhase.LEAVING, now + LEAVE_S, now

    def _drain(self, now: float) -> bool:
        """Advance the draining; return whether it is complete."""
        holder = self._holder
        if self._hands_over and not self.relieved:
            if not holder.drains:
                return False
            self._relieved_at = holder.map.epoch
            if not any(not entry.stops for entry in holder.map.live(holder.entry.tier)):
                say(logger, "node.hands_nothing_over", tier=holder.entry.tier)
                self._is_last, self._relieved_at = True, -1
                self.phase, self._until = StopPhase.LEAVING, now + LAST_S
                return False
        return (self.settled or not self._hands_over) and self._idle()

    def _end(self, why: str) -> None:
        if why:
            say(logger, "node.handed_over", outcome=why)
        self.phase, self._next = StopPhase.ENDED, float("inf")
