"""Receivers of a message in a partition: the copies of each session, and one member of a shared group.

Source: MQTT 5.0 section 3.3.4. Members of shared groups are in ``groups``.
"""

from collections.abc import Callable, Iterable

from mqtt.topics import parse_shared
from storage.messages.groups import Groups, describe_group
from storage.state.durable_sessions import ENDING, DurableSession
from storage.state.partition import Partition
from wire.messages.batches import PublishMessage
from wire.messages.overlapping import identifiers_of, options_of, sharing_a_copy
from wire.messages.sessions import SessionSubscription

__all__ = ["Target", "Targets"]

Target = tuple[DurableSession, SessionSubscription, bytes]  # bytes: its subscription identifiers, encoded


class Targets:
    """Subscriptions and shared groups of one partition, as matched by messages."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.groups = Groups()
        self.forget_routes: Callable[[], None] = lambda: None  # called whenever a subscription has changed

    def forget_session(self, session: DurableSession) -> None:
        """Remove an ended session from its groups."""
        for name in session.made("subscriptions") or ():
            shared = parse_shared(name)
            if shared is not None:
                self.groups.leave(f"{shared[0]}/{shared[1]}".encode(), session)

    def of(self, message: PublishMessage) -> Iterable[Target]:
        """Yield (session, subscription, its identifiers encoded) for each copy [MQTT-3.3.4-2].

        A session has several copies where its subscriptions overlap (``wire/messages/overlapping.py``).
        """
        if message.share:
            member = self._pick(message)
            if member is not None:  # else a QoS 1/2 message is refused: another partition may have a member
                subscription = member.subscriptions["$share/" + message.share.decode()]
                yield member, subscription, identifiers_of((subscription,))
            return
        matches: list[tuple[DurableSession, SessionSubscription]] = self._partition.trie.match(message.topic.decode())
        if not matches:
            return
        if len(matches) == 1:
            session, subscription = matches[0]
            if not _is_excepted(session, subscription, message):
                yield session, subscription, identifiers_of((subscription,))
            return
        by_session: dict[int, tuple[DurableSession, list[SessionSubscription]]] = {}
        for session, subscription in matches:
            if not _is_excepted(session, subscription, message):
                by_session.setdefault(session.number, (session, []))[1].append(subscription)
        for session, subscriptions in by_session.values():
            if len(subscriptions) == 1:
                yield session, subscriptions[0], identifiers_of(subscriptions)
                continue
            for group in sharing_a_copy(subscriptions):
                yield session, _shared_by(group), identifiers_of(group)

    def _pick(self, message: PublishMessage) -> DurableSession | None:
        """Pick a member: the next connected one with capacity, else, for QoS 1/2, the next resting one."""
        member = self.groups.pick(message.share, absent=message.qos > 0)
        if member is None and not message.qos:
            self._partition.count("dropped_no_member")
            self._partition.note(
                "drop", "no_subscriber_took", topic=message.topic, detail=describe_group(message.share)
            )
        return member


def _is_excepted(session: DurableSession, subscription: SessionSubscription, message: PublishMessage) -> bool:
    """Return whether a subscription gives no copy: the session published the message [MQTT-3.8.3-3] or has ended."""
    return (subscription.no_local and session.number == message.session) or session.deadline == ENDING


def _shared_by(group: list[SessionSubscription]) -> SessionSubscription:
    """Return the subscription for a copy that several subscriptions share."""
    if len(group) == 1:
        return group[0]
    options, first = options_of(group), group[0]
    return SessionSubscription(
        first.topic_filter, options.qos, False, options.retain_as_published, 0, first.identifier, first.merged
    )
