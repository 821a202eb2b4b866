"""Rate limits of one direction of a link, by messages and bytes. Pure logic.

No message is dropped above a limit: the reader pauses, the sender waits.
"""

from __future__ import annotations

__all__ = ["Ceiling"]

BURST_S = 1.0  # unused rate that may be used at once


class Ceiling:
    """Rate limit (GCRA) of one direction, by messages and bytes."""

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self._message_s = 1.0 / messages_per_s
        self._byte_s = 1.0 / bytes_per_s
        self._messages_allowed_at = self._bytes_allowed_at = -1e18  # theoretical arrival times

    def take(self, now: float, length: int) -> float:
        """Count a message of this many bytes; return when the next one is allowed."""
        floor, messages_at, bytes_at = now - BURST_S, self._messages_allowed_at, self._bytes_allowed_at
        messages_at = (messages_at if messages_at > floor else floor) + self._message_s
        bytes_at = (bytes_at if bytes_at > floor else floor) + length * self._byte_s
        self._messages_allowed_at, self._bytes_allowed_at = messages_at, bytes_at
        return messages_at if messages_at > bytes_at else bytes_at

    def free_at(self) -> float:
        """Return when the next message is allowed; a past time if it is now."""
        return max(self._messages_allowed_at, self._bytes_allowed_at)
