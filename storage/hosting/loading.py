"""Read a partition's state from its rows: at start, and when this node becomes its primary.

One scan in key order, then what was found is put in its place: both in slices, for a node may have a million sessions,
and its loop must go on meanwhile. Kinds do not sort in the order in which they are needed (queues before sessions), so
rows are kept until the scan ended: those of a queue as a few numbers each. Rows of a session that has no session row
are leftovers of a deletion that a crash cut short, and are deleted with the next operation.
"""

from collections.abc import Iterator

from storage.messages.delivery import Delivery
from storage.messages.inbound import Inbound
from storage.messages.retained import RetainedRegisters
from storage.sessions.ownership import Owners
from storage.sessions.subscriptions import Subscriptions
from storage.state import keys
from storage.state.durable_sessions import DurableSession, InFlight
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
from storage.state.timers import EndSession

__all__ = ["load"]

SLICE_ROWS = 1_000
Outline = tuple[bytes, int, int, int, int, int]  # key; qos, state, identifier, body, bytes without a shared body


class _Rows:
    """Rows of one partition by kind, without those that are read on demand (log, bodies)."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.by_kind: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.queues: list[Outline] = []
        self.body_bytes: dict[int, int] = {}

    def read(self) -> Iterator[int]:
        """Read them; yields the number of rows after each slice."""
        number, store = self._partition.number, self._partition.store
        start, stop = keys.partition_range(number)
        while True:
            rows = store.scan(start, stop, SLICE_ROWS)
            logged = self._take(rows)
            yield len(rows)
            if logged:
                start = keys.kind_range(number, keys.LOG)[1]
            elif len(rows) < SLICE_ROWS:
                return
            else:
                start = rows[-1][0] + b"\x00"

    def _take(self, rows: list[tuple[bytes, bytes]]) -> bool:
        """Keep rows; True if they came to the log, which is passed over."""
        for key, value in rows:
            kind = key[2:3]
            if kind == keys.QUEUE:
                self.queues.append((key, *outline_entry(value)))
            elif kind == keys.LOG:
                return True
            elif kind == keys.BODY:
                body = int.from_bytes(key[3:11], "big")
                self.body_bytes[body] = self.body_bytes.get(body, 0) + len(value)
                self.by_kind.setdefault(kind, []).append((key, b""))
            else:
                self.by_kind.setdefault(kind, []).append((key, value))
        return False

    def take(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Return the rows of a kind in key order, and forget them here."""
        return self.by_kind.pop(kind, [])


def load(
    partition: Partition,
    delivery: Delivery,
    subscriptions: Subscriptions,
    owners: Owners,
    retained: RetainedRegisters,
    inbound: Inbound,
) -> Iterator[int]:
    """Fill a partition that was just made, from its store; yields what each slice cost, in rows.

    Raises:
        StoreDamaged: A row fails its check.
    """
    rows = _Rows(partition)
    yield from rows.read()
    for _, value in rows.take(keys.META):
        partition.meta = unpack(MetaRow, value)
    for _, value in rows.take(keys.LOCAL):
        partition.local = unpack(LocalRow, value)
    partition.note_synced("", partition.meta.op_index)
    gaps: dict[int, list[int]] = {}
    for slice_ in _slices(rows.take(keys.SESSION)):
        _load_sessions(partition, slice_, owners, gaps)
        yield len(slice_)
    names: dict[str, str] = {}
    for slice_ in _slices(rows.take(keys.SUBSCRIPTION)):
        _load_subscriptions(partition, slice_, subscriptions, names)
        yield len(slice_)
    for slice_ in _slices(rows.take(keys.FILTER)):
        decode_filter = row_decoder(FilterRow)
        for _, value in slice_:
            route = decode_filter(value).route
            subscriptions.restore_standing(names.get(route, route))
        yield len(slice_)
    for _, value in rows.take(keys.OPENED):
        owners.opened.restore(unpack(OpenedRow, value))
    for key, value in rows.take(keys.ORIGIN):
        delivery.origins.restore(key[3], int.from_bytes(key[4:12], "big"), value)
    for key, value in rows.take(keys.INBOUND):
        session = _owner(partition, key)
        if session is not None:
            inbound.restore(session, int.from_bytes(key[11:13], "big"), value)
    yield from _load_queues(partition, rows, gaps)
    for slice_ in _slices(rows.take(keys.RETAINED)):
        for _, value in slice_:
            row = unpack(RetainedRow, value)
            if row.body:
                partition.body_references[row.body] = 1
            retained.restore(row)
        yield len(slice_)
    for key, value in rows.take(keys.HANDED):
        delivery.redispatches.restore(key, value)
    for key, _ in rows.take(keys.BODY):
        if int.from_bytes(key[3:11], "big") not in partition.body_references:
            partition.delete(key)
    for key, value in rows.take(keys.WILL):
        owners.restore_will(key, unpack(WillRow, value))


