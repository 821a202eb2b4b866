"""The edge's half of the acknowledgement ledger: every PUBACK and PUBREC that leaves, for the audit.

Off by default (``edge.ledger``); then the loop pays one comparison per message. A record names the origin, the
topic by hash and the partitions that the resolution named; it is with the operating system before the acknowledgement
is, so kill -9 loses neither alone. What became of the message is the partitions' half. The loop writes the rows
(``edge/loop/ack_rows.py``) and hands them over once per turn. Format: docs/jobs.md.
"""

from collections.abc import Callable

from edge.loop.state import Route
from wire.sstable.ledger import LedgerSink, topic_hash

__all__ = ["EdgeLedger"]


class EdgeLedger:
    """Calls that the loop makes when ``hot.ledger`` is set.

    Args:
        sink: Where records go.
        node: This edge: its name makes the numbers unique that its clients' sessions did not give.
        offset_ns: Returns UTC ns minus the loop's clock.
        wall_ms: Returns UTC ms.
    """

    def __init__(self, sink: LedgerSink, node: str, offset_ns: Callable[[], int], wall_ms: Callable[[], int]) -> None:
        self.offset_ns = offset_ns
        self._sink = sink
        self._node = node
        self._wall_ms = wall_ms

    def route_text(self, route: Route) -> bytes:
        """Return the end of a route's rows: topic hash and partitions."""
        numbers = (topic_hash(route.topic.decode()), *route.partitions)
        return b"".join(b",%d" % number for number in numbers)

    def take_rows(self, rows: bytes, count: int) -> None:
        """Hand a turn's rows to the operating system."""
        self._sink.acks(self._wall_ms(), self._node, rows, count)

    def close(self) -> None:
        """End in good order."""
        self._sink.close(self._wall_ms())
