"""Types shared by steps, chain and shells: credentials, principal, answers of steps, and jobs.

A step is a core: it answers at once, or requests a job from the shell and is resumed with its result. The other files
of this package decide.
"""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from access.rules.rules import Tier
from mqtt.reasons import ReasonCode

__all__ = [
    "GATEWAY",
    "GATEWAY_USER",
    "AclReader",
    "Allow",
    "Answer",
    "AuthenticationStep",
    "CertificateFacts",
    "Credentials",
    "Deny",
    "Failed",
    "Job",
    "Pass",
    "Principal",
    "TimePoint",
    "Wait",
    "name_fault",
    "no_acl",
]

NAME_BYTES_MAX = 65_535  # of an MQTT string
GATEWAY = "gateway"  # method of a principal that the nodes' authority certifies
GATEWAY_USER = "gateway/"  # prefix of its name; only this method may use it
UTC_MAX = 253_402_300_799.0  # the last second of the year 9999

AclReader: TypeAlias = Callable[[object], tuple[Tier, ...]]  # ``access.rules.claims.read_acl``, or ``no_acl``


class TimePoint(NamedTuple):
    """One point in time on both clocks.

    Attributes:
        now: Seconds of a monotonic clock.
        utc: Seconds since the epoch.
    """

    now: float
    utc: float


class CertificateFacts(msgspec.Struct, frozen=True):
    """Facts of a client certificate whose chain, purpose and dates TLS has verified.

    Attributes:
        names: Values by kind: cn, san_dns, san_uri, san_email, dn; all values in the certificate, for the requested
            kinds only.
        serial: Hexadecimal, lower case.
        fingerprint: SHA-256 of the certificate, hexadecimal.
        issuer: SHA-256 of the issuer's name in DER, hexadecimal: the key of revocation.
        authority_key: Key identifier of the issuer in the certificate, or empty.
        of_cluster: It names a node or an operator of a cluster, so its holder is never a client, except a gateway.
        gateway: Name of the gateway that it certifies, from the nodes' own authority; empty for any other.
        expires_at_utc: End of its validity, None if unknown.
    """

    names: Mapping[str, tuple[str, ...]]
    serial: str
    fingerprint: str
    issuer: str
    authority_key: bytes = b""
    of_cluster: bool = False
    gateway: str = ""
    expires_at_utc: float | None = None


class Credentials(msgspec.Struct, frozen=True):  # created for each CONNECT, and in C
    """Credentials of a CONNECT and its connection; only the certificate is verified.

    Attributes:
        listener: Name of the listener.
        address: Of the client, without port.
        client_id: From CONNECT; may be empty.
        user: User name, None if CONNECT has none.
        password: None if CONNECT has none.
        certificate: None if the client sent none.
        method: Authentication method of MQTT 5, empty if there is none.
        data: Authentication data.
        secure: The connection is TLS.
    """

    listener: str
    address: str
    client_id: str
    user: str | None = None
    password: bytes | None = None
    certificate: CertificateFacts | None = None
    method: str = ""
    data: bytes = b""
    secure: bool = False

    def __repr__(self) -> str:
        """Return it without password and data."""
        return f"Credentials({self.listener!r}, {self.address!r}, {self.client_id!r}, {self.user!r}, {self.method!r})"


class Principal(msgspec.Struct, frozen=True):  # likewise
    """The client that an authenticator verified.

    Attributes:
        user: Empty for an anonymous client.
        method: Name of the step that verified it, or ``anonymous``.
        client_id: Of the session.
        roles: Names of roles, in addition to those from settings.
        tiers: Rules of this principal only, from claims or an HTTP response.
        attributes: For placeholders of rules.
        expires_at_utc: End of the connection, None for no end.
        limits: Limits of this principal by name.
        serial: Of its certificate, empty without one; with ``issuer`` the key for later checks.
        fingerprint: Of its certificate.
        issuer: Of its certificate, as in ``CertificateFacts``.
        common_name: Of its certificate if it has exactly one, for placeholders.
        data: For the client: the last message of an exchange.
        made: Policy epoch at which the cluster's user was added. With ``user`` it identifies the owner of a session, so
            a re-added name does not own the former one's. 0 for other users.
        since: Policy epoch of that user's last ``disable`` or password change, at login.
        groups: Of the cluster; their roles are included in ``roles``, their limits in ``limits``.
        own_roles: Those of that user itself.
        own_limits: Likewise.
        token_id: ``jti`` of its token, empty without one; revocations use it.
    """

    user: str
    method: str
    client_id: str
    roles: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    attributes: Mapping[str, str] = {}
    expires_at_utc: float | None = None
    limits: Mapping[str, int] = {}
    serial: str = ""
    fingerprint: str = ""
    issuer: str = ""
    common_name: str = ""
    data: bytes = b""
    made: int = 0
    since: int = 0
    groups: tuple[str, ...] = ()
    own_roles: tuple[str, ...] = ()
    own_limits: Mapping[str, int] = {}
    token_id: str = ""


class Job(Protocol):
    """Work for the shell; each job has its own type, which defines the type of the result."""

    @property
    def kind(self) -> str:
        """Name for counters."""


class Allow(msgspec.Struct, frozen=True):
    """The step verified the credentials; the chain ends."""

    principal: Principal


@dataclass(frozen=True, slots=True)
class Deny:
    """Credentials of the step's kind are wrong, expired or revoked; the chain ends."""

    code: ReasonCode
    reason: str


class Pass(msgspec.Struct, frozen=True):
    """The credentials are not of the step's kind; the next step runs."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer needs a job's result."""

    job: Job


@dataclass(frozen=True, slots=True)
class Failed:
    """The step's backend failed or returned an invalid response; the chain ends with 0x88."""

    text: str


Answer: TypeAlias = Allow | Deny | Pass | Wait | Failed


class AuthenticationStep(Protocol):
    """One authenticator of a chain."""

    @property
    def name(self) -> str:
        """Name in settings."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Authentication methods of MQTT 5 that it supports."""

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Check the credentials."""

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Check with the result of the job that this step requested; the result may be any object."""


def no_acl(acl: object) -> tuple[Tier, ...]:
    """Refuse rules in a token or a response: the listener does not accept them.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"this listener takes no acl, and was given {type(acl).__name__}")


def name_fault(name: str) -> str:
    """Return why a text is not a valid user or client name, empty if it is valid.

    A name is in normal form C and without control characters, because two names that look alike would be two users.
    Wildcard characters of filters are allowed: rules treat such names literally.
    """
    if not name:
        return "is empty"
    if name.isascii():
        if len(name) > NAME_BYTES_MAX:
            return "is too long"
        return "" if name.isprintable() else "has a control character"
    try:
        if len(name.encode()) > NAME_BYTES_MAX:
            return "is too long"
    except UnicodeEncodeError:
        return "is no Unicode text"
    if not unicodedata.is_normalized("NFC", name):
        return "is not in normal form C"
    if any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in name):
        return "has a control character"
    return ""
