"""The door of the core: is a message for this disk, of which term is it, and who handles it.

Decides what a higher or lower term means for each kind of message. Source: Raft paper, section 5.1 ("If a server's
current term is smaller than the other's, it updates"), with the two exceptions of Ongaro's thesis: a pre-vote changes
no term (9.6), and a vote is ignored while a leader is heard (4.2.3). A router that our configuration does not name
may be the leader of a newer one, so it is listened to, but only where a vote would be: not while a leader is heard.
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

__all__ = ["Reception"]

TERM_LEAP_MAX = 1 << 20  # by which a router that the configuration does not name may raise our term
_REQUESTS = (PreVote, RequestVote, AppendEntries, InstallSnapshot, TimeoutNow)


class Reception(Elections):
    """Messages, judged by term and handed to their layer."""

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
        """Take one message from a peer."""
        outside = self._is_outside(message.sender)
        if outside and not self._takes_from_outside(message):
            self.drop("not_of_the_group")
            return
        if isinstance(message, PreVoteReply):
            self.introduced[message.sender] = message.peers
        self.bind(message)
        self.note_stranger(message)
        if isinstance(message, _REQUESTS) and not outside and self.refuses_identity(message):
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

    def _is_outside(self, sender: str) -> bool:
        """Whether our configuration names routers, and the sender is none of them."""
        known = self.configuration
        return bool(known.voters) and sender not in known.voters and sender not in known.learners

    def _takes_from_outside(self, message: RaftMessage) -> bool:
        """Whether a router outside our configuration may say this now.

        It may lead by a configuration that we have not got yet, or be removed and not have got that. The first waits
        until we hear no leader and a member of our configuration has told us that it is one, and then brings its
        configuration with its log; we ask it nothing, so it answers nothing. Anything else would let a certificate
        that is no voter's depose a leader, use up all terms, or replace what the group has decided.
        """
        if isinstance(message, PreVote):
            return True  # changes nothing here, and the answer may end its waiting
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
        """Whether a member of our configuration said that this router is in its own, which may be the newer one."""
        known = self.configuration
        return any(
            sender in peers
            for member, peers in self.introduced.items()
            if member in known.voters or member in known.learners
        )

    def _adopt_term(self, message: RaftMessage) -> bool:
        """A higher term: follow in it, except for what must not depose a leader that is heard."""
        if isinstance(message, PreVote):
            return True
        if isinstance(message, RequestVote) and self.is_sticky() and not message.transfer:
            self.drop("vote_while_leader_heard")
            return False
        leader = message.sender if isinstance(message, AppendEntries | InstallSnapshot) else None
        self.become_follower(message.term, leader)
        return True

    def _judge_older_term(self, message: RaftMessage) -> bool:
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
        if self.role is RaftRole.LEADER:
            self.drop("second_leader_in_term")
            return
        if self.role is not RaftRole.FOLLOWER or self.leader != message.sender:
            self.become_follower(message.term, message.sender)
        self.identity_refused = False
        if not self._is_outside(message.sender):  # else an election may go on until its log proves that it leads
            self.last_heard_leader = self.now
            self.reset_election_deadline()
        if isinstance(message, AppendEntries):
            if message.entries and message.entries[-1].index != message.prev_log_index + len(message.entries):
                self.drop("entries_not_contiguous")
                return
            self.on_append_entries(message)
        else:
            self.on_install_snapshot(message)
