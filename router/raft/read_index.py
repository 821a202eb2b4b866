"""ReadIndex: linearizable reads without an entry in the log.

A leader names the index of a read only after two conditions. An entry of its own term is committed: before, its commit
index may lag behind a former leader's. And a majority answered a heartbeat round that *started after the request*.
Requests during a round share the next one. No clock is trusted. Source: Ongaro's thesis, section 6.4.
"""

from collections import deque

from router.raft.events import RaftRole, ReadState
from router.raft.messages import ReadIndex, ReadIndexReply
from router.raft.replication import LogReplication

__all__ = ["ReadIndexes"]


class _PendingRead:
    """A read with its requester, and the round that must confirm leadership."""

    __slots__ = ("asker_incarnation", "context", "read_index", "requester", "round")

    def __init__(self, requester: str, asker_incarnation: int, context: int | bytes) -> None:
        self.requester = requester
        self.asker_incarnation = asker_incarnation
        self.context = context
        self.read_index = 0
        self.round = 0


class ReadIndexes(LogReplication):
    """Reads that wait for a round, at leaders; forwarding and answers, at followers."""

    _waiting: deque[_PendingRead]
    _confirming: deque[_PendingRead]

    def reset_reads(self) -> None:
        """Drop all pending reads."""
        self._waiting, self._confirming = deque(), deque()

    def read_index(self, context: int | bytes) -> None:
        """Process a local read request."""
        if self.role is RaftRole.LEADER:
            self._ask(_PendingRead(self.id, self.incarnation, context))
        elif self.leader is not None:
            self.send(ReadIndex(*self.header(self.leader), context=context))
        else:
            self.read_states.append(ReadState(context, -1))

    def on_read_index(self, message: ReadIndex) -> None:
        """Process a read that a follower forwards."""
        read = _PendingRead(message.sender, message.incarnation, message.context)
        if self.role is RaftRole.LEADER:
            self._ask(read)
        else:
            self._answer(read, -1)

    def on_read_index_reply(self, reply: ReadIndexReply) -> None:
        """Accept the leader's confirmation, unless it answers a former incarnation."""
        if reply.asker_incarnation == self.incarnation:
            self.read_states.append(ReadState(reply.context, reply.read_index))
        else:
            self.drop("read_of_former_incarnation")

    def advance_reads(self) -> None:
        """Answer confirmed reads, and start the next round if reads wait for one."""
        if self.role is not RaftRole.LEADER or not (self._waiting or self._confirming):
            return
        confirmed = self.confirmed_round()
        while self._confirming and self._confirming[0].round <= confirmed:
            read = self._confirming.popleft()
            self._answer(read, read.read_index)
        if self._waiting and not self._confirming and self.may_read():
            self._start_round()
            if len(self.configuration.voters) == 1:
                self.advance_reads()

    def may_read(self) -> bool:
        """Whether an entry of the current term is committed (etcd #7331)."""
        return self.commit_index >= self.first_index_of_term

    def confirmed_round(self) -> int:
        """Return the last round that a majority of voters answered, including ourselves."""
        rounds = sorted(
            (
                self.round if peer == self.id else self.progress_of(peer).acked_round
                for peer in self.configuration.voters
            ),
            reverse=True,
        )
        return rounds[self.configuration.quorum - 1]

    def fail_reads(self) -> None:
        """Answer -1 to every pending read, because this peer no longer leads."""
        for read in (*self._confirming, *self._waiting):
            self._answer(read, -1)
        self.reset_reads()

    def _ask(self, read: _PendingRead) -> None:
        if len(self._waiting) + len(self._confirming) >= self.config.max_pending_reads:
            self.drop("reads_full")
            self._answer(read, -1)
            return
        self._waiting.append(read)

    def _start_round(self) -> None:
        self.broadcast_heartbeat()
        for read in self._waiting:
            read.read_index, read.round = self.commit_index, self.round
        self._confirming, self._waiting = self._waiting, deque()

    def _answer(self, read: _PendingRead, index: int) -> None:
        if read.requester == self.id:
            self.read_states.append(ReadState(read.context, index))
            return
        self.send(
            ReadIndexReply(
                *self.header(read.requester),
                context=read.context,
                read_index=index,
                asker_incarnation=read.asker_incarnation,
            )
        )
