"""Times at which a client was certainly, and possibly, subscribed.

Checkers of missing messages use certain times, checkers of unexpected messages use possible times. The difference (a
SUBSCRIBE in flight, a missing answer, a session that may have expired) excuses the broker in both. Filter matching is
implemented here and not shared with the broker, so that its errors are found.

Source: MQTT 5.0 sections 3.1.2.4, 3.1.2.11.2, 4.7 and 4.8.2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from stratamq.history.history import FOREVER_NS, ClientConnection, ClientOperation, RunHistory
from stratamq.history.operations import NEVER_EXPIRES_S, Kind

__all__ = ["HistoryTopicIndex", "SubscriptionInterval", "subscriptions_by_client", "topic_matches"]

NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class SubscriptionInterval:
    """One SUBSCRIBE of one filter, with its lifetime.

    Attributes:
        topic_filter: Without the ``$share`` prefix.
        share_name: "" for an ordinary subscription.
        granted_qos: QoS of the SUBACK; of the SUBSCRIBE without an answer.
        sure_from_ns: SUBACK was read; FOREVER_NS if it was not.
        sure_until_ns: Earliest possible end; FOREVER_NS: none.
        maybe_from_ns: Time before the SUBSCRIBE was sent.
        maybe_until_ns: Latest possible end.
    """

    client_id: str
    topic_filter: str
    share_name: str
    granted_qos: int
    durable: bool
    subscribe: ClientOperation
    sure_from_ns: int
    sure_until_ns: int
    maybe_from_ns: int
    maybe_until_ns: int

    def held(self, start_ns: int, end_ns: int) -> bool:
        """Return whether it certainly existed from start_ns to end_ns."""
        return self.sure_from_ns <= start_ns and end_ns <= self.sure_until_ns

    def possible_within(self, start_ns: int, end_ns: int) -> bool:
        """Return whether it may have existed at any time of an interval, inclusive."""
        return self.maybe_from_ns <= end_ns and start_ns <= self.maybe_until_ns


def topic_matches(topic_filter: str, topic: str) -> bool:
    """Match one topic name against one filter (MQTT 5.0 section 4.7)."""
    filter_levels, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and filter_levels[0] in ("+", "#"):  # [MQTT-4.7.2-1]
        return False
    for position, level in enumerate(filter_levels):
        if level == "#":
            return True
        if position >= len(levels) or level not in ("+", levels[position]):
            return False
    return len(filter_levels) == len(levels)


class HistoryTopicIndex:
    """All topics of a history by level, to find those that match a filter quickly."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._root = _Level()
        for topic in topics:
            level = self._root
            for name in topic.split("/"):
                level = level.children.setdefault(name, _Level())
            level.topic = topic

    def matching(self, topic_filter: str) -> list[str]:
        """Return the topics that match a filter, as by ``topic_matches``."""
        found: list[_Level] = [self._root]
        for position, name in enumerate(topic_filter.split("/")):
            below = [(n, child) for level in found for n, child in level.children.items()]
            if position == 0 and name in ("+", "#"):
                below = [(n, child) for n, child in below if not n.startswith("$")]  # [MQTT-4.7.2-1]
            if name == "#":
                parents = [] if position == 0 else found
                return [level.topic for level in (*parents, *_all_below(below)) if level.topic is not None]
            found = [child for n, child in below if name in ("+", n)]
        return [level.topic for level in found if level.topic is not None]


@dataclass(slots=True)
class _Level:
    children: dict[str, _Level] = field(default_factory=dict)
    topic: str | None = None


def _all_below(children: list[tuple[str, _Level]]) -> Iterator[_Level]:
    stack = [child for _, child in children]
    while stack:
        level = stack.pop()
        yield level
        stack.extend(level.children.values())


@lru_cache(maxsize=1)  # several checkers use it for one history
def subscriptions_by_client(history: RunHistory) -> dict[str, list[SubscriptionInterval]]:
    """Return every possible subscription by client identifier, in order of SUBSCRIBE."""
    unsubscribes: dict[tuple[str, str], list[ClientOperation]] = defaultdict(list)
    for operation in history.of_kind(Kind.UNSUBSCRIBE):
        unsubscribes[operation.invoke.client_id, operation.invoke.topic_filter].append(operation)
    expired = {
        connection.number: _expiry(history, connection, connections)
        for connections in history.connections_of.values()
        for connection in connections
    }
    found: dict[str, list[SubscriptionInterval]] = defaultdict(list)
    to_qos_0: dict[tuple[str, str], list[ClientOperation]] = defaultdict(list)
    for operation in history.of_kind(Kind.SUBSCRIBE):
        if operation.may_have_happened and _granted_qos(operation) == 0:
            to_qos_0[operation.invoke.client_id, operation.invoke.topic_filter].append(operation)
    for operation in history.of_kind(Kind.SUBSCRIBE):
        if operation.may_have_happened:
            key = operation.invoke.client_id, operation.invoke.topic_filter
            found[key[0]].append(_subscription(history, operation, unsubscribes[key], to_qos_0[key], expired))
    return dict(found)


