"""Seeded bug: a refused pre-vote has no term: two peers block each other permanently (etcd #8243, #8501)."""

from router.raft.core import RaftCore
from router.raft.messages import PreVoteReply, RaftMessage
from tests.mutants.raft_mutant import Mutant


class PreVoteRefusalWithoutTerm(RaftCore):
    def _adopt_term(self, message: RaftMessage) -> bool:
        return True if isinstance(message, PreVoteReply) else super()._adopt_term(message)


MUTANT = Mutant("pre_vote_refusal_without_term", PreVoteRefusalWithoutTerm, "script", 1, "pre_vote_refusal_term.txt")
