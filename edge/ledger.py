"""The edge's half of the acknowledgement ledger: every PUBACK and PUBREC that it sends, for the audit.

Off by default (``edge.ledger``); then the loop pays one comparison per message. A record has the origin, the topic's
hash and the partitions of its route. It is written to the operating system before the acknowledgement, so kill -9 loses
neither without the other. The partitions record the outcome of the message. The loop writes the rows
(``edge/loop/ack_rows.py``) and passes them here once an iteration. Format: docs/jobs.md.
"""

from collections.abc import Callable

from edge.loop.state import Route
from wire.sstable.ledger import LedgerSink, topic_hash

__all__ = ["EdgeLedger"]


class EdgeLedger:
    """Ledger that the loop calls if ``hot.ledger`` is set.

    Args:
        sink: Receives the records.
        node: This edge: its name makes numbers unique that did not come from a client's session.
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
        """Write an iteration's rows to the operating system."""
        self._sink.acks(self._wall_ms(), self._node, rows, count)

    def close(self) -> None:
        """Close the ledger in good order."""
        self._sink.close(self._wall_ms())
