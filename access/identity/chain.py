"""The chain of authenticators of one listener: runs steps in order and returns one outcome.

Allow and deny end the chain; a step that fails, raises or returns an invalid answer ends it with 0x88; only ``Pass``
continues. At the end, a client without credentials is anonymous if the listener allows that. Bans are checked before
the first step and after the last one. No client state is stored here: a ticket holds the state for a later call.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from access.identity.principal import (
    GATEWAY,
    GATEWAY_USER,
    Allow,
    AuthenticationStep,
    CertificateFacts,
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

__all__ = [
    "ANONYMOUS",
    "Admitted",
    "Bans",
    "Chain",
    "ChainRules",
    "LoginPending",
    "LoginRefused",
    "Outcome",
    "Revocations",
    "Ticket",
]

WAITS_MAX = 8  # of one CONNECT; SCRAM needs one, the cluster's users two
ANONYMOUS = "anonymous"
CLIENT_ID_FORM = re.compile(r"(?:[^{}]|\{user\}|\{cn\})*")


class Revocations(Protocol):
    """Revoked certificates; ``revocation.RevocationSet`` is one."""

    def refusal(self, issuer: str, serial: str, utc: float) -> str:
        """Return why a certificate is refused, empty if it is not."""


class Bans(Protocol):
    """Bans of addresses, users, client IDs and certificates."""

    def is_banned(self, credentials: Credentials, principal: Principal | None, utc: float) -> bool:
        """Return whether the address or, once known, the principal is banned."""

    def is_revoked(self, issuer: str, serial: str) -> bool:
        """Return whether an operator revoked a certificate."""

    def is_token_revoked(self, token_id: str) -> bool:
        """Return whether an operator revoked a token."""


@dataclass(frozen=True, slots=True)
class ChainRules:
    """Settings of a listener besides its steps.

    Attributes:
        allow_anonymous: Admit clients without credentials, without a user.
        client_id_form: Form of client IDs: ``{user}``, ``{cn}`` or either within other text; ``...`` at the end matches
            any text. Empty: any client ID.
    """

    allow_anonymous: bool = False
    client_id_form: str = ""

    def __post_init__(self) -> None:
        if CLIENT_ID_FORM.fullmatch(self.client_id_form) is None:
            raise ValueError("client_id: only {user} and {cn} are placeholders, and ... is allowed only at the end")


@dataclass(frozen=True, slots=True)
class Ticket:
    """State of a waiting chain; a chain that was reloaded meanwhile starts again with its credentials."""

    credentials: Credentials
    step: int
    job: Job
    waits: int
    chain: object = field(repr=False, compare=False)


class Admitted(NamedTuple):
    """The client is admitted."""

    principal: Principal


class LoginRefused(NamedTuple):
    """The client is refused; the reason is for logs and counters, never for the client."""

    code: ReasonCode
    reason: str


@dataclass(frozen=True, slots=True)
class LoginPending:
    """The shell runs the job and resumes with the ticket, before the CONNECT timeout."""

    ticket: Ticket
    job: Job = field(repr=False)


Outcome: TypeAlias = Admitted | LoginRefused | LoginPending


class Chain:
    """Steps of one listener; immutable except for its counters, so a reload replaces the whole chain.

    Args:
        steps: In order; a name may occur several times.
        rules: Settings of the listener.
        revocations: Checked for each certificate, whichever step admits the client; None without CRL files.
        bans: None without bans.
    """

    def __init__(
        self,
        steps: Sequence[AuthenticationStep],
        rules: ChainRules,
        revocations: Revocations | None = None,
        bans: Bans | None = None,
    ) -> None:
        self._steps = tuple(steps)
        self._rules = rules
        self._revocations = revocations
        self._bans = bans
        self._methods = frozenset(method for step in self._steps for method in step.methods)
        self.outcomes: Counter[str] = Counter()  # by step and type of answer

    @property
    def asks_nothing(self) -> bool:
        """Whether each client without certificate and method is admitted anonymously, unless banned."""
        return not self._steps and self._rules.allow_anonymous and not self._rules.client_id_form

    def begin(self, credentials: Credentials, moment: TimePoint) -> Outcome:
        """Authenticate the credentials of a CONNECT."""
        early = self._early(credentials, moment)
        if early is not None:
            return early
        if credentials.certificate is not None and credentials.certificate.gateway:
            return self._admit_gateway(credentials, credentials.certificate, moment)
        return self._run(credentials, 0, moment, 0)

    def resume(self, ticket: Ticket, result: object, moment: TimePoint) -> Outcome:
        """Continue with the result of the job that the chain waited for.

        Args:
            ticket: Of ``LoginPending``.
            result: Of the type that the job names; any other object counts as a failure.
            moment: Now.
        """
        credentials = ticket.credentials
        if ticket.chain is not self:
            return self.begin(credentials, moment)
        early = self._early(credentials, moment)  # a ban or a list may have been added while the job ran
        if early is not None:
            return early
        step = self._steps[ticket.step]
        try:
            answer: object = step.resume(credentials, ticket.job, result, moment)
        except Exception as error:  # an exception on hostile bytes must not admit the client
            answer = Failed(f"{step.name}: {type(error).__name__}")
        outcome = self._outcome(credentials, ticket.step, answer, moment, ticket.waits)
        return outcome if outcome is not None else self._run(credentials, ticket.step + 1, moment, ticket.waits)

    def look_again(self, credentials: Credentials, principal: Principal, moment: TimePoint) -> LoginRefused | None:
        """Return why an admitted client is refused by now, None if it is not; runs no step."""
        early = self._early(credentials, moment)
        return early if early is not None else self._banned(credentials, principal, moment)

    def _early(self, credentials: Credentials, moment: TimePoint) -> LoginRefused | None:
        """Return a refusal that no step can change."""
        try:
            if self._bans is not None and self._bans.is_banned(credentials, None, moment.utc):
                return self._refused(ReasonCode.BANNED, "banned")
            reason = self._certificate_fault(credentials.certificate, moment.utc)
        except Exception as error:
            return self._refused(ReasonCode.SERVER_UNAVAILABLE, f"bans or lists: {type(error).__name__}")
        if reason:
            return self._refused(ReasonCode.NOT_AUTHORIZED, f"certificate: {reason}")
        if credentials.method and credentials.method not in self._methods:  # MQTT-4.12.0-1
            return self._refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "a method that the listener has not")
        return None

    def _certificate_fault(self, facts: CertificateFacts | None, utc: float) -> str:
        if facts is None:
            return ""
        if facts.expires_at_utc is not None and utc >= facts.expires_at_utc:
            return "has ended"  # a resumed TLS session does not check dates
        if facts.gateway:  # its authority's lists were checked where it was read
            revoked = self._bans is not None and self._bans.is_revoked(facts.issuer, facts.serial)
            return "revoked in the policy" if revoked else ""
        if facts.of_cluster:
            return "of a node or an operator"
        return self._revocations.refusal(facts.issuer, facts.serial, utc) if self._revocations is not None else ""

    def _run(self, credentials: Credentials, first: int, moment: TimePoint, waits: int) -> Outcome:
        for index in range(first, len(self._steps)):
            step = self._steps[index]
            try:
                answer: object = step.begin(credentials, moment)
            except Exception as error:  # as in ``resume``
                answer = Failed(f"{step.name}: {type(error).__name__}")
            outcome = self._outcome(credentials, index, answer, moment, waits)
            if outcome is not None:
                return outcome
        return self._end(credentials, moment)

    def _outcome(
        self, credentials: Credentials, index: int, answer: object, moment: TimePoint, waits: int
    ) -> Outcome | None:
        """Return the outcome of an answer; None to continue with the next step."""
        step = self._steps[index]
        self.outcomes[f"{step.name} {type(answer).__name__.lower()}"] += 1
        if isinstance(answer, Pass):
            return None
        if isinstance(answer, Allow):
            return self._admit(credentials, answer.principal, moment)
        if isinstance(answer, Deny):
            code = answer.code if answer.code >= ReasonCode.UNSPECIFIED_ERROR else ReasonCode.NOT_AUTHORIZED
            return self._refused(code, answer.reason)
        if isinstance(answer, Wait) and waits < WAITS_MAX:
            return LoginPending(Ticket(credentials, index, answer.job, waits + 1, self), answer.job)
        text = answer.text if isinstance(answer, Failed) else f"{step.name}: no answer of a step"
        return self._refused(ReasonCode.SERVER_UNAVAILABLE, text)

    def _end(self, credentials: Credentials, moment: TimePoint) -> Outcome:
        """Return the outcome for a client that all steps passed on."""
        if self._has_credentials(credentials):
            return self._refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown to all")
        if not self._rules.allow_anonymous:
            return self._refused(ReasonCode.NOT_AUTHORIZED, "nothing given")
        return self._admit(credentials, Principal("", ANONYMOUS, credentials.client_id), moment)

    def _has_credentials(self, credentials: Credentials) -> bool:
        """Return whether credentials were given that a step checks. A user name alone proves nothing and does not
        count.

        A listener without steps checks nothing: if it allows anonymous clients, each client is one. A certificate that
        no step reads only protects the connection; a step that reads certificates never passes one on.
        """
        if not self._steps and self._rules.allow_anonymous:
            return False
        return credentials.password is not None or bool(credentials.method)

    def _admit(self, credentials: Credentials, principal: Principal, moment: TimePoint) -> Outcome:
        facts = credentials.certificate
        if facts is not None and not principal.serial:  # admitted by another step: still rechecked against its list
            ends = [end for end in (principal.expires_at_utc, facts.expires_at_utc) if end is not None]
            principal = replace(
                principal,
                serial=facts.serial,
                fingerprint=facts.fingerprint,
                issuer=facts.issuer,
                expires_at_utc=min(ends, default=None),
            )
        if principal.user and name_fault(principal.user):
            return self._refused(ReasonCode.NOT_AUTHORIZED, f"the user's name {name_fault(principal.user)}")
        if principal.user.startswith(GATEWAY_USER):
            return self._refused(ReasonCode.NOT_AUTHORIZED, "the name of a gateway, without its certificate")
        if not _has_form(self._rules.client_id_form, principal):
            return self._refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a client ID of another form")
        banned = self._banned(credentials, principal, moment)
        if banned is not None:
            return banned
        self.outcomes["admitted"] += 1
        return Admitted(principal)

    def _admit_gateway(self, credentials: Credentials, facts: CertificateFacts, moment: TimePoint) -> Outcome:
        """Admit a gateway by its certificate; no step runs, and its client IDs have no form."""
        principal = Principal(
            GATEWAY_USER + facts.gateway,
            GATEWAY,
            credentials.client_id,
            expires_at_utc=facts.expires_at_utc,
            serial=facts.serial,
            fingerprint=facts.fingerprint,
            issuer=facts.issuer,
        )
        banned = self._banned(credentials, principal, moment)
        if banned is not None:
            return banned
        self.outcomes["admitted"] += 1
        return Admitted(principal)

    def _banned(self, credentials: Credentials, principal: Principal, moment: TimePoint) -> LoginRefused | None:
        try:
            if self._bans is not None and self._bans.is_banned(credentials, principal, moment.utc):
                return self._refused(ReasonCode.BANNED, "banned")
            if principal.token_id and self._bans is not None and self._bans.is_token_revoked(principal.token_id):
                return self._refused(ReasonCode.NOT_AUTHORIZED, "token: revoked in the policy")
        except Exception as error:
            return self._refused(ReasonCode.SERVER_UNAVAILABLE, f"bans: {type(error).__name__}")
        return None

    def _refused(self, code: ReasonCode, reason: str) -> LoginRefused:
        self.outcomes[f"refused 0x{code:02X}"] += 1
        return LoginRefused(code, reason)


def _has_form(form: str, principal: Principal) -> bool:
    """Return whether a client ID has the form; with a missing name no client ID has."""
    if not form:
        return True
    if ("{user}" in form and not principal.user) or ("{cn}" in form and not principal.common_name):
        return False
    open_end = form.endswith("...")
    pieces = form.removesuffix("...").split("{")
    wanted = pieces[0]
    for piece in pieces[1:]:  # each starts with a placeholder's name; text of a user is never parsed as one
        name, _, text = piece.partition("}")
        wanted += {"user": principal.user, "cn": principal.common_name}[name] + text
    if open_end:
        return principal.client_id.startswith(wanted) and len(principal.client_id) > len(wanted)
    return principal.client_id == wanted
