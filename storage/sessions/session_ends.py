"""The end of stored sessions: a small one is deleted in one operation, a large one in slices.

A session that ends in slices is marked first, in its row: it cannot be resumed and gets no messages. A later primary
that finds the mark continues. A CONNECT that replaces the session is answered when it is deleted completely
(``ownership``). Decision: docs/adr/0023-work-in-slices.md.
"""

from collections.abc import Callable
from itertools import islice

from storage.messages.delivery import PartitionDelivery
from storage.sessions.subscriptions import Subscriptions
from storage.state import keys
from storage.state.durable_sessions import ENDING, DurableSession
from storage.state.partition import Partition
from storage.state.rows import NEVER
from storage.state.timers import EndSession
from wire.messages.batches import OriginKind

__all__ = ["FILTERS_AT_ONCE", "ROWS_AT_ONCE", "SessionEnds"]

END_STEPS = 5  # of about ten microseconds, for a session, in addition to
ROWS_PER_STEP = 2  # filters and queue rows per step
FILTERS_AT_ONCE = 50  # of an ending session: a third of a millisecond, and as many rows for the disk
ROWS_AT_ONCE = 100  # of its queue, and of its QoS 2 packet identifiers


class SessionEnds:
    """Sessions of one partition that end.

    Args:
        partition: The partition of the sessions.
        delivery: Its messages.
        subscriptions: Its subscriptions.
        over: Called with each client ID whose session ends, in the operation that records it.
    """

    def __init__(
        self,
        partition: Partition,
        delivery: PartitionDelivery,
        subscriptions: Subscriptions,
        over: Callable[[str], None],
    ) -> None:
        self._partition = partition
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._over = over

    def is_small(self, session: DurableSession) -> bool:
        """Return whether one operation may delete the rest of a session."""
        if len(session.made("subscriptions") or ()) > FILTERS_AT_ONCE or session.queued > ROWS_AT_ONCE:
            return False
        return len(session.made("inbound") or ()) <= ROWS_AT_ONCE

    def end(self, session: DurableSession) -> bool:
        """End a session without connection: now if it is small, else in slices. Return whether it is deleted."""
        if self.is_small(session):
            self.delete(session)
            return True
        self._mark(session)
        self._partition.work.appendleft(EndSession(session.number))
        return False

    def goes_on(self, session: DurableSession) -> bool:
        """Return whether a marked session still has rows after deleting a small rest."""
        if self.is_small(session):
            self.delete(session)
            return False
        self._partition.work.appendleft(EndSession(session.number))  # a CONNECT waits for it now
        return True

    def resume(self, session: DurableSession) -> tuple[int, bool]:
        """Delete a session, or a part of a large one.

        Return the steps that this took, and whether rows are left.
        """
        if self.is_small(session):
            steps = END_STEPS + (len(session.subscriptions) + session.queued + len(session.inbound)) // ROWS_PER_STEP
            self.delete(session)
            return steps, False
        self._mark(session)
        if len(session.subscriptions) > FILTERS_AT_ONCE:
            self._subscriptions.drop_some(session, FILTERS_AT_ONCE)
            return END_STEPS + FILTERS_AT_ONCE // ROWS_PER_STEP, True
        if session.queued > ROWS_AT_ONCE:
            self._delivery.drop_some(session, ROWS_AT_ONCE)
            self._partition.touch(session)
        else:
            self._drop_inbound(session, ROWS_AT_ONCE)
        return END_STEPS + ROWS_AT_ONCE // ROWS_PER_STEP, True

    def _mark(self, session: DurableSession) -> None:
        if session.deadline == ENDING:
            return
        self._partition.note_claims()
        self._note(session)
        self._over(session.client_id)
        if self._partition.ledger is not None:
            self._partition.ledger.ended(session.number)
        session.deadline = ENDING
        self._subscriptions.ends(session)
        self._delivery.targets.forget_session(session)
        self._partition.touch(session)

    def _note(self, session: DurableSession) -> None:
        over = NEVER < session.deadline <= self._partition.served_ms
        detail = f"{session.queued} messages in its queue"
        self._partition.note("session_end", "expired" if over else "ended", session.client_id, detail=detail)

    def delete(self, session: DurableSession) -> None:
        """Delete every row of a session; its number is never used again."""
        partition = self._partition
        partition.note_claims()
        marked = session.deadline == ENDING
        if not marked:
            self._note(session)
            self._over(session.client_id)
        self._delivery.consumed.save(session)
        if partition.ledger is not None and not marked:
            partition.ledger.ended(session.number)
        self._delivery.drop_queue(session)
        self._subscriptions.drop_session(session)
        self._delivery.forget_session(session)
        self._drop_inbound(session, len(session.inbound))
        partition.delete(keys.session_key(partition.number, session.number))
        partition.touched.pop(session.number, None)
        del partition.sessions[session.number]
        del partition.by_client[session.client_id]
        partition.count_owned(session.owner, -1)
        self._delivery.origins.forget_sender(OriginKind.SESSION, session.number)

    def _drop_inbound(self, session: DurableSession, most: int) -> None:
        partition = self._partition
        for packet_identifier in sorted(islice(session.inbound, most)):
            partition.delete(keys.inbound_key(partition.number, session.number, packet_identifier))
            del session.inbound[packet_identifier]
