"""The edge's half of the acknowledgement ledger: every PUBACK and PUBREC that leaves, for the audit.

Off by default (``edge.ledger``); then the loop pays one comparison per message. A record names the origin, the
topic by hash and the partitions that the resolution named; it is with the operating system before the acknowledgement
is, so kill -9 loses neither alone. What became of the message is the partitions' half. Format: docs/jobs.md.
"""

from collections.abc import Callable

from edge.hot.state import Conn, Message, Route
from wire.batches import OriginKind
from wire.ledger import LedgerSink, origin_text, topic_hash

__all__ = ["EdgeLedger"]

NS_PER_MS = 1_000_000


class EdgeLedger:
    """What the loop calls when ``hot.ledger`` is set.

    Args:
        sink: Where records go.
        node: This edge.
        incarnation: Of this process: with the tag, the origin of what its clients' sessions did not number.
        clock_offset_ns: Returns UTC ns minus the loop's clock.
    """

    def __init__(self, sink: LedgerSink, node: str, incarnation: int, clock_offset_ns: Callable[[], int]) -> None:
        self._sink = sink
        self._node = node
        self._incarnation = incarnation
        self._clock_offset_ns = clock_offset_ns
        self._offset_ns = clock_offset_ns()
        self._route: Route | None = None
        self._hash = 0
        self._partitions: tuple[int, ...] = ()

    def acknowledged(self, conn: Conn, message: Message) -> None:  # noqa: ARG002  # the loop's call
        """PUBACK or PUBREC without error was written for the message."""
        noted = message.noted
        if not isinstance(noted, tuple):
            return  # refused before it was sent anywhere, and acknowledged all the same: nobody was promised anything
        route, register, (kind, origin_a, origin_b), at_ns = noted
        if route is not self._route:
            self._route, self._hash, self._partitions = route, topic_hash(route.topic.decode()), route.partitions
        partitions = self._partitions if register < 0 else (*self._partitions, register)
        if kind == OriginKind.EDGE:
            origin_a, origin_b = self._incarnation, message.tag
        origin = origin_text(kind, origin_a, origin_b, self._node)
        at_ms = (at_ns + self._offset_ns) // NS_PER_MS
        self._sink.acked_hash(at_ms, origin, message.qos, self._hash, partitions)

    def client_acknowledged(self, conn: Conn, session_seq: int, packet_type: int) -> None:
        """What a client acknowledged is recorded where it is committed: by its session's primary."""

    def flush(self) -> None:
        """Hand records to the operating system; called before what they acknowledge is."""
        self._sink.flush()

    def set_clock(self) -> None:
        """Follow the wall clock; now and then."""
        self._offset_ns = self._clock_offset_ns()

    def close(self, now_ms: int) -> None:
        """End in good order."""
        self._sink.close(now_ms)
