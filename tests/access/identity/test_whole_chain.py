"""Real steps in one chain: each combination of credentials, and texts that would forge log lines."""

import itertools
import json
from pathlib import Path

import pytest

from access.identity.certificates import CertificateStep, NameKind
from access.identity.chain import Admitted, Chain, ChainRules, LoginPending, LoginRefused, Outcome
from access.identity.http_answer import HttpJob, HttpReply, HttpStep
from access.identity.password_step import FileUsers, KnownLogins, PasswordStep
from access.identity.passwords import HashJob, parse_record
from access.identity.principal import AuthenticationStep, Credentials, TimePoint
from access.identity.revocation import revocation_set
from access.identity.scram import Scram
from access.identity.scram_step import Challenge, ClientData, ScramStep
from access.identity.tokens import TokenStep
from tests.access.identity.authorities import UTC, Authority, facts_of
from tests.access.identity.test_passwords import KNOWN
from tests.access.identity.test_tokens import KEYS, token

NOW = TimePoint(1.0, UTC)
AUTHORITY = Authority()
CERTIFICATES = {
    "": None,
    "good": facts_of(AUTHORITY.client(("device",))),
    "two": facts_of(AUTHORITY.client(("one", "two"))),
    "revoked": facts_of(AUTHORITY.client(("device",), serial=77)),
    "node": facts_of(AUTHORITY.client(("stratamq://c/edge/edge-0",))),
    "unlisted": facts_of(Authority("Other").client(("device",))),
}
PASSWORDS = {
    "": None,
    "right": b"abc",
    "wrong": b"abd",
    "token": token({"sub": "carol", "exp": int(UTC) + 60}),
    "old token": token({"sub": "carol", "exp": int(UTC) - 60}),
    "forged token": token({"sub": "carol", "exp": int(UTC) + 60})[:-6] + b"AAAAAA",
}
USERS = (None, "alice", "bob", "dave", "err", "nobody")
HOSTILE = [
    "x\n2026-01-01 INFO admitted",
    "\x1b[2J",
    "a\0b",
    "\ud800",
    "\u202etxt",
    '"}{"',
    "%s%n{0}",
    "x" * 65_535,
    "+",
    "#",
    "$SYS/#",
]


def chain(anonymous: bool = False) -> Chain:
    lists = revocation_set([(Path("crl"), AUTHORITY.crl([77]))], [AUTHORITY.certificate], UTC)
    users = FileUsers({"alice": parse_record(KNOWN["sha512"][0])}, bytes(32))
    steps: list[AuthenticationStep] = [
        CertificateStep(NameKind.CN),
        TokenStep(KEYS),
        PasswordStep(users, KnownLogins(bytes(32))),
        ScramStep(Scram({}, lambda: "nonce", bytes(32))),
        HttpStep(bytes(32)),
    ]
    return Chain(steps, ChainRules(anonymous), lists)


def server(body: bytes) -> HttpReply | None:
    """Respond like a server with the users bob and dave, which fails for err."""
    result = {"bob": "allow", "dave": "deny"}.get(json.loads(body)["username"], "ignore")
    if json.loads(body)["username"] == "err":
        return None
    return HttpReply(200, "application/json", json.dumps({"result": result}).encode())


def run(subject: Chain, credentials: Credentials) -> Outcome:
    outcome = subject.begin(credentials, NOW)
    while isinstance(outcome, LoginPending):
        job, result = outcome.job, None
        if isinstance(job, HashJob):
            outcome = subject.resume(outcome.ticket, job.run(), NOW)
            continue
        if isinstance(job, HttpJob):
            result = server(job.body)
        outcome = subject.resume(outcome.ticket, ClientData(b"") if isinstance(job, Challenge) else result, NOW)
    return outcome


def expected(certificate: str, password: str, user: str | None, anonymous: bool) -> object:
    """Return the admitted user, or the code."""
    if certificate:
        return "device" if certificate == "good" else 0x87
    if "token" in password:
        return {"token": "carol", "old token": 0x87, "forged token": 0x86}[password]
    if user == "alice" and password:
        return "alice" if password == "right" else 0x86
    by_server: dict[str | None, object] = {"bob": "bob", "dave": 0x86, "err": 0x88}
    if user in by_server:
        return by_server[user]
    if password:
        return 0x86
    return "" if anonymous else 0x87


@pytest.mark.parametrize("anonymous", [False, True])
def test_each_mix_of_credentials(anonymous: bool) -> None:
    """216 combinations, each against a rule of ten lines."""
    subject = chain(anonymous)
    for certificate, password, user in itertools.product(CERTIFICATES, PASSWORDS, USERS):
        given = Credentials("l", "::1", "id", user, PASSWORDS[password], CERTIFICATES[certificate])
        outcome = run(subject, given)
        assert not isinstance(outcome, LoginPending)
        found = outcome.principal.user if isinstance(outcome, Admitted) else outcome.code
        assert found == expected(certificate, password, user, anonymous), (certificate, password, user)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_of_a_client_comes_into_a_reason(text: str) -> None:
    """Log injection by user, client ID, password, method and data; none of them is admitted."""
    data = text.encode("utf-8", "surrogatepass")
    subject = chain()
    for given in (
        Credentials("l", "::1", text, text, data),
        Credentials("l", "::1", text, "alice", data),
        Credentials("l", "::1", text, text, None),
        Credentials("l", "::1", text, text, token({"sub": text, "exp": int(UTC) - 60}) if text != "\ud800" else b"x"),
        Credentials("l", "::1", text, None, None, None, text, data),
        Credentials("l", "::1", text, None, None, None, "JWT", data),
        Credentials("l", "::1", text, None, None, None, "SCRAM-SHA-256", data, True),
        Credentials("l", "::1", text, None, None, None, "SCRAM-SHA-256", b"n,,n=" + data + b",r=x", True),
    ):
        outcome = run(subject, given)
        assert isinstance(outcome, LoginRefused)
        assert outcome.reason.isprintable() and outcome.reason.isascii() and len(outcome.reason) < 200
        assert text not in outcome.reason
    for name in subject.outcomes:
        assert text not in name
