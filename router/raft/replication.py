"""Replication: appends of a leader, their acceptance by followers, and commits.

Covers batching, pipelining, backtracking and the commit index. Only an entry of the leader's *own* term is committed by
counting copies (Raft paper, section 5.4.2, figure 8), and the leader counts itself only up to its durable index. A
follower truncates only at a conflict, never on a match: a late duplicate would delete newer entries. Source: Raft
paper, sections 5.3 and 5.4.
"""

from router.raft.events import RaftInvariantBroken, RaftRole
from router.raft.messages import AppendEntries, AppendEntriesReply, EntryKind, InstallSnapshotReply, LogEntry
from router.raft.progress import PeerProgress, ProgressState
from router.raft.snapshotting import SnapshotTransfer

__all__ = ["LogReplication"]


class LogReplication(SnapshotTransfer):
    """AppendEntries at leaders and followers."""

    # Leader

    def append_own(self, data: tuple[bytes, ...], kind: EntryKind) -> int:
        """Append entries of our term and return the first index."""
        first = self.log.last_index + 1
        term = self.term
        self.append_entries(tuple(LogEntry(first + at, term, kind, item) for at, item in enumerate(data)))
        return first

    def replicas(self) -> list[str]:
        """Return the peers that receive entries."""
        return [peer for peer in self.configuration.peers() if peer != self.id]

    def broadcast_append(self) -> None:
        """Send new entries to every peer whose flow control allows it."""
        for peer in self.replicas():
            self.send_append(peer, self.progress_of(peer))

    def broadcast_heartbeat(self) -> None:
        """Start a heartbeat round: it prevents elections, detects lost appends and confirms leadership."""
        self.heartbeat_deadline = self.now + self.config.heartbeat_s
        self.round += 1
        for peer in self.replicas():
            progress = self.progress_of(peer)
            if progress.state is ProgressState.SNAPSHOT:
                self.heartbeat_to_snapshot_peer(peer, progress)
            else:
                progress.paused = False
                self._send_entries(peer, progress, ())

    def send_append(self, peer: str, progress: PeerProgress) -> None:
        """Fill the peer's pipeline; send a new commit index even without entries."""
        if progress.state is ProgressState.SNAPSHOT:
            return
        if progress.state is ProgressState.PROBE:
            if not progress.paused:
                self._send_entries(peer, progress, ())
            return
        limits = self.config.max_entries_per_append, self.config.max_bytes_per_append
        while progress.next_index <= self.log.last_index and len(progress.inflight) < self.config.max_inflight_appends:
            entries = self.log.batch(progress.next_index, *limits)
            if not self._send_entries(peer, progress, entries):
                return
        if progress.sent_commit < self.commit_index:
            self._send_entries(peer, progress, ())

    def _send_entries(self, peer: str, progress: PeerProgress, entries: tuple[LogEntry, ...]) -> bool:
        prev_log_index = progress.next_index - 1
        prev_log_term = self.log.term_at(prev_log_index)
        if prev_log_term is None:
            self.begin_snapshot(peer, progress)
            return False
        self.send(
            AppendEntries(
                *self.header(peer),
                prev_log_index=prev_log_index,
                prev_log_term=prev_log_term,
                leader_commit=self.commit_index,
                round=self.round,
                entries=entries,
            )
        )
        progress.sent_commit = self.commit_index
        if entries:
            progress.sent(entries[-1].index)
        elif progress.state is ProgressState.PROBE:
            progress.paused = True
        return True

    def record_answer(self, reply: AppendEntriesReply | InstallSnapshotReply) -> PeerProgress | None:
        """Record an answer; return None if it must not count."""
        progress = self.progress.get(reply.sender)
        if self.role is not RaftRole.LEADER or progress is None:
            return None
        if self.has_foreign_disk(reply):
            self.drop("storage_id_unknown")
            return None
        if progress.storage_id != reply.storage_id and progress.storage_id:
            progress.match_index = 0  # a learner that restarted with an empty disk
            progress.become_probe(self.log.last_index + 1)
        if reply.match_index > self.log.last_index:
            self.drop("match_beyond_log")
            return None
        progress.storage_id, progress.incarnation = reply.storage_id, reply.incarnation
        progress.last_seen = self.now
        progress.acked_round = max(progress.acked_round, min(reply.round, self.round))
        return progress

    def on_append_reply(self, reply: AppendEntriesReply) -> None:
        """Advance the peer, or step back to a position at which the logs can match."""
        progress = self.record_answer(reply)
        if progress is None:
            return
        if reply.success:
            self._matched(reply.sender, progress, reply.match_index)
        else:
            self._append_refused(reply, progress)

    def on_snapshot_reply(self, reply: InstallSnapshotReply) -> None:
        """Continue a transfer, or replicate after the installed snapshot."""
        progress = self.record_answer(reply)
        if progress is None:
            return
        if reply.match_index:
            self._matched(reply.sender, progress, reply.match_index)
        else:
            self.snapshot_chunk_answered(reply, progress)

    def _matched(self, peer: str, progress: PeerProgress, match_index: int) -> None:
        news = progress.acknowledged(match_index)
        if progress.state is ProgressState.PROBE:
            if progress.match_index + 1 >= progress.next_index:
                progress.become_replicate()
        elif progress.state is ProgressState.SNAPSHOT:
            assert progress.snapshot is not None
            if progress.match_index >= progress.snapshot.index:
                progress.become_replicate()
        if news and self.maybe_commit():
            self.broadcast_append()
        else:
            self.send_append(peer, progress)

    def _append_refused(self, reply: AppendEntriesReply, progress: PeerProgress) -> None:
        if progress.state is ProgressState.SNAPSHOT or reply.prev_log_index <= progress.match_index:
            return  # stale: reordered in transit
        if progress.state is ProgressState.REPLICATE:
            progress.become_probe()
        elif reply.prev_log_index == progress.next_index - 1:
            hint = min(reply.hint_index, reply.prev_log_index - 1)
            if hint >= self.log.base_index:  # otherwise only a snapshot helps
                hint, _ = self.log.match_hint(hint, reply.hint_term)
            progress.become_probe(hint + 1)
        else:
            return
        self.send_append(reply.sender, progress)

    def maybe_commit(self) -> bool:
        """Advance the commit index to the durable index of a majority; return whether it moved."""
        voters = self.configuration.voters
        matched = sorted(
            (self.log.durable_index if peer == self.id else self.progress_of(peer).match_index for peer in voters),
            reverse=True,
        )
        index = matched[self.configuration.quorum - 1] if matched else 0
        if index <= self.commit_index or not self.may_commit(index):
            return False
        self.commit_index = index
        return True

    def may_commit(self, index: int) -> bool:
        """Only entries of the current term are committed by counting (Raft paper, figure 8)."""
        return self.log.term_at(index) == self.term

    # Follower

    def on_append_entries(self, message: AppendEntries) -> None:
        """Append entries after a matching one; never truncate except at a conflict."""
        prev_log_index, prev_log_term, entries = message.prev_log_index, message.prev_log_term, message.entries
        if prev_log_index < self.commit_index:
            # Committed entries equal the leader's: compare only later ones (older ones may be compacted).
            entries = entries[self.commit_index - prev_log_index :]
            prev_log_index, prev_log_term = self.commit_index, self.log.term_at(self.commit_index) or 0
        matches = prev_log_index == 0 or self.log.term_at(prev_log_index) == prev_log_term
        if not matches:
            hint_index, hint_term = self.log.match_hint(prev_log_index, prev_log_term)
            self._reply_append(message, False, 0, hint_index, hint_term)
            return
        self.take_entries(entries)
        last_matched = prev_log_index + len(entries)
        self.commit_index = max(self.commit_index, min(message.leader_commit, last_matched))
        self._reply_append(message, True, last_matched)

    def take_entries(self, entries: tuple[LogEntry, ...]) -> None:
        """Append missing entries and replace conflicting ones."""
        for at, entry in enumerate(entries):
            term = self.log.term_at(entry.index)
            if term == entry.term:
                continue
            if term is not None:
                self.truncate_from(entry.index)
            self.append_entries(entries[at:])
            return

    def truncate_from(self, index: int) -> None:
        """Drop a conflicting tail.

        Raises:
            RaftInvariantBroken: The tail is committed here and would be lost.
        """
        if index <= self.commit_index:
            raise RaftInvariantBroken(f"{self.id}: truncation from {index}, committed up to {self.commit_index}")
        self.log.truncate_from(index)
        self.undo_configurations(index)

    def _reply_append(
        self, message: AppendEntries, success: bool, match_index: int, hint_index: int = 0, hint_term: int = 0
    ) -> None:
        self.send(
            AppendEntriesReply(
                *self.header(message.sender),
                success=success,
                round=message.round,
                match_index=match_index,
                prev_log_index=message.prev_log_index,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )
