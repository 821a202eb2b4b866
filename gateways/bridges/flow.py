"""One direction of a bridge: a source's messages through rules and pump to a sink, what is rejected to a dead letter.

Everything is called between two awaits, and nothing waits here: sources call ``take`` while ``has_room``, sinks and
dead letters answer by token, and whoever owns the clock calls ``step`` at ``next_deadline``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from conf.events import say
from gateways.bridges.message import BridgeMessage, SinkRecord
from gateways.bridges.pump import BridgePump, DeadLetter, SinkDelivery
from gateways.bridges.rules import RuleResult

__all__ = ["BridgeFlow", "DeadLetters", "Sink"]

logger = logging.getLogger(__name__)

REJECTED_SHOWN_CHARS = 200


class Sink(Protocol):
    """Where records go; it answers each by ``BridgeFlow.done``, ``retry`` or ``reject``, now or later."""

    @property
    def has_room(self) -> bool:
        """Whether it takes one more record now."""

    def send(self, sending: SinkDelivery) -> None:
        """Take a record."""


class DeadLetters(Protocol):
    """Where rejected records go; it answers by ``BridgeFlow.dead_letter_done`` or ``dead_letter_failed``."""

    @property
    def has_room(self) -> bool:
        """Whether it takes one more now."""

    def bury(self, letter: DeadLetter) -> None:
        """Take a rejected record."""


@dataclass(slots=True)
class LastError:
    """The latest failure, for people."""

    text: str = ""
    at_ms: int = 0


class BridgeFlow:
    """One direction.

    Args:
        direction: "in" to the cluster, "out" of it.
        judge: Makes records of a message.
        acknowledge: Tells the source that a message is finished.
        now: The clock of the pump.
        wall_ms: UTC, for people.
    """

    def __init__(
        self,
        direction: str,
        pump: BridgePump,
        judge: Callable[[BridgeMessage], RuleResult],
        acknowledge: Callable[[int], None],
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self.direction, self.pump = direction, pump
        self.error = LastError()
        self.waker: Callable[[], None] = lambda: None  # the deadline may have moved
        self.judge = judge
        self._acknowledge, self._now, self._wall_ms = acknowledge, now, wall_ms
        self._sink: Sink | None = None
        self._dead_letters: DeadLetters | None = None
        self._stepping = False

    def connect(self, sink: Sink, dead_letters: DeadLetters) -> None:
        """Set where records go."""
        self._sink, self._dead_letters = sink, dead_letters

    @property
    def has_room(self) -> bool:
        """Whether the source may give one more message."""
        return self.pump.has_room

    def take(self, reference: int, message: BridgeMessage) -> None:
        """Take a message of the source."""
        verdict = self.judge(message)
        if verdict.rejected is not None:
            self._note(f"{message.topic[:REJECTED_SHOWN_CHARS]}: {verdict.rejected.text}")
            self.pump.reject_message(reference, message, verdict.rejected.reason)
        else:
            self.pump.offer(reference, message, verdict.records)
            if verdict.dropped:
                self.pump.counts[f"dropped_{verdict.dropped}"] += 1
        self.step()

    def restore(self, reference: int, message: BridgeMessage, record: SinkRecord, reason: str) -> int:
        """Take what a former process had open: see ``BridgePump.restore``."""
        return self.pump.restore(reference, message, record, reason, self._now())

    def drop(self, reason: str) -> None:
        """Count a message that is not taken: QoS 0, which nobody sends again."""
        self.pump.counts["received"] += 1
        self.pump.counts[f"dropped_{reason}"] += 1

    def done(self, token: int) -> None:
        """The sink has taken a record."""
        self.pump.done(token)
        self.step()

    def all_done(self, tokens: Iterable[int]) -> None:
        """The sink has taken records, in this order."""
        for token in tokens:
            self.pump.done(token)
        self.step()

    def retry(self, token: int, text: str, *, reason: str = "failed", after_s: float | None = None) -> None:
        """The sink has not taken a record, and may another time."""
        self._note(text)
        self.pump.retry(token, self._now(), after_s, reason)
        self.step()

    def reject(self, token: int, reason: str, text: str) -> None:
        """The sink will never take a record."""
        self._note(text)
        self.pump.reject(token, reason)
        self.step()

    def dead_letter_done(self, token: int) -> None:
        """The dead letter has taken a record."""
        self.pump.dead_letter_done(token)
        self.step()

    def dead_letter_dropped(self, token: int, reason: str, text: str) -> None:
        """No dead letter will ever take a record; the log has its last trace."""
        say(logger, "bridge.dead_letter_dropped", reason=reason, text=text)
        self._note(f"dead letter dropped: {text}")
        self.pump.dead_letter_dropped(token, reason)
        self.step()

    def dead_letter_failed(self, token: int, text: str) -> None:
        """The dead letter has not taken a record."""
        self._note(f"dead letter: {text}")
        self.pump.dead_letter_failed(token, self._now())
        self.step()

    def next_deadline(self) -> float:
        """Return when ``step`` must be called at the latest."""
        return self.pump.next_deadline()

    def step(self) -> None:
        """Give sink and dead letter what they have room for, and acknowledge what is finished."""
        if self._stepping or self._sink is None or self._dead_letters is None:
            return  # answered from within ``send``: the loop below goes on
        self._stepping = True
        try:
            now, pump, sink, dead_letters = self._now(), self.pump, self._sink, self._dead_letters
            while sink.has_room and (sending := pump.next_sending(now)) is not None:
                sink.send(sending)
            while dead_letters.has_room and (letter := pump.next_dead_letter(now)) is not None:
                dead_letters.bury(letter)
            for reference in pump.finished():
                self._acknowledge(reference)
        finally:
            self._stepping = False
        self.waker()

    def _note(self, text: str) -> None:
        self.error.text, self.error.at_ms = text, self._wall_ms()
