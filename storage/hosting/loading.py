"""Loads a partition's state from its rows: at start, and when this node becomes its primary.

One scan in key order, then the rows are restored. Both run in slices, because a node may have a million sessions and
its loop must not block. Key order differs from restore order (queues before sessions), so rows are buffered until the
scan ends, queue rows as a few numbers each. Rows without a session row remain from an interrupted deletion; the next
operation deletes them.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from storage.messages.bodies import Bodies
from storage.messages.delivery import PartitionDelivery
from storage.messages.inbound import InboundIdentifiers
from storage.messages.retained import RetainedStore
from storage.sessions.ownership import Owners
from storage.sessions.subscriptions import Subscriptions
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import (
    ENTRY_OVERHEAD_BYTES,
    STATE_RELEASED,
    STATE_SENT,
    FilterRow,
    InflightRow,
    LocalRow,
    MetaRow,
    OpenedRow,
    RetainedRow,
    SessionRow,
    SubscriptionRow,
    WillRow,
    outline_entry,
    row_decoder,
    unpack,
)
from storage.state.session_window import InFlight
from storage.state.timers import EndSession

__all__ = ["load"]

SLICE_ROWS = 200  # about 1 ms
READ_ROWS = 48  # of one store scan, at most: each may be a quarter of a megabyte
READ_BYTES = 256 * 1024  # of one store scan: the row limit of a scan follows from the one before
ROW_BYTES = 4096  # of a long row, counted as one short row
Outline = tuple[bytes, int, int, int, int, int, int]  # key; qos, state, identifier, body, bytes without body, arrival


class _Rows:
    """Rows of one partition by kind, without those that are read on demand (log, bodies)."""

    def __init__(self, partition: Partition, bodies: Bodies) -> None:
        self._partition = partition
        self._bodies = bodies
        self._slices: dict[bytes, deque[list[tuple[bytes, bytes]]]] = {}  # by kind
        self.queues: deque[list[Outline]] = deque()  # in slices likewise

    def read(self) -> Iterator[int]:
        """Read the rows; yields the cost of each slice, in short rows."""
        number, scan = self._partition.number, self._partition.store.scan
        first, stop = keys.partition_range(number)
        logged, unlogged = keys.kind_range(number, keys.LOG)
        wanted = READ_ROWS
        for start, end in ((first, logged), (unlogged, stop)):
            while True:
                rows = scan(start, end, wanted)
                self._take(rows)
                size = sum(len(value) for _, value in rows)
                yield len(rows) + size // ROW_BYTES
                if len(rows) < wanted:
                    break
                start = rows[-1][0] + b"\x00"
                wanted = min(READ_ROWS, 2 * wanted, max(1, wanted * READ_BYTES // max(1, size)))

    def _take(self, rows: list[tuple[bytes, bytes]]) -> None:
        slices: dict[bytes, list[tuple[bytes, bytes]]] = {}
        outlines: list[Outline] = []
        for key, value in rows:
            kind = key[2:3]
            if kind == keys.QUEUE:
                outlines.append((key, *outline_entry(value)))
            elif kind == keys.BODY:
                self._bodies.restore(int.from_bytes(key[3:11], "big"), len(value))
                slices.setdefault(kind, []).append((key, b""))
            else:
                slices.setdefault(kind, []).append((key, value))
        if outlines:
            self.queues.append(outlines)
        for kind, slice_ in slices.items():
            self._slices.setdefault(kind, deque()).append(slice_)

    def slices(self, kind: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Return the rows of a kind in key order, in slices; each slice is released when it is returned."""
        slices = self._slices.pop(kind, deque())
        while slices:
            yield slices.popleft()


