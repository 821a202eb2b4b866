"""Redispatch of a shared group's queued copies when a member loses its right to the group.

Work is divided into slices. An in-flight copy is consumed. A queued copy without a packet identifier keeps its queue
position; its row is marked, and it is not sent. A client's own UNSUBSCRIBE redispatches no copy: deliveries in
progress are completed [MQTT-3.10.4-3]. A new primary does not resume the work. There the edge refuses pushes to that
client (``InFlightEntries``), which redispatches them too.
"""

from itertools import islice

from storage.messages.consumed import Consumed
from storage.messages.outbound import HANDED_ON, InFlightEntries
from storage.messages.redispatch import RedispatchQueue
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import STATE_RELEASED, QueueEntry, decode_entry, encode_entry
from storage.state.timers import GiveUpCopies

__all__ = ["AbandonedCopies"]

ENTRIES_AT_ONCE = 20
ENTRIES_PER_STEP = 2


class AbandonedCopies:
    """Redispatches the unacknowledged copies of members that lose their right to a group."""

    def __init__(
        self, partition: Partition, consumed: Consumed, outbound: InFlightEntries, redispatches: RedispatchQueue
    ) -> None:
        self._partition = partition
        self._consumed = consumed
        self._outbound = outbound
        self._redispatches = redispatches

    def begin(self, session: DurableSession, share: bytes) -> None:
        """Start the redispatch of a session's copies of a group."""
        if session.queued:
            work = GiveUpCopies(session.number, share, session.head, session.next_seq)
            self._partition.work.append(work)

    def resume(self, work: GiveUpCopies) -> int:
        """Redispatch some of the copies; return the steps of about ten microseconds that it took."""
        session = self._partition.sessions.get(work.session)
        if session is None:
            return 1
        begun = [session_seq for session_seq in session.inflight if work.at <= session_seq < work.below]
        waiting = range(max(work.at, session.push_seq), work.below)
        wanted = [*begun[:ENTRIES_AT_ONCE], *islice(waiting, max(0, ENTRIES_AT_ONCE - len(begun)))]
        for session_seq in wanted:
            self._give_up(session, work.share, session_seq)
        if len(begun) + len(waiting) > len(wanted):
            self._partition.work.append(GiveUpCopies(work.session, work.share, wanted[-1] + 1, work.below))
        self._redispatches.send_some()
        return 1 + len(wanted) // ENTRIES_PER_STEP

    def _give_up(self, session: DurableSession, share: bytes, session_seq: int) -> None:
        partition = self._partition
        flight = session.inflight.get(session_seq)
        if flight is not None and (flight.state == STATE_RELEASED or (flight.qos == 2 and flight.sent)):
            return  # the client may have received it
        key = keys.queue_key(partition.number, session.number, session_seq)
        value = partition.get(key)
        entry = decode_entry(session_seq, value) if value is not None else None
        if entry is None or entry.share != share or entry.handed:
            return
        self._redispatches.keep(entry, self._size_of(session, session_seq))
        partition.count("shares_revoked")
        if partition.ledger is not None:
            partition.ledger.dropped("dropped", session.number, session_seq, HANDED_ON)
        if flight is not None:
            session.consume(session_seq)
            self._consumed.note(session, flight.body)
            self._outbound.freed[session.number] = session
        else:
            self._mark(session, key, entry)

    def _size_of(self, session: DurableSession, session_seq: int) -> int:
        flight = session.inflight.get(session_seq)
        return flight.size if flight is not None else session.sizes[session_seq - session.push_seq]

    def _mark(self, session: DurableSession, key: bytes, entry: QueueEntry) -> None:
        entry.handed = True
        self._partition.put(key, encode_entry(entry))
        at = entry.session_seq - session.push_seq
        if at < len(session.made("ready") or ()):
            session.ready[at].handed = True
