"""Publishers that a partition heard of lately: what an older connection of one sent comes too late.

A client that moved on to another edge may have messages in a frame of the old edge that is stuck. Every message carries
its publisher's session and owner_epoch; once a higher owner_epoch was heard, lower ones are superseded: dropped, and
the old edge acknowledges nothing. Sessions only: an ephemeral publisher has no name that outlives its connection.
It is remembered while a frame may be stuck, four leases, by the primary that heard it.

A message that was refused for want of room may come again on its client's next connection: what follows it on this
one, on its way already when there is room again, would overtake it (and at QoS 2 make a repeat of it), and is refused
as well for that time. Source: docs/protocol.md rules 4.12, 4.13.
"""

__all__ = ["Publishers"]

LEASES_REMEMBERED = 4  # a link that is stuck for two costs one of its ends the lease, which takes as long again
PUBLISHERS_MAX = 100_000


class Publishers:
    """The newest connection of each session that published here lately.

    Attributes:
        heard: Session -> its owner_epoch and when it was noted; another dict after each ``hear``.
    """

    def __init__(self) -> None:
        self.heard: dict[int, tuple[int, float]] = {}
        self._refused: dict[int, tuple[int, float]] = {}  # session -> owner_epoch, when; the oldest first
        self._forget_at = float("-inf")

    def __len__(self) -> int:
        return len(self.heard)

    def hear(self, session: int, owner_epoch: int, now: float, lease_s: float) -> bool:
        """Hear of a publisher; return whether a newer connection of it was heard before.

        Args:
            session: 0 for none: never superseded.
            owner_epoch: Of the connection that the message came on.
            now: Monotonic seconds.
            lease_s: The cluster's.
        """
        if not session:
            return False
        remembered_s = LEASES_REMEMBERED * lease_s
        if now >= self._forget_at:  # all together and seldom: a dict whose first entry is deleted each time gets slow
            self._forget_at = now + remembered_s
            self.heard = {one: heard for one, heard in self.heard.items() if heard[1] > now - remembered_s}
        known = self.heard.get(session)
        if known is not None and owner_epoch < known[0] and now - known[1] < remembered_s:
            return True
        if known is None and len(self.heard) >= PUBLISHERS_MAX:
            for one in list(self.heard)[: PUBLISHERS_MAX // 2]:
                del self.heard[one]
        self.heard[session] = (owner_epoch, now)
        return False

    def refuses(self, now: float, lease_s: float) -> bool:
        """Whether anything was refused lately; forgets what was refused too long ago to matter."""
        refused = self._refused
        while refused:
            oldest = next(iter(refused))
            if now - refused[oldest][1] < LEASES_REMEMBERED * lease_s:
                return True
            del refused[oldest]
        return False

    def refused(self, session: int, owner_epoch: int, now: float) -> None:
        """There was no room for a message of this connection."""
        if session:
            if len(self._refused) >= PUBLISHERS_MAX:
                self._refused.clear()
            self._refused.pop(session, None)  # they stand in the order of their times
            self._refused[session] = (owner_epoch, now)

    def settle_refused(self, session: int, owner_epoch: int, now: float, lease_s: float) -> bool:
        """Return whether a message may follow a refusal its publisher had not heard of; forget one that is over."""
        known = self._refused.get(session)
        if known is None:
            return False
        if owner_epoch == known[0] and now - known[1] < LEASES_REMEMBERED * lease_s:
            return True
        del self._refused[session]
        return False
