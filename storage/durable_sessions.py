"""A durable session in memory: its queue's bounds, its outbound window, its packet identifiers.

Pure state; which rows an event writes is decided by ``storage/delivery.py`` and ``storage/claims.py``. Entries are
named by ``session_seq``; everything below ``head`` is consumed, ``push_seq`` is the next entry that was never sent, and
what lies between is consumed unless it is in flight. Bodies stay on disk except for a short read-ahead (``ready``) of
a connected session.
"""

from collections import deque

from mqtt.session_state import PacketIdentifiers
from storage.rows import STATE_RELEASED, STATE_SENT, Entry, SessionRow
from storage.session_reads import SessionReads
from wire.messages import SharePick, Subscription

__all__ = ["READY_MAX", "DurableSession", "InFlight"]

READY_MAX = 128  # entries kept in memory ahead of the window of a connected session


class InFlight:
    """One outbound QoS 1/2 message that has its packet identifier."""

    __slots__ = ("packet_identifier", "qos", "size", "state", "stored")

    def __init__(self, packet_identifier: int, qos: int, state: int, size: int, stored: bool) -> None:
        self.packet_identifier = packet_identifier
        self.qos = qos
        self.state = state
        self.size = size
        self.stored = stored  # an INFLIGHT row exists (otherwise the queue row itself says SENT)


