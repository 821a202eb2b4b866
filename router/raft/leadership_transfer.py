"""Leadership transfer without an election timeout.

Proposals stop, the target catches up, then receives TimeoutNow and campaigns at once. Its election is exempt from
stickiness, because the leader requested it. After an election timeout without success the leader continues. Source:
Ongaro's thesis, section 3.10.
"""

import math

from router.raft.events import RaftRole
from router.raft.membership_change import MembershipChange
from router.raft.messages import TimeoutNow

__all__ = ["LeadershipTransfer"]


class LeadershipTransfer(MembershipChange):
    """The leader's side; elections have the target's."""

    def transfer_leadership(self, to: str) -> str | None:
        """Start a transfer; return the refusal, or None."""
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
        """Send TimeoutNow to the target once its log equals ours."""
        if self.transferee is None:
            return
        if self.now >= self.transfer_deadline or self.transferee not in self.configuration.voters:
            self.transferee, self.transfer_deadline = None, math.inf
            return
        if self.progress_of(self.transferee).match_index == self.log.last_index:
            self.send(TimeoutNow(*self.header(self.transferee)))
