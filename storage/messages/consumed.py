"""Entries that clients have acknowledged: counted at once, deleted from the store in batches.

The rows of consumed entries are deleted with the session row that records it: ``acks_per_row`` of them together, with
the partition's next operation after ``RIDE_AFTER_S``, or in an operation of their own after ``ack_delay_s``. After a
restart before that they are sent again, as repeats (docs/adr/0043-acknowledgements-ride.md).
"""

from itertools import islice

from storage.messages.bodies import Bodies
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.timers import SaveAcks

__all__ = ["Consumed"]

ROWS_PER_STEP = 4
RIDE_AFTER_S = 0.2  # a lower value would write a session row for every few acknowledgements of a busy session
RIDERS_MAX = 32  # sessions, with one operation
GRID_S = 0.25  # of the node's clock: partitions save in the same iterations


class Consumed:
    """Consumed entries of one partition's sessions whose rows are not deleted yet."""

    def __init__(self, partition: Partition, bodies: Bodies) -> None:
        self._partition = partition
        self._bodies = bodies
        self.lazy: dict[int, DurableSession] = {}  # sessions with consumed entries not yet saved
        self._since = 0.0  # time of the first of them
        self._timed = False  # a SaveAcks timer is set
        self.saving: dict[int, DurableSession] = {}  # sessions whose delay has passed: for ``save_some``

    def note(self, session: DurableSession, body: int) -> None:
        """Record that an entry was consumed or dropped; ``body`` is its shared body, 0 for none."""
        if body:
            self._bodies.release(body)
            self.save(session)  # no row may outlive the body that it references
        elif len(session.acked_rows) >= self._partition.settings.acks_per_row:
            self.save(session)
        elif session.number not in self.lazy and session.number not in self.saving:
            if not self.lazy:
                self._since = self._partition.now
            self.lazy[session.number] = session
            if not self._timed:
                self._set_timer()

    def _set_timer(self) -> None:
        partition = self._partition
        self._timed = True
        due = (1 + (self._since + partition.settings.ack_delay_s) // GRID_S) * GRID_S
        partition.set_timer(partition.deadline_in(due - partition.now), SaveAcks())

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

    def ride(self) -> None:
        """Save acknowledgements older than ``RIDE_AFTER_S`` with an operation that is written anyway."""
        if self.lazy and self._partition.now >= self._since + RIDE_AFTER_S:
            for session in list(islice(self.lazy.values(), RIDERS_MAX)):
                self.save(session)

    def begin_to_save(self) -> None:
        """Move sessions whose ``ack_delay_s`` has passed to ``saving``; later ones keep waiting."""
        self._timed = False
        if self._partition.now >= self._since + self._partition.settings.ack_delay_s:
            self.saving |= self.lazy
            self.lazy = {}
        elif self.lazy:
            self._set_timer()

    def save_some(self, steps_max: int) -> int:
        """Save sessions from ``saving``; return the steps of about ten microseconds that it took."""
        steps = 0
        while self.saving and steps < steps_max:
            session = self.saving.pop(next(iter(self.saving)))
            if session.acked_rows:
                steps += 1 + len(session.acked_rows) // ROWS_PER_STEP
                self.save(session)
        return steps

    def forget_session(self, session: DurableSession) -> None:
        """Remove a session without pending acknowledgements."""
        self.lazy.pop(session.number, None)
        self.saving.pop(session.number, None)