class DurableSession:
    """One session of a partition, at its primary."""

    __slots__ = (
        "acked_rows",
        "client_id",
        "connection",
        "deadline",
        "dropped",
        "edge",
        "ephemeral_end",
        "expiry_s",
        "identifiers",
        "inbound",
        "incarnation",
        "inflight",
        "live_retained",
        "next_inbound",
        "next_seq",
        "number",
        "overtaken",
        "owner_epoch",
        "picks",
        "protocol_version",
        "push_seq",
        "queue_bytes",
        "reads",
        "ready",
        "retained_origins",
        "session_present",
        "sizes",
        "stored_rows",
        "subscriptions",
        "waiting_copies",
        "window",
    )

    def __init__(self, number: int, client_id: str) -> None:
        self.number = number
        self.client_id = client_id
        self.owner_epoch = 0
        self.expiry_s = 0
        self.deadline = 0
        self.edge = ""  # "" while no connection is open
        self.incarnation = 0
        self.connection = 0
        self.protocol_version = 4
        self.window = 64
        self.session_present = False
        self.reads: SessionReads | None = None  # retained reads under way
        self.waiting_copies: dict[bytes, int] = {}  # topic: session_seq of its retained copy, not in the window yet
        self.overtaken: set[int] = set()  # those of them that a newer value overtook at QoS 0
        self.live_retained: dict[bytes, tuple[int, int, int]] = {}  # topic -> origin of the last such message; bounded
        self.ephemeral_end = False
        self.subscriptions: dict[str, Subscription] = {}
        self.inbound: dict[int, int] = {}  # packet identifier -> counter of the origin
        self.picks: dict[int, list[SharePick]] = {}  # packet identifier -> where its shared copies go
        self.next_inbound = 1
        self.retained_origins: dict[tuple[int, int, int], None] = {}  # of retained copies just delivered
        self.next_seq = 1
        self.push_seq = 1
        self.identifiers = PacketIdentifiers()
        self.inflight: dict[int, InFlight] = {}  # by session_seq, ascending
        self.sizes: deque[int] = deque()  # of the entries from push_seq on
        self.ready: deque[Entry] = deque()  # the first of them, in memory
        self.queue_bytes = 0  # of all unconsumed entries
        self.dropped = 0
        self.acked_rows: list[int] = []  # consumed entries whose queue rows still stand
        self.stored_rows: set[int] = set()  # those of them that have an INFLIGHT row too

    @property
    def online(self) -> bool:
        """True while an edge holds the connection."""
        return self.edge != ""

    @property
    def head(self) -> int:
        """The oldest entry that is not consumed."""
        return next(iter(self.inflight)) if self.inflight else self.push_seq

    def _gaps(self) -> list[int]:
        """Return [start, stop) pairs, flat, of consumed entries above the head: drops and early PUBACKs leave them."""
        gaps: list[int] = []
        at = self.head
        for session_seq in self.inflight:
            if session_seq > at:
                gaps += (at, session_seq)
            at = session_seq + 1
        if at < self.push_seq:
            gaps += (at, self.push_seq)
        return gaps

    @property
    def queued(self) -> int:
        """Unconsumed entries: waiting and in flight."""
        return len(self.sizes) + len(self.inflight)

    @property
    def window_open(self) -> bool:
        """True if another QoS 1/2 message may leave now."""
        return self.edge != "" and not self.held and len(self.inflight) < self.window

    @property
    def held(self) -> bool:
        """True while live messages wait for retained copies."""
        return self.reads is not None and self.reads.hold

    def row(self) -> SessionRow:
        """Return the row as of now."""
        return SessionRow(
            self.client_id,
            self.owner_epoch,
            self.expiry_s,
            self.deadline,
            self.head,
            self._gaps(),
            self.next_seq,
            self.identifiers.last,
            self.next_inbound,
            self.dropped,
            self.edge,
            self.incarnation,
            self.connection,
            self.ephemeral_end,
            self.protocol_version,
            self.window,
            self.session_present,
        )

    @classmethod
    def from_row(cls, number: int, row: SessionRow) -> "DurableSession":
        """Return the session of a row; its queue is restored by ``restore_entry`` in seq order."""
        session = cls(number, row.client_id)
        session.owner_epoch = row.owner_epoch
        session.expiry_s = row.expiry_s
        session.deadline = row.deadline
        session.next_seq = max(row.next_seq, row.head)
        session.push_seq = row.head
        session.identifiers.last = row.last_identifier
        session.next_inbound = row.next_inbound
        session.dropped = row.dropped
        session.edge = row.edge
        session.incarnation = row.incarnation
        session.connection = row.connection
        session.ephemeral_end = row.ephemeral_end
        session.protocol_version = row.protocol_version
        session.window = row.window
        session.session_present = row.session_present
        return session

    def restore_inflight(self, session_seq: int, flight: InFlight) -> None:
        """Take over an outbound message that has its identifier, from disk, in seq order."""
        self.inflight[session_seq] = flight
        self.identifiers.claim(flight.packet_identifier)
        self.queue_bytes += flight.size
        self.next_seq = max(self.next_seq, session_seq + 1)
        self.push_seq = max(self.push_seq, session_seq + 1)

    def restore_waiting(self, session_seq: int, size: int) -> None:
        """Take over a queued entry that was never sent, from disk, in seq order."""
        if not self.sizes:
            self.push_seq = session_seq
        self.sizes.append(size)
        self.queue_bytes += size
        self.next_seq = max(self.next_seq, session_seq + 1)

    def finish_restore(self) -> None:
        """Settle ``push_seq`` once every entry was restored."""
        if not self.sizes:
            self.push_seq = self.next_seq

    def begin(self, session_seq: int, qos: int, size: int) -> InFlight:
        """Give the entry its packet identifier: it enters the outbound window."""
        packet_identifier = self.identifiers.allocate()
        assert packet_identifier is not None  # the window is far smaller than the identifier space
        flight = InFlight(packet_identifier, qos, STATE_SENT, size, False)
        self.inflight[session_seq] = flight
        return flight

    def consume(self, session_seq: int) -> InFlight | None:
        """The client has finished this entry; None if it was not in flight."""
        flight = self.inflight.pop(session_seq, None)
        if flight is None:
            return None
        self.identifiers.release(flight.packet_identifier)
        if flight.stored:
            self.stored_rows.add(session_seq)
        self.forget(session_seq, flight.size)
        return flight

    def drop_oldest_waiting(self) -> int:
        """Forget the oldest entry that was never sent and return its session_seq.

        Raises:
            IndexError: If none is waiting.
        """
        session_seq = self.push_seq
        size = self.sizes.popleft()
        if self.ready:
            self.ready.popleft()
        self.push_seq += 1
        self.forget(session_seq, size)
        return session_seq

    def released(self, session_seq: int) -> bool:
        """True if PUBREC of this entry is recorded."""
        flight = self.inflight.get(session_seq)
        return flight is not None and flight.state == STATE_RELEASED

    def forget(self, session_seq: int, size: int) -> None:
        """Count an entry as consumed; its row is deleted with the next batch of acknowledgements."""
        self.queue_bytes -= size
        self.acked_rows.append(session_seq)
