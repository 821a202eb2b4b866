"""A partition's records of a message for the audit."""

from storage.state.ledger import PartitionLedger
from wire.messages.batches import OriginKind, PublishMessage
from wire.sstable.ledger import LedgerOperation, LedgerRecord, LedgerSink, origin_mark


class _Kept(LedgerSink):
    """Keeps records and operations."""

    enabled = True

    def __init__(self) -> None:
        self.records: list[LedgerRecord] = []
        self.operations: list[LedgerOperation] = []

    def record(self, record: LedgerRecord) -> None:
        self.records.append(record)

    def operation(self, operation: LedgerOperation) -> None:
        self.operations.append(operation)


def _ledger() -> tuple[PartitionLedger, _Kept]:
    sink = _Kept()
    return PartitionLedger(3, sink, lambda: 5), sink


def test_ledger_separates_group_and_ordinary_copies() -> None:
    """One session may get both, in one partition, of one origin: two messages."""
    ledger, sink = _ledger()
    for seq, share in ((1, b""), (2, b"pool/t"), (3, b"other/t")):
        ledger.matched += (7, seq)
        message = PublishMessage(9, b"t", b"", 2, origin_kind=OriginKind.SESSION, origin_a=1, origin_b=2, share=share)
        ledger.taken(message, "edge-0")
    ledger.close(4, 100)
    marks = ["", origin_mark(OriginKind.SESSION, "edge-0", "pool/t"), origin_mark(OriginKind.SESSION, "", "other/t")]
    rows: list[tuple[int | str, ...]]
    rows = [(OriginKind.SESSION, 1, 2, mark, 2, 7, seq) for mark, seq in zip(marks, (1, 2, 3), strict=True)]
    assert sink.operations == [LedgerOperation(3, 100, 4, rows)]
    assert len(set(marks)) == 3


def test_ledger_origins_contain_the_edge_name() -> None:
    """They are unique only per edge; an unmatched message is recorded too, QoS 0 is not."""
    ledger, sink = _ledger()
    ledger.taken(PublishMessage(9, b"t", b"", 1, origin_a=8), "edge-0")
    ledger.taken(PublishMessage(10, b"t", b"", 1, origin_a=8, share=b"g/t"), "edge-0")
    ledger.taken(PublishMessage(11, b"t", b"", 0, origin_a=8), "edge-0")
    ledger.close(4, 100)
    assert [list(row) for row in sink.operations[0].m] == [
        [0, 8, 9, "@edge-0", 1], [0, 8, 10, origin_mark(0, "edge-0", "g/t"), 1]
    ]  # fmt: skip


def test_ledger_deliveries_are_runs_without_expired_entries() -> None:
    """Entries deleted together are one row unless one among them is missing."""
    ledger, sink = _ledger()
    ledger.finished(7, [3, 1, 2, 4])
    ledger.finished(8, [1, 2, 4])
    ledger.dropped("expired", 9, 2, "message expiry")
    ledger.finished(9, [1, 2, 3])
    ledger.finished(9, [2])
    ledger.dropped("dropped", 9, 5, "queue full")
    ledger.finished(9, [5])
    ledger.close(4, 100)
    assert sink.operations == [
        LedgerOperation(3, 100, 4, [], [(7, 1, 4), (8, 1, 1), (8, 2, 2), (8, 4, 4), (9, 1, 1), (9, 3, 3), (9, 2, 2)])
    ]
    assert [(r.e, r.s, r.n, r.p, r.op, r.pe) for r in sink.records] == [
        ("expired", 9, 2, 3, 100, 4), ("dropped", 9, 5, 3, 100, 4)
    ]  # fmt: skip
    ledger.close(4, 101)
    assert len(sink.operations) == 1
