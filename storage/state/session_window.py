"""The fields of a session that each message uses: numbers of its queue and its window, and messages in flight.

Compiled, these are C fields: a QoS 1 message reads and writes about thirty of them. ``DurableSession`` has the rest.
The six collections are created on first access, because most sessions are disconnected with empty queues.
"""

from collections import deque

import cython

from mqtt.packet_identifiers import PacketIdentifiers
from storage.state.rows import QueueEntry
from storage.state.session_reads import SessionReads

__all__ = ["InFlight", "SessionWindow"]

if not cython.compiled:  # compiled, these are C constants: session_window.pxd
    WINDOW_ANY_SIZE = 64  # in-flight messages that a client may have regardless of their size
    WINDOW_BYTES = 128 * 1024  # of in-flight messages, above which WINDOW_ANY_SIZE is the limit
    SENT = 1  # STATE_SENT


class InFlight:
    """One outbound QoS 1/2 message that has its packet identifier."""

    __slots__ = ("body", "out", "packet_identifier", "qos", "repeated", "sent", "size", "state", "stored", "traced")

    def __init__(
        self, packet_identifier: int, qos: int, state: int, size: int, stored: bool, body: int = 0, *, sent: bool = True
    ) -> None:
        self.packet_identifier = packet_identifier
        self.qos = qos
        self.state = state
        self.size = size
        # An INFLIGHT row exists (otherwise the queue row has state SENT, or the session row a run)
        self.stored = stored
        self.body = body  # shared body id, 0 for none
        self.sent = sent  # a PUBLISH may have left, on any connection: the next one is a repeat
        self.repeated = False  # the PUBLISH of this connection was a repeat
        self.out = False  # it counts in the window of this connection
        self.traced = False  # a trace records it


class SessionWindow:
    """The fields of a session that each message uses.

    Args:
        number: Of the session.
    """

    __slots__ = (
        "_acked_rows",
        "_identifiers",
        "_inflight",
        "_sizes",
        "_stored_rows",
        "_unsent",
        "aged",
        "behind",
        "deadline",
        "edge",
        "incarnation",
        "last_identifier",
        "next_seq",
        "number",
        "out",
        "out_bytes",
        "owner_epoch",
        "push_seq",
        "queue_bounds",
        "queue_bytes",
        "reads",
        "window",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.owner_epoch = 0
        self.deadline = 0
        self.edge = ""  # "" while no connection is open
        self.incarnation = 0
        self.window = 64
        self.reads: SessionReads | None = None  # retained reads in progress
        self.last_identifier = 0  # of the row, until ``identifiers`` is created
        self.next_seq = 1
        self.push_seq = 1
        self.out = 0  # number of messages in the window of this connection
        self.out_bytes = 0
        self.behind = 0  # operation that must be committed before the next push
        self.queue_bytes = 0  # of all unconsumed entries
        self.queue_bounds: tuple[int, int] | None = None  # messages and bytes, 0 for no bound of its own
        self.aged = False  # its queue is in the partition's ``QueueAges``
        self._inflight: dict[int, InFlight] | None = None
        self._identifiers: PacketIdentifiers | None = None
        self._sizes: deque[int] | None = None
        self._unsent: deque[tuple[int, QueueEntry | None, int]] | None = None
        self._acked_rows: list[int] | None = None
        self._stored_rows: set[int] | None = None

    @property
    def inflight(self) -> dict[int, InFlight]:
        """Messages in flight by session_seq, ascending."""
        return inflight_of(self)

    @property
    def identifiers(self) -> PacketIdentifiers:
        """Packet identifiers of messages in flight."""
        return identifiers_of(self)

    @property
    def sizes(self) -> deque[int]:
        """Bytes of the entries from push_seq on."""
        if self._sizes is None:
            self._sizes = deque()
        return self._sizes

    @property
    def unsent(self) -> deque[tuple[int, QueueEntry | None, int]]:
        """In flight and not sent on this connection yet: session_seq, entry (None: on disk), bytes in memory."""
        if self._unsent is None:
            self._unsent = deque()
        return self._unsent

    @property
    def acked_rows(self) -> list[int]:
        """Consumed entries whose queue rows are not deleted yet."""
        return acked_rows_of(self)

    @property
    def stored_rows(self) -> set[int]:
        """Consumed entries that have an INFLIGHT row too."""
        if self._stored_rows is None:
            self._stored_rows = set()
        return self._stored_rows

    @property
    def held(self) -> bool:
        """Whether live messages are held for retained copies."""
        return self.reads is not None and self.reads.hold

    @property
    def window_open(self) -> bool:
        """Whether another QoS 1/2 message can be sent now."""
        return bool(is_window_open(self))

    @property
    def caught_up(self) -> bool:
        """Whether no entry is unsent: a new message can be sent at once."""
        return bool(is_caught_up(self))

    def queue_most(self, messages_max: int, bytes_max: int) -> tuple[int, int]:
        """Return the queue's bounds in entries and bytes, given the partition's own bounds."""
        if self.queue_bounds is None:
            return messages_max, bytes_max
        messages, octets = self.queue_bounds
        return min(messages or messages_max, messages_max), min(octets or bytes_max, bytes_max)


def inflight_of(session: SessionWindow) -> dict[int, InFlight]:
    """Return the messages in flight."""
    made: dict[int, InFlight] | None = session._inflight
    if made is None:
        made = {}
        session._inflight = made
    return made


def identifiers_of(session: SessionWindow) -> PacketIdentifiers:
    """Return the packet identifiers."""
    made: PacketIdentifiers | None = session._identifiers
    if made is None:
        made = PacketIdentifiers()
        made.last = session.last_identifier
        session._identifiers = made
    return made


def acked_rows_of(session: SessionWindow) -> list[int]:
    """Return the consumed entries whose queue rows are not deleted yet."""
    made: list[int] | None = session._acked_rows
    if made is None:
        made = []
        session._acked_rows = made
    return made


def is_window_open(session: SessionWindow) -> cython.bint:
    """Return whether another QoS 1/2 message can be sent now."""
    if session.out >= session.window or (session.out >= WINDOW_ANY_SIZE and session.out_bytes >= WINDOW_BYTES):
        return False
    return bool(session.edge) and (session.reads is None or not session.reads.hold)


def is_caught_up(session: SessionWindow) -> cython.bint:
    """Return whether no entry is unsent."""
    return not session._sizes and not session._unsent


def assign_place(session: SessionWindow, size: cython.Py_ssize_t) -> InFlight:
    """Give the next entry of a caught-up queue its identifier and add it to the window.

    Args:
        session: Caught up, its window open.
        size: Of the entry, in bytes.
    """
    identifier: cython.uint = identifiers_of(session).allocate()
    flight: InFlight = InFlight(identifier, 1, SENT, size, False)
    flight.out = True
    inflight_of(session)[session.next_seq] = flight
    session.next_seq += 1
    session.push_seq = session.next_seq
    session.queue_bytes += size
    session.out += 1
    session.out_bytes += size
    return flight


def release_place(session: SessionWindow, session_seq: cython.ulonglong, flight: InFlight) -> cython.Py_ssize_t:
    """Remove an acknowledged entry; return the number of consumed entries with undeleted queue rows."""
    del inflight_of(session)[session_seq]
    identifiers_of(session).release(flight.packet_identifier)
    if flight.out:
        session.out -= 1
        session.out_bytes -= flight.size
    if flight.stored:
        session.stored_rows.add(session_seq)
    session.queue_bytes -= flight.size
    acked_rows: list[int] = acked_rows_of(session)
    acked_rows.append(session_seq)
    return len(acked_rows)
