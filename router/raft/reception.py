"""Entry point of the core for messages: checks of disk identity, group membership and term, then dispatch.

Each message type has a rule for higher and lower terms. Source: Raft paper, section 5.1 ("If a server's current term is
smaller than the other's, it updates"), with two exceptions of Ongaro's thesis. A pre-vote changes no term (9.6), and a
vote request is ignored while a leader is active (4.2.3). A router outside our configuration may lead a newer one, so
its messages are accepted under the conditions of a vote request: only without an active leader.
"""

from collections.abc import Callable
from typing import Any

from router.raft.elections import Elections
from router.raft.events import RaftRole
from router.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    PreVote,
    PreVoteReply,
    RaftMessage,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)

__all__ = ["MessageReceiver"]

TERM_LEAP_MAX = 1 << 20  # largest increase of our term by a router outside the configuration
_REQUESTS = (PreVote, RequestVote, AppendEntries, InstallSnapshot, TimeoutNow)


class MessageReceiver(Elections):
    """Messages, checked by term and dispatched to their layer."""

    _on_message: dict[type[RaftMessage], Callable[[Any], None]] | None = None

    def _handlers(self) -> dict[type[RaftMessage], Callable[[Any], None]]:
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

    def receive(self, message: RaftMessage) -> None:
        """Process one message from a peer."""
        outside = self._is_outside(message.sender)
        if outside and not self._takes_from_outside(message):
            self.drop("not_of_the_group")
            return
        if isinstance(message, PreVoteReply):
            self.introduced[message.sender] = message.peers
        self.bind(message)
        self.record_foreign_disk(message)
        if isinstance(message, _REQUESTS) and not outside and self.refuses_identity(message):
            self.drop("we_are_another_disk")
            return
        if message.term > self.term:
            if not self._adopt_term(message):
                return
        elif message.term < self.term and not self._process_older_term(message):
            return
        if self._on_message is None:
            self._on_message = self._handlers()
        self._on_message[type(message)](message)
        if self.transferee is not None and type(message) is AppendEntriesReply:
            self.advance_transfer()

    def _is_outside(self, sender: str) -> bool:
        """Whether our configuration has voters, and the sender is not a member."""
        known = self.configuration
        return bool(known.voters) and sender not in known.voters and sender not in known.learners

    def _takes_from_outside(self, message: RaftMessage) -> bool:
        """Whether to accept this message from a router outside our configuration.

        It may lead by a configuration that we lack, or be removed without knowing. A leader is accepted once we have no
        leader and a member of our configuration has named it as a member; its log then brings its configuration. We
        send it no requests, so its replies are rejected. Otherwise a certificate of a non-voter could depose a leader,
        exhaust the terms, or replace committed entries.
        """
        if isinstance(message, PreVote):
            return True  # no effect here, and the answer may end its waiting
        if message.sender == self.leader and message.term == self.term:
            return True
        if not isinstance(message, AppendEntries | InstallSnapshot | RequestVote):
            return False
        if self.is_sticky() or message.term > self.term + TERM_LEAP_MAX:
            return False
        if self._is_introduced(message.sender):
            return True
        if self.now >= self.ask_members_at:
            self.ask_members_at = self.now + self.config.heartbeat_s
            self.send_pre_votes()
        return False

    def _is_introduced(self, sender: str) -> bool:
        """Whether a member of our configuration named this router as a member of its own, perhaps newer one."""
        known = self.configuration
        return any(
            sender in peers
            for member, peers in self.introduced.items()
            if member in known.voters or member in known.learners
        )

    def _adopt_term(self, message: RaftMessage) -> bool:
        """Follow in a higher term, except for messages that must not depose an active leader."""
        if isinstance(message, PreVote):
            return True
        if isinstance(message, RequestVote) and self.is_sticky() and not message.transfer:
            self.drop("vote_while_leader_heard")
            return False
        leader = message.sender if isinstance(message, AppendEntries | InstallSnapshot) else None
        self.become_follower(message.term, leader)
        return True

    def _process_older_term(self, message: RaftMessage) -> bool:
        """Answer requests of an older term with our term; ignore old answers."""
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
        if self.role is RaftRole.LEADER:
            self.drop("second_leader_in_term")
            return
        if self.role is not RaftRole.FOLLOWER or self.leader != message.sender:
            self.become_follower(message.term, message.sender)
        self.identity_refused = False
        if not self._is_outside(message.sender):  # else elections continue until its log proves leadership
            self.last_leader_contact = self.now
            self.reset_election_deadline()
        if isinstance(message, AppendEntries):
            if message.entries and message.entries[-1].index != message.prev_log_index + len(message.entries):
                self.drop("entries_not_contiguous")
                return
            self.on_append_entries(message)
        else:
            self.on_install_snapshot(message)
