"""The chain: every order of answers and errors gives the outcome of the first one that is not Pass."""

import itertools
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from access.identity.chain import WAITS_MAX, Admitted, Chain, ChainRules, LoginPending, LoginRefused, Outcome
from access.identity.principal import (
    Allow,
    Answer,
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
)
from mqtt.reasons import ReasonCode

NOW = TimePoint(1.0, 2.0)
GIVEN = Credentials("l", "::1", "id", "alice", b"secret")
NOTHING = Credentials("l", "::1", "id", "alice")
FACTS = CertificateFacts({"cn": ("device",)}, "abc", "ff" * 32, "issuer")


@dataclass(frozen=True)
class Errand:
    """A job whose result is the step's later answer."""

    kind: str = "errand"


class Scripted:
    """A step with scripted answers; an exception is raised, text is returned as an invalid answer."""

    def __init__(self, answer: object, later: object = None, methods: tuple[str, ...] = ()) -> None:
        self.name = "scripted"
        self.methods = methods
        self._answer, self._later = answer, later
        self.asked = 0

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        del credentials, moment
        self.asked += 1
        return self._give(self._answer)

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        del credentials, result, moment
        assert isinstance(job, Errand)
        return self._give(self._later)

    @staticmethod
    def _give(answer: object) -> Answer:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


def allow(user: str = "alice", **more: object) -> Allow:
    return Allow(Principal(user, "scripted", "id", **more))  # type: ignore[arg-type]


DENY = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong")
ANSWERS: dict[str, object] = {
    "allow": allow(),
    "deny": DENY,
    "pass": Pass(),
    "failed": Failed("no backend"),
    "raised": RuntimeError("bug"),
    "deep": RecursionError(),
    "nonsense": "allow",
    "none": None,
    "true": True,
}
ENDS = {"allow": "admitted", "deny": 0x86}  # any other but pass: 0x88
SCRIPTS = [*ANSWERS, *(f"wait, {name}" for name in ANSWERS)]


def script(name: str) -> Scripted:
    if name.startswith("wait, "):
        return Scripted(Wait(Errand()), ANSWERS[name.removeprefix("wait, ")])
    return Scripted(ANSWERS[name])


def run(chain: Chain, credentials: Credentials = GIVEN) -> Outcome:
    """Return the last outcome; every job gets a result."""
    outcome = chain.begin(credentials, NOW)
    while isinstance(outcome, LoginPending):
        assert isinstance(outcome.job, Errand)
        outcome = chain.resume(outcome.ticket, object(), NOW)
    return outcome


def code_of(outcome: Outcome) -> object:
    assert not isinstance(outcome, LoginPending)
    return "admitted" if isinstance(outcome, Admitted) else outcome.code


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("anonymous", [False, True])
def test_every_order_of_answers_and_errors(length: int, anonymous: bool) -> None:
    """The first answer that is not Pass decides, and no later step runs."""
    for names in itertools.product(SCRIPTS, repeat=length):
        steps = [script(name) for name in names]
        outcome = run(Chain(steps, ChainRules(anonymous)))
        plain = [name.removeprefix("wait, ") for name in names]
        decides = next((at for at, name in enumerate(plain) if name != "pass"), None)
        expected = 0x86 if decides is None else ENDS.get(plain[decides], 0x88)
        assert code_of(outcome) == expected, names
        last = length if decides is None else decides + 1
        assert [step.asked for step in steps] == [1] * last + [0] * (length - last), names


@pytest.mark.parametrize(
    ("steps", "anonymous", "credentials", "expected"),
    [
        (1, True, NOTHING, "admitted"),
        (1, False, NOTHING, 0x87),
        (1, True, replace(NOTHING, user=None), "admitted"),
        (1, True, replace(NOTHING, user=None, password=b"x"), 0x86),
        (1, True, replace(NOTHING, password=b""), 0x86),
        (1, True, GIVEN, 0x86),
        (1, False, GIVEN, 0x86),
        (1, True, replace(NOTHING, method="TEST"), 0x86),
        (1, True, replace(NOTHING, method="OTHER"), 0x8C),
        (1, True, replace(NOTHING, certificate=FACTS), "admitted"),
        (0, True, GIVEN, "admitted"),
        (0, True, NOTHING, "admitted"),
        (0, False, GIVEN, 0x86),
        (0, False, NOTHING, 0x87),
        (0, True, replace(NOTHING, method="TEST"), 0x8C),
    ],
)
def test_the_end_of_the_chain(steps: int, anonymous: bool, credentials: Credentials, expected: object) -> None:
    """No credentials, some credentials, and anonymous; an anonymous client's user name is dropped."""
    outcome = run(Chain([Scripted(Pass(), methods=("TEST",))] * steps, ChainRules(anonymous)), credentials)
    assert code_of(outcome) == expected
    if isinstance(outcome, Admitted):
        assert (outcome.principal.user, outcome.principal.method, outcome.principal.roles) == ("", "anonymous", ())


