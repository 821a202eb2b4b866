"""Publishers that a partition received from recently: messages of an older connection of one are too late.

A client that moved to another edge may have messages in a delayed frame of the old edge. Every message carries its
publisher's session and owner_epoch. Once a higher owner_epoch arrived, messages with a lower one are superseded:
dropped, and the old edge does not acknowledge them. Sessions only: an ephemeral publisher has no name that outlives
its connection. The primary remembers it for four leases, while a frame may be delayed.

A message that was refused because a queue was full may come again on its client's next connection. Later messages of
the current connection could overtake it (and at QoS 2 make a repeat of it). They are refused as well for that time.
Source: docs/protocol.md rules 4.12, 4.13.
"""

__all__ = ["Publishers"]

LEASES_REMEMBERED = 4  # a link that is stuck for two costs one of its ends the lease, which takes as long again
PUBLISHERS_MAX = 100_000


class Publishers:
    """The newest connection of each session that published here recently.

    Attributes:
        newest: Session -> its owner_epoch and a timestamp; another dict after each ``observe``.
    """

    def __init__(self) -> None:
        self.newest: dict[int, tuple[int, float]] = {}
        self._refused: dict[int, tuple[int, float]] = {}  # session -> owner_epoch, timestamp; the oldest first
        self._forget_at = float("-inf")

    def __len__(self) -> int:
        return len(self.newest)

    def observe(self, session: int, owner_epoch: int, now: float, lease_s: float) -> bool:
        """Record a publisher; return whether a newer connection of it published before.

        Args:
            session: 0 for none: never superseded.
            owner_epoch: Of the connection that sent the message.
            now: Monotonic seconds.
            lease_s: The cluster's.
        """
        if not session:
            return False
        remembered_s = LEASES_REMEMBERED * lease_s
        if now >= self._forget_at:  # all together and rarely: repeated deletion of a dict's first entry is slow
            self._forget_at = now + remembered_s
            self.newest = {one: newest for one, newest in self.newest.items() if newest[1] > now - remembered_s}
        known = self.newest.get(session)
        if known is not None and owner_epoch < known[0] and now - known[1] < remembered_s:
            return True
        if known is None and len(self.newest) >= PUBLISHERS_MAX:
            for one in list(self.newest)[: PUBLISHERS_MAX // 2]:
                del self.newest[one]
        self.newest[session] = (owner_epoch, now)
        return False

    def refuses(self, now: float, lease_s: float) -> bool:
        """Return whether a message was refused recently; forget refusals that are too old."""
        refused = self._refused
        while refused:
            oldest = next(iter(refused))
            if now - refused[oldest][1] < LEASES_REMEMBERED * lease_s:
                return True
            del refused[oldest]
        return False

    def refused(self, session: int, owner_epoch: int, now: float) -> None:
        """Record that a message of this connection was refused because a queue was full."""
        if session:
            if len(self._refused) >= PUBLISHERS_MAX:
                self._refused.clear()
            self._refused.pop(session, None)  # keeps the dict in timestamp order
            self._refused[session] = (owner_epoch, now)

    def settle_refused(self, session: int, owner_epoch: int, now: float, lease_s: float) -> bool:
        """Return whether the publisher may have sent a message before it got a refusal; forget expired refusals."""
        known = self._refused.get(session)
        if known is None:
            return False
        if owner_epoch == known[0] and now - known[1] < LEASES_REMEMBERED * lease_s:
            return True
        del self._refused[session]
        return False
