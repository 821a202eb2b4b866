"""The chain of authenticators of one listener: steps in their order, and the one outcome of all their answers.

Allow and deny end the chain; a step that fails, raises or answers nonsense ends it with 0x88; only ``Pass`` goes on. At
the end a client that gave nothing is anonymous where the listener allows that. Bans are looked at before the first
step and after the last one. Nothing of a client is kept here: a ticket has all that a later call needs.
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
        """Return True if the address is banned, or, once it is known, the principal."""

    def is_revoked(self, issuer: str, serial: str) -> bool:
        """Return whether an operator revoked a certificate."""

    def is_token_revoked(self, token_id: str) -> bool:
        """Return whether an operator revoked a token."""


@dataclass(frozen=True, slots=True)
class ChainRules:
    """Settings of a listener beside its steps.

    Attributes:
        allow_anonymous: A client that gives nothing is let in, without a user.
        client_id_form: Form of client IDs: ``{user}``, ``{cn}`` or either with text around; ``...`` at the end stands
            for any text. Empty demands none.
    """

    allow_anonymous: bool = False
    client_id_form: str = ""

    def __post_init__(self) -> None:
        if CLIENT_ID_FORM.fullmatch(self.client_id_form) is None:
            raise ValueError("client_id: {user} and {cn} are its placeholders, and ... may stand at its end")


@dataclass(frozen=True, slots=True)
class Ticket:
    """State of a chain that waits; another chain, as after a reload, judges its credentials anew."""

    credentials: Credentials
    step: int
    job: Job
    waits: int
    chain: object = field(repr=False, compare=False)


class Admitted(NamedTuple):
    """The client is let in."""

    principal: Principal


class LoginRefused(NamedTuple):
    """The client is refused; the reason is for logs and counters, never for the client."""

    code: ReasonCode
    reason: str


@dataclass(frozen=True, slots=True)
class LoginPending:
    """The shell does the job and resumes with the ticket, before the time for CONNECT is over."""

    ticket: Ticket
    job: Job = field(repr=False)


Outcome: TypeAlias = Admitted | LoginRefused | LoginPending


class Chain:
    """Steps of one listener; immutable but for its counters, so a reload swaps the whole chain.

    Args:
        steps: In the order in which they are asked; a name may stand several times.
        rules: Settings of the listener.
        revocations: Asked for each certificate, whichever step lets the client in; None without CRL files.
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
        self.outcomes: Counter[str] = Counter()  # by step and kind of answer

    @property
    def asks_nothing(self) -> bool:
        """Whether each client without certificate and method is let in as nobody in particular, but for bans."""
        return not self._steps and self._rules.allow_anonymous and not self._rules.client_id_form

    def begin(self, credentials: Credentials, moment: TimePoint) -> Outcome:
        """Judge the credentials of a CONNECT."""
        early = self._early(credentials, moment)
        if early is not None:
            return early
        if credentials.certificate is not None and credentials.certificate.gateway:
            return self._admit_gateway(credentials, credentials.certificate, moment)
        return self._run(credentials, 0, moment, 0)

    def resume(self, ticket: Ticket, result: object, moment: TimePoint) -> Outcome:
        """Go on with the result of the job that the chain waited for.

        Args:
            ticket: Of ``LoginPending``.
            result: As the job's type names it; any other object counts as a failure.
            moment: Now.
        """
        credentials = ticket.credentials
        if ticket.chain is not self:
            return self.begin(credentials, moment)
        early = self._early(credentials, moment)  # a ban or a list may have come while the job ran
        if early is not None:
            return early
        step = self._steps[ticket.step]
        try:
            answer: object = step.resume(credentials, ticket.job, result, moment)
        except Exception as error:  # hostile bytes that a library trips over are no reason to let anybody in
            answer = Failed(f"{step.name}: {type(error).__name__}")
        outcome = self._outcome(credentials, ticket.step, answer, moment, ticket.waits)
        return outcome if outcome is not None else self._run(credentials, ticket.step + 1, moment, ticket.waits)

    def look_again(self, credentials: Credentials, principal: Principal, moment: TimePoint) -> LoginRefused | None:
        """Return why a client that was let in is refused by now, None if it is not; steps are not asked."""
        early = self._early(credentials, moment)
        return early if early is not None else self._banned(credentials, principal, moment)

    def _early(self, credentials: Credentials, moment: TimePoint) -> LoginRefused | None:
        """Return the refusal that no step can change."""
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
            return "has ended"  # a session of TLS that is resumed looks at no dates
        if facts.gateway:  # the lists of its authority judged it where it was read
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
        """Return what an answer means for the client; None if the next step is asked."""
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
        """Judge a client that no step knew."""
        if self._gave_something(credentials):
            return self._refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown to all")
        if not self._rules.allow_anonymous:
            return self._refused(ReasonCode.NOT_AUTHORIZED, "nothing given")
        return self._admit(credentials, Principal("", ANONYMOUS, credentials.client_id), moment)

    def _gave_something(self, credentials: Credentials) -> bool:
        """Return True for credentials that were judged. A user name alone proves nothing, so it is nothing.

        A listener without steps judges nothing: where it allows anonymous clients, each client is one. A certificate
        is the lock of the door where no step reads it; where one does, that step never passes a certificate on.
        """
        if not self._steps and self._rules.allow_anonymous:
            return False
        return credentials.password is not None or bool(credentials.method)

    def _admit(self, credentials: Credentials, principal: Principal, moment: TimePoint) -> Outcome:
        facts = credentials.certificate
        if facts is not None and not principal.serial:  # let in by another step: still judged again with its list
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
        """Let a gateway in by its certificate; no step is asked, and its client IDs have no form."""
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
    """Return True if a client ID is of the form; a name that is missing gives no form that anything could have."""
    if not form:
        return True
    if ("{user}" in form and not principal.user) or ("{cn}" in form and not principal.common_name):
        return False
    open_end = form.endswith("...")
    pieces = form.removesuffix("...").split("{")
    wanted = pieces[0]
    for piece in pieces[1:]:  # each begins with the name of a placeholder; text of a user is never read as one
        name, _, text = piece.partition("}")
        wanted += {"user": principal.user, "cn": principal.common_name}[name] + text
    if open_end:
        return principal.client_id.startswith(wanted) and len(principal.client_id) > len(wanted)
    return principal.client_id == wanted