class Lists:
    def __init__(self, *refusals: str | Exception) -> None:
        self._refusals = list(refusals)

    def refusal(self, issuer: str, serial: str, utc: float) -> str:
        assert (issuer, serial, utc) == ("issuer", "abc", 2.0)
        found = self._refusals.pop(0) if self._refusals else ""
        if isinstance(found, Exception):
            raise found
        return found


class Banned:
    """Bans by a list of answers, one per call."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked: list[str | None] = []

    def is_banned(self, credentials: Credentials, principal: Principal | None, utc: float) -> bool:
        del credentials, utc
        self.asked.append(None if principal is None else principal.user)
        found = self._answers.pop(0) if self._answers else False
        if isinstance(found, Exception):
            raise found
        return bool(found)

    def is_revoked(self, issuer: str, serial: str) -> bool:
        return (issuer, serial) == ("issuer", "revoked")

    def is_token_revoked(self, token_id: str) -> bool:
        return token_id == "revoked"


def test_certificates_of_the_cluster_are_never_clients() -> None:
    """For all answers of steps, and on a listener without steps."""
    node = replace(GIVEN, certificate=replace(FACTS, of_cluster=True))
    for steps in ([], [Scripted(allow())]):
        assert code_of(run(Chain(steps, ChainRules(True)), node)) == 0x87


def test_a_certified_gateway_is_a_user_of_its_own_name_and_no_step_is_asked() -> None:
    """The lists of the listener's authority do not apply to it; bans and revocations in the policy do."""
    facts = replace(FACTS, of_cluster=True, gateway="bridge")
    gateway = replace(GIVEN, certificate=facts)
    step = Scripted(Failed("asked"))
    outcome = run(Chain([step], ChainRules(client_id_form="{cn}"), Lists("no list of its issuer"), Banned()), gateway)
    assert isinstance(outcome, Admitted) and step.asked == 0
    principal = outcome.principal
    assert (principal.user, principal.method, principal.client_id) == ("gateway/bridge", "gateway", "id")
    assert (principal.serial, principal.issuer) == ("abc", "issuer")
    assert code_of(run(Chain([], ChainRules(), None, Banned(False, True)), gateway)) == 0x8A
    revoked = replace(gateway, certificate=replace(facts, serial="revoked"))
    assert code_of(run(Chain([], ChainRules(), None, Banned()), revoked)) == 0x87


def test_chain_gateway_name_needs_its_certificate() -> None:
    """For every step that would admit it, a password or a device's certificate."""
    for method in ("password", "certificate", "gateway"):
        named = Allow(Principal("gateway/bridge", method, "id"))
        assert code_of(run(Chain([Scripted(named)], ChainRules()), GIVEN)) == 0x87


def test_a_revoked_certificate_is_refused_whichever_step_would_admit() -> None:
    """Also one that was revoked while the chain waited, and if the list itself fails."""
    client = replace(GIVEN, certificate=FACTS)
    for lists, expected in (
        (Lists(), "admitted"),
        (Lists("revoked"), 0x87),
        (Lists("", "revoked"), 0x87),
        (Lists(OSError()), 0x88),
    ):
        step = Scripted(Wait(Errand()), allow())
        assert code_of(run(Chain([step], ChainRules(), lists), client)) == expected
    outcome = run(Chain([Scripted(allow())], ChainRules(), Lists()), client)
    assert isinstance(outcome, Admitted)
    assert (outcome.principal.serial, outcome.principal.issuer) == ("abc", "issuer")


@pytest.mark.parametrize("gateway", ["", "bridge"])
def test_chain_expired_certificate_is_refused(gateway: str) -> None:
    """TLS checks the dates at a handshake, and not for a resumed session."""
    ended = replace(FACTS, of_cluster=bool(gateway), gateway=gateway, expires_at_utc=NOW.utc)
    for steps in ([], [Scripted(allow())]):
        for certificate, expected in ((ended, 0x87), (replace(ended, expires_at_utc=NOW.utc + 1), "admitted")):
            assert code_of(run(Chain(steps, ChainRules(True)), replace(GIVEN, certificate=certificate))) == expected


@pytest.mark.parametrize(
    ("own", "certificate", "end"), [(None, 9e9, 9e9), (8e9, 9e9, 8e9), (9e9, 8e9, 8e9), (8e9, None, 8e9)]
)
def test_chain_connection_ends_at_earliest_expiry(own: float | None, certificate: float | None, end: float) -> None:
    """The certificate, or the credentials of the step."""
    client = replace(GIVEN, certificate=replace(FACTS, expires_at_utc=certificate))
    outcome = run(Chain([Scripted(allow(expires_at_utc=own))], ChainRules()), client)
    assert isinstance(outcome, Admitted) and outcome.principal.expires_at_utc == end


