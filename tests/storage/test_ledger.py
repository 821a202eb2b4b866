"""What a partition records of a message, as the audit will read it."""

from storage.ledger import PartitionLedger
from wire.batches import OriginKind, PublishMessage
from wire.ledger import LedgerRecord, LedgerSink, origin_text, picked_origin


class _Kept(LedgerSink):
    """Keeps records."""

    enabled = True

    def __init__(self) -> None:
        self.records: list[LedgerRecord] = []

    def record(self, record: LedgerRecord) -> None:
        self.records.append(record)


def test_a_groups_copy_is_told_from_the_ordinary_one() -> None:
    """One session may get both, in one partition, of one origin: two messages, and not one twice."""
    sink = _Kept()
    ledger = PartitionLedger(3, sink, lambda: 5)
    for seq, share in ((1, b""), (2, b"pool/t"), (3, b"other/t")):
        ledger.matched(7, seq)
        message = PublishMessage(9, b"t", b"", 2, origin_kind=OriginKind.SESSION, origin_a=1, origin_b=2, share=share)
        ledger.taken(message, "edge-0")
    ledger.close(4, 100)
    ordinary = origin_text(OriginKind.SESSION, 1, 2, "edge-0")
    assert [record.o for record in sink.records] == [
        ordinary, picked_origin(ordinary, "pool/t"), picked_origin(ordinary, "other/t")
    ]  # fmt: skip
    assert len({record.o for record in sink.records}) == 3
    assert [(r.p, r.op, r.pe, list(r.d)) for r in sink.records] == [(3, 100, 4, [(7, n)]) for n in (1, 2, 3)]
