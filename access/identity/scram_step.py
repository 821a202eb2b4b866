"""The step ``scram``: an exchange of AUTH packets, run by the method that the shell passes in.

The method has the users and the challenges of unknown names. Its secret must be the cluster's, so that a name's
challenge is equal at every edge and after a restart. Without TLS an observer could test passwords offline, so the step
refuses unless settings allow it. If the method needs other users, the routers are asked before the challenge, and again
after a valid proof, because the client may take long: the proof counts only if the verifier is unchanged.
"""

from dataclasses import dataclass, field
from typing import Protocol

from access.identity.password_step import USER_NAME_MAX, FetchUser, UserFound, UserRecord
from access.identity.principal import (
    Allow,
    Answer,
    Credentials,
    Deny,
    Failed,
    Job,
    Pass,
    Principal,
    TimePoint,
    Wait,
    name_fault,
)
from mqtt.reasons import ReasonCode

__all__ = ["Challenge", "ClientData", "ScramStep"]


class ScramReply(Protocol):
    """A response of an exchange."""

    @property
    def data(self) -> bytes:
        """For the client."""

    @property
    def identity(self) -> str:
        """The authenticated user; empty during the exchange."""

    @property
    def refused(self) -> bool:
        """The exchange failed."""

    @property
    def asks(self) -> str:
        """The name whose verifier the exchange needs; empty for none."""


class ScramLogin(Protocol):
    """One exchange with one client."""

    def receive(self, data: bytes) -> ScramReply:
        """Process the client's message."""

    def told(self, verifier: str) -> ScramReply:
        """Continue with the verifier of the requested name; "" if it is unknown."""


class Method(Protocol):
    """An authentication method by its name."""

    @property
    def name(self) -> str:
        """Name in CONNECT and AUTH."""

    def begin(self) -> ScramLogin:
        """Start an exchange."""

    def has(self, name: str) -> bool:
        """Return whether a name is known locally."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send the data in an AUTH; the result is a ``ClientData``, the client's next AUTH."""

    data: bytes
    exchange: ScramLogin = field(repr=False, compare=False)
    kind: str = field(default="challenge", init=False)


@dataclass(frozen=True, slots=True)
class _Challenge(Challenge):
    """A challenge to a user of the cluster; None for any other name."""

    user: UserRecord | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class _FetchBefore(FetchUser):
    """The request before the challenge."""

    exchange: ScramLogin = field(kw_only=True, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class _FetchAfter(FetchUser):
    """The request after a valid proof: the user before the exchange, and the last message for the client."""

    before: UserRecord = field(kw_only=True, repr=False, compare=False)
    data: bytes = field(kw_only=True, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ClientData:
    """Authentication data of the client's AUTH."""

    data: bytes


class ScramStep:
    """The step ``scram``.

    Args:
        method: With the cluster's users.
        allow_plain: Permits the exchange without TLS.
    """

    name = "scram"

    def __init__(self, method: Method, allow_plain: bool = False) -> None:
        self._method = method
        self._allow_plain = allow_plain
        self.methods: tuple[str, ...] = (method.name,)

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Start the exchange with the data of CONNECT."""
        del moment
        if credentials.method != self._method.name:
            return Pass()
        if not credentials.secure and not self._allow_plain:
            return Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM without TLS")
        exchange = self._method.begin()
        reply = exchange.receive(credentials.data)
        if not reply.asks:
            return self._continue(credentials, exchange, reply)
        if len(reply.asks) > USER_NAME_MAX:  # unknown, and cannot be sent
            return self._continue(credentials, exchange, exchange.told(""))
        return Wait(_FetchBefore(reply.asks, exchange=exchange))

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Process the client's next message, or the routers' response."""
        del moment
        if isinstance(job, FetchUser):
            if not isinstance(result, UserFound) or result.user != job.user:
                return Failed("scram: no router told the user")
            if isinstance(job, _FetchAfter):
                return self._allow(credentials, job, result.record)
            if isinstance(job, _FetchBefore):
                user = None if self._method.has(job.user) else result.record
                reply = job.exchange.told(user.verifier if user is not None else "")
                return self._continue(credentials, job.exchange, reply, user)
        if not isinstance(job, Challenge) or not isinstance(result, ClientData):
            return Failed("scram: a result that nobody asked for")
        user = job.user if isinstance(job, _Challenge) else None
        return self._continue(credentials, job.exchange, job.exchange.receive(result.data), user)

    def _allow(self, credentials: Credentials, job: _FetchAfter, user: UserRecord | None) -> Answer:
        if user is None or user.verifier != job.before.verifier:
            return Deny(ReasonCode.NOT_AUTHORIZED, "the password was changed meanwhile")
        if user.disabled:  # only the authenticated user learns this
            return Deny(ReasonCode.NOT_AUTHORIZED, "user disabled")
        return Allow(user.principal(job.user, self.name, credentials.client_id, job.data))

    def _continue(
        self, credentials: Credentials, exchange: ScramLogin, reply: ScramReply, user: UserRecord | None = None
    ) -> Answer:
        if reply.refused:
            return Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM exchange failed")
        if not reply.identity:
            return Wait(_Challenge(reply.data, exchange, user))
        if name_fault(reply.identity):
            return Deny(ReasonCode.NOT_AUTHORIZED, f"the user's name {name_fault(reply.identity)}")
        if user is not None:
            return Wait(_FetchAfter(reply.identity, before=user, data=reply.data))
        return Allow(Principal(reply.identity, self.name, credentials.client_id, data=reply.data))
