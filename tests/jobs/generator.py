"""A small seeded model of a storage node: sessions, queues, QoS 2 state, retained messages, exported in generations.

It keeps the audit's rules, so its exports have no finding. It leaves work for a compaction: superseded versions,
tombstones, expired rows, and entries that only the session row marks as finished.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wire.sstable.ledger import (
    FileLedger,
    LedgerOperation,
    LedgerRecord,
    LedgerSink,
    origin_mark,
    origin_text,
    topic_hash,
)
from wire.sstable.manifest import Manifest, RingEntry, next_manifest, publish_manifest, read_manifest
from wire.sstable.schema import EntryState, Row, RowKind, make_row, pack_owner_epoch
from wire.sstable.writer import RunWriter

NOW_MS = 1_750_000_000_000


@dataclass(slots=True)
class Entry:
    seq: int
    origin: str
    expiry_ms: int
    body_id: bytes | None
    value: bytes
    packet_identifier: int | None = None
    state: EntryState = EntryState.QUEUED


@dataclass(slots=True)
class Session:
    number: int
    client_id: str
    next_seq: int = 1
    next_packet_identifier: int = 1
    acked_up_to: int = 0
    finished: set[int] = field(default_factory=set)
    entries: dict[int, Entry] = field(default_factory=dict)
    undeleted: set[int] = field(default_factory=set)  # finished, with rows that still exist
    inbound: dict[int, str] = field(default_factory=dict)
    will: bool = False
    expiry_ms: int = 0
    owner: int = 1


class PartitionModel:
    """One partition of the store; ``export`` returns the rows changed since the last export."""

    def __init__(
        self,
        seed: int,
        partition: int,
        partitions: int,
        clients: list[str],
        value_bytes: int,
        ledgers: tuple[LedgerSink, LedgerSink] = (LedgerSink(), LedgerSink()),
    ) -> None:
        self.edge_ledger, self.node_ledger = ledgers
        self.random = random.Random(f"{seed}/{partition}")
        self.partition = partition
        self.value_bytes = value_bytes
        self.epoch = 3
        self.op_index = 0
        self.changed: dict[bytes, Row] = {}
        self.sessions: list[Session] = []
        self.retained: dict[int, int] = {}
        self.bodies: dict[bytes, int] = {}
        self.clients = clients
        self.partitions = partitions
        self.next_number = partition + 1  # session numbers are unique in the cluster and never reused
        for client_id in clients:
            self._open(client_id)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _key(self, kind: RowKind, *parts: int) -> bytes:
        key = self.partition.to_bytes(2, "big") + bytes((kind,))
        return key + b"".join(part.to_bytes(8, "big") for part in parts)

    def _put(self, kind: RowKind, key: bytes, value: bytes | None, tombstone: bool = False, **typed: Any) -> None:
        self.op_index += 1
        self.changed[key] = make_row(
            self.partition, int(kind), key, self.op_index, value, epoch=self.epoch, tombstone=tombstone, **typed
        )

    def _delete(self, kind: RowKind, key: bytes, **typed: Any) -> None:
        self._put(kind, key, None, True, **typed)

    def _value(self) -> bytes:
        return self.random.randbytes(self.value_bytes)

    def _put_session(self, s: Session) -> None:
        self._put(
            RowKind.SESSION, self._key(RowKind.SESSION, s.number), self._value(), client_id=s.client_id,
            session_id=s.number, owner_epoch=pack_owner_epoch(self.epoch, s.owner), acked_up_to=s.acked_up_to,
            acked_gaps=sorted(s.finished) or None, expiry_ms=s.expiry_ms,
        )  # fmt: skip

    def _put_entry(self, s: Session, e: Entry) -> None:
        self._put(
            RowKind.QUEUED, self._key(RowKind.QUEUED, s.number, e.seq), e.value, session_id=s.number,
            session_seq=e.seq, packet_identifier=e.packet_identifier, state=int(e.state), body_id=e.body_id,
            origin=e.origin, expiry_ms=e.expiry_ms,
        )  # fmt: skip

    # -- operations --------------------------------------------------------------------------------------------------

    def _open(self, client_id: str) -> None:
        session = Session(self.next_number, client_id)
        self.next_number += self.partitions
        self.sessions.append(session)
        self._put_session(session)
        key = self._key(RowKind.SUBSCRIPTION, session.number, 1)
        self._put(RowKind.SUBSCRIPTION, key, b"plant/#", client_id=client_id, session_id=session.number)
        self._event("subscribed", s=session.number, h=topic_hash(_topic(session)))

    def _now(self) -> int:
        return NOW_MS - 3_600_000 + 10 * self.op_index

    def enqueue(self, s: Session) -> None:
        """Queue a message for the session; large ones have a separate body."""
        qos = 1 + self.op_index % 2
        counter = self.partition + 1, self.op_index
        origin = origin_text(0, *counter) + origin_mark(0, "e1")
        chance = self.random.random()
        body_id = None
        if chance < 0.05:
            body_id = self.random.randbytes(16)
            self.bodies[body_id] = 1
            self._put(RowKind.BODY, self._key(RowKind.BODY) + body_id, self._value() * 2, body_id=body_id)
        expiry_ms = 0
        if chance > 0.85:
            expiry_ms = NOW_MS + self.random.randrange(-3_600_000, 7_200_000)
        value = b"" if body_id else self._value()
        entry = Entry(s.next_seq, origin, expiry_ms, body_id, value)
        s.entries[entry.seq] = entry
        s.next_seq += 1
        self._put_entry(s, entry)
        now = self._now()
        self._in_ledger(m=[(0, *counter, origin_mark(0, "e1"), qos, s.number, entry.seq)])
        row = (0, *counter, qos, now, topic_hash(_topic(s)), self.partition)
        self.edge_ledger.acks(now, "e1", b"[%s]," % ",".join(map(str, row)).encode(), 1)

    def _event(self, event: str, **fields: Any) -> None:
        """Add a record to the node's ledger."""
        self.node_ledger.record(LedgerRecord(event, self._now(), p=self.partition, **fields))

    def _in_ledger(self, **rows: Any) -> None:
        """Add an operation to the node's ledger."""
        self.node_ledger.operation(LedgerOperation(self.partition, self.op_index, 0, **rows))
        self.node_ledger.flush(self._now())

    def send(self, s: Session) -> None:
        """Send the oldest waiting entry."""
        for entry in s.entries.values():
            if entry.packet_identifier is None:
                entry.packet_identifier = s.next_packet_identifier
                s.next_packet_identifier = s.next_packet_identifier % 65_535 + 1
                entry.state = EntryState.SENT
                self._put_entry(s, entry)
                self._put_inflight(s, entry)
                return

    def _put_inflight(self, s: Session, e: Entry) -> None:
        self._put(
            RowKind.INFLIGHT_OUT, self._key(RowKind.INFLIGHT_OUT, s.number, e.seq), b"", session_id=s.number,
            session_seq=e.seq, packet_identifier=e.packet_identifier, state=int(e.state),
            owner_epoch=pack_owner_epoch(self.epoch, s.owner),
        )  # fmt: skip

    def acknowledge(self, s: Session) -> None:
        """Finish a sent entry, not always the oldest."""
        sent = [e for e in s.entries.values() if e.packet_identifier is not None]
        if not sent:
            return
        entry = self.random.choice(sent[:3])
        if entry.state == EntryState.SENT and self.random.random() < 0.3:
            entry.state = EntryState.RECEIVED
            self._put_inflight(s, entry)
            return
        self._finish(s, entry)
        self._put_session(s)
        if (
            self.random.random() < 0.9
        ):  # the others were recorded by a replica with a lost disk: only the session row has them
            self._in_ledger(d=[(s.number, entry.seq, entry.seq)])

    def _finish(self, s: Session, entry: Entry, gone: bool = False) -> None:
        del s.entries[entry.seq]
        s.finished.add(entry.seq)
        while s.acked_up_to + 1 in s.finished:
            s.acked_up_to += 1
            s.finished.remove(s.acked_up_to)
        typed = {"session_id": s.number, "session_seq": entry.seq}
        if entry.packet_identifier is not None:
            typed["packet_identifier"] = entry.packet_identifier
            self._delete(RowKind.INFLIGHT_OUT, self._key(RowKind.INFLIGHT_OUT, s.number, entry.seq), **typed)
        if gone or self.random.random() < 0.6:  # otherwise only the session row marks it
            self._delete(RowKind.QUEUED, self._key(RowKind.QUEUED, s.number, entry.seq), **typed)
        else:
            s.undeleted.add(entry.seq)
        if entry.body_id is not None:
            self._delete(RowKind.BODY, self._key(RowKind.BODY) + entry.body_id, body_id=entry.body_id)

    def inbound(self, s: Session) -> None:
        """Record an inbound QoS 2 PUBLISH, or release it by its PUBREL."""
        if s.inbound and self.random.random() < 0.6:
            packet_identifier = next(iter(s.inbound))
            del s.inbound[packet_identifier]
            self._delete(
                RowKind.INFLIGHT_IN, self._key(RowKind.INFLIGHT_IN, s.number, packet_identifier),
                session_id=s.number, packet_identifier=packet_identifier,
            )  # fmt: skip
            return
        packet_identifier = self.random.randrange(1, 65_536)
        if packet_identifier not in s.inbound:
            s.inbound[packet_identifier] = f"s{s.number}/{self.op_index}"
            self._put(
                RowKind.INFLIGHT_IN, self._key(RowKind.INFLIGHT_IN, s.number, packet_identifier), b"",
                session_id=s.number, packet_identifier=packet_identifier, origin=s.inbound[packet_identifier],
            )  # fmt: skip

    def retain(self) -> None:
        """Set or clear a retained message."""
        topic = self.random.randrange(200)
        key = self._key(RowKind.RETAINED, topic)
        if self.random.random() < 0.2 and topic in self.retained:
            del self.retained[topic]
            self._delete(RowKind.RETAINED, key)
        else:
            self.retained[topic] = self.op_index
            expiry_ms = NOW_MS - 5_000 if self.random.random() < 0.1 else 0
            self._put(RowKind.RETAINED, key, self._value(), origin=f"e1/1/{self.op_index}", expiry_ms=expiry_ms)

    def end(self, s: Session) -> None:
        """Clean start: remove the session with all its rows; the client returns with a new number."""
        for entry in list(s.entries.values()):
            self._finish(s, entry, gone=True)
        for seq in sorted(s.undeleted):
            self._delete(RowKind.QUEUED, self._key(RowKind.QUEUED, s.number, seq), session_id=s.number, session_seq=seq)
        for packet_identifier in s.inbound:
            self._delete(
                RowKind.INFLIGHT_IN, self._key(RowKind.INFLIGHT_IN, s.number, packet_identifier),
                session_id=s.number, packet_identifier=packet_identifier,
            )  # fmt: skip
        typed = {"session_id": s.number, "client_id": s.client_id}
        if s.will:
            self._delete(RowKind.WILL, self._key(RowKind.WILL, s.number), **typed)
        self._delete(RowKind.SUBSCRIPTION, self._key(RowKind.SUBSCRIPTION, s.number, 1), **typed)
        self._delete(RowKind.SESSION, self._key(RowKind.SESSION, s.number), **typed)
        self.sessions.remove(s)
        self._event("ended", s=s.number, r="clean start")
        self._open(s.client_id)

    def detach(self, s: Session) -> None:
        """End the connection: the session's expiry starts; some have expired at NOW_MS, some of these have a will."""
        s.expiry_ms = NOW_MS + self.random.choice([-60_000, 60_000, 3_600_000])
        if self.random.random() < 0.3:
            s.will = True
            self._put(
                RowKind.WILL, self._key(RowKind.WILL, s.number), self._value(), client_id=s.client_id,
                session_id=s.number, owner_epoch=pack_owner_epoch(self.epoch, s.owner),
            )  # fmt: skip
        self._put_session(s)

    def work(self, operations: int) -> None:
        """Run a number of random operations."""
        pick = self.random
        for _ in range(operations):
            session = pick.choice(self.sessions)
            chance = pick.random()
            if chance < 0.55:
                self.enqueue(session)
            elif chance < 0.70:
                self.send(session)
            elif chance < 0.85:
                self.acknowledge(session)
            elif chance < 0.91:
                self.inbound(session)
            elif chance < 0.97:
                self.retain()
            elif chance < 0.985:
                self.end(session)
            else:
                self.detach(session)
        key = self._key(RowKind.ORIGIN_WATERMARK, 1)
        self._put(RowKind.ORIGIN_WATERMARK, key, self.op_index.to_bytes(8, "big"), origin="e1/1")

    def export(self) -> list[Row]:
        """Return the newest version of each key changed since the last export, in key order."""
        rows = [self.changed[key] for key in sorted(self.changed)]
        self.changed = {}
        return rows


