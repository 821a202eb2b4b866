"""Purges of queues by an operator, in slices; the reply leaves after the operation of the last entries.

Entries newer than the order stay. If the client is connected, only queued entries without a packet identifier are
dropped. If it is not, in-flight ones are dropped too, except those with a received PUBREC: the client has them. A new
primary does not resume a purge, and the order gets no reply then.
"""

from itertools import islice

from msgspec.structs import replace

from storage.messages.consumed import Consumed
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import STATE_RELEASED, decode_entry
from storage.state.timers import PurgeQueue
from wire.messages.orders import NodeOrdered, OrderNode

__all__ = ["Purges"]

ENTRIES_AT_ONCE = 50
ENTRIES_PER_STEP = 2


class Purges:
    """Purges queues of one partition.

    Args:
        partition: The partition of the queues.
        consumed: Deletes the rows of dropped entries.
    """

    def __init__(self, partition: Partition, consumed: Consumed) -> None:
        self._partition = partition
        self._consumed = consumed

    def begin(self, session: DurableSession, router: str, order: OrderNode) -> None:
        """Start a purge of a session's queue, with a reply to the router."""
        self._partition.work.append(PurgeQueue(session.number, session.next_seq, router, order.request, order.actor))

    def resume(self, work: PurgeQueue) -> int:
        """Drop some entries; return the steps of about ten microseconds that it took."""
        partition = self._partition
        session = partition.sessions.get(work.session)
        wanted = self._wanted(session, work.below) if session is not None else []
        if session is not None and wanted:
            for session_seq in wanted:
                self._drop(session, session_seq)
            self._consumed.save(session)
        dropped = work.dropped + len(wanted)
        if len(wanted) == ENTRIES_AT_ONCE:
            partition.work.append(replace(work, dropped=dropped))
        else:
            client_id = session.client_id if session is not None else ""
            partition.note("purge", "operator", client_id, detail=f"{dropped} entries, by {work.actor}")
            partition.send_control(work.router, NodeOrdered(work.request, 1, [f"entries {dropped}"]))
        return 1 + len(wanted) // ENTRIES_PER_STEP

    def _wanted(self, session: DurableSession, below: int) -> list[int]:
        """Return the next entries to drop, the oldest first."""
        waiting = range(session.push_seq, min(below, session.push_seq + len(session.sizes)))
        if session.edge:
            return [*waiting[:ENTRIES_AT_ONCE]]
        in_flight = (
            session_seq
            for session_seq, flight in session.inflight.items()
            if session_seq < below and flight.state != STATE_RELEASED
        )
        begun = [*islice(in_flight, ENTRIES_AT_ONCE)]
        return [*begun, *waiting[: ENTRIES_AT_ONCE - len(begun)]]

    def _drop(self, session: DurableSession, session_seq: int) -> None:
        partition = self._partition
        flight = session.inflight.get(session_seq)
        if partition.ledger is not None:
            partition.ledger.dropped("dropped", session.number, session_seq, "purged")
        if flight is not None:
            body = flight.body
            session.consume(session_seq)
        else:
            value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
            body = decode_entry(session_seq, value).body if value is not None else 0
            session.drop_oldest_waiting()
        session.dropped += 1
        partition.count("dropped_purged")
        self._consumed.note(session, body)
