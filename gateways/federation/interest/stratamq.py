"""Interest at a cluster of ours: its events at once, and from time to time the list of all its subscriptions.

Events (``$SYS/cluster/events/subscribed`` and its siblings, from ``edge.events = true``) are QoS 0, and what was
subscribed before the agent's first start is not in them; a list has that. Without lists ``federate.filters`` names it.
Pure logic; lists are read by ``cluster_list.py``. Decision: docs/adr/0165-subscriptions-of-our-own-cluster.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateways.federation.interest.interest import NO_CLIENT, Interest, federated

__all__ = ["LISTED", "SessionEventAdapter"]

PREFIX = "$SYS/cluster/events/"
EVENTS = ("subscribed", "unsubscribed", "connected", "disconnected", "session_expired")
QOS_MAX = 2
LISTED = f"{NO_CLIENT}listed"


class SessionEventAdapter:
    """An ``Adapter``.

    Attributes:
        is_due: Events were missed, or none came yet: a list is wanted now.
    """

    filters = tuple(f"{PREFIX}{each}" for each in EVENTS)

    def __init__(self, interest: Interest, filters_max: int = 10_000) -> None:
        self.interest = interest
        self.is_due = True
        self._filters_max = filters_max
        self._was_away = False
        self._heard: dict[str, float] = {}  # client: wall clock of its last event
        self._before: dict[str, int] = {}  # what the last whole list named
        self._reading: dict[str, int] = {}  # what the list that is read now has named
        self._began_s = self._began_before_s = 0.0
        self._is_cut = False

    def takes(self, topic: str) -> bool:
        """Whether a message is an event."""
        return topic.startswith(PREFIX)

    def away(self, wall_s: float) -> None:
        """Note that the agent is not connected."""
        del wall_s
        self._was_away = True

    def back(self, wall_s: float, is_present: bool) -> bool:
        """Note that it is: events of QoS 0 were missed meanwhile."""
        del is_present
        was_away, self._was_away = self._was_away, False
        self.is_due = True
        if was_away:
            self.interest.gap(wall_s)
        return was_away

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Take one event."""
        self.interest.counts["events"] += 1
        try:
            event = json.loads(payload)
            client = str(event["client"])
            topic_filter = str(event.get("filter", ""))
            qos = int(event.get("qos", QOS_MAX))
            client.encode(), topic_filter.encode()  # JSON can hold what no text of MQTT can
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self.interest.counts["unreadable"] += 1
            return
        match topic.removeprefix(PREFIX):
            case "subscribed":
                self.interest.subscribed(client, topic_filter, min(max(qos, 0), QOS_MAX))
            case "unsubscribed":
                self.interest.unsubscribed(client, topic_filter)
            case "connected":
                self.interest.connected(client, keeps=True)
            case "disconnected":
                self.interest.left(wall_s, client)  # nothing tells whether its session is kept
            case "session_expired":
                self.interest.ended(client)
        if self.interest.is_known(client):
            self._heard[client] = wall_s
        else:
            self._heard.pop(client, None)

    # --- lists

    def listed(self) -> int:
        """Return how many filters are wanted because a list names them."""
        return len(self.interest.filters_of(LISTED))

    def begin_list(self, wall_s: float) -> None:
        """Note that a list is read from its first page on."""
        self._reading, self._is_cut, self.is_due = {}, False, False
        self._began_s = wall_s
        if not self._began_before_s:
            self._before = dict(self.interest.filters_of(LISTED))  # of a former process

    def page(self, rows: Iterable[Any]) -> None:
        """Take rows of the list; what it names is wanted from now on."""
        for row in rows:
            client, topic_filter, qos = _read(row)
            if topic_filter is None:
                self.interest.counts["unreadable"] += 1
                self._is_cut = True
                continue
            topic_filter = federated(topic_filter)
            if not topic_filter or self.interest.is_own(client):
                continue
            if topic_filter not in self._reading and len(self._reading) >= self._filters_max:
                self.interest.counts["too_many_filters"] += 1
                self._is_cut = True
                continue
            self._reading[topic_filter] = max(qos, self._reading.get(topic_filter, 0))
            if qos > self.interest.filters_of(LISTED).get(topic_filter, -1):
                self.interest.subscribed(LISTED, topic_filter, qos)

    def end_list(self, is_whole: bool) -> bool:
        """Note that the list is over; return whether it counts as whole: then what no list names is over."""
        is_whole = is_whole and not self._is_cut
        if not is_whole:
            self.interest.counts["lists_in_part"] += 1
            return False
        self.interest.counts["lists"] += 1
        self.interest.replace(LISTED, _most(self._before, self._reading))
        for client in self.interest.clients():
            if not client.startswith(NO_CLIENT) and self._heard.get(client, 0.0) < self._began_before_s:
                self.interest.ended(client)
                self._heard.pop(client, None)
        self._before, self._reading = self._reading, {}
        self._began_before_s = self._began_s
        return True


def _read(row: Any) -> tuple[str, str | None, int]:
    try:
        client, topic_filter = row["client_id"], row["filter"]
        qos = row.get("qos", QOS_MAX)
        if not isinstance(client, str) or not isinstance(topic_filter, str) or not isinstance(qos, int):
            return "", None, 0
        topic_filter.encode()
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        return "", None, 0
    return client, topic_filter, min(max(qos, 0), QOS_MAX)


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return both, each filter with its highest QoS."""
    return {each: max(one.get(each, 0), other.get(each, 0)) for each in (*one, *other)}
