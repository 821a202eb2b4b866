"""Elections: pre-vote, vote, and a leader's resignation.

Three rules depend on each other. *Pre-vote*: no peer raises its term before a majority would vote for it. *Stickiness*:
a peer that seen from a leader within the election timeout refuses to depose it. *Check-quorum*: a leader without
messages of a majority steps down, otherwise its followers stay with an unreachable leader. A refusal carries the term
of its sender and the candidate adopts it. Otherwise a peer with a higher term and a shorter log and one with a lower
term and a longer log block each other (etcd #8243, #8501). A former leader gets no exception (hashicorp/raft #605).
Source: Raft paper, section 5.2 and 5.4.1; Ongaro's thesis, section 9.6 and 6.2.
"""

import math

from router.raft.events import RaftRole
from router.raft.leadership_transfer import LeadershipTransfer
from router.raft.messages import (
    CONFIG,
    NOOP,
    PreVote,
    PreVoteReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
    encode_configuration,
)

__all__ = ["Elections"]


class Elections(LeadershipTransfer):
    """Campaigns, votes for others, and resignation."""

    def election_timed_out(self) -> None:
        """Start a pre-vote after an election timeout without a leader."""
        self.reset_election_deadline()
        self.leader = None
        if self.id not in self.configuration.voters:
            return
        if self.identity_refused:
            if not self.configuration_index:
                self.send_pre_votes()  # no campaign: informs the leader that the former disk is lost
            return
        if not self.is_voter:
            self.election_deadline = self.now + self.config.heartbeat_s
            self.send_pre_votes()  # sends our storage id: voting needs the storage ids of all bootstrap members
            return
        self.begin_campaign()

    def begin_campaign(self) -> None:
        """Request pre-votes."""
        self.role = RaftRole.PRE_CANDIDATE
        self.votes = {self.id: True}
        if self._won():
            self.campaign()
        else:
            self.send_pre_votes()

    def campaign(self, transfer: bool = False) -> None:
        """Enter the next term, vote for ourselves and request votes."""
        self.set_term(self.term + 1, self.id)
        self.role = RaftRole.CANDIDATE
        self.leader = None
        self.votes = {self.id: True}
        self.reset_election_deadline()
        if self._won():
            self.become_leader()
            return
        for peer in self.other_voters():
            self.send(
                RequestVote(
                    *self.header(peer),
                    last_log_index=self.log.last_index,
                    last_log_term=self.log.last_term,
                    transfer=transfer,
                )
            )

    def become_leader(self) -> None:
        """Lead, and append an entry of our term, before which no commit or read counts (Raft paper, section 8)."""
        self.role = RaftRole.LEADER
        self.leader = self.id
        self.votes.clear()
        self.progress.clear()
        self.round = 0
        self.election_deadline = math.inf
        self.first_index_of_term = self.log.last_index + 1
        for peer in self.replicas():
            self.progress_of(peer)
        if self.configuration_index:
            self.append_own((b"",), NOOP)
        else:  # the first leader logs the bootstrap's configuration with the bound disks
            self.append_own((encode_configuration(self.configuration),), CONFIG)
        self.broadcast_heartbeat()

    def check_quorum(self) -> None:
        """Step down without answers of a majority within an election timeout, or when our own disk stalls."""
        if self.disk_stalls() or not self.has_active_majority():
            self.become_follower(self.term, None)

    def has_active_majority(self) -> bool:
        """Whether a majority of voters, including ourselves, answered within the last election timeout."""
        since = self.now - self.config.election_timeout_s
        voters = self.configuration.voters
        seen = sum(1 for peer in voters if peer == self.id or self.progress_of(peer).last_seen >= since)
        return seen >= self.configuration.quorum

    def disk_stalls(self) -> bool:
        """Whether our own disk stalls: the group could commit without us, but we answer no client.

        Stepping down needs no write; votes, which do, wait for the same disk.
        """
        return self.log.stalled(self.now - self.config.disk_stall_s)

    def is_sticky(self) -> bool:
        """Whether we lead, or received a leader's message within the election timeout."""
        if self.role is RaftRole.LEADER:
            return True
        return self.leader is not None and self.now < self.last_leader_contact + self.config.election_timeout_s

    def is_up_to_date(self, last_log_index: int, last_log_term: int) -> bool:
        """Whether a log is at least as up to date as ours (Raft paper, section 5.4.1)."""
        return (last_log_term, last_log_index) >= (self.log.last_term, self.log.last_index)

    def on_pre_vote(self, message: PreVote) -> None:
        """Answer a pre-vote; term and vote stay unchanged."""
        granted = (
            self.may_vote()
            and message.proposed_term > self.term
            and self.is_up_to_date(message.last_log_index, message.last_log_term)
            and not self.is_sticky()
        )
        peers = tuple(self.configuration.peers())
        self.send(PreVoteReply(*self.header(message.sender), message.proposed_term, granted, peers))

    def on_pre_vote_reply(self, reply: PreVoteReply) -> None:
        """Start the campaign after a majority of pre-votes."""
        if self.role is not RaftRole.PRE_CANDIDATE or reply.proposed_term != self.term + 1:
            return
        if self._count(reply.sender, reply.granted, self.has_foreign_disk(reply)):
            self.campaign()

    def on_request_vote(self, message: RequestVote) -> None:
        """Vote once per term, for a log at least as up to date as ours."""
        granted = (
            self.may_vote()
            and message.term == self.term
            and self.voted_for in (None, message.sender)
            and (self.role is RaftRole.FOLLOWER or self.role is RaftRole.PRE_CANDIDATE)
            and self.is_up_to_date(message.last_log_index, message.last_log_term)
        )
        if granted:
            self.role = RaftRole.FOLLOWER
            if self.voted_for is None:
                self.set_term(self.term, message.sender)
            self.reset_election_deadline()
        self.send(RequestVoteReply(*self.header(message.sender), granted=granted))

    def on_request_vote_reply(self, reply: RequestVoteReply) -> None:
        """Become leader after a majority of votes."""
        if self.role is not RaftRole.CANDIDATE:
            return
        if self._count(reply.sender, reply.granted, self.has_foreign_disk(reply)):
            self.become_leader()

    def on_timeout_now(self, message: TimeoutNow) -> None:
        """Campaign at once, because the leader transfers leadership to us."""
        if message.sender == self.leader and self.is_voter and self.role is not RaftRole.LEADER:
            self.campaign(transfer=True)

    def may_vote(self) -> bool:
        """Whether our vote counts and our disk never lost a promise."""
        return self.is_voter and not self.identity_refused

    def _count(self, voter: str, granted: bool, is_foreign: bool) -> bool:
        if is_foreign:
            self.drop("storage_id_unknown")
            return False
        self.votes[voter] = granted
        return self._won()

    def _won(self) -> bool:
        granted = sum(1 for peer in self.configuration.voters if self.votes.get(peer))
        return granted >= self.configuration.quorum

    def send_pre_votes(self) -> None:
        """Send PreVote to the voters; the replies also list the members of their configuration."""
        for peer in self.other_voters():
            self.send(
                PreVote(
                    *self.header(peer),
                    proposed_term=self.term + 1,
                    last_log_index=self.log.last_index,
                    last_log_term=self.log.last_term,
                )
            )
