"""Users of the cluster at one simulated edge: the authentication chain of its closed listener, its rules, and hashing.

Authentication step, router requests and authorization are the product's. Only argon2id is replaced: a record holds a
fast digest, and a hash takes a drawn time.
"""

import hashlib
import random
from collections.abc import Callable

from access.identity.chain import Chain, ChainRules, Ticket
from access.identity.password_step import PasswordStep, RouterUsers
from access.identity.passwords import (
    OWN_DIGEST_BYTES,
    OWN_LANES,
    OWN_MEMORY_KIB,
    OWN_PASSES,
    OWN_SALT_BYTES,
    HashJob,
    HashKind,
    PasswordRecord,
    encode_record,
)
from access.rules.role_table import make_role_table
from edge.login.auth_jobs import AuthJobs
from edge.login.chains import Chains
from edge.login.logins import ClientLogins
from edge.node.limits import ListenerPolicy
from edge.rights.sources import RuleBook, Sources

__all__ = ["CLOSED", "UsersOfCluster", "quick_record"]

CLOSED = ListenerPolicy("closed", False)
LOGINS_MAX = 100  # pending hashes
SALT = bytes(OWN_SALT_BYTES)


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(SALT + password).digest()[:OWN_DIGEST_BYTES]


def quick_record(password: bytes) -> str:
    """Return a record in argon2id format with a fast digest."""
    return encode_record(
        PasswordRecord(HashKind.ARGON2ID, SALT, _digest(password), OWN_PASSES, OWN_MEMORY_KIB, OWN_LANES)
    )


ALL = {"publish": ["#"], "subscribe": ["#"]}
EVERYTHING = Sources(make_role_table({"roles": {"all": ALL}}), authenticated=("all",), anonymous=("all",))


class UsersOfCluster:
    """State of one edge life for users of the cluster."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.hash_s: tuple[float, ...] = (0.001, 0.02, 0.3)  # possible durations of a hash
        self._desk = AuthJobs(LOGINS_MAX)
        self.chains = Chains(rng.randbytes(32))
        step = PasswordStep(RouterUsers(rng.randbytes(32)), self.chains.known)
        rules, revoked = ChainRules(CLOSED.allow_anonymous), self.chains.revoked_of(CLOSED.name)
        self.chains.put(CLOSED.name, Chain([step], rules, revoked, self.chains.bans))
        self.rules = RuleBook({CLOSED.name: Sources(of_cluster=True), "plain": EVERYTHING})

    def join(self, logins: ClientLogins) -> None:
        """Set the logins whose hashes to compute."""
        logins.add_job_queues({"hash": self._desk})

    def hash_all(self, later: Callable[..., None], done: Callable[[int, Ticket, object], None]) -> None:
        """Start the requested hashes; each ends after a drawn time."""
        while (taken := self._desk.take()) is not None:
            number, ticket = taken
            job = ticket.job
            assert isinstance(job, HashJob)
            is_right = job.record.digest == _digest(job.password)
            later(self._rng.choice(self.hash_s), done, number, ticket, is_right)