def load(
    partition: Partition,
    delivery: PartitionDelivery,
    subscriptions: Subscriptions,
    owners: Owners,
    retained: RetainedStore,
    inbound: InboundIdentifiers,
) -> Iterator[int]:
    """Fill a new partition from its store; yields the cost of each slice, in rows.

    Raises:
        StoreDamaged: A row fails its check.
    """
    rows = _Rows(partition, delivery.bodies)
    yield from rows.read()
    for slice_ in rows.slices(keys.META):
        partition.meta = unpack(MetaRow, slice_[0][1])
    for slice_ in rows.slices(keys.LOCAL):
        partition.local = unpack(LocalRow, slice_[0][1])
    partition.note_synced("", partition.meta.op_index)
    gaps: dict[int, list[int]] = {}
    for slice_ in rows.slices(keys.SESSION):
        _load_sessions(partition, slice_, owners, gaps)
        yield len(slice_)
    names: dict[str, str] = {}
    for slice_ in rows.slices(keys.SUBSCRIPTION):
        _load_subscriptions(partition, slice_, subscriptions, names)
        yield len(slice_)
    for slice_ in rows.slices(keys.FILTER):
        decode_filter = row_decoder(FilterRow)
        for _, value in slice_:
            route = decode_filter(value).route
            subscriptions.restore_standing(names.get(route, route))
        yield len(slice_)
    yield from _load_senders(partition, rows, delivery, owners, inbound)
    yield from _load_queues(partition, rows, gaps, delivery.bodies)
    for slice_ in rows.slices(keys.RETAINED):
        for _, value in slice_:
            row = unpack(RetainedRow, value)
            if row.body:
                partition.body_references[row.body] = 1
            retained.restore(row)
        yield len(slice_)
    for slice_ in rows.slices(keys.HANDED):
        for key, value in slice_:
            delivery.redispatches.restore(key, value)
        yield len(slice_)
    for slice_ in rows.slices(keys.BODY):
        for key, _ in slice_:
            body = int.from_bytes(key[3:11], "big")
            if body not in partition.body_references:
                delivery.bodies.forget(body)
                partition.delete(key)
        yield len(slice_)
    for slice_ in rows.slices(keys.WILL):
        for key, value in slice_:
            owners.restore_will(key, unpack(WillRow, value))
        yield len(slice_)


def _load_senders(
    partition: Partition, rows: _Rows, delivery: PartitionDelivery, owners: Owners, inbound: InboundIdentifiers
) -> Iterator[int]:
    """Restore the state that separates repeats from new requests and messages."""
    for slice_ in rows.slices(keys.OPENED):
        for _, value in slice_:
            owners.opened.restore(unpack(OpenedRow, value))
        yield len(slice_)
    for slice_ in rows.slices(keys.ORIGIN):
        for key, value in slice_:
            delivery.origins.restore(key[3], int.from_bytes(key[4:12], "big"), value)
        yield len(slice_)
    for slice_ in rows.slices(keys.INBOUND):
        for key, value in slice_:
            session = _owner(partition, key)
            if session is not None:
                inbound.restore(session, int.from_bytes(key[11:13], "big"), value)
        yield len(slice_)


def _load_sessions(
    partition: Partition, rows: list[tuple[bytes, bytes]], owners: Owners, gaps: dict[int, list[int]]
) -> None:
    decode = row_decoder(SessionRow)
    for key, value in rows:
        number, row = int.from_bytes(key[3:11], "big"), decode(value)
        session = DurableSession.from_row(number, row)
        partition.sessions[number] = session
        partition.by_client[session.client_id] = session
        partition.count_owned(session.owner, 1)
        if row.gaps:
            gaps[number] = row.gaps
        if session.edge:
            owners.restore_session(session)
        elif session.deadline:
            partition.set_timer(session.deadline, EndSession(number))


def _load_subscriptions(
    partition: Partition, rows: list[tuple[bytes, bytes]], subscriptions: Subscriptions, names: dict[str, str]
) -> None:
    """Attach subscriptions; equal filters of many sessions share one string."""
    decode = row_decoder(SubscriptionRow)
    for key, value in rows:
        session = _owner(partition, key)
        if session is not None:
            row = decode(value)
            subscription = row.subscription
            name = subscription.topic_filter
            subscription.topic_filter = names.setdefault(name, name)
            subscriptions.restore(session, subscription, partial=row.partial)


def _owner(partition: Partition, key: bytes) -> DurableSession | None:
    session = partition.sessions.get(int.from_bytes(key[3:11], "big"))
    if session is None:
        partition.delete(key)
    return session


