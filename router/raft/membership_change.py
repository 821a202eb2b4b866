"""Membership changes of the group, one member at a time.

A change starts only when no other is pending and an entry of the leader's own term is committed. Otherwise two leaders
could each change a configuration that the other does not know, and commit with disjoint majorities (Ongaro, raft-dev,
2015). New members are learners first, and are promoted with their storage id when caught up. A voter with an empty disk
has lost its promises. ``replace`` removes the former disk's vote and adds the new disk as a learner, in one step.
A change is in force when it is in the log, and undone if truncated. Source: Ongaro's thesis, chapter 4.
"""

from router.raft.events import ChangeMembership, RaftRole
from router.raft.messages import CONFIG, Configuration, encode_configuration
from router.raft.read_index import ReadIndexes

__all__ = ["MembershipChange"]


class MembershipChange(ReadIndexes):
    """Configuration entries at the leader."""

    def change_membership(self, change: ChangeMembership) -> tuple[int | None, str | None]:
        """Append the new configuration.

        Returns:
            The index of the config entry and None, or None and the refusal.
        """
        if self.role is not RaftRole.LEADER:
            return None, "not_leader"
        if not self.may_change():
            return None, "change_in_progress" if self.change_pending() else "no_entry_of_term_committed"
        target, reason = self._next_configuration(change)
        if target is None:
            return None, reason
        index = self.append_own((encode_configuration(target),), CONFIG)
        for peer in [peer for peer in self.progress if peer not in target.voters and peer not in target.learners]:
            del self.progress[peer]
        self.broadcast_append()
        return index, None

    def change_pending(self) -> bool:
        """Whether the last configuration is not committed yet."""
        return self.configuration_index > self.commit_index

    def next_repair(self, silent_s: float) -> ChangeMembership | None:
        """Return the next change towards a group at full strength, None if there is none now.

        A voter is replaced if its own disk was silent for ``silent_s`` while another disk uses its name: the own disk
        is lost. A caught-up learner becomes a voter.
        """
        if self.role is not RaftRole.LEADER or not self.may_change():
            return None
        for peer in sorted(self.foreign_disks):
            seen = self.foreign_disks[peer][1]
            known = peer in self.configuration.voters and peer != self.id
            if known and self.now - seen < silent_s <= self.now - self.progress_of(peer).last_seen:
                return ChangeMembership("replace", peer)
        for peer in sorted(self.configuration.learners):
            if not self._not_promotable(peer):
                return ChangeMembership("promote", peer)
        return None

    def may_change(self) -> bool:
        """Whether a change may start: none is pending, and an entry of this term is committed."""
        return not self.change_pending() and self.commit_index >= self.first_index_of_term

    def drop_to_follower_if_removed(self) -> None:
        """Resign after removing ourselves, once the removal is committed and sent to all peers."""
        if self.role is RaftRole.LEADER and self.id not in self.configuration.voters and not self.change_pending():
            self.broadcast_append()
            self.become_follower(self.term, None)

    def _next_configuration(self, change: ChangeMembership) -> tuple[Configuration | None, str]:
        peer = change.peer
        voters, learners = dict(self.configuration.voters), dict(self.configuration.learners)
        if change.action == "add_learner":
            if peer in voters or peer in learners:
                return None, "already_member"
            learners[peer] = 0
        elif change.action == "promote":
            reason = self._not_promotable(peer)
            if reason:
                return None, reason
            del learners[peer]
            voters[peer] = self.progress_of(peer).storage_id
        elif change.action == "replace":
            if peer == self.id or peer not in voters or peer not in self.foreign_disks:
                return None, "not_replaced"
            del voters[peer]
            learners[peer] = self.foreign_disks.pop(peer)[0]
            self.progress.pop(peer, None)
        else:
            if peer not in voters and peer not in learners:
                return None, "not_a_member"
            if voters.keys() == {peer}:
                return None, "last_voter"
            voters.pop(peer, None)
            learners.pop(peer, None)
        return Configuration(voters, learners), ""

    def _not_promotable(self, peer: str) -> str:
        if peer not in self.configuration.learners:
            return "not_a_learner"
        progress = self.progress_of(peer)
        if not progress.storage_id or self.now - progress.last_seen > self.config.election_timeout_s:
            return "learner_silent"
        if progress.match_index < max(1, self.log.last_index - self.config.promote_lag_entries):
            return "learner_behind"
        return ""