def test_bans_come_before_the_first_step_and_after_the_last() -> None:
    """0x8A; the address first, then the principal; a failing table refuses."""
    for banned, expected, asked in (
        (Banned(), "admitted", [None, "alice"]),
        (Banned(True), 0x8A, [None]),
        (Banned(False, True), 0x8A, [None, "alice"]),
        (Banned(RuntimeError()), 0x88, [None]),
        (Banned(False, RuntimeError()), 0x88, [None, "alice"]),
    ):
        step = Scripted(allow())
        assert code_of(run(Chain([step], ChainRules(), None, banned))) == expected
        assert banned.asked == asked
        assert step.asked == (0 if asked == [None] else 1)
    banned = Banned(False, True)
    assert code_of(run(Chain([], ChainRules(True), None, banned))) == 0x8A


def test_chain_step_that_always_waits_is_an_error() -> None:
    step = Scripted(Wait(Errand()), Wait(Errand()))
    chain = Chain([step], ChainRules())
    outcome, waits = chain.begin(GIVEN, NOW), 0
    while isinstance(outcome, LoginPending):
        outcome, waits = chain.resume(outcome.ticket, None, NOW), waits + 1
    assert (code_of(outcome), waits) == (0x88, WAITS_MAX)


def test_chain_ticket_of_former_chain_restarts() -> None:
    """No step of the new chain is skipped, and none of the old one admits."""
    outcome = Chain([Scripted(Pass()), Scripted(Wait(Errand()), allow())], ChainRules()).begin(GIVEN, NOW)
    assert isinstance(outcome, LoginPending)
    for steps, expected in (([Scripted(DENY)], 0x86), ([Scripted(allow())], "admitted"), ([], 0x86)):
        assert code_of(Chain(steps, ChainRules()).resume(outcome.ticket, object(), NOW)) == expected


def test_a_code_of_success_is_no_refusal_and_a_bad_name_no_user() -> None:
    """Mistakes of a step."""
    assert code_of(run(Chain([Scripted(Deny(ReasonCode.SUCCESS, "odd"))], ChainRules(True)))) == 0x87
    for name in ("alice\0", "a\nb", "\ud800", "e\u0301"):
        assert code_of(run(Chain([Scripted(allow(name))], ChainRules(True)))) == 0x87


@pytest.mark.parametrize(
    ("form", "client_id", "expected"),
    [
        ("", "anything", True),
        ("{user}", "alice", True),
        ("{user}", "alice2", False),
        ("{user}", "", False),
        ("{user}/...", "alice/1", True),
        ("{user}/...", "alice/", False),
        ("{user}/...", "alic", False),
        ("{user}/...", "bob/alice/1", False),
        ("{cn}", "device", True),
        ("x-{cn}-{user}", "x-device-alice", True),
        ("x-{cn}-{user}", "x-device-bob", False),
        ("fixed", "fixed", True),
        ("...", "x", True),
        ("...", "", False),
    ],
)
def test_a_form_of_client_ids(form: str, client_id: str, expected: bool) -> None:
    """Check A6; a missing name has no form."""
    principal = Principal("alice", "scripted", client_id, common_name="device")
    outcome = run(Chain([Scripted(Allow(principal))], ChainRules(True, form)))
    assert code_of(outcome) == ("admitted" if expected else 0x85)
    without = Principal("", "scripted", client_id)
    if "{" in form:
        assert code_of(run(Chain([Scripted(Allow(without))], ChainRules(True, form)))) == 0x85


def test_a_user_whose_name_looks_like_a_placeholder() -> None:
    principal = Principal("{cn}", "scripted", "device", common_name="device")
    assert code_of(run(Chain([Scripted(Allow(principal))], ChainRules(True, "{user}")))) == 0x85
    with pytest.raises(ValueError, match="placeholders"):
        ChainRules(True, "{User}")


def test_answers_are_counted_without_names_of_clients() -> None:
    chain = Chain([Scripted(Pass()), Scripted(DENY)], ChainRules())
    run(chain)
    assert chain.outcomes == {"scripted pass": 1, "scripted deny": 1, "refused 0x86": 1}


def test_chain_refusal_contains_no_secret() -> None:
    steps: list[AuthenticationStep] = [Scripted(Pass())]
    outcome = run(Chain(steps, ChainRules()))
    assert isinstance(outcome, LoginRefused) and "secret" not in repr((outcome, GIVEN))