def _slices(rows: list[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    for at in range(0, len(rows), SLICE_ROWS):
        yield rows[at : at + SLICE_ROWS]


def _load_sessions(
    partition: Partition, rows: list[tuple[bytes, bytes]], owners: Owners, gaps: dict[int, list[int]]
) -> None:
    decode = row_decoder(SessionRow)
    for key, value in rows:
        number, row = int.from_bytes(key[3:11], "big"), decode(value)
        session = DurableSession.from_row(number, row)
        partition.sessions[number] = session
        partition.by_client[session.client_id] = session
        if row.gaps:
            gaps[number] = row.gaps
        if session.edge:
            owners.restore_session(session)
        elif session.deadline:
            partition.set_timer(session.deadline, EndSession(number))


def _load_subscriptions(
    partition: Partition, rows: list[tuple[bytes, bytes]], subscriptions: Subscriptions, names: dict[str, str]
) -> None:
    """Attach subscriptions; a filter that many sessions hold is one string."""
    decode = row_decoder(SubscriptionRow)
    for key, value in rows:
        session = _owner(partition, key)
        if session is not None:
            subscription = decode(value).subscription
            name = subscription.topic_filter
            subscription.topic_filter = names.setdefault(name, name)
            subscriptions.restore(session, subscription)


def _owner(partition: Partition, key: bytes) -> DurableSession | None:
    session = partition.sessions.get(int.from_bytes(key[3:11], "big"))
    if session is None:
        partition.delete(key)
    return session


def _is_consumed(session: DurableSession, session_seq: int, gaps: list[int]) -> bool:
    """True if the session row says so: its rows go with a later batch than the row that tells of them."""
    if session_seq < session.push_seq:  # the row's head
        return True
    return any(start <= session_seq < stop for start, stop in zip(gaps[::2], gaps[1::2], strict=True))


def _load_queues(partition: Partition, rows: _Rows, gaps: dict[int, list[int]]) -> Iterator[int]:
    states = {key[3:19]: unpack(InflightRow, value) for key, value in rows.take(keys.INFLIGHT)}
    found: dict[int, dict[int, InFlight | int]] = {}
    outlines, rows.queues = rows.queues, []
    for at in range(0, len(outlines), SLICE_ROWS):
        slice_ = outlines[at : at + SLICE_ROWS]
        for outline in slice_:
            _load_entry(partition, outline, rows.body_bytes, gaps, states, found)
        yield len(slice_)
    for name, state in states.items():  # released: the queue row is gone
        session = partition.sessions.get(int.from_bytes(name[:8], "big"))
        session_seq = int.from_bytes(name[8:16], "big")
        consumed = session is not None and _is_consumed(session, session_seq, gaps.get(session.number, []))
        if session is None or consumed or state.state != STATE_RELEASED:
            number = int.from_bytes(name[:8], "big")
            partition.delete(keys.inflight_key(partition.number, number, session_seq))
            continue
        place = found.setdefault(session.number, {})
        place[session_seq] = InFlight(state.packet_identifier, state.qos, STATE_RELEASED, ENTRY_OVERHEAD_BYTES, True)
    weight = 0
    for number, place in sorted(found.items()):
        session = partition.sessions[number]
        for session_seq in sorted(place):
            item = place[session_seq]
            if isinstance(item, int):
                session.restore_waiting(session_seq, item)
            else:
                session.restore_inflight(session_seq, item)
        session.finish_restore()
        weight += len(place)
        if weight >= SLICE_ROWS:
            yield weight
            weight = 0
    for session in partition.sessions.values():
        if session.number not in found:
            session.push_seq = session.next_seq


def _load_entry(
    partition: Partition,
    outline: Outline,
    body_bytes: dict[int, int],
    gaps: dict[int, list[int]],
    states: dict[bytes, InflightRow],
    found: dict[int, dict[int, InFlight | int]],
) -> None:
    """Find out what became of one queue row: waiting (its size), in flight, or consumed."""
    key, qos, entry_state, packet_identifier, body, size = outline
    session = _owner(partition, key)
    if session is None:
        return
    session_seq = int.from_bytes(key[11:19], "big")
    if _is_consumed(session, session_seq, gaps.get(session.number, [])):
        partition.delete(key)
        return
    if body:
        partition.body_references[body] = partition.body_references.get(body, 0) + 1
        size += body_bytes.get(body, 0)
    size += ENTRY_OVERHEAD_BYTES
    state = states.pop(key[3:19], None)
    place = found.setdefault(session.number, {})
    if state is not None:
        place[session_seq] = InFlight(state.packet_identifier, qos, state.state, size, True, body)
    elif entry_state == STATE_SENT:
        place[session_seq] = InFlight(packet_identifier, qos, STATE_SENT, size, False, body)
    elif identifier := session.given_identifier(session_seq):
        place[session_seq] = InFlight(identifier, qos, STATE_SENT, size, False, body)
    else:
        place[session_seq] = size
