"""The step ``scram``: an exchange of AUTH packets, run by the method that the shell hands in.

The method has the users and what unknown names are shown; its secret must be the cluster's, so that a name looks the
same at every edge and after a restart. Without TLS an observer could try passwords against what it saw, so the step
refuses unless settings allow it. Where the method asks for names, the routers are asked before the challenge, and again
when the proof is right, because the client may take its time: the proof counts if the verifier is still the user's.
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
    """An answer of an exchange."""

    @property
    def data(self) -> bytes:
        """For the client."""

    @property
    def identity(self) -> str:
        """The proven user; empty while the exchange goes on."""

    @property
    def refused(self) -> bool:
        """The exchange is over without success."""

    @property
    def asks(self) -> str:
        """The name whose verifier the exchange wants to be told; empty for none."""


class ScramLogin(Protocol):
    """One exchange with one client."""

    def receive(self, data: bytes) -> ScramReply:
        """Take the client's message and answer."""

    def told(self, verifier: str) -> ScramReply:
        """Go on with the verifier of the name that was asked for; "" if nobody has it."""


class Method(Protocol):
    """An authentication method by its name."""

    @property
    def name(self) -> str:
        """As CONNECT and AUTH have it."""

    def begin(self) -> ScramLogin:
        """Start an exchange."""

    def has(self, name: str) -> bool:
        """Return whether a name is known without asking."""


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
class _Before(FetchUser):
    """The question before the challenge."""

    exchange: ScramLogin = field(kw_only=True, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class _After(FetchUser):
    """The question when the proof is right: the user as it was before, and the last message for the client."""

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
        allow_plain: The exchange may run without TLS.
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
        said = exchange.receive(credentials.data)
        if not said.asks:
            return self._go_on(credentials, exchange, said)
        if len(said.asks) > USER_NAME_MAX:  # nobody's, and no question may carry it
            return self._go_on(credentials, exchange, exchange.told(""))
        return Wait(_Before(said.asks, exchange=exchange))

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Take the client's next message, or the routers' answer."""
        del moment
        if isinstance(job, FetchUser):
            if not isinstance(result, UserFound) or result.user != job.user:
                return Failed("scram: no router told the user")
            if isinstance(job, _After):
                return self._allow(credentials, job, result.record)
            if isinstance(job, _Before):
                user = None if self._method.has(job.user) else result.record
                said = job.exchange.told(user.verifier if user is not None else "")
                return self._go_on(credentials, job.exchange, said, user)
        if not isinstance(job, Challenge) or not isinstance(result, ClientData):
            return Failed("scram: a result that nobody asked for")
        user = job.user if isinstance(job, _Challenge) else None
        return self._go_on(credentials, job.exchange, job.exchange.receive(result.data), user)

    def _allow(self, credentials: Credentials, job: _After, user: UserRecord | None) -> Answer:
        if user is None or user.verifier != job.before.verifier:
            return Deny(ReasonCode.NOT_AUTHORIZED, "the password was changed meanwhile")
        if user.disabled:  # told only to who has proved to be that user
            return Deny(ReasonCode.NOT_AUTHORIZED, "user disabled")
        return Allow(user.principal(job.user, self.name, credentials.client_id, job.data))

    def _go_on(
        self, credentials: Credentials, exchange: ScramLogin, said: ScramReply, user: UserRecord | None = None
    ) -> Answer:
        if said.refused:
            return Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM exchange failed")
        if not said.identity:
            return Wait(_Challenge(said.data, exchange, user))
        if name_fault(said.identity):
            return Deny(ReasonCode.NOT_AUTHORIZED, f"the user's name {name_fault(said.identity)}")
        if user is not None:
            return Wait(_After(said.identity, before=user, data=said.data))
        return Allow(Principal(said.identity, self.name, credentials.client_id, data=said.data))
