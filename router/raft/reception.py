"""The door of the core: is a message for this disk, of which term is it, and who handles it.

Decides what a higher or lower term means for each kind of message. Source: Raft paper, section 5.1 ("If a server's
current term is smaller than the other's, it updates"), with the two exceptions of Ongaro's thesis: a pre-vote changes
no term (9.6), and a vote is ignored while a leader is heard (4.2.3).
"""

from collections.abc import Callable
from typing import Any

from router.raft.elections import Elections
from router.raft.events import Role
from router.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)

__all__ = ["Reception"]

_REQUESTS = (PreVote, RequestVote, AppendEntries, InstallSnapshot, TimeoutNow)


class Reception(Elections):
    """Messages, judged by term and handed to their layer."""

    _on_message: dict[type[Message], Callable[[Any], None]] | None = None

    def _handlers(self) -> dict[type[Message], Callable[[Any], None]]:
        return {
            PreVote: self.on_pre_vote,
            PreVoteReply: self.on_pre_vote_reply,
            RequestVote: self.on_request_vote,
            RequestVoteReply: self.on_request_vote_reply,
            AppendEntries: self._on_leader_message,
            AppendEntriesReply: self.on_append_reply,
            InstallSnapshot: self._on_leader_message,
            InstallSnapshotReply: self.on_snapshot_reply,
            TimeoutNow: self.on_timeout_now,
            ReadIndex: self.on_read_index,
            ReadIndexReply: self.on_read_index_reply,
        }

    def receive(self, message: Message) -> None:
        """Take one message from a peer."""
        self.bind(message)
        self.note_stranger(message)
        if isinstance(message, _REQUESTS) and self.refuses_identity(message):
            self.drop("we_are_another_disk")
            return
        if message.term > self.term:
            if not self._adopt_term(message):
                return
        elif message.term < self.term and not self._judge_older_term(message):
            return
        if self._on_message is None:
            self._on_message = self._handlers()
        self._on_message[type(message)](message)
        if self.transferee is not None and type(message) is AppendEntriesReply:
            self.advance_transfer()

    def _adopt_term(self, message: Message) -> bool:
        """A higher term: follow in it, except for what must not depose a leader that is heard."""
        if isinstance(message, PreVote):
            return True
        if isinstance(message, RequestVote) and self.is_sticky() and not message.transfer:
            self.drop("vote_while_leader_heard")
            return False
        leader = message.sender if isinstance(message, AppendEntries | InstallSnapshot) else None
        self.become_follower(message.term, leader)
        return True

    def _judge_older_term(self, message: Message) -> bool:
        """An older term: answer requests with ours, so that their sender moves on; ignore old answers."""
        if isinstance(message, AppendEntries):
            self._reply_append(message, False, 0)
        elif isinstance(message, InstallSnapshot):
            self._reply_snapshot(message, 0, 0)
        elif isinstance(message, PreVote | PreVoteReply | RequestVote | ReadIndex | ReadIndexReply):
            return True
        else:
            self.drop("older_term")
        return False

    def _on_leader_message(self, message: AppendEntries | InstallSnapshot) -> None:
        if self.role is Role.LEADER:
            self.drop("second_leader_in_term")
            return
        if self.role is not Role.FOLLOWER or self.leader != message.sender:
            self.become_follower(message.term, message.sender)
        self.last_heard_leader = self.now
        self.identity_refused = False
        self.reset_election_deadline()
        if isinstance(message, AppendEntries):
            if message.entries and message.entries[-1].index != message.prev_log_index + len(message.entries):
                self.drop("entries_not_contiguous")
                return
            self.on_append_entries(message)
        else:
            self.on_install_snapshot(message)
