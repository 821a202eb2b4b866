"""One direction of a bridge: a source's messages pass rules and pump to a sink; rejected ones go to a dead letter.

All calls are synchronous and do not block. Sources call ``take`` while ``has_capacity``, sinks and dead letters answer
by token, and the owner of the clock calls ``step`` at ``next_deadline``.
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
    """Target of records; it answers each by ``BridgeFlow.done``, ``retry`` or ``reject``, now or later."""

    @property
    def has_capacity(self) -> bool:
        """Whether it accepts one more record now."""

    def send(self, sending: SinkDelivery) -> None:
        """Accept a record."""


class DeadLetters(Protocol):
    """Target of rejected records; it answers by ``BridgeFlow.dead_letter_done`` or ``dead_letter_failed``."""

    @property
    def has_capacity(self) -> bool:
        """Whether it accepts one more now."""

    def write(self, letter: DeadLetter) -> None:
        """Accept a rejected record."""


@dataclass(slots=True)
class LastError:
    """The latest failure, for the status page."""

    text: str = ""
    at_ms: int = 0


class BridgeFlow:
    """One direction.

    Args:
      direction: "in" to the cluster, "out" of it.
      apply_rules: Makes records of a message.
      acknowledge: Acknowledges a message at its source.
      now: The clock of the pump.
      wall_ms: UTC, for timestamps of errors.
    """

    def __init__(
        self,
        direction: str,
        pump: BridgePump,
        apply_rules: Callable[[BridgeMessage], RuleResult],
        acknowledge: Callable[[int], None],
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self.direction, self.pump = direction, pump
        self.error = LastError()
        self.waker: Callable[[], None] = lambda: None  # the deadline may have moved
        self.apply_rules = apply_rules
        self._acknowledge, self._now, self._wall_ms = acknowledge, now, wall_ms
        self._sink: Sink | None = None
        self._dead_letters: DeadLetters | None = None
        self._stepping = False

    def connect(self, sink: Sink, dead_letters: DeadLetters) -> None:
        """Set the targets of records."""
        self._sink, self._dead_letters = sink, dead_letters

    @property
    def has_capacity(self) -> bool:
        """Whether the source may pass one more message."""
        return self.pump.has_capacity

    def take(self, reference: int, message: BridgeMessage) -> None:
        """Apply the rules to a message of the source and queue its records."""
        verdict = self.apply_rules(message)
        if verdict.rejected is not None:
            self._set_error(f"{message.topic[:REJECTED_SHOWN_CHARS]}: {verdict.rejected.text}")
            self.pump.reject_message(reference, message, verdict.rejected.reason)
        else:
            self.pump.offer(reference, message, verdict.records)
            if verdict.dropped:
                self.pump.counts[f"dropped_{verdict.dropped}"] += 1
        self.step()

    def restore(self, reference: int, message: BridgeMessage, record: SinkRecord, reason: str) -> int:
        """Resume a record of a former process: see ``BridgePump.restore``."""
        return self.pump.restore(reference, message, record, reason, self._now())

    def drop(self, reason: str) -> None:
        """Count a discarded QoS 0 message, which is not sent again."""
        self.pump.counts["received"] += 1
        self.pump.counts[f"dropped_{reason}"] += 1

    def done(self, token: int) -> None:
        """Record that the sink has accepted a record."""
        self.pump.done(token)
        self.step()

    def all_done(self, tokens: Iterable[int]) -> None:
        """Record that the sink has accepted records, in this order."""
        for token in tokens:
            self.pump.done(token)
        self.step()

    def retry(self, token: int, text: str, *, reason: str = "failed", after_s: float | None = None) -> None:
        """Record a temporary failure of a record at the sink."""
        self._set_error(text)
        self.pump.retry(token, self._now(), after_s, reason)
        self.step()

    def reject(self, token: int, reason: str, text: str) -> None:
        """Record a permanent failure of a record at the sink."""
        self._set_error(text)
        self.pump.reject(token, reason)
        self.step()

    def dead_letter_done(self, token: int) -> None:
        """Record that the dead letter has accepted a record."""
        self.pump.dead_letter_done(token)
        self.step()

    def dead_letter_dropped(self, token: int, reason: str, text: str) -> None:
        """Give up a record that no dead letter accepts; the log keeps a trace of it."""
        say(logger, "bridge.dead_letter_dropped", reason=reason, text=text)
        self._set_error(f"dead letter dropped: {text}")
        self.pump.dead_letter_dropped(token, reason)
        self.step()

    def dead_letter_failed(self, token: int, text: str) -> None:
        """Record a temporary failure of a record at the dead letter."""
        self._set_error(f"dead letter: {text}")
        self.pump.dead_letter_failed(token, self._now())
        self.step()

    def next_deadline(self) -> float:
        """Return the latest time of the next call of ``step``."""
        return self.pump.next_deadline()

    def step(self) -> None:
        """Pass records to sink and dead letter within their capacity, and acknowledge finished messages."""
        if self._stepping or self._sink is None or self._dead_letters is None:
            return  # called from within ``send``: the loop below continues
        self._stepping = True
        try:
            now, pump, sink, dead_letters = self._now(), self.pump, self._sink, self._dead_letters
            while sink.has_capacity and (sending := pump.next_delivery(now)) is not None:
                sink.send(sending)
            while dead_letters.has_capacity and (letter := pump.next_dead_letter(now)) is not None:
                dead_letters.write(letter)
            for reference in pump.finished():
                self._acknowledge(reference)
        finally:
            self._stepping = False
        self.waker()

    def _set_error(self, text: str) -> None:
        self.error.text, self.error.at_ms = text, self._wall_ms()
