"""Entries that clients have finished: counted at once, told to the store in batches.

A consumed entry's rows go with the session row that says so, ``acks_per_row`` of them together or after
``ack_delay_s``; until then a restart sends them again, as repeats (docs/adr/0009-key-order-and-sstables.md).
"""

from storage.messages.bodies import Bodies
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.timers import SaveAcks

__all__ = ["Consumed"]

ROWS_PER_STEP = 4


class Consumed:
    """Consumed entries of one partition's sessions whose rows still stand."""

    def __init__(self, partition: Partition, bodies: Bodies) -> None:
        self._partition = partition
        self._bodies = bodies
        self._lazy: dict[int, DurableSession] = {}  # sessions with consumed entries not yet saved
        self.saving: dict[int, DurableSession] = {}  # those of them that have waited long enough: for ``save_some``

    def note(self, session: DurableSession, body: int) -> None:
        """An entry of the session was consumed, or dropped; ``body`` is the shared one that it named, 0 for none."""
        if body:
            self._bodies.release(body)
            self.save(session)  # no row may outlive the body that it names
        elif len(session.acked_rows) >= self._partition.settings.acks_per_row:
            self.save(session)
        elif session.number not in self._lazy and session.number not in self.saving:
            self._lazy[session.number] = session
            if len(self._lazy) == 1:
                partition = self._partition
                partition.set_timer(partition.deadline_in(partition.settings.ack_delay_s), SaveAcks())

    def save(self, session: DurableSession) -> None:
        """Write the session's cumulative acknowledgement and delete the rows it covers."""
        partition = self._partition
        for session_seq in session.acked_rows:
            partition.delete(keys.queue_key(partition.number, session.number, session_seq))
            if session_seq in session.stored_rows:
                partition.delete(keys.inflight_key(partition.number, session.number, session_seq))
        if partition.ledger is not None:
            partition.ledger.finished(session.number, session.acked_rows)
        session.acked_rows.clear()
        session.stored_rows.clear()
        partition.touch(session)
        self.forget_session(session)

    def begin_to_save(self) -> None:
        """Let ``save_some`` save what has waited for ``ack_delay_s``."""
        self.saving |= self._lazy
        self._lazy = {}

    def save_some(self, steps_max: int) -> int:
        """Save what has waited; return the steps of about ten microseconds that it took."""
        steps = 0
        while self.saving and steps < steps_max:
            session = self.saving.pop(next(iter(self.saving)))
            if session.acked_rows:
                steps += 1 + len(session.acked_rows) // ROWS_PER_STEP
                self.save(session)
        return steps

    def forget_session(self, session: DurableSession) -> None:
        """No acknowledgement of the session is pending any more."""
        self._lazy.pop(session.number, None)
        self.saving.pop(session.number, None)
