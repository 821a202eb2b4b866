"""Members of shared groups in one partition, and the choice of the next message's member.

Members are served round-robin. A member without capacity (disconnected, or window full) *rests*: it is skipped until
it has capacity again, because a group may have thousands of disconnected members. Code that frees a session's window
calls ``wake``. Source: MQTT 5.0 section 4.8.2.
"""

from collections import OrderedDict

from storage.state.durable_sessions import DurableSession

__all__ = ["Groups", "describe_group"]


def describe_group(share: bytes) -> str:
    """Return a group, as `share name/topic filter`, as text for the journal."""
    name, _, topic_filter = share.decode("utf-8", "replace").partition("/")
    return f"group {name!r} on {topic_filter!r}"


class _Group:
    """Members of one group in round-robin order."""

    __slots__ = ("delivered", "ready", "redispatched", "resting")

    def __init__(self) -> None:
        self.delivered = 0  # copies given to its members here
        self.redispatched = 0  # of them, copies not acknowledged before a member's session ended
        self.ready: OrderedDict[int, DurableSession] = OrderedDict()  # by session number; some may lack capacity
        self.resting: OrderedDict[int, DurableSession] = OrderedDict()


class Groups:
    """The shared groups of one partition."""

    def __init__(self) -> None:
        self._groups: dict[bytes, _Group] = {}
        self._resting: dict[int, list[bytes]] = {}  # session number -> the groups in which it rests

    @property
    def rest(self) -> bool:
        """Whether any member rests."""
        return bool(self._resting)

    def join(self, share: bytes, session: DurableSession) -> None:
        """Add a member at the end of the round-robin order; an existing member keeps its position."""
        group = self._groups.setdefault(share, _Group())
        if session.number in group.ready or session.number in group.resting:
            return
        if _has_capacity(session):
            group.ready[session.number] = session
        else:
            self._rest(share, group, session)

    def leave(self, share: bytes, session: DurableSession) -> None:
        """Remove a member, if it is one."""
        group = self._groups.get(share)
        if group is None:
            return
        group.ready.pop(session.number, None)
        if group.resting.pop(session.number, None) is not None:
            shares = self._resting[session.number]
            shares.remove(share)
            if not shares:
                del self._resting[session.number]
        if not (group.ready or group.resting):
            del self._groups[share]

    def shown(self) -> list[tuple[bytes, list[DurableSession]]]:
        """Return the groups with their members: the next one first, resting ones last."""
        return [(share, [*group.ready.values(), *group.resting.values()]) for share, group in self._groups.items()]

    def counts(self, share: bytes) -> tuple[int, int]:
        """Return the number of copies given to members here, and of those that were redispatched."""
        group = self._groups.get(share)
        return (group.delivered, group.redispatched) if group is not None else (0, 0)

    def note_redispatched(self, share: bytes) -> None:
        """Count a copy that leaves a member whose session ends."""
        group = self._groups.get(share)
        if group is not None:
            group.redispatched += 1

    def wake(self, session: DurableSession) -> None:
        """Return a session to the round-robin order of its groups if it has capacity again."""
        if session.number in self._resting and _has_capacity(session):
            for share in self._resting.pop(session.number):
                group = self._groups[share]
                group.ready[session.number] = group.resting.pop(session.number)

    def pick(self, share: bytes, *, absent: bool) -> DurableSession | None:
        """Return the next connected member with capacity; None if there is none.

        Args:
            share: The group.
            absent: The message can be queued: if no member has capacity, return the next resting one.
        """
        group = self._groups.get(share)
        if group is None:
            return None
        while group.ready:
            number, session = next(iter(group.ready.items()))
            if _has_capacity(session):
                group.ready.move_to_end(number)
                group.delivered += 1
                return session
            del group.ready[number]
            self._rest(share, group, session)
        if not absent:
            return None
        number, session = next(iter(group.resting.items()))
        group.resting.move_to_end(number)
        group.delivered += 1
        return session

    def _rest(self, share: bytes, group: _Group, session: DurableSession) -> None:
        group.resting[session.number] = session
        self._resting.setdefault(session.number, []).append(share)


def _has_capacity(session: DurableSession) -> bool:
    """Whether a message can go to a session's connection now."""
    return session.window_open and session.caught_up
