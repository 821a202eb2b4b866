"""Where a shared group's copy goes: to which destination of the group, and to which member here.

A Route names a ``SharedGroup``, whose destinations take turns, or, for one message, a ``RecordedPick``. The groups
themselves are in ``edge/routes/shared_groups.py``. Source: MQTT 5.0 section 4.8.2.
"""

from collections.abc import Sequence

from edge.hot.state import Group, Remote, Sub
from edge.routes.shared_groups import HERE, RecordedPick, SharedGroup
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions

__all__ = ["Picking"]


class Picking:
    """Chooses for all groups of one edge.

    Args:
        local: The members here.
        sticky: A member is chosen by topic, not in turn.
    """

    def __init__(self, local: EphemeralSubscriptions, sticky: bool) -> None:
        self._local = local
        self._sticky = sticky

    def pick(self, group: Group, topic: bytes) -> Sub | Remote | None:
        """Choose for a message that a Route names the group for; None: nobody takes it."""
        choice: Remote | int | None
        if isinstance(group, SharedGroup):
            choice = group.next(topic)
            if choice is None or not self._takes(group, choice):
                choice = self._other(group, ())
            sticky = group.sticky
        else:
            assert isinstance(group, RecordedPick)
            choice, sticky = group.choice, group.group.sticky
        if isinstance(choice, Remote):
            return choice
        return self._local.pick(group.share, topic if sticky else None) if choice == HERE else None

    def picked(self, share: bytes, topic: bytes) -> Sub | None:
        """Choose the member here for a message that another edge picked this one for."""
        return self._local.pick(share, topic if self._sticky else None)

    def pick_other(self, group: SharedGroup, refused: Sequence[Remote]) -> Sub | Remote | None:
        """Choose a destination after these have refused the message; None: none is left."""
        choice = self.choose(group, b"", refused)
        if isinstance(choice, Remote):
            return choice
        return self._local.pick(group.share) if choice == HERE else None

    def choose(self, group: SharedGroup, topic: bytes, refused: Sequence[Remote | int] = ()) -> Remote | int | None:
        """Return the next destination of a group that can take a message; None if there is none."""
        first = None if refused else group.next(topic)
        if first is not None and self._takes(group, first):
            return first
        return self._other(group, refused)

    def _other(self, group: SharedGroup, refused: Sequence[Remote | int]) -> Remote | int | None:
        return next((choice for choice in group.others(refused) if self._takes(group, choice)), None)

    def _takes(self, group: SharedGroup, choice: Remote | int) -> bool:
        if isinstance(choice, Remote):
            return choice.peer is None or not choice.peer.dead
        return self._local.has_member(group.share)

    def has_member(self, share: bytes) -> bool:
        """Return whether a group has a member here."""
        return self._local.has_member(share)

    def member(self, share: bytes) -> Sub | None:
        """Return the next member here, whose turn it is."""
        return self._local.pick(share)
