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

    def take(self, now: float, length: int) -> float:
        """Note a message of so many bytes; return when another one may be taken."""
        floor, messages_paid, bytes_paid = now - BURST_S, self._messages_paid, self._bytes_paid
        messages_paid = (messages_paid if messages_paid > floor else floor) + self._message_s
        bytes_paid = (bytes_paid if bytes_paid > floor else floor) + length * self._byte_s
        self._messages_paid, self._bytes_paid = messages_paid, bytes_paid
        return messages_paid if messages_paid > bytes_paid else bytes_paid

    def free_at(self) -> float:
        """Return when another message may be taken; a time in the past while there is room."""
        return max(self._messages_paid, self._bytes_paid)
