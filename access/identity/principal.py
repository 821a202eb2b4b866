"""Types that steps, chain and shells share: credentials, the principal they prove, answers of steps, and jobs.

A step is a core: it answers at once, or asks the shell for a job and is resumed with the job's result. Decisions are in
the other files of this folder.
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

NAME_BYTES_MAX = 65_535  # of a string of MQTT
GATEWAY = "gateway"  # method of a principal that the nodes' authority certifies
GATEWAY_USER = "gateway/"  # before its name; a user of no other method has such a name
UTC_MAX = 253_402_300_799.0  # the last second of the year 9999

AclReader: TypeAlias = Callable[[object], tuple[Tier, ...]]  # ``access.rules.claims.read_acl``, or ``no_acl``


class TimePoint(NamedTuple):
    """One moment on both clocks.

    Attributes:
        now: Seconds of a monotonic clock.
        utc: Seconds since the epoch.
    """

    now: float
    utc: float


class CertificateFacts(msgspec.Struct, frozen=True):
    """Facts of a client certificate whose chain, purpose and dates TLS has verified.

    Attributes:
        names: Values by kind: cn, san_dns, san_uri, san_email, dn; each as often as the certificate has it, and only
            the kinds that were looked for.
        serial: Hexadecimal, lower case.
        fingerprint: SHA-256 of the certificate, hexadecimal.
        issuer: SHA-256 of the issuer's name in DER, hexadecimal: the key of revocation.
        authority_key: Key identifier of the issuer as the certificate says it, or empty.
        of_cluster: It names a node or an operator of a cluster, so its holder is never a client, but for a gateway.
        gateway: Name of the gateway that it certifies, of the nodes' own authority; empty for any other.
        expires_at_utc: End of its validity, None where nobody knows.
    """

    names: Mapping[str, tuple[str, ...]]
    serial: str
    fingerprint: str
    issuer: str
    authority_key: bytes = b""
    of_cluster: bool = False
    gateway: str = ""
    expires_at_utc: float | None = None


class Credentials(msgspec.Struct, frozen=True):  # made for each CONNECT, and in C
    """All that a CONNECT and its connection give; nothing of it but the certificate is verified.

    Attributes:
        listener: Name of the listener.
        address: Of the client, without port.
        client_id: As CONNECT has it; may be empty.
        user: User name, None if CONNECT has none.
        password: None if CONNECT has none.
        certificate: None if the client showed none.
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
        client_id: That the session belongs to.
        roles: Names of roles, beside those that settings give the user.
        tiers: Rules of this principal alone, from claims or an HTTP answer.
        attributes: For placeholders of rules.
        expires_at_utc: End of the connection, None for no end.
        limits: Limits of this principal by name.
        serial: Of its certificate, empty without one; with ``issuer`` the key by which it is judged again.
        fingerprint: Of its certificate.
        issuer: Of its certificate, as in ``CertificateFacts``.
        common_name: Of its certificate if it has exactly one, for placeholders.
        data: For the client: the last message of an exchange.
        made: Policy epoch at which the cluster's user was added: with ``user`` the owner of a session, so that a name
            that is given again owns nothing of the former one. 0 for a user that is none of the cluster's.
        since: Policy epoch of that user's last ``disable`` or other password, under which it was let in.
        groups: Of the cluster, whose roles are among ``roles``, and whose limits are in ``limits``.
        own_roles: Those of that user itself.
        own_limits: Likewise.
        token_id: ``jti`` of its token, empty without one: the name by which that is revoked.
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
    """Work for the shell; each job is a record of its own type, and the type names the result."""

    @property
    def kind(self) -> str:
        """Name for counters."""


class Allow(msgspec.Struct, frozen=True):
    """The step knew the credentials and verified them; the chain ends."""

    principal: Principal


@dataclass(frozen=True, slots=True)
class Deny:
    """Credentials of the step's kind are wrong, expired or revoked; the chain ends."""

    code: ReasonCode
    reason: str


class Pass(msgspec.Struct, frozen=True):
    """The credentials are not of the step's kind; the next step is asked."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer needs a job's result."""

    job: Job


@dataclass(frozen=True, slots=True)
class Failed:
    """The step's backend failed or answered nonsense; the chain ends with 0x88."""

    text: str


Answer: TypeAlias = Allow | Deny | Pass | Wait | Failed


class AuthenticationStep(Protocol):
    """One authenticator of a chain."""

    @property
    def name(self) -> str:
        """As settings name it."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Authentication methods of MQTT 5 that it runs."""

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Judge the credentials."""

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Judge with the result of the job that this step asked for; any object may come as result."""


def no_acl(acl: object) -> tuple[Tier, ...]:
    """Refuse rules in a token or an answer: the listener takes none.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"this listener takes no acl, and was given {type(acl).__name__}")


def name_fault(name: str) -> str:
    """Return why a text cannot be the name of a user or client, empty if it can.

    A name is in normal form C and without characters that a log or a terminal obeys, because two names that look the
    same would be two users. Signs that mean something in a filter are allowed: rules take such names literally.
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
