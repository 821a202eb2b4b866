"""Queued messages of other routers for Raft: bounded for each sender, taken round-robin.

A router that sends faster than this one processes loses its own messages and delays no other: Raft repeats messages. A
sender's messages keep their order.
"""

from collections import deque

from router.raft.messages import RaftMessage

__all__ = ["SENDER_BYTES_MAX", "SENDER_MESSAGES_MAX", "Inbox"]

SENDER_BYTES_MAX = 32 * 1024 * 1024  # of one router: three times a leader's in-flight appends
SENDER_MESSAGES_MAX = 4_096  # of one router: heartbeats of many minutes


class Inbox:
    """Queued messages, by sender.

    Attributes:
        dropped: Number of messages beyond a sender's bound.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._senders: dict[str, deque[tuple[RaftMessage, int]]] = {}  # senders with queued messages, next one first
        self._octets: dict[str, int] = {}  # queued bytes, by sender
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def accepts(self, sender: str, octets: int) -> bool:
        """Return whether a message of this size fits the sender's bound."""
        waiting = self._senders.get(sender)
        return waiting is None or (
            len(waiting) < SENDER_MESSAGES_MAX and self._octets[sender] + octets <= SENDER_BYTES_MAX
        )

    def drop(self) -> None:
        """Count a message that was not added."""
        self.dropped += 1

    def add(self, message: RaftMessage, octets: int) -> None:
        """Add a sender's newest message."""
        self._senders.setdefault(message.sender, deque()).append((message, octets))
        self._octets[message.sender] = self._octets.get(message.sender, 0) + octets
        self._count += 1

    def take(self) -> RaftMessage:
        """Remove and return the next message, alternating between senders."""
        sender = next(iter(self._senders))
        waiting = self._senders.pop(sender)
        message, octets = waiting.popleft()
        self._count -= 1
        if waiting:
            self._senders[sender] = waiting  # after the others
            self._octets[sender] -= octets
        else:
            del self._octets[sender]
        return message
