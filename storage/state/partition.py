"""One partition at its primary: state in memory, the operation being built, and outputs gated by commits.

An *operation* is the set of changes of one group commit to the partition: a dict of writes that becomes one log row,
stamped (partition_epoch, op_index). Outputs of an event are emitted *behind* the operation being built. They leave
when that operation is committed: synced here and on every in-sync replica (docs/protocol.md section 9). So responses,
pushes and origins never show uncommitted state, and a repeat is not acknowledged before its original.

Elsewhere: the writes of each event (``delivery``, ``ownership``, ``subscriptions``, ``retained``), replication
(``replication``), group commit (``core``, ``service``).
"""

from collections import deque
from heapq import heappop, heappush
from typing import Protocol

import msgspec

from mqtt.topic_trie import TopicTrie
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.ledger import PartitionLedger
from storage.state.queue_ages import QueueAges
from storage.state.row_lists import cut
from storage.state.rows import LocalRow, LogRow, MetaRow, decode_entry, pack
from storage.state.settings import PartitionSettings
from storage.state.timers import Timer, Work
from storage.state.tracing import Tracing
from storage.state.user_sums import UserSums
from wire.messages.connects import ConnectAnswer, encode_record
from wire.messages.control import Control, encode_control
from wire.messages.frames import FrameKind
from wire.queries.journal import Journal

__all__ = ["NO_REPLICA", "QOS0_BYTES_MAX", "Output", "Overlay", "Partition", "Reads"]

NO_REPLICA = 1 << 62  # an op_index above all
CLOCK_SAVED_S = 10.0  # maximum lag of the served clock after a crash, while deadlines are pending
LOG_ROWS_TRIMMED = 4  # maximum per operation: twice the usual number of rows that an operation adds
# Of QoS 0 outputs that wait for a commit: the in-sync copies may be too few for hours
QOS0_BYTES_MAX = 4 * 1024 * 1024
LOG_ROW_BYTES = 512 * 1024  # of writes in one log row; a store's value is at most 1 MiB

Output = tuple[str, int, bytes]  # node, FrameKind, payload (whole records)
Overlay = dict[bytes, tuple[int, bytes | None]]  # written and not yet in the store: key -> batch, value


class Reads(Protocol):
    """Reads of a partition from its store."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent."""

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to limit rows of [start, stop) in key order."""


class Partition:
    """State and operation builder of one partition at its primary."""

    def __init__(self, number: int, settings: PartitionSettings, store: Reads, overlay: Overlay, now: float) -> None:
        self.number = number
        self.settings = settings
        self.store = store
        self.overlay = overlay
        self.epoch = 0  # partition_epoch of this primary
        self.since = 0  # partition_epoch since which this node has been primary without a break
        self.meta = MetaRow()
        self.local = LocalRow()
        # Every replica has the operations up to this op_index: the log may be trimmed to it
        self.log_needed = NO_REPLICA
        self.sessions: dict[int, DurableSession] = {}
        self.by_client: dict[str, DurableSession] = {}
        self.sessions_of: dict[str, int] = {}  # by owning user; sessions without an owner are not counted
        self.sums = UserSums()  # of the node's users; private until the partition is added to a node
        self.trie = TopicTrie()
        self.body_references: dict[int, int] = {}
        self.owner_counter = 0
        self.writes: dict[bytes, bytes | None] = {}
        self.touched: dict[int, DurableSession] = {}  # sessions with a row to write in this operation
        self.replicas: frozenset[str] = frozenset()  # other nodes whose sync a commit requires
        self.synced: dict[str, int] = {}  # per replica, and "" for this node: highest op_index synced
        self.commit_index = 0
        self.acknowledges = True  # False while fewer than the minimum are in sync
        self.counts: dict[str, int] = {}
        self.ages = QueueAges()
        self.crowded = False  # set when an entry of a connected session waits for an open window; its node clears it
        self.ledger: PartitionLedger | None = None
        self.journal: Journal | None = None
        self.tracing: Tracing | None = None
        self.building = 1  # number of the operation being built, local to this incarnation
        self.released = 0  # outputs of operations up to this number have left
        self._claims_after = 0  # the newest operation that changed owners of client IDs or their stored state
        self._outputs: list[Output] = []
        self._at_once: list[Output] = []
        # Number, topic, origin: of traced messages
        self._traced_commits: deque[tuple[int, bytes, tuple[int, int, int]]] = deque()
        self._gated: deque[tuple[int, int, list[Output], int]] = deque()  # op_index, number, outputs, bytes of QoS 0
        self._qos0_bytes = 0  # bytes of QoS 0 behind the operation being built
        self._gated_qos0_bytes = 0  # and behind those that are not committed
        self.work: deque[Work] = deque()  # executed in slices, in order, like due timers
        self._timers: list[tuple[int, int, Timer]] = []  # deadline, number, timer: a heap
        self._timer_number = 0
        self._running_since = now
        self._now = now
        self._saved_at = now
        self._local_saved = LocalRow()

    # --- owners

    def give(self, session: DurableSession, user: str, made: int) -> None:
        """Assign a session to a user, replacing its former owner."""
        self.count_owned(session.owner, -1)
        session.owner, session.owner_made = user, made
        self.count_owned(user, 1)

    def count_owned(self, user: str, by: int) -> None:
        """Change the number of a user's sessions by ``by``."""
        if not user:
            return
        if count := self.sessions_of.get(user, 0) + by:
            self.sessions_of[user] = count
        else:
            self.sessions_of.pop(user, None)
        self.sums.add_sessions(user, by)

    # --- time

    def tick(self, now: float, *, running: bool = True) -> None:
        """Advance the time to ``now``; the served clock advances only with ``running``."""
        if not running:
            self._running_since += now - self._now
        self._now = now

    @property
    def now(self) -> float:
        """Monotonic seconds of the current event."""
        return self._now

    @property
    def served_ms(self) -> int:
        """The served clock: milliseconds that primaries have served this partition, over all primaries."""
        return self.meta.served_ms + int((self._now - self._running_since) * 1000)

    def deadline_in(self, seconds: float) -> int:
        """Return the served clock's value in that many seconds."""
        return self.served_ms + max(1, int(seconds * 1000))

    def set_timer(self, deadline: int, timer: Timer) -> None:
        """Set a timer for a served-clock time; the handler checks whether it is still valid."""
        self._timer_number += 1
        heappush(self._timers, (deadline, self._timer_number, timer))

    def due(self) -> Timer | None:
        """Return the next timer that is due, None if there is none."""
        if self._timers and self._timers[0][0] <= self.served_ms:
            return heappop(self._timers)[2]
        return None

    def next_due_s(self) -> float | None:
        """Return seconds until the next timer, None if there is none."""
        if not self._timers:
            return None
        return max(0.0, (self._timers[0][0] - self.served_ms) / 1000)

    # --- the operation being built

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row with this operation."""
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a row with this operation."""
        self.writes[key] = None

    def get(self, key: bytes) -> bytes | None:
        """Return a row as this operation sees it: from its writes, the overlay of unsynced batches, or the store."""
        if key in self.writes:
            return self.writes[key]
        if key in self.overlay:
            return self.overlay[key][1]
        return self.store.get(key)

    def touch(self, session: DurableSession) -> None:
        """Write the session's row with this operation."""
        self.touched[session.number] = session

    def count(self, what: str, amount: int = 1) -> None:
        """Count an event of this partition (dropped entries by reason, repeats ...)."""
        self.counts[what] = self.counts.get(what, 0) + amount

    def note(
        self,
        event: str,
        reason: str,
        client_id: str = "",
        topic: bytes = b"",
        origin: tuple[int, int, int] = (0, 0, 0),
        detail: str = "",
    ) -> None:
        """Record an event in the journal and the traces."""
        if self.tracing is not None and self.tracing.active:
            self.tracing.noted(self.number, event, reason, client_id, topic, origin, detail)
        if self.journal is not None:
            text = topic.decode("utf-8", "replace")
            self.journal.note(event, reason, client_id, text, origin, detail or f"partition {self.number}")

    def find_entry(self, session: DurableSession, session_seq: int, reason: str) -> tuple[bytes, tuple[int, int, int]]:
        """Return topic and origin of an entry that is dropped; b"" if no trace and no journal entry needs them."""
        known = b"", (0, 0, 0)
        if self.tracing is not None and self.tracing.active:
            known = self.tracing.find_entry(session, session_seq)
        if known[0] or self.journal is None or not self.journal.wants("drop", reason, session.client_id):
            return known
        value = self.get(keys.queue_key(self.number, session.number, session_seq))
        if value is None:
            return known
        entry = decode_entry(session_seq, value)
        return entry.topic, (entry.origin_kind, entry.origin_a, entry.origin_b)

    def emit(self, node: str, kind: int, payload: bytes) -> None:
        """Send whole records to a node once this operation is committed."""
        self._outputs.append((node, kind, payload))

    def push(self, session: DurableSession, payload: bytes, *, settled: bool = False) -> None:
        """Send a record to a session's connection, in call order, once its operation is committed.

        Args:
            session: Connected.
            payload: A PUSH record.
            settled: Its content was committed before: it need not wait, unless an earlier push does.
        """
        if settled and session.behind <= self.released:
            self._at_once.append((session.edge, FrameKind.PUSH, payload))
        else:
            session.behind = self.building
            self._outputs.append((session.edge, FrameKind.PUSH, payload))

    def push_unqueued(self, session: DurableSession, payload: bytes) -> bool:
        """Send a PUSH record of QoS 0 likewise; return False, without sending, if too many bytes wait for a commit."""
        if self._qos0_bytes + self._gated_qos0_bytes + len(payload) > QOS0_BYTES_MAX:
            return False
        self._qos0_bytes += len(payload)
        self.push(session, payload)
        return True

    def send_control(self, node: str, message: Control) -> None:
        """Send a control message to a node once this operation is committed."""
        if node:
            self._outputs.append((node, FrameKind.CONTROL, encode_control(message)))

    def answer(self, node: str, answer: ConnectAnswer) -> None:
        """Send a reply to a claim or a report to an edge, once this operation is committed."""
        self.note_claims()
        self._outputs.append((node, FrameKind.CONNECT_ANSWERS, encode_record(answer)))

    def note_claims(self) -> None:
        """Mark that the operation being built changes the owner or the stored state of a client ID."""
        self._claims_after = self.building

    def close_operation(self) -> list[tuple[bytes, bytes | None]]:
        """Close the operation being built; return its writes with log row and META row, none if nothing changed.

        Outputs of an operation without writes wait for the operation before it.
        """
        if self.touched:
            for number in sorted(self.touched):
                session = self.touched[number]
                if number in self.sessions:
                    self.writes[keys.session_key(self.number, number)] = pack(session.row())
            self.touched.clear()
        if not self.writes and not self.clock_due:
            if self.ledger is not None:
                self.ledger.close(self.epoch, self.meta.op_index)
            self._gate(self.meta.op_index)
            return []
        meta = self.meta
        pieces = cut(self.writes, LOG_ROW_BYTES)  # outputs leave only after the last piece is committed
        previous_epoch, meta.partition_epoch = meta.partition_epoch, self.epoch
        served_ms = self.served_ms  # whole milliseconds are saved, the rest continues
        self._running_since += (served_ms - meta.served_ms) / 1000
        meta.served_ms = served_ms
        meta.op_index += len(pieces)
        self._saved_at = self._now
        pieces[-1].append((keys.meta_key(self.number), pack(meta)))
        rows: list[tuple[bytes, bytes | None]] = []
        for op_index, writes in enumerate(pieces, meta.op_index - len(pieces) + 1):
            rows.extend(writes)
            if self.settings.keep_log or self.replicas:
                row = LogRow(self.epoch, op_index, writes, previous_epoch, op_index == meta.op_index)
                previous_epoch = self.epoch
                rows.append((keys.log_key(self.number, op_index), pack(row)))
            else:
                self.local.log_start = op_index + 1
        self.writes = {}
        if self.ledger is not None:
            self.ledger.close(self.epoch, meta.op_index)
        rows.extend(self._trim_log())
        self._gate(meta.op_index)
        return rows

    @property
    def clock_due(self) -> bool:
        """Whether deadlines are pending and the stored served clock is too old to lose.

        An operation is closed then, if only to save it.
        """
        if self._now < self._saved_at + CLOCK_SAVED_S or not (self.sessions or self._timers):
            return False
        return self.served_ms - self.meta.served_ms >= CLOCK_SAVED_S * 1000

    @property
    def clock_deadline(self) -> float:
        """Seconds at which the served clock may have to be saved; infinity without pending deadlines."""
        if not (self.sessions or self._timers):
            return float("inf")
        left_s = CLOCK_SAVED_S - (self.served_ms - self.meta.served_ms) / 1000  # of a clock that may have been stopped
        return max(self._saved_at + CLOCK_SAVED_S, self._now + left_s)

    def _trim_log(self) -> list[tuple[bytes, bytes | None]]:
        local = self.local
        trimmed: list[tuple[bytes, bytes | None]] = []
        excess = self.meta.op_index - self.settings.log_operations_max
        while local.log_start <= min(excess, self.log_needed) and len(trimmed) < LOG_ROWS_TRIMMED:
            trimmed.append((keys.log_key(self.number, local.log_start), None))
            local.log_start += 1
        local.epoch = self.epoch
        if local != self._local_saved:
            self._local_saved = msgspec.structs.replace(local)
            trimmed.append((keys.local_key(self.number), pack(local)))
        return trimmed

    def _gate(self, op_index: int) -> None:
        assert not self._gated or self._gated[-1][0] <= op_index, "an output overtakes an older operation"
        self._gated.append((op_index, self.building, self._outputs, self._qos0_bytes))
        self._gated_qos0_bytes += self._qos0_bytes
        self._outputs, self._qos0_bytes = [], 0
        self.building += 1

    # --- commit

    def note_synced(self, node: str, op_index: int) -> None:
        """Record that a replica ("" for this node) has synced every operation up to this one."""
        if op_index > self.synced.get(node, 0):
            self.synced[node] = op_index
        self.settle_commit_index()

    def settle_commit_index(self) -> None:
        """Raise the commit index to the lowest index synced here and on every in-sync replica, if they are enough."""
        if not self.acknowledges:
            return
        lowest = self.synced.get("", 0)
        for replica in self.replicas:
            lowest = min(lowest, self.synced.get(replica, 0))
        self.commit_index = max(self.commit_index, lowest)

    def committed_outputs(self) -> list[Output]:
        """Return the outputs that may leave now, in order.

        Not called in every iteration: ungated outputs wait here while the node has no lease. They go first: no output
        of their session waited for a commit when they were pushed, so gated ones came later.
        """
        assert self.commit_index <= self.synced.get("", 0), "an operation counts as committed, and is not on disk here"
        gated = self._gated
        outputs, self._at_once = self._at_once, []
        while gated and gated[0][0] <= self.commit_index:
            _, self.released, released, unkept = gated.popleft()
            outputs.extend(released)
            self._gated_qos0_bytes -= unkept
        if self._traced_commits and self.tracing is not None:
            self._trace_commits(self.tracing)
        return outputs

    def trace_commit(self, topic: bytes, origin: tuple[int, int, int]) -> None:
        """Trace the commit of a message once the operation being built is committed."""
        self._traced_commits.append((self.building, topic, origin))

    def _trace_commits(self, tracing: Tracing) -> None:
        while self._traced_commits and self._traced_commits[0][0] <= self.released:
            _, topic, origin = self._traced_commits.popleft()
            tracing.committed(self.number, self.commit_index, topic, origin, self.replicas)

    @property
    def claims_settled(self) -> bool:
        """Whether no operation that changed claims waits for its commit; operations of messages may."""
        return self._claims_after <= self.released

    @property
    def dirty(self) -> bool:
        """Whether rows were written, sessions touched or outputs emitted since the last operation."""
        return bool(self.writes or self.touched or self._outputs)
