"""The Raft shell: one peer with its disk, clock and queues, for a service with links and a state machine.

It batches (pending proposals share one append and one sync) and keeps the order of effects. A Ready's messages are sent
when it and all before it are synced; a leader's appends are sent at once; committed entries are applied in order. The
protocol is in ``router/raft/core.py``. One fsync at a time runs in a thread, and later writes share the next one. Every
queue is bounded; excess proposals are refused. A disk error is final: the node stops, because a successful retry of
fsync does not prove that the data is on disk.
"""

import itertools
import logging
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from conf.events import say
from router.raft.core import RaftCore
from router.raft.disk_queue import DiskQueue
from router.raft.events import (
    DEFAULT,
    ChangeMembership,
    Event,
    Persisted,
    ProposeBatch,
    RaftConfig,
    RaftReady,
    RaftRole,
    RaftTick,
    ReadIndexEvent,
    Receive,
    Snapshot,
    SnapshotTaken,
    TransferLeadership,
)
from router.raft.inbox import Inbox
from router.raft.messages import NORMAL, Configuration, LogEntry, RaftMessage, check_sender, decode_message
from router.raft.outcomes import NotLeader, Outcomes, ProposalResult, Unavailable
from router.raft.snapshotting import RefusedSnapshot
from router.raft.storage import Storage
from wire.messages.hello import PeerKey

__all__ = ["NotLeader", "RaftNode", "Unavailable"]

logger = logging.getLogger(__name__)

REFUSAL_LOG_S = 10.0  # between two log lines about refused snapshots
MAX_WAITING_PROPOSALS = 10_000  # not applied yet, each with a waiting caller; beyond this: Unavailable("busy")
MAX_MESSAGES_PER_ITERATION = 256  # before the clock is checked again and other tasks run
MAX_WAITING_REQUESTS = 100  # transfers and membership changes
MAX_PROPOSAL_BATCH = 1_024  # entries passed to the core at once; more would delay heartbeats