def _is_consumed(session: DurableSession, session_seq: int, gaps: list[int]) -> bool:
    """Return whether the session row marks an entry as consumed: its rows are deleted in a later batch."""
    if session_seq < session.push_seq:  # the row's head
        return True
    return bisect_right(gaps, session_seq) % 2 == 1  # [start, stop) pairs, flat and ascending


def _load_queues(partition: Partition, rows: _Rows, gaps: dict[int, list[int]], bodies: Bodies) -> Iterator[int]:
    states: dict[bytes, InflightRow] = {}
    for slice_ in rows.slices(keys.INFLIGHT):
        states.update((key[3:19], unpack(InflightRow, value)) for key, value in slice_)
        yield len(slice_)
    found: dict[int, dict[int, InFlight | int]] = {}
    while rows.queues:
        outlines = rows.queues.popleft()
        for outline in outlines:
            _load_entry(partition, outline, bodies, gaps, states, found)
        yield len(outlines)
    for at, name in enumerate(sorted(states), 1):  # released: the queue row is gone
        _load_released(partition, name, states.pop(name), gaps, found)
        if at % SLICE_ROWS == 0:
            yield SLICE_ROWS
    yield from _place_queues(partition, found)


def _load_released(
    partition: Partition,
    name: bytes,
    state: InflightRow,
    gaps: dict[int, list[int]],
    found: dict[int, dict[int, InFlight | int]],
) -> None:
    """Restore one message without a queue row: its PUBREC was recorded, or it is consumed."""
    number, session_seq = int.from_bytes(name[:8], "big"), int.from_bytes(name[8:16], "big")
    session = partition.sessions.get(number)
    consumed = session is not None and _is_consumed(session, session_seq, gaps.get(number, []))
    if session is None or consumed or state.state != STATE_RELEASED:
        partition.delete(keys.inflight_key(partition.number, number, session_seq))
        return
    place = found.setdefault(number, {})
    place[session_seq] = InFlight(state.packet_identifier, state.qos, STATE_RELEASED, ENTRY_OVERHEAD_BYTES, True)


def _place_queues(partition: Partition, found: dict[int, dict[int, InFlight | int]]) -> Iterator[int]:
    """Restore each session's queue entries, in order."""
    passed = 0
    for session in partition.sessions.values():
        place = found.pop(session.number, None)
        passed += 1
        if place is None:
            session.push_seq = session.next_seq
        else:
            for session_seq in sorted(place):
                item = place[session_seq]
                if isinstance(item, int):
                    session.restore_waiting(session_seq, item)
                else:
                    session.restore_inflight(session_seq, item)
                passed += 1
                if passed >= SLICE_ROWS:
                    yield passed
                    passed = 0
            session.finish_restore()
        if passed >= SLICE_ROWS:
            yield passed
            passed = 0


def _load_entry(
    partition: Partition,
    outline: Outline,
    bodies: Bodies,
    gaps: dict[int, list[int]],
    states: dict[bytes, InflightRow],
    found: dict[int, dict[int, InFlight | int]],
) -> None:
    """Restore one queue row as queued (its size), in flight, or consumed."""
    key, qos, entry_state, packet_identifier, body, size, arrived = outline
    session = _owner(partition, key)
    if session is None:
        return
    session_seq = int.from_bytes(key[11:19], "big")
    if _is_consumed(session, session_seq, gaps.get(session.number, [])):
        partition.delete(key)
        return
    if body:
        partition.body_references[body] = partition.body_references.get(body, 0) + 1
        size += bodies.size(body)
    size += ENTRY_OVERHEAD_BYTES
    state = states.pop(key[3:19], None)
    place = found.setdefault(session.number, {})
    if not place:
        partition.ages.note(session, arrived)
    if state is not None:
        place[session_seq] = InFlight(state.packet_identifier, qos, state.state, size, True, body)
    elif entry_state == STATE_SENT:
        place[session_seq] = InFlight(packet_identifier, qos, STATE_SENT, size, False, body)
    elif identifier := session.given_identifier(session_seq):
        place[session_seq] = InFlight(identifier, qos, STATE_SENT, size, False, body)
    else:
        place[session_seq] = size
