"""Snapshots: chunks to a peer whose next entry is compacted, and installation of a leader's snapshot.

A snapshot that the state machine cannot restore is dropped before any state changes. Shell and disk keep the order:
sync the snapshot file and the directory, drop the log, then answer. A snapshot that conflicts with the log discards the
*whole* log: the entries after the conflict belong to a history that was never committed (hashicorp/raft #697).
Source: Raft paper, section 7.
"""

from dataclasses import dataclass

from router.raft.events import Snapshot
from router.raft.messages import AppendEntries, InstallSnapshot, InstallSnapshotReply
from router.raft.progress import PeerProgress, ProgressState
from router.raft.state import RaftState

__all__ = ["RefusedSnapshot", "SnapshotTransfer"]


@dataclass(frozen=True, slots=True)
class RefusedSnapshot:
    """A snapshot that the state machine cannot restore: its sender, last index, and the fault."""

    sender: str
    index: int
    fault: str


class SnapshotTransfer(RaftState):
    """Sending and receiving of snapshots."""

    _incoming: InstallSnapshot | None = None  # first chunk of the snapshot being received
    _incoming_data: bytearray = bytearray()
    installed: Snapshot | None = None  # for the next Ready
    refused_snapshot: RefusedSnapshot | None = None  # the newest

    def begin_snapshot(self, peer: str, progress: PeerProgress) -> None:
        """Restart the transfer with the newest snapshot."""
        if self.log.snapshot is None:
            return
        progress.become_snapshot(self.log.snapshot)
        self.send_chunk(peer, progress)

    def send_chunk(self, peer: str, progress: PeerProgress) -> None:
        """Send the chunk at the peer's next offset."""
        snapshot = progress.snapshot
        assert snapshot is not None
        begin = progress.snapshot_offset
        end = begin + self.config.snapshot_chunk_bytes
        self.send(
            InstallSnapshot(
                *self.header(peer),
                snapshot_index=snapshot.index,
                snapshot_term=snapshot.term,
                configuration=snapshot.configuration,
                offset=begin,
                data=snapshot.data[begin:end],
                done=end >= len(snapshot.data),
                round=self.round,
            )
        )

    def heartbeat_to_snapshot_peer(self, peer: str, progress: PeerProgress) -> None:
        """Repeat the chunk if no answer came since the last heartbeat; send a heartbeat in any case."""
        if progress.paused:
            self.send_chunk(peer, progress)
        progress.paused = True
        # prev_log_index 0 matches every log and commits nothing.
        self.send(
            AppendEntries(*self.header(peer), prev_log_index=0, prev_log_term=0, leader_commit=0, round=self.round)
        )

    def on_install_snapshot(self, message: InstallSnapshot) -> None:
        """Store a chunk; after the last one, install the snapshot."""
        if message.snapshot_index <= self.commit_index:
            self._reply_snapshot(message, 0, self.commit_index)
            return
        first = self._incoming
        identity = (message.sender, message.term, message.snapshot_index, message.snapshot_term)
        if first is None or (first.sender, first.term, first.snapshot_index, first.snapshot_term) != identity:
            self._incoming, self._incoming_data = message, bytearray()
        received = len(self._incoming_data)
        if message.offset != received or received + len(message.data) > self.config.max_snapshot_bytes:
            self.drop("snapshot_chunk_out_of_order")
            self._reply_snapshot(message, received, 0)
            return
        self._incoming_data += message.data
        if not message.done:
            self._reply_snapshot(message, len(self._incoming_data), 0)
            return
        snapshot = Snapshot(
            message.snapshot_index, message.snapshot_term, message.configuration, bytes(self._incoming_data)
        )
        self._incoming, self._incoming_data = None, bytearray()
        fault = self.snapshot_fault(snapshot.data)
        if fault:
            self.drop("snapshot_not_restorable")
            self.refused_snapshot = RefusedSnapshot(message.sender, snapshot.index, fault)
            return
        self.install_snapshot(snapshot)
        self._reply_snapshot(message, 0, snapshot.index)

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the log, or only advance the commit index if the log contains the snapshot's last entry."""
        if self.log.term_at(snapshot.index) == snapshot.term:
            self.commit_index = max(self.commit_index, snapshot.index)
            return
        self.log.install(snapshot)
        self.commit_index = self.last_applied = snapshot.index
        self.configurations = [(snapshot.index, snapshot.configuration)]
        self.installed = snapshot

    def take_snapshot(self, index: int, data: bytes) -> None:
        """Compact the log in memory after the shell wrote an own snapshot."""
        term = self.log.term_at(index)
        if index > self.last_applied or term is None or (self.log.snapshot and index <= self.log.snapshot.index):
            self.drop("snapshot_not_usable")
            return
        self.log.compact(Snapshot(index, term, self.configuration_at(index), data), self.config.trailing_entries)
        while len(self.configurations) > 1 and self.configurations[1][0] <= self.log.base_index:
            self.configurations.pop(0)

    def _reply_snapshot(self, message: InstallSnapshot, offset: int, match_index: int) -> None:
        self.send(
            InstallSnapshotReply(
                *self.header(message.sender),
                snapshot_index=message.snapshot_index,
                offset=offset,
                match_index=match_index,
                round=message.round,
            )
        )

    def snapshot_chunk_answered(self, reply: InstallSnapshotReply, progress: PeerProgress) -> None:
        """Send the next chunk; ``match_index`` marks the end of a transfer."""
        snapshot = progress.snapshot
        if progress.state is not ProgressState.SNAPSHOT or snapshot is None or reply.snapshot_index != snapshot.index:
            return
        if reply.match_index == 0 and reply.offset <= len(snapshot.data) and reply.offset != progress.snapshot_offset:
            progress.snapshot_offset = reply.offset
            progress.paused = False
            self.send_chunk(reply.sender, progress)
