"""The chains of one edge by listener: each stands until a reload replaces it as a whole.

A listener that has none here, as in an edge without settings, verifies nobody: each client is anonymous where that is
allowed, and refused where it is not.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from access.identity.chain import Chain, ChainRules
from access.identity.http_answer import HttpReply
from access.identity.password_step import KnownLogins
from access.limits.answer_cache import AnswerCache
from conf.edge_settings import ListenerSettings
from edge.login.ban_view import BanView, RevokedView
from edge.node.limits import ListenerPolicy

if TYPE_CHECKING:
    from access.identity.key_set import KeySource

__all__ = ["Chains"]

ANSWERS_MAX = 10_000  # of HTTP servers, of 4 KiB at most (edge/login/http_callouts.py)


class Chains:
    """The chains of one edge.

    Args:
        secret: Of this process: 16 random bytes or more.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.bans = BanView()
        self.known = KnownLogins(secret)
        self.answers: AnswerCache[HttpReply] = AnswerCache(secret, ANSWERS_MAX)
        self.unanswered: Counter[tuple[str, ...]] = Counter()  # (listener,): certificates without an answer of OCSP
        self._chains: dict[str, Chain] = {}
        self._revoked: dict[str, RevokedView] = {}
        self.sources: dict[str, KeySource] = {}
        self._without_steps: dict[bool, Chain] = {}

    def revoked_of(self, listener: str) -> RevokedView:
        """Return the revoked certificates of a listener; each chain of it asks this one object."""
        return self._revoked.setdefault(listener, RevokedView(self.bans))

    def source_of(self, listener: ListenerSettings) -> "KeySource | None":
        """Return the fetched keys of a listener's tokens, which outlive a reload; None without an address."""
        if not listener.token_jwks_url:
            return None
        if listener.name not in self.sources:
            from access.identity.key_set import KeySource

            self.sources[listener.name] = KeySource()
        return self.sources[listener.name]

    def put(self, listener: str, chain: Chain) -> None:
        """Judge by a chain from now on; logins that wait for a job of the former one are judged anew."""
        self._chains[listener] = chain
        self.known.clear()
        self.forget_answers()

    def forget_answers(self) -> None:
        """Forget every answer of a server that came before: rights were taken.

        A check of a password stays: it says nothing but that the password is a record's, and is found by that record.
        Without it a fleet that comes behind a step of the policy would cost a hash for each client.
        """
        self.answers.clear()

    def of(self, policy: ListenerPolicy) -> Chain:
        """Return the chain of a listener."""
        chain = self._chains.get(policy.name) or self._without_steps.get(policy.allow_anonymous)
        if chain is None:
            chain = Chain((), ChainRules(policy.allow_anonymous), RevokedView(self.bans), self.bans)
            self._without_steps[policy.allow_anonymous] = chain
        return chain

    def outcomes(self) -> Iterator[tuple[str, str, int]]:
        """Return (listener, step and kind of its answer, number) of all that steps answered."""
        for listener, chain in self._chains.items():
            for what, count in chain.outcomes.items():
                yield listener, what, count
