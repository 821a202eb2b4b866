"""Selection of a shared group's destination for a copy, and of the member at this edge.

A Route names a ``SharedGroup``, which selects its destinations in rotation, or a ``RecordedPick`` for one message.
``edge/routes/shared_groups.py`` defines both. Source: MQTT 5.0 section 4.8.2.
"""

from collections.abc import Callable, Sequence

from edge.loop.state import PendingAck, Remote, ShareGroup, Sub
from edge.routes.shared_groups import HERE, RecordedPick, SharedGroup
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from wire.messages.batches import decode_publish

__all__ = ["Picking", "topic_of"]


def topic_of(copy: PendingAck) -> bytes:
    """Return the topic of an in-flight copy of a group."""
    (message,) = decode_publish(copy.record)
    return message.topic


class Picking:
    """Selects destinations for all groups of one edge.

    Args:
        local: The members at this edge.
        sticky: Select a member by topic instead of in rotation.
        count: Counts copies that no member may receive.
    """

    def __init__(self, local: EphemeralSubscriptions, sticky: bool, count: Callable[[str], None]) -> None:
        self._local = local
        self._sticky = sticky
        self._count = count

    def pick(self, group: ShareGroup, topic: bytes) -> Sub | Remote | None:
        """Select for a message whose Route names the group; None: no member can receive it."""
        choice: Remote | int | None
        if isinstance(group, SharedGroup):
            choice = group.next(topic)
            if choice is None or not self._can_receive(group, choice, topic):
                choice = self._find_other(group, topic, ())
            sticky = group.sticky
        else:
            assert isinstance(group, RecordedPick)
            choice, sticky = group.choice, group.group.sticky
        if isinstance(choice, Remote):
            return choice
        chosen = self._local.pick(group.share, topic, sticky=sticky) if choice == HERE else None
        if chosen is None:
            self._note_refused(group.share, topic)
        return chosen

    def picked(self, share: bytes, topic: bytes) -> Sub | None:
        """Select the local member for a message that another edge sent to this one."""
        chosen = self._local.pick(share, topic, sticky=self._sticky)
        if chosen is None:
            self._note_refused(share, topic)
        return chosen

    def _note_refused(self, share: bytes, topic: bytes) -> None:
        if self.refuses(share, topic):
            self._count("shares_not_authorized")

    def refuses(self, share: bytes, topic: bytes) -> bool:
        """Return whether a group has members here, none of which may receive a topic."""
        return self._local.refuses(share, topic)

    def pick_other(self, group: SharedGroup, copy: PendingAck) -> Sub | Remote | None:
        """Select another destination for a rejected copy; None: none is left."""
        topic = topic_of(copy)
        choice = self.choose(group, topic, copy.tried or ())
        if isinstance(choice, Remote):
            return choice
        return self._local.pick(group.share, topic) if choice == HERE else None

    def choose(self, group: SharedGroup, topic: bytes, refused: Sequence[Remote | int] = ()) -> Remote | int | None:
        """Return the next destination of a group that can receive a message; None if there is none."""
        first = None if refused else group.next(topic)
        if first is not None and self._can_receive(group, first, topic):
            return first
        return self._find_other(group, topic, refused)

    def _find_other(self, group: SharedGroup, topic: bytes, refused: Sequence[Remote | int]) -> Remote | int | None:
        return next((choice for choice in group.others(refused) if self._can_receive(group, choice, topic)), None)

    def _can_receive(self, group: SharedGroup, choice: Remote | int, topic: bytes) -> bool:
        if isinstance(choice, Remote):
            return choice.peer is None or not choice.peer.dead
        return self._local.has_member(group.share, topic)

    def has_member(self, share: bytes, topic: bytes) -> bool:
        """Return whether a group has a member here that may receive a topic."""
        return self._local.has_member(share, topic)

    def member(self, share: bytes, topic: bytes) -> Sub | None:
        """Return the next such member here."""
        return self._local.pick(share, topic)
