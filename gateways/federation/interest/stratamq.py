"""Interest at a StrataMQ cluster: events immediately, and periodically the list of all its subscriptions.

Events (``$SYS/cluster/events/subscribed`` and similar, with ``edge.events = true``) are QoS 0, and do not include
subscriptions made before the agent's first start; a list does. Without lists ``federate.filters`` must name those.
Pure logic; lists are read by ``cluster_list.py``. Decision: docs/adr/0165-subscriptions-of-our-own-cluster.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateways.federation.interest.interest import NO_CLIENT, Interest, to_federated

__all__ = ["LISTED", "SessionEventAdapter"]

PREFIX = "$SYS/cluster/events/"
EVENTS = ("subscribed", "unsubscribed", "connected", "disconnected", "session_expired")
QOS_MAX = 2
LISTED = f"{NO_CLIENT}listed"


class SessionEventAdapter:
    """An ``Adapter``.

    Attributes:
      is_due: Events were missed, or none was received yet: a list is needed now.
    """

    filters = tuple(f"{PREFIX}{each}" for each in EVENTS)

    def __init__(self, interest: Interest, filters_max: int = 10_000) -> None:
        self.interest = interest
        self.is_due = True
        self._filters_max = filters_max
        self._was_disconnected = False
        self._last_seen: dict[str, float] = {}  # client: wall clock of its last event
        self._before: dict[str, int] = {}  # filters of the last complete list
        self._reading: dict[str, int] = {}  # filters of the list being read
        self._began_s = self._began_before_s = 0.0
        self._is_cut = False

    def accepts(self, topic: str) -> bool:
        """Whether a message is an event."""
        return topic.startswith(PREFIX)

    def disconnected(self, wall_s: float) -> None:
        """Record the disconnection of the agent."""
        del wall_s
        self._was_disconnected = True

    def reconnected(self, wall_s: float, is_present: bool) -> bool:
        """Record the reconnection: QoS 0 events were missed meanwhile."""
        del is_present
        was_disconnected, self._was_disconnected = self._was_disconnected, False
        self.is_due = True
        if was_disconnected:
            self.interest.record_gap(wall_s)
        return was_disconnected

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Handle one event."""
        self.interest.counts["events"] += 1
        try:
            event = json.loads(payload)
            client = str(event["client"])
            topic_filter = str(event.get("filter", ""))
            qos = int(event.get("qos", QOS_MAX))
            client.encode(), topic_filter.encode()  # JSON strings may be invalid in MQTT
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self.interest.counts["unreadable"] += 1
            return
        match topic.removeprefix(PREFIX):
            case "subscribed":
                self.interest.subscribed(client, topic_filter, min(max(qos, 0), QOS_MAX))
            case "unsubscribed":
                self.interest.unsubscribed(client, topic_filter)
            case "connected":
                self.interest.connected(client, is_persistent=True)
            case "disconnected":
                self.interest.disconnected(wall_s, client)  # the event does not indicate whether its session persists
            case "session_expired":
                self.interest.session_ended(client)
        if self.interest.is_known(client):
            self._last_seen[client] = wall_s
        else:
            self._last_seen.pop(client, None)

    # --- lists

    def listed(self) -> int:
        """Return the number of filters wanted because of a list."""
        return len(self.interest.get_filters(LISTED))

    def begin_list(self, wall_s: float) -> None:
        """Start a list at its first page."""
        self._reading, self._is_cut, self.is_due = {}, False, False
        self._began_s = wall_s
        if not self._began_before_s:
            self._before = dict(self.interest.get_filters(LISTED))  # of a former process

    def page(self, rows: Iterable[Any]) -> None:
        """Add rows of the list; their filters are wanted at once."""
        for row in rows:
            client, topic_filter, qos = _parse_row(row)
            if topic_filter is None:
                self.interest.counts["unreadable"] += 1
                self._is_cut = True
                continue
            topic_filter = to_federated(topic_filter)
            if not topic_filter or self.interest.is_own(client):
                continue
            if topic_filter not in self._reading and len(self._reading) >= self._filters_max:
                self.interest.counts["too_many_filters"] += 1
                self._is_cut = True
                continue
            self._reading[topic_filter] = max(qos, self._reading.get(topic_filter, 0))
            if qos > self.interest.get_filters(LISTED).get(topic_filter, -1):
                self.interest.subscribed(LISTED, topic_filter, qos)

    def end_list(self, is_whole: bool) -> bool:
        """End a list; return whether it is complete: then filters and clients missing from it are removed."""
        is_whole = is_whole and not self._is_cut
        if not is_whole:
            self.interest.counts["lists_in_part"] += 1
            return False
        self.interest.counts["lists"] += 1
        self.interest.replace(LISTED, _merge(self._before, self._reading))
        for client in self.interest.clients():
            if not client.startswith(NO_CLIENT) and self._last_seen.get(client, 0.0) < self._began_before_s:
                self.interest.session_ended(client)
                self._last_seen.pop(client, None)
        self._before, self._reading = self._reading, {}
        self._began_before_s = self._began_s
        return True


def _parse_row(row: Any) -> tuple[str, str | None, int]:
    try:
        client, topic_filter = row["client_id"], row["filter"]
        qos = row.get("qos", QOS_MAX)
        if not isinstance(client, str) or not isinstance(topic_filter, str) or not isinstance(qos, int):
            return "", None, 0
        topic_filter.encode()
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        return "", None, 0
    return client, topic_filter, min(max(qos, 0), QOS_MAX)


def _merge(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the union, each filter with its highest QoS."""
    return {each: max(one.get(each, 0), other.get(each, 0)) for each in (*one, *other)}
