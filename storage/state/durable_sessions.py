"""A durable session in memory: its queue's bounds, its outbound window, its packet identifiers.

Most stored sessions are disconnected with empty queues, and there may be a million. Therefore unused parts (queues,
window, identifiers, subscriptions) are created on first access (``__getattr__`` over unset slots).

Pure state: ``storage/messages/delivery.py`` and ``storage/sessions/ownership.py`` decide which rows an event writes.
An entry's name is its ``session_seq``. Entries below ``head`` are consumed; ``push_seq`` is the next entry without a
packet identifier. Entries between them are consumed unless they are in flight.

Identifiers are given ahead of the window (``unsent``), so that a push need not wait for the commit of its own. The
session row stores them as runs. Bodies stay on disk except for a short read-ahead of a connected session.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any

from storage.state.rows import ENTRY_OVERHEAD_BYTES, STATE_RELEASED, STATE_SENT, QueueEntry, SessionRow
from storage.state.session_window import InFlight, SessionWindow
from wire.messages.redispatch import SharePick
from wire.messages.sessions import SessionSubscription

__all__ = ["ENDING", "READY_MAX", "DurableSession"]

ENDING = 1  # a deadline in the past: the session is being deleted in slices and cannot be resumed
READY_MAX = 128  # entries kept in memory ahead of the window of a connected session
COPIES_UNKNOWN = 1 << 62  # of a session from disk: as far as its queue goes
RUNS_MANY = 16  # runs of identifiers in a session row above which those without in-flight entries are removed


class DurableSession(SessionWindow):
    """One session of a partition, at its primary; ``SessionWindow`` has the fields that each message uses."""

    __slots__ = (
        "client_id",
        "connection",
        "copies_to",
        "dropped",
        "ephemeral_end",
        "expiry_s",
        "given",
        "inbound",
        "judged",
        "live_retained",
        "next_inbound",
        "overtaken",
        "owner",
        "owner_made",
        "partial",
        "picks",
        "protocol_version",
        "ready",
        "recheck_below",
        "retained_origins",
        "runs",
        "session_present",
        "shared",
        "subscriptions",
        "unsent_bytes",
    )

    subscriptions: dict[str, SessionSubscription]
    partial: set[str]  # filters that are granted in part
    overtaken: dict[bytes, int]  # topic: copies below this session_seq were overtaken at QoS 0
    live_retained: dict[bytes, tuple[int, int, int]]  # topic -> origin of the last live message with RETAIN; bounded
    inbound: dict[int, int]  # packet identifier -> counter of the origin
    picks: dict[int, list[SharePick]]  # packet identifier -> picks of its shared copies
    retained_origins: dict[tuple[int, int, int], tuple[int, ...]]  # just delivered -> subscription identifiers
    runs: list[list[int]]  # [session_seq, packet identifier, count]: identifiers given ahead
    given: deque[tuple[int, int]]  # [seq after its last entry, operation]: uncommitted runs
    ready: deque[QueueEntry]  # the first queued entries, in memory

    def __init__(self, number: int, client_id: str) -> None:
        super().__init__(number)
        self.client_id = client_id
        self.owner = ""  # user, with the policy_epoch at which it was made
        self.owner_made = 0
        self.judged = 0  # number of the rules that granted its filters; 0: unknown
        self.recheck_below = 0  # entries below it were queued under rights that may be revoked
        self.expiry_s = 0
        self.connection = 0
        self.protocol_version = 4
        self.session_present = False
        self.copies_to = 0  # queued retained copies are all below it
        self.ephemeral_end = False
        self.next_inbound = 1
        self.unsent_bytes = 0
        self.dropped = 0
        self.shared = False  # an entry may be a group's copy

    def __getattr__(self, name: str) -> Any:
        """Create a part on first access."""
        make = _MADE_LATE.get(name)
        if make is None:
            raise AttributeError(name)
        made = make()
        setattr(self, name, made)
        return made

    def made(self, name: str) -> Any:
        """Return a lazily created part, None if it was never accessed."""
        try:
            return _SLOTS[name](self)
        except AttributeError:
            return None

    @property
    def online(self) -> bool:
        """True while an edge holds the connection."""
        return self.edge != ""

    @property
    def head(self) -> int:
        """session_seq of the oldest unconsumed entry."""
        return next(iter(self.inflight)) if self.made("inflight") else self.push_seq

    def _gaps(self) -> list[int]:
        """Return [start, stop) pairs, flat, of consumed entries above the head: drops and early PUBACKs leave them."""
        if not self.made("inflight"):
            return []
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
    def is_judged(self) -> bool:
        """Whether no queued entry has to be authorized again."""
        return self.recheck_below <= self.head

    @property
    def queued(self) -> int:
        """Unconsumed entries: waiting and in flight."""
        return len(self.made("sizes") or ()) + len(self.made("inflight") or ())

    def bound_queue(self, messages_max: int, bytes_max: int) -> None:
        """Set queue bounds of this session in addition to the partition's; 0: none."""
        self.queue_bounds = (messages_max, bytes_max) if messages_max or bytes_max else None

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
            self.identifiers.last if self.made("identifiers") is not None else self.last_identifier,
            self.next_inbound,
            self.dropped,
            self.edge,
            self.incarnation,
            self.connection,
            self.ephemeral_end,
            self.protocol_version,
            self.window,
            self.session_present,
            self._given_runs(),
            self._overtaken(),
            self.owner,
            self.owner_made,
            self.judged,
            self.recheck_below,
            *(self.queue_bounds or (0, 0)),
        )

    def _overtaken(self) -> dict[bytes, int]:
        """Return the topics with queued copies that are older than a sent message."""
        if not self.made("overtaken"):
            return {}
        head = self.head
        self.overtaken = {topic: seq for topic, seq in self.overtaken.items() if seq > head}
        return self.overtaken

    def _given_runs(self) -> list[int]:
        """Return the runs with an in-flight entry, flat."""
        if not self.made("runs"):
            return []
        head = self.head
        self.runs = [run for run in self.runs if run[0] + run[2] > head]
        if len(self.runs) > RUNS_MANY:
            starts = [run[0] for run in self.runs]
            named = {bisect_right(starts, session_seq) - 1 for session_seq in self.inflight}
            self.runs = [run for index, run in enumerate(self.runs) if index in named]
        return [number for run in self.runs for number in run]

    @classmethod
    def from_row(cls, number: int, row: SessionRow) -> "DurableSession":
        """Return the session of a row; its queue is restored by ``restore_entry`` in seq order."""
        session = cls(number, row.client_id)
        session.owner_epoch = row.owner_epoch
        session.expiry_s = row.expiry_s
        session.deadline = row.deadline
        session.next_seq = max(row.next_seq, row.head)
        session.push_seq = row.head
        session.last_identifier = row.last_identifier
        session.next_inbound = row.next_inbound
        session.dropped = row.dropped
        session.edge = row.edge
        session.incarnation = row.incarnation
        session.connection = row.connection
        session.ephemeral_end = row.ephemeral_end
        session.protocol_version = row.protocol_version
        session.window = row.window
        session.session_present = row.session_present
        session.owner = row.owner
        session.owner_made = row.owner_made
        session.judged = row.judged
        session.recheck_below = row.recheck_below
        session.bound_queue(row.queue_messages_max, row.queue_bytes_max)
        given = row.given
        if given:
            session.runs = [given[at : at + 3] for at in range(0, len(given), 3)]
        session.copies_to = COPIES_UNKNOWN
        session.shared = True
        if row.overtaken:
            session.overtaken = row.overtaken
        return session

    def given_identifier(self, session_seq: int) -> int:
        """Return an entry's identifier from the runs, 0 if it is in none."""
        runs = self.made("runs")
        at = bisect_right(runs, session_seq, key=itemgetter(0)) if runs else 0
        if not at:
            return 0
        first, identifier, count = runs[at - 1]
        return int(identifier + session_seq - first) if session_seq < first + count else 0

    def restore_inflight(self, session_seq: int, flight: InFlight) -> None:
        """Restore an in-flight message from disk, in seq order.

        An entry newer than the session row got its identifier after the row's last one. Allocation continues after it:
        a consumed entry's identifier is free, but the session row records that later.
        """
        self.inflight[session_seq] = flight
        self.identifiers.claim(flight.packet_identifier)
        if session_seq >= self.next_seq:
            self.identifiers.last = flight.packet_identifier
        self.queue_bytes += flight.size
        self.next_seq = max(self.next_seq, session_seq + 1)
        self.push_seq = max(self.push_seq, session_seq + 1)

    def restore_waiting(self, session_seq: int, size: int) -> None:
        """Restore a queued entry that was never sent, from disk, in seq order."""
        if not self.sizes:
            self.push_seq = session_seq
        self.sizes.append(size)
        self.queue_bytes += size
        self.next_seq = max(self.next_seq, session_seq + 1)

    def finish_restore(self) -> None:
        """Set ``push_seq`` after all entries are restored. The rights that queued them are unknown."""
        if not self.made("sizes"):
            self.push_seq = self.next_seq
        self.recheck_below = self.next_seq

    def begin(self, entry: QueueEntry, size: int) -> InFlight:
        """Give the entry its packet identifier; it enters the outbound window at once."""
        flight = self._identify(entry, size)
        flight.sent = True
        self.enter_window(flight)
        return flight

    def give(self, entry: QueueEntry, size: int) -> None:
        """Give the entry its packet identifier, in a run of the session row; it enters the window later."""
        flight = self._identify(entry, size)
        session_seq = entry.session_seq
        run = self.runs[len(self.runs) - 1] if self.runs else [0, 0, 0]
        if run[0] + run[2] == session_seq and run[1] + run[2] == flight.packet_identifier:
            run[2] += 1
        else:
            self.runs.append([session_seq, flight.packet_identifier, 1])
        self.unsent.append((session_seq, entry, size))
        self.unsent_bytes += size

    def _identify(self, entry: QueueEntry, size: int) -> InFlight:
        packet_identifier = self.identifiers.allocate()
        assert packet_identifier is not None  # far fewer are given than exist
        flight = InFlight(packet_identifier, entry.qos, STATE_SENT, size, False, entry.body, sent=False)
        self.inflight[entry.session_seq] = flight
        return flight

    def enter_window(self, flight: InFlight) -> None:
        """Add the message to the window of this connection."""
        if not flight.out:
            flight.out = True
            self.out += 1
            self.out_bytes += flight.size

    def next_unsent(self) -> tuple[int, InFlight, QueueEntry | None] | None:
        """Return the next in-flight message not sent on this connection; None if there is none."""
        while self.unsent:
            session_seq, entry, size = self.unsent.popleft()
            self.unsent_bytes -= size
            flight = self.inflight.get(session_seq)
            if flight is not None and not flight.out:
                return session_seq, flight, entry
        return None

    def unbind(self) -> None:
        """Clear the window and the bodies in memory: the connection ended or is replaced."""
        if self.made("ready"):
            self.ready.clear()
        if self.made("unsent"):
            self.unsent.clear()
        self.unsent_bytes = 0
        self.out = self.out_bytes = 0
        if self.made("inflight"):
            for flight in self.inflight.values():
                flight.out = False

    def consume(self, session_seq: int) -> InFlight | None:
        """Remove an acknowledged entry; None if it was not in flight."""
        flight = self.inflight.pop(session_seq, None)
        if flight is None:
            return None
        self.identifiers.release(flight.packet_identifier)
        if flight.out:
            self.out -= 1
            self.out_bytes -= flight.size
        if flight.stored:
            self.stored_rows.add(session_seq)
        self.forget(session_seq, flight.size)
        return flight

    def drop_oldest_waiting(self) -> int:
        """Remove the oldest entry that was never sent and return its session_seq.

        Raises:
            IndexError: The queue has no such entry.
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

    def received(self, flight: InFlight) -> None:
        """Keep only the packet identifier of a message after PUBREC."""
        flight.state = STATE_RELEASED
        flight.stored = True
        self.enter_window(flight)
        self.out_bytes -= flight.size - ENTRY_OVERHEAD_BYTES
        self.queue_bytes -= flight.size - ENTRY_OVERHEAD_BYTES
        flight.size = ENTRY_OVERHEAD_BYTES

    def forget(self, session_seq: int, size: int) -> None:
        """Count an entry as consumed; its row is deleted with the next batch of acknowledgements."""
        self.queue_bytes -= size
        self.acked_rows.append(session_seq)


_MADE_LATE: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("inbound", "live_retained", "picks", "retained_origins"), dict),
    **dict.fromkeys(("overtaken", "subscriptions"), dict),
    **dict.fromkeys(("given", "ready"), deque),
    "runs": list,
    "partial": set,
}
_SLOTS: dict[str, Callable[[DurableSession], Any]] = {
    **{name: getattr(DurableSession, name).__get__ for name in _MADE_LATE},
    **{name: attrgetter("_" + name) for name in ("acked_rows", "identifiers", "inflight")},
    **{name: attrgetter("_" + name) for name in ("sizes", "stored_rows", "unsent")},
}
