"""A partition's part of the acknowledgement ledger: its primary's decision about each message.

Off by default (``storage.ledger``). Records of an operation reach the operating system before the operation is
written, so every commit has its records. The ledger may also have records of operations that were never committed.
Records carry partition_epoch and op_index, and each new primary records the start of its epoch. Later records of older
epochs are void. Format: docs/jobs.md.
"""

from collections.abc import Callable

from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.sessions import SessionSubscription
from wire.sstable.ledger import LedgerOperation, LedgerRecord, LedgerSink, origin_mark, origin_text, topic_hash

__all__ = ["PartitionLedger"]


class PartitionLedger:
    """Collects the records of one operation and writes them when the operation is closed.

    Args:
        partition: Its number.
        sink: Destination of the records.
        wall_ms: Returns UTC ms.
    """

    def __init__(self, partition: int, sink: LedgerSink, wall_ms: Callable[[], int]) -> None:
        self._partition = partition
        self._sink = sink
        self._wall_ms = wall_ms
        self._records: list[LedgerRecord] = []
        self._taken: list[tuple[int | str, ...]] = []  # rows of LedgerOperation
        self._delivered: list[tuple[int, int, int]] = []
        # Of the current message: session, session_seq, ...; appended by the code that queues it
        self.matched: list[int] = []
        self._gone: set[tuple[int, int]] = set()  # entries that left without the client's acknowledgement

    def began(self, partition_epoch: int, op_index: int) -> None:
        """Record that this node is the primary from this operation on."""
        self._sink.began(self._wall_ms(), self._partition, partition_epoch, op_index)

    def close(self, partition_epoch: int, op_index: int) -> None:
        """Write the records of a complete operation, whose number is now known."""
        if self._taken or self._delivered:
            operation = LedgerOperation(self._partition, op_index, partition_epoch, self._taken, self._delivered)
            self._sink.operation(operation)
            self._taken, self._delivered = [], []
        if not self._records:
            return
        now_ms = self._wall_ms()
        for record in self._records:
            record.t, record.p, record.op, record.pe = now_ms, self._partition, op_index, partition_epoch
            self._sink.record(record)
        self._records = []

    # --- messages

    def not_queued(self, message: PublishMessage, node: str, session: int, reason: str) -> None:
        """Record that the current message does not go to a matching session."""
        self._records.append(LedgerRecord("dropped", 0, _origin(message, node), s=session, r=reason))

    def taken(self, message: PublishMessage, node: str) -> None:
        """Record an accepted message for the sessions in ``matched``, possibly none."""
        matched, self.matched = self.matched, []
        if message.qos:
            kind, b = message.origin_kind, message.origin_b or message.tag
            mark = f"@{node}" if kind == OriginKind.EDGE and not message.share else _mark(message, node)
            self._taken.append((kind, message.origin_a, b, mark, message.qos, *matched))

    # --- entries

    def dropped(self, event: str, session: int, session_seq: int, reason: str) -> None:
        """Record that an entry leaves its queue undelivered: ``expired`` or ``dropped``."""
        self._gone.add((session, session_seq))
        self._records.append(LedgerRecord(event, 0, s=session, n=session_seq, r=reason))

    def finished(self, session: int, entries: list[int]) -> None:
        """Record the delivery of entries that are deleted with this operation, except dropped ones."""
        if self._gone:
            gone = {session_seq for session_seq in entries if (session, session_seq) in self._gone}
            self._gone.difference_update([(session, session_seq) for session_seq in gone])
            entries = [session_seq for session_seq in entries if session_seq not in gone]
        if not entries:
            return
        first, last = min(entries), max(entries)
        if last - first + 1 == len(entries):  # numbers are unique: no gap
            self._delivered.append((session, first, last))
        else:
            self._delivered.extend((session, session_seq, session_seq) for session_seq in entries)

    # --- sessions

    def subscribed(self, session: int, subscriptions: list[SessionSubscription]) -> None:
        """Record subscriptions whose SUBACK leaves with this operation."""
        for subscription in subscriptions:
            if _is_owed(subscription):
                hashed = topic_hash(subscription.topic_filter)
                self._records.append(LedgerRecord("subscribed", 0, s=session, h=hashed))

    def unsubscribed(self, session: int, topic_filter: str) -> None:
        """Record a subscription that ends or is replaced by a weaker one."""
        self._records.append(LedgerRecord("unsubscribed", 0, s=session, h=topic_hash(topic_filter)))

    def ended(self, session: int) -> None:
        """Record that the session is deleted with all its entries."""
        self._records.append(LedgerRecord("ended", 0, s=session, r="session deleted"))


def _is_owed(subscription: SessionSubscription) -> bool:
    """Return whether the session is owed every QoS 1 or 2 message of the filter's one topic."""
    name = subscription.topic_filter
    plain = not name.startswith("$share/") and "+" not in name and "#" not in name
    return plain and subscription.qos > 0 and not subscription.no_local


def _origin(message: PublishMessage, node: str) -> str:
    numbers = origin_text(message.origin_kind, message.origin_a, message.origin_b or message.tag)
    return numbers + _mark(message, node)


def _mark(message: PublishMessage, node: str) -> str:
    # The group's copy and the ordinary one may both be in a partition, even in one session: two messages there.
    return origin_mark(message.origin_kind, node, message.share.decode())
