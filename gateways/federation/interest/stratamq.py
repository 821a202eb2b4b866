"""Interest at a cluster of ours, from its events: ``$SYS/cluster/events/subscribed`` and its siblings.

Events are QoS 0 and come from ``edge.events = true``. What was subscribed before the agent's first start is not in
them: ``federate.filters`` names it.
"""

from __future__ import annotations

import json

from gateways.federation.interest.interest import Interest

__all__ = ["ClusterEvents"]

PREFIX = "$SYS/cluster/events/"
EVENTS = ("subscribed", "unsubscribed", "connected", "disconnected", "session_expired")
QOS_MAX = 2


class ClusterEvents:
    """An ``Adapter``."""

    filters = tuple(f"{PREFIX}{each}" for each in EVENTS)

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self._was_away = False

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
        except (ValueError, KeyError, TypeError, AttributeError):
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