def _topic(session: Session) -> str:
    return f"plant/{session.number}"


def clients_of(partitions: int, per_partition: int) -> list[list[str]]:
    """Return client IDs for each partition of the ring."""
    buckets: list[list[str]] = [[] for _ in range(partitions)]
    number = 0
    while min(map(len, buckets)) < per_partition:
        client_id = f"sensor-{number:06d}"
        bucket = buckets[zlib.crc32(client_id.encode()) % partitions]
        if len(bucket) < per_partition:
            bucket.append(client_id)
        number += 1
    return buckets


@dataclass(slots=True)
class Store:
    """A generated store: its directory and the broker's state."""

    directory: Path
    models: list[PartitionModel]
    manifest: Manifest


def generate(
    directory: Path,
    seed: int,
    *,
    partitions: int = 4,
    generations: int = 4,
    operations: int = 400,
    clients: int = 8,
    value_bytes: int = 24,
    node: str = "s1",
    ledgers: Path | None = None,
) -> Store:
    """Export a store with one manifest per generation, as the broker does, and with ledgers of an edge and a node."""
    directory.mkdir(parents=True, exist_ok=True)
    sinks = (LedgerSink(), LedgerSink())
    if ledgers is not None:
        sinks = (
            FileLedger(ledgers / "e1", "e1", 1, "edge", NOW_MS - 7_200_000, rotate_bytes=20_000),
            FileLedger(ledgers / node, node, 1, "storage", NOW_MS - 7_200_000, rotate_bytes=20_000),
        )
    models = [
        PartitionModel(seed, p, partitions, ids, value_bytes, sinks)
        for p, ids in enumerate(clients_of(partitions, clients))
    ]
    for generation in range(1, generations + 1):
        for model in models:
            model.work(operations)
        add_generation(directory, models, generation, node=node, partitions=partitions)
    for sink in sinks:
        sink.close(NOW_MS)
    return Store(directory, models, read_manifest(directory))


def add_generation(
    directory: Path, models: list[PartitionModel], generation: int, *, node: str = "s1", partitions: int = 4
) -> Manifest:
    """Export the changes into the directory's next manifest."""
    try:
        draft = next_manifest(read_manifest(directory))
    except FileNotFoundError:
        draft = next_manifest(None)
    draft.ring = RingEntry(epoch=2, partitions=partitions)
    draft.cluster_id = "test"
    draft.created_ms = NOW_MS
    for model in models:
        rows = model.export()
        name = f"runs/{node}/p{model.partition:05d}-g{generation:06d}.parquet"
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        with RunWriter(
            directory / name, model.partition, generation=generation, node=node, full=generation == 1,
            now_ms=NOW_MS, root=directory,
        ) as run:  # fmt: skip
            run.write(rows)
        draft.files.append(run.entry)
        draft.op_index[str(model.partition)] = model.op_index
    publish_manifest(directory, draft)
    return draft
