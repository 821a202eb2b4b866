"""Messages of other routers that wait for Raft: so many bytes of each, taken one of each in turn.

A router that sends more than this one takes loses its own messages and delays nobody's: Raft repeats what matters. A
sender's messages keep their order.
"""

from collections import deque

from router.raft.messages import RaftMessage

__all__ = ["SENDER_BYTES_MAX", "SENDER_MESSAGES_MAX", "Inbox"]

SENDER_BYTES_MAX = 32 * 1024 * 1024  # of one router: three times the appends that a leader has open
SENDER_MESSAGES_MAX = 4_096  # of one router: heartbeats of many minutes


class Inbox:
    """Messages that wait, by sender.

    Attributes:
        dropped: Messages without room.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._senders: dict[
            str, deque[tuple[RaftMessage, int]]
        ] = {}  # those of whom something waits, whose turn is first
        self._octets: dict[str, int] = {}  # of what waits, by sender
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, sender: str, octets: int) -> bool:
        """Return whether a message of so many bytes may be added."""
        waiting = self._senders.get(sender)
        return waiting is None or (
            len(waiting) < SENDER_MESSAGES_MAX and self._octets[sender] + octets <= SENDER_BYTES_MAX
        )

    def drop(self) -> None:
        """Note that a message was not added."""
        self.dropped += 1

    def add(self, message: RaftMessage, octets: int) -> None:
        """Add a sender's newest message."""
        self._senders.setdefault(message.sender, deque()).append((message, octets))
        self._octets[message.sender] = self._octets.get(message.sender, 0) + octets
        self._count += 1

    def take(self) -> RaftMessage:
        """Remove and return the next one: each sender has its turn."""
        sender = next(iter(self._senders))
        waiting = self._senders.pop(sender)
        message, octets = waiting.popleft()
        self._count -= 1
        if waiting:
            self._senders[sender] = waiting  # behind the others
            self._octets[sender] -= octets
        else:
            del self._octets[sender]
        return message
