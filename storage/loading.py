"""Read a partition's state from its rows: at start, and when this node becomes its primary.

One scan in key order. Kinds sort so that sessions come before what names them only partly, so rows that need a session
are kept until the scan ended; rows of a session that has no session row are leftovers of a deletion that a crash cut
short, and are deleted with the next operation.
"""

from storage import keys
from storage.claims import ClaimTable
from storage.delivery import Delivery
from storage.durable_sessions import DurableSession, InFlight
from storage.inbound import Inbound
from storage.partition import Partition
from storage.retained import RetainedRegisters
from storage.rows import (
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
    decode_entry,
    unpack,
)
from storage.subscriptions import Subscriptions

__all__ = ["load"]

SLICE_ROWS = 2_000


class _Rows:
    """Rows of one partition by kind, without the kinds that are read on demand (log, bodies)."""

    def __init__(self, partition: Partition) -> None:
        self.by_kind: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.body_bytes: dict[int, int] = {}
        start, stop = keys.partition_range(partition.number)
        skip = {keys.LOG: keys.kind_range(partition.number, keys.LOG)[1]}
        while True:
            rows = partition.store.scan(start, stop, SLICE_ROWS)
            for key, value in rows:
                kind = key[2:3]
                if kind in skip:
                    break
                if kind == keys.BODY:
                    body = int.from_bytes(key[3:11], "big")
                    self.body_bytes[body] = self.body_bytes.get(body, 0) + len(value)
                    value = b""
                self.by_kind.setdefault(kind, []).append((key, value))
            if not rows:
                return
            last = rows[-1][0]
            if any(key[2:3] in skip for key, _ in rows):
                start = skip[keys.LOG]
            elif len(rows) < SLICE_ROWS:
                return
            else:
                start = last + b"\x00"

    def of(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Return the rows of a kind in key order."""
        return self.by_kind.get(kind, [])


def load(
    partition: Partition,
    delivery: Delivery,
    subscriptions: Subscriptions,
    claims: ClaimTable,
    retained: RetainedRegisters,
    inbound: Inbound,
) -> None:
    """Fill a partition that was just made, from its store.

    Raises:
        StoreDamaged: A row fails its check.
    """
    rows = _Rows(partition)
    for _, value in rows.of(keys.META):
        partition.meta = unpack(MetaRow, value)
    for _, value in rows.of(keys.LOCAL):
        partition.local = unpack(LocalRow, value)
    partition.note_synced("", partition.meta.op_index)
    gaps: dict[int, list[int]] = {}
    for key, value in rows.of(keys.SESSION):
        number, session_row = int.from_bytes(key[3:11], "big"), unpack(SessionRow, value)
        _load_session(partition, number, session_row, claims)
        if session_row.gaps:
            gaps[number] = session_row.gaps
    for key, value in rows.of(keys.SUBSCRIPTION):
        session = _owner(partition, key)
        if session is not None:
            subscriptions.restore(session, unpack(SubscriptionRow, value).subscription)
    for _, value in rows.of(keys.OPENED):
        claims.opened.restore(unpack(OpenedRow, value))
    for _, value in rows.of(keys.FILTER):
        subscriptions.restore_standing(unpack(FilterRow, value).route)
    for key, value in rows.of(keys.ORIGIN):
        delivery.restore_origin(key[3], int.from_bytes(key[4:12], "big"), value)
    for key, value in rows.of(keys.INBOUND):
        session = _owner(partition, key)
        if session is not None:
            inbound.restore(session, int.from_bytes(key[11:13], "big"), value)
    _load_queues(partition, rows, gaps)
    for _, value in rows.of(keys.RETAINED):
        row = unpack(RetainedRow, value)
        if row.body:
            partition.body_references[row.body] = 1
        retained.restore(row)
    for key, _ in rows.of(keys.BODY):
        if int.from_bytes(key[3:11], "big") not in partition.body_references:
            partition.delete(key)
    for key, value in rows.of(keys.WILL):
        claims.restore_will(key, unpack(WillRow, value))


def _load_session(partition: Partition, number: int, row: SessionRow, claims: ClaimTable) -> None:
    session = DurableSession.from_row(number, row)
    partition.sessions[number] = session
    partition.by_client[session.client_id] = session
    if session.edge:
        claims.restore_session(session)
    elif session.deadline:
        partition.set_timer(session.deadline, "session", str(number))


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


def _load_queues(partition: Partition, rows: _Rows, gaps: dict[int, list[int]]) -> None:
    states = {key[3:19]: unpack(InflightRow, value) for key, value in rows.of(keys.INFLIGHT)}
    found: dict[int, dict[int, InFlight | int]] = {}
    for key, value in rows.of(keys.QUEUE):
        session = _owner(partition, key)
        if session is None:
            continue
        session_seq = int.from_bytes(key[11:19], "big")
        if _is_consumed(session, session_seq, gaps.get(session.number, [])):
            partition.delete(key)
            continue
        entry = decode_entry(session_seq, value)
        if entry.body:
            partition.body_references[entry.body] = partition.body_references.get(entry.body, 0) + 1
        payload_bytes = rows.body_bytes.get(entry.body, 0) if entry.body else len(entry.payload)
        size = len(entry.topic) + payload_bytes + len(entry.properties) + ENTRY_OVERHEAD_BYTES
        state = states.pop(key[3:19], None)
        place = found.setdefault(session.number, {})
        if state is not None:
            place[session_seq] = InFlight(state.packet_identifier, entry.qos, state.state, size, True, entry.body)
        elif entry.state == STATE_SENT:
            place[session_seq] = InFlight(entry.packet_identifier, entry.qos, STATE_SENT, size, False, entry.body)
        elif identifier := session.given_identifier(session_seq):
            place[session_seq] = InFlight(identifier, entry.qos, STATE_SENT, size, False, entry.body)
        else:
            place[session_seq] = size
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
    for number, place in sorted(found.items()):
        session = partition.sessions[number]
        for session_seq in sorted(place):
            item = place[session_seq]
            if isinstance(item, int):
                session.restore_waiting(session_seq, item)
            else:
                session.restore_inflight(session_seq, item)
        session.finish_restore()
    for session in partition.sessions.values():
        if session.number not in found:
            session.push_seq = session.next_seq
