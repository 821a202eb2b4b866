"""Reads of retained messages that met their bound, ``edge.retained_per_subscribe_max``: who is told of it, and when.

How many messages match is known only when they are read, and SUBACK has left then. So the operator gets an event and
the journal an entry (``client explain``), and the filter is remembered for a while: the next SUBSCRIBE to it, of any
client of this edge, is answered with a Reason String in SUBACK [MQTT-3.9.2.1.2].
"""

import logging
from collections import OrderedDict

from conf.events import say
from edge.node.node import EdgeNode
from edge.subscriptions.retained_read import RetainedRead

__all__ = ["RetainedLimits"]

logger = logging.getLogger(__name__)

FILTERS_MAX = 1_000  # remembered, those that were read last
EVENTS_PER_S = 1.0  # the counter has all of them


class RetainedLimits:
    """The reads of one edge that were cut."""

    def __init__(self, node: EdgeNode) -> None:
        self._node = node
        self._cut: OrderedDict[str, int] = OrderedDict()  # filter: the bound that its last read met
        self._next_event = 0.0

    def reached(self, read: RetainedRead, dropped: int, topic: str) -> None:
        """More retained messages match than a read may deliver.

        Args:
            read: Whose filter they match.
            dropped: How many of those that were read are left out; others were not read.
            topic: One of them, "" if none is known.
        """
        node, name = self._node, read.subscription.topic_filter
        if dropped:
            node.count("dropped_retained_limit", dropped)
        if read.limited:
            return
        read.limited = True
        limit = node.limits.retained_per_subscribe_max
        node.count("retained_reads_limited")
        self._cut[name] = limit
        self._cut.move_to_end(name)
        if len(self._cut) > FILTERS_MAX:
            self._cut.popitem(last=False)
        client = read.whole.client
        detail = f"retained: more than retained_per_subscribe_max={limit} match {name}"
        node.journal.note("drop", "retained_limit", client.client_id, topic or name, detail=detail)
        if node.now >= self._next_event:
            self._next_event = node.now + 1 / EVENTS_PER_S
            say(logger, "retained.limit_reached", client=client.client_id, topic_filter=name, limit=limit)

    def ended(self, read: RetainedRead) -> None:
        """A read has ended: one that was not cut says that its filter matches no more than may be delivered."""
        if not read.limited:
            self._cut.pop(read.subscription.topic_filter, None)

    def reason(self, topic_filters: list[str]) -> str:
        """Return what SUBACK says of filters whose last read was cut; "" if none was."""
        limit = self._node.limits.retained_per_subscribe_max
        cut = [name for name in topic_filters if 0 < limit <= self._cut.get(name, 0)]
        if not cut:
            return ""
        more = f" and {len(cut) - 1} more filters" if len(cut) > 1 else ""
        return f"more than {limit} retained messages match {cut[0]}{more}; the rest is not sent"
