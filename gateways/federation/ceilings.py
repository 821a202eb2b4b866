"""Ceilings of one direction of a link: how many messages and bytes in a second. Pure logic.

Nothing is dropped above a ceiling: whoever reads stops to read for a while, whoever sends waits.
"""

from __future__ import annotations

__all__ = ["Ceiling"]

BURST_S = 1.0  # of unused rate that may be used at once


class Ceiling:
    """Debt of one direction in seconds, the greater one of messages and bytes."""

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self._message_s = 1.0 / messages_per_s
        self._byte_s = 1.0 / bytes_per_s
        self._messages_paid = self._bytes_paid = -1e18  # when what was taken is paid for

    def take(self, now: float, length: int) -> None:
        """Note a message of so many bytes."""
        floor = now - BURST_S
        messages, bytes_ = self._messages_paid, self._bytes_paid
        self._messages_paid = (messages if messages > floor else floor) + self._message_s
        self._bytes_paid = (bytes_ if bytes_ > floor else floor) + length * self._byte_s

    def free_at(self) -> float:
        """Return when another message may be taken; a time in the past while there is room."""
        messages, bytes_ = self._messages_paid, self._bytes_paid
        return messages if messages > bytes_ else bytes_
