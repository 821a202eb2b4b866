"""Handing leadership over without waiting for a timeout.

Decides: proposals stop, the target is brought up to date, then told to campaign at once; its election is exempt from
the stickiness of others because the leader itself asked for it. Not done within an election timeout, the leader goes
on leading. Source: Ongaro's thesis, section 3.10.
"""

import math

from router.raft.events import RaftRole
from router.raft.membership_change import MembershipChange
from router.raft.messages import TimeoutNow

__all__ = ["LeadershipTransfer"]


class LeadershipTransfer(MembershipChange):
    """The leader's side; the target's is in elections."""

    def transfer_leadership(self, to: str) -> str | None:
        """Begin a transfer; return why not, or None."""
        if self.role is not RaftRole.LEADER:
            return "not_leader"
        if to not in self.configuration.voters:
            return "not_a_voter"
        if to == self.id:
            return None
        self.transferee = to
        self.transfer_deadline = self.now + self.config.election_timeout_s
        self.advance_transfer()
        return None

    def advance_transfer(self) -> None:
        """Tell the target to campaign once its log equals ours."""
        if self.transferee is None:
            return
        if self.now >= self.transfer_deadline or self.transferee not in self.configuration.voters:
            self.transferee, self.transfer_deadline = None, math.inf
            return
        if self.progress_of(self.transferee).match_index == self.log.last_index:
            self.send(TimeoutNow(*self.header(self.transferee)))
