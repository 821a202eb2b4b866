"""The step ``scram``: an exchange of AUTH packets, run by the method that the shell hands in.

The method has the users and what unknown names are shown; its secret must be the cluster's, so that a name looks the
same at every edge and after a restart. Without TLS an observer could try passwords against what it saw, so the step
refuses unless settings allow it.
"""

from dataclasses import dataclass, field
from typing import Protocol

from access.identity.principal import (
    Allow,
    Answer,
    Credentials,
    Deny,
    Failed,
    Job,
    Moment,
    Pass,
    Principal,
    Wait,
    name_fault,
)
from mqtt.reasons import ReasonCode

__all__ = ["Challenge", "ClientData", "ScramStep"]


class Said(Protocol):
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


class Exchange(Protocol):
    """One exchange with one client."""

    def receive(self, data: bytes) -> Said:
        """Take the client's message and answer."""


class Method(Protocol):
    """An authentication method by its name."""

    @property
    def name(self) -> str:
        """As CONNECT and AUTH have it."""

    def begin(self) -> Exchange:
        """Start an exchange."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send the data in an AUTH; the result is a ``ClientData``, the client's next AUTH."""

    data: bytes
    exchange: Exchange = field(repr=False, compare=False)
    kind: str = field(default="challenge", init=False)


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

    def begin(self, credentials: Credentials, moment: Moment) -> Answer:
        """Start the exchange with the data of CONNECT."""
        del moment
        if credentials.method != self._method.name:
            return Pass()
        if not credentials.secure and not self._allow_plain:
            return Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM without TLS")
        return self._go_on(credentials, self._method.begin(), credentials.data)

    def resume(self, credentials: Credentials, job: Job, result: object, moment: Moment) -> Answer:
        """Take the client's next message."""
        del moment
        if not isinstance(job, Challenge) or not isinstance(result, ClientData):
            return Failed("scram: a result that nobody asked for")
        return self._go_on(credentials, job.exchange, result.data)

    def _go_on(self, credentials: Credentials, exchange: Exchange, data: bytes) -> Answer:
        said = exchange.receive(data)
        if said.refused:
            return Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM exchange failed")
        if not said.identity:
            return Wait(Challenge(said.data, exchange))
        if name_fault(said.identity):
            return Deny(ReasonCode.NOT_AUTHORIZED, f"the user's name {name_fault(said.identity)}")
        return Allow(Principal(said.identity, self.name, credentials.client_id, data=said.data))
