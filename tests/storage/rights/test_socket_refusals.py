"""An edge refuses a message at the socket: the entry is dropped, and the audit records it."""

from dataclasses import dataclass, field

import pytest

from storage.state.ledger import PartitionLedger
from tests.storage.requests import message
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.sstable.ledger import LedgerOperation, LedgerRecord, LedgerSink

NOT_WRITTEN = 3  # PUBLISH
NOT_AUTHORIZED = 0x87


@dataclass
class AuditRecorder(LedgerSink):
    """Stores a partition's audit records."""

    enabled = True
    records: list[LedgerRecord] = field(default_factory=list)
    operations: list[LedgerOperation] = field(default_factory=list)

    def record(self, record: LedgerRecord) -> None:
        self.records.append(record)

    def operation(self, operation: LedgerOperation) -> None:
        self.operations.append(operation)

    @property
    def dropped(self) -> list[tuple[str, int | None, str | None]]:
        """Return event, session_seq and reason of entries that were not delivered."""
        return [(record.e, record.n, record.r) for record in self.records if record.n is not None]

    @property
    def delivered(self) -> list[tuple[int, int]]:
        """Return runs of entries that the client acknowledged."""
        return [(first, last) for operation in self.operations for _, first, last in operation.d]


def record_audit(cluster: Cluster) -> AuditRecorder:
    """Let the only partition record its decisions."""
    sink = AuditRecorder()
    cluster.primary(0).core.partitions[0].partition.ledger = PartitionLedger(0, sink, lambda: 5)
    return sink


def dropped(cluster: Cluster) -> int:
    """Return the number of entries dropped because their client is not authorized."""
    return sum(node.core.event_counts().get("pushes_refused", 0) for node in cluster.nodes.values())


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("size", [3, 100_000, 2_000_000])
def test_entry_refused_at_the_socket_is_dropped(qos: int, size: int) -> None:
    """It is recorded as DROPPED, its body is deleted, and it is not sent again."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "a/b")
    sink = record_audit(cluster)
    edge.publish(message("x" * size, qos=qos), 0)
    cluster.settle()
    edge.acknowledge(alice.received[0], NOT_WRITTEN, NOT_AUTHORIZED)
    cluster.run(5.0)
    partition = cluster.primary(0).core.partitions[0].partition
    (session,) = partition.sessions.values()
    assert (session.queued, session.queue_bytes, session.out, session.out_bytes) == (0, 0, 0, 0)
    assert not any(partition.body_references.values()) and dropped(cluster) == 1
    assert sink.dropped == [("dropped", 1, "not_authorized")] and sink.delivered == []
    cluster.crash_all()
    cluster.run(1.0)
    assert len(alice.received) == 1


def test_refused_entry_frees_the_window() -> None:
    """The window does not stay full, and the identifiers are free again."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "a/b", receive_maximum=2)
    for number in range(5):
        edge.publish(message(str(number)), 0)
    cluster.settle()
    for at in range(5):
        edge.acknowledge(alice.received[at], NOT_WRITTEN, NOT_AUTHORIZED)
        cluster.settle()
    assert [push.payload for push in alice.received] == [b"0", b"1", b"2", b"3", b"4"] and dropped(cluster) == 5
    edge.publish(message("after"), 0)
    cluster.settle()
    edge.acknowledge(alice.received[5], 4)
    cluster.run(5.0)
    assert not cluster.primary(0).core.partitions[0].partition.body_references
    assert dropped(cluster) == 5


@pytest.mark.parametrize(("qos", "packet_type"), [(1, 4), (2, 5)])
def test_client_reason_code_not_authorized_counts_as_delivered(qos: int, packet_type: int) -> None:
    """PUBACK and PUBREC may have that reason code too: the client has the message."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "a/b")
    sink = record_audit(cluster)
    edge.publish(message("m", qos=qos), 0)
    cluster.settle()
    edge.acknowledge(alice.received[0], packet_type, NOT_AUTHORIZED)
    cluster.run(5.0)
    assert sink.dropped == [] and sink.delivered == [(1, 1)] and dropped(cluster) == 0


def test_refusal_after_pubrec_drops_no_entry() -> None:
    """PUBREC is recorded: only the identifier is in use."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "a/b")
    sink = record_audit(cluster)
    edge.publish(message("m", qos=2), 0)
    cluster.settle()
    edge.acknowledge(alice.received[0], 5)
    cluster.settle()
    edge.acknowledge(alice.received[0], NOT_WRITTEN, NOT_AUTHORIZED)
    cluster.settle()
    assert dropped(cluster) == 0 and cluster.primary(0).core.partitions[0].partition.sessions
    edge.acknowledge(alice.received[1], 7)
    cluster.run(5.0)
    assert sink.dropped == [] and sink.delivered == [(1, 1)]


@pytest.mark.parametrize("reason_code", [0, 0x80, 0x95, 0xFF])
def test_refusal_with_another_reason_code_is_ignored(reason_code: int) -> None:
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice", "a/b")
    edge.publish(message("m"), 0)
    cluster.settle()
    edge.acknowledge(alice.received[0], NOT_WRITTEN, reason_code)
    cluster.settle()
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert session.queued == 1 and dropped(cluster) == 0


def test_refusal_by_another_edge_or_repeated_is_ignored() -> None:
    """From an edge without the session, for a closed connection, or repeated."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(acks_per_row=1))
    alice = edge.open("alice", "a/b")
    edge.publish(message("one"), 0)
    edge.publish(message("two"), 0)
    cluster.settle()
    first, second = alice.received
    cluster.edges["e2"].acknowledge(second, NOT_WRITTEN, NOT_AUTHORIZED, alice)
    for _ in range(2):
        edge.acknowledge(first, NOT_WRITTEN, NOT_AUTHORIZED)
    cluster.settle()
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    assert session.queued == 1 and dropped(cluster) == 1
    newer = edge.open("alice")
    edge.acknowledge(second, NOT_WRITTEN, NOT_AUTHORIZED, alice)
    cluster.settle()
    assert session.queued == 1 and [push.payload for push in newer.received] == [b"two"]
