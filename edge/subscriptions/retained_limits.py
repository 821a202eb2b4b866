"""Reads of retained messages beyond their bound, ``edge.retained_per_subscribe_max``, and the reports of them.

The number of matches is known only after SUBACK. So the operator gets an event and the journal an entry (``client
explain``), and the filter is stored for a while: the next SUBSCRIBE to it, of any client of this edge, gets a Reason
String in SUBACK [MQTT-3.9.2.1.2].
"""

import logging
from collections import OrderedDict

from conf.events import say
from edge.node.node import EdgeNode
from edge.subscriptions.retained_read import RetainedRead

__all__ = ["RetainedLimits"]

logger = logging.getLogger(__name__)

FILTERS_MAX = 1_000  # stored, most recent reads
EVENTS_PER_S = 1.0  # the counter has all of them


class RetainedLimits:
    """The limited reads of one edge."""

    def __init__(self, node: EdgeNode) -> None:
        self._node = node
        self._cut: OrderedDict[str, int] = OrderedDict()  # filter: the bound of its last read
        self._next_event = 0.0

    def reached(self, read: RetainedRead, dropped: int, topic: str) -> None:
        """Report a read with more matches than may be delivered.

        Args:
            read: Its filter has the matches.
            dropped: Number of messages that were read and dropped; others were not read.
            topic: One of them, "" if unknown.
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
        """Handle the end of a read; its filter is removed if the read was within the bound."""
        if not read.limited:
            self._cut.pop(read.subscription.topic_filter, None)

    def reason(self, topic_filters: list[str]) -> str:
        """Return the Reason String of SUBACK for filters with a limited last read; "" without any."""
        limit = self._node.limits.retained_per_subscribe_max
        cut = [name for name in topic_filters if 0 < limit <= self._cut.get(name, 0)]
        if not cut:
            return ""
        more = f" and {len(cut) - 1} more filters" if len(cut) > 1 else ""
        return f"more than {limit} retained messages match {cut[0]}{more}; the rest is not sent"