def _granted_qos(subscribe: ClientOperation) -> int:
    completion = subscribe.completion
    return completion.qos if subscribe.ok and completion is not None else subscribe.invoke.qos


def _subscription(
    history: RunHistory,
    subscribe: ClientOperation,
    unsubscribes: list[ClientOperation],
    to_qos_0: list[ClientOperation],
    expired: dict[int, list[int]],
) -> SubscriptionInterval:
    invoke = subscribe.invoke
    connections = history.connections_of.get(invoke.client_id, [])
    own = history.connections.get(invoke.connection)
    sure_ends, maybe_ends = _session_ends(own, connections, subscribe, expired)
    # The same filter again replaces the subscription [MQTT-3.8.4-3]; at QoS 0 messages may be lost from then on.
    sure_ends += [again.started_ns for again in to_qos_0 if again.started_ns > subscribe.started_ns]
    for unsubscribe in unsubscribes:
        if unsubscribe.ended_ns >= subscribe.started_ns and unsubscribe.may_have_happened:
            sure_ends.append(unsubscribe.started_ns)
        # An UNSUBACK for an UNSUBSCRIBE sent later on the same connection also proves that an unanswered SUBSCRIBE was
        # processed, because a connection is read in order.
        same = unsubscribe.invoke.connection == invoke.connection
        known_from_ns = subscribe.started_ns if same else subscribe.ended_ns
        if unsubscribe.ok and unsubscribe.started_ns >= known_from_ns:
            maybe_ends.append(unsubscribe.ended_ns)
    share_name, topic_filter = _split_share(invoke.topic_filter)
    return SubscriptionInterval(
        client_id=invoke.client_id,
        topic_filter=topic_filter,
        share_name=share_name,
        granted_qos=_granted_qos(subscribe),
        durable=own is not None and own.durable,
        subscribe=subscribe,
        sure_from_ns=subscribe.ended_ns if subscribe.ok else FOREVER_NS,
        sure_until_ns=min(sure_ends, default=FOREVER_NS),
        maybe_from_ns=subscribe.started_ns,
        maybe_until_ns=min(maybe_ends, default=FOREVER_NS),
    )


def _session_ends(
    own: ClientConnection | None,
    connections: list[ClientConnection],
    subscribe: ClientOperation,
    expired: dict[int, list[int]],
) -> tuple[list[int], list[int]]:
    """Return the times at which the session may have ended, and at which it certainly had."""
    could: list[int] = []
    surely: list[int] = []
    for connection in connections:
        connect, asked = connection.connect, connection.connect.invoke
        later = connection is not own and connect.started_ns > subscribe.started_ns
        concurrent = connection is not own and connect.ended_ns > subscribe.started_ns
        if (concurrent or later) and connect.may_have_happened:
            if asked.clean_start or not connection.durable:
                could.append(connect.started_ns)
            answer = connect.completion
            # Only the checker of Session Present reports a wrong 0. Here it means that the subscription is gone, so no
            # further messages are expected for it.
            if later and connect.ok and answer is not None and answer.session_present is False:
                surely.append(connect.ended_ns)
        if connection.ended_ns >= subscribe.started_ns:
            could.extend(expired[connection.number])
    return could, surely


def _expiry(history: RunHistory, connection: ClientConnection, connections: list[ClientConnection]) -> list[int]:
    """Return the end of a connection if its session may have expired before the next CONNECT."""
    expiry_s = connection.connect.invoke.session_expiry_interval_s
    disconnect = connection.disconnect
    if disconnect is not None and disconnect.invoke.session_expiry_interval_s:
        expiry_s = disconnect.invoke.session_expiry_interval_s
    if connection.ended_ns == FOREVER_NS or expiry_s == NEVER_EXPIRES_S:
        return []
    back_ns = min(
        (c.connect.ended_ns for c in connections if c.number > connection.number and c.connect.ok),
        default=max(history.end_ns, connection.ended_ns),
    )
    absent_since_ns = max(connection.last_seen_ns, connection.connect.started_ns)
    if expiry_s == 0 or back_ns - absent_since_ns > expiry_s * NS_PER_S:
        return [min(connection.ended_ns, back_ns)]
    return []


def _split_share(topic_filter: str) -> tuple[str, str]:
    if not topic_filter.startswith("$share/"):
        return "", topic_filter
    _, share_name, rest = topic_filter.split("/", 2)
    return share_name, rest