class RaftNode:
    """One peer. ``await nursery.start(node.run)``, then ``receive``, ``propose`` and ``read_index``."""

    def __init__(
        self,
        config: RaftConfig,
        storage: Storage,
        *,
        send: Callable[[str, RaftMessage], None],
        apply: Callable[[LogEntry], Any],
        take_snapshot: Callable[[], Callable[[], bytes]],
        restore: Callable[[bytes], None],
        snapshot_fault: Callable[[bytes], str] = lambda _: "",
        rng: random.Random,
        incarnation: int,
        on_role: Callable[[RaftRole, str | None], None] | None = None,
        snapshot_every_entries: int = DEFAULT.snapshot_every_entries,
    ) -> None:
        """Load the disk and restore the state machine; send nothing yet.

        Args:
            send: Passes a message to the peer's link without blocking; may drop it.
            apply: Applies a committed entry of kind normal; a local proposer gets its result.
            take_snapshot: Returns a function that encodes, in a thread, the state after the last applied entry.
            restore: Replaces the state machine.
            snapshot_fault: Returns why ``restore`` would raise for a snapshot, "" if it would not.
            incarnation: Not used before by this peer under its storage id.
            on_role: Called after a change of role or leader.
        Raises:
            LogDamaged: This peer must not vote or serve until rebuilt.
        """
        stored = storage.load()
        if stored.snapshot is not None:
            restore(stored.snapshot.data)
        self.core = RaftCore(config, stored, rng, incarnation, snapshot_fault)
        self._send, self._apply, self._take_snapshot, self._restore = send, apply, take_snapshot, restore
        self._on_role = on_role
        self._snapshot_every = snapshot_every_entries
        self._snapshot_index = stored.snapshot.index if stored.snapshot else 0
        self.applied_index = self._snapshot_index

        self._inbox = Inbox()
        self._proposals: deque[tuple[bytes, ProposalResult]] = deque()
        self._requests: deque[tuple[Event, ProposalResult]] = deque()
        self._reads: deque[ProposalResult] = deque()  # not requested yet; requested ones are in _outcomes
        self._outcomes = Outcomes()
        self._contexts = itertools.count(1)
        self._disk = DiskQueue(storage, self._on_disk)
        self._wake = trio.Event()
        self._leader_seen: tuple[RaftRole, str | None] = (RaftRole.FOLLOWER, None)
        self._deadline = -math.inf
        self._stopped = False
        self._read_timeout_s = 4 * config.election_timeout_s
        self._refused_snapshot: RefusedSnapshot | None = None  # the newest that was processed
        self._refusal_logged = -math.inf

    # For the service

    @property
    def is_leader(self) -> bool:
        """Whether this peer has the leader role; only a confirmed read proves leadership."""
        return self.core.role is RaftRole.LEADER

    @property
    def leader_hint(self) -> str | None:
        """The leader as known to this peer, None if unknown."""
        return self.core.leader_hint

    @property
    def configuration(self) -> Configuration:
        """The newest configuration in the log, committed or not."""
        return self.core.configuration

    @property
    def drops(self) -> dict[str, int]:
        """Rejected messages of other routers, by reason."""
        return {**self.core.drops, "inbox_full": self._inbox.dropped}

    def receive_payload(self, peer: PeerKey, payload: bytes) -> None:
        """Decode a message of a link; beyond the sender's bound it is dropped undecoded and counted.

        Raises:
            LinkError, Unreadable: The message is invalid, or names another router.
        """
        if not self._inbox.accepts(peer.node, len(payload)):
            self._inbox.drop()
            return
        message = decode_message(payload)
        check_sender(peer, message)
        self.receive(message, len(payload))

    def receive(self, message: RaftMessage, octets: int = 0) -> None:
        """Queue a message with its size; a link has authenticated ``message.sender``."""
        self._inbox.add(message, octets)
        self._wake.set()

    async def propose(self, data: bytes) -> Any:
        """Replicate and apply one entry; return the result of ``apply``.

        Raises:
            NotLeader: Not appended; retry at ``leader_hint``.
            Unavailable: The result is unknown, except for the reason "busy": not appended.
        """
        outcome = ProposalResult()
        if self._stopped:
            raise Unavailable("stopped")
        if len(self._proposals) + self._outcomes.proposals >= MAX_WAITING_PROPOSALS:
            raise Unavailable("busy")
        self._proposals.append((data, outcome))
        self._wake.set()
        return await outcome.wait()

    async def read_index(self) -> int:
        """Wait until a read of the local state machine is linearizable with all earlier operations.

        Raises:
            Unavailable: No confirmed leader; retry.
        """
        outcome = ProposalResult()
        if self._stopped or len(self._reads) + self._outcomes.reads >= MAX_WAITING_PROPOSALS:
            raise Unavailable("stopped" if self._stopped else "busy")
        self._reads.append(outcome)
        self._wake.set()
        # By then the round or the leader is lost, and lost requests are not repeated.
        with trio.move_on_after(self._read_timeout_s):
            return int(await outcome.wait())
        raise Unavailable("no answer to ReadIndex")

    @property
    def reads_now(self) -> bool:
        """Whether a read is linearizable without a round: we lead as the only voter and have applied all."""
        core = self.core
        return (
            not self._stopped
            and core.role is RaftRole.LEADER
            and list(core.configuration.voters) == [core.id]
            and core.may_read()
            and self.applied_index >= core.commit_index
        )

    async def transfer_leadership(self, to: str) -> None:
        """Start a transfer; raises Unavailable with the core's reason if refused."""
        await self._request(TransferLeadership(to))

    async def change_membership(self, change: ChangeMembership) -> None:
        """Change the group by one member; return when the change is committed.

        Raises:
            NotLeader: Retry at the leader.
            Unavailable: Refused with the core's reason, or the result is unknown.
        """
        await self._request(change)

    async def _request(self, event: Event) -> None:
        outcome = ProposalResult()
        if self._stopped or len(self._requests) >= MAX_WAITING_REQUESTS:
            raise Unavailable("stopped" if self._stopped else "busy")
        self._requests.append((event, outcome))
        self._wake.set()
        await outcome.wait()

    # Tasks

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; all waiting callers then get Unavailable."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._disk.run)
                task_status.started()
                await self._loop()
        finally:
            self._stopped = True
            self._outcomes.fail_all(Unavailable("stopped"))
            for _, outcome in (*self._proposals, *self._requests):
                outcome.fail(Unavailable("stopped"))
            for outcome in self._reads:
                outcome.fail(Unavailable("stopped"))
            self._disk.close()

    async def _loop(self) -> None:
        while True:
            if not (self._inbox or self._proposals or self._requests or self._reads):
                with trio.move_on_at(self._deadline):
                    await self._wake.wait()
            self._wake = trio.Event()
            await trio.lowlevel.checkpoint()  # the deadline may always have passed: let other tasks run
            # Messages before the tick: after a pause of the process, queued heartbeats must count first.
            for _ in range(min(len(self._inbox), MAX_MESSAGES_PER_ITERATION)):
                self._handle(Receive(self._inbox.take()))
            if trio.current_time() >= self._deadline:
                self._handle(RaftTick())
            self._handle_requests()
            self._handle_proposals()

    def _handle_requests(self) -> None:
        while self._requests:
            event, outcome = self._requests.popleft()
            ready = self._handle(event)
            if ready.refused is not None:
                outcome.fail(self._refusal(ready.refused))
            elif ready.proposed is not None:
                self._outcomes.proposed(ready.proposed, self.core.term, outcome)
            else:
                outcome.set(None)
        if self._reads:
            context = next(self._contexts)  # one request for all waiting reads, which started before it
            now = trio.current_time()
            self._outcomes.expire(now)
            self._outcomes.add_reads(context, tuple(self._reads), now + self._read_timeout_s)
            self._reads.clear()
            self._handle(ReadIndexEvent(context))

    def _handle_proposals(self) -> None:
        while self._proposals:
            count = min(len(self._proposals), MAX_PROPOSAL_BATCH)
            batch = [self._proposals.popleft() for _ in range(count)]
            ready = self._handle(ProposeBatch(tuple(data for data, _ in batch)), [outcome for _, outcome in batch])
            if ready.refused is not None:
                for _, outcome in batch:
                    outcome.fail(self._refusal(ready.refused))

    def _refusal(self, reason: str) -> Exception:
        if reason == "not_leader":
            return NotLeader(self.core.leader_hint)
        return Unavailable(reason)

    def _handle(self, event: Event, proposers: list[ProposalResult] | None = None) -> RaftReady:
        ready = self.core.handle(trio.current_time(), event)
        if proposers is not None and ready.proposed is not None:
            for at, outcome in enumerate(proposers):
                self._outcomes.proposed(ready.proposed + at, self.core.term, outcome)
        for message in ready.early_messages:
            self._send(message.to, message)
        if ready.must_persist or (ready.messages and self._disk.busy):
            self._disk.persist(ready)
        else:
            for message in ready.messages:
                self._send(message.to, message)
        self._apply_committed(ready)
        for read in ready.read_states:
            self._outcomes.answered(read.context, read.index, self.applied_index)
        self._deadline = ready.next_deadline
        self._watch_role()
        if self.core.refused_snapshot is not self._refused_snapshot:
            self._log_refused_snapshot()
        return ready

    def _log_refused_snapshot(self) -> None:
        """Log a refused snapshot of a leader, at a limited rate since the leader repeats it."""
        self._refused_snapshot = refused = self.core.refused_snapshot
        now = trio.current_time()
        if refused is not None and now >= self._refusal_logged + REFUSAL_LOG_S:
            self._refusal_logged = now
            say(logger, "raft.snapshot_refused", peer=ascii(refused.sender), index=refused.index, why=refused.fault)

    def _watch_role(self) -> None:
        seen = (self.core.role, self.core.leader_hint)
        if seen == self._leader_seen:
            return
        if self._leader_seen[0] is RaftRole.LEADER and seen[0] is not RaftRole.LEADER:
            # Entries may still commit under the next leader: proposers get that result, or "unknown".
            self._outcomes.fail_proposals()
        self._leader_seen = seen
        if self._on_role is not None:
            self._on_role(*seen)

    def _apply_committed(self, ready: RaftReady) -> None:
        for entry in ready.committed:
            result = self._apply(entry) if entry.kind == NORMAL else None
            self.applied_index = entry.index
            self._outcomes.applied(entry, result)
        if not ready.committed:
            return
        self._outcomes.applied_up_to(self.applied_index)
        if self.applied_index - self._snapshot_index >= self._snapshot_every and not self._disk.saving_snapshot:
            self._begin_snapshot(ready.committed[-1])

    def _begin_snapshot(self, last: LogEntry) -> None:
        self._snapshot_index = last.index
        configuration = self.core.configuration_at(last.index)
        self._disk.save(Snapshot(last.index, last.term, configuration, b""), self._take_snapshot())

    # Disk

    def _on_disk(self, batch: list[RaftReady], own: Snapshot | None) -> None:
        """Send the messages of synced Readies."""
        for ready in batch:
            if ready.snapshot is not None:
                self._restored(ready.snapshot)
            for message in ready.messages:
                self._send(message.to, message)
        if own is not None:
            self._handle(SnapshotTaken(own.index, own.data))
        if batch:
            self._handle(Persisted(batch[-1].number))
        self._wake.set()

    def _restored(self, snapshot: Snapshot) -> None:
        self._restore(snapshot.data)
        self.applied_index = self._snapshot_index = snapshot.index
        self._outcomes.applied_up_to(snapshot.index)
