"""The chains of one edge by listener; a reload replaces a chain as a whole.

A listener without one, as in an edge without settings, authenticates no client: each is anonymous if that is allowed,
and refused otherwise.
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

ANSWERS_MAX = 10_000  # of HTTP servers, at most 4 KiB each (edge/login/http_callouts.py)


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
        self.unanswered: Counter[tuple[str, ...]] = Counter()  # (listener,): certificates without an OCSP response
        self._chains: dict[str, Chain] = {}
        self._revoked: dict[str, RevokedView] = {}
        self.sources: dict[str, KeySource] = {}
        self._without_steps: dict[bool, Chain] = {}

    def revoked_of(self, listener: str) -> RevokedView:
        """Return the revoked certificates of a listener; its chains share this object."""
        return self._revoked.setdefault(listener, RevokedView(self.bans))

    def source_of(self, listener: ListenerSettings) -> "KeySource | None":
        """Return the fetched keys of a listener's tokens, which survive a reload; None without a URL."""
        if not listener.token_jwks_url:
            return None
        if listener.name not in self.sources:
            from access.identity.key_set import KeySource

            self.sources[listener.name] = KeySource()
        return self.sources[listener.name]

    def put(self, listener: str, chain: Chain) -> None:
        """Replace the chain of a listener; logins that wait for a job of the former one start again."""
        self._chains[listener] = chain
        self.known.clear()
        self.forget_answers()

    def forget_answers(self) -> None:
        """Remove all cached responses of servers after a removal of permissions.

        Cached password checks stay: they depend only on the password record. Without them a connect storm after a
        policy step would cost a hash for each client.
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
        """Return (listener, step and kind of its result, number) for all results of steps."""
        for listener, chain in self._chains.items():
            for what, count in chain.outcomes.items():
                yield listener, what, count
