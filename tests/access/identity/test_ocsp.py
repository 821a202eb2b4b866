"""OCSP as a step: request and response, permitted signers, lifetime of a response (check T4)."""

from functools import partial

import pytest
from cryptography.x509 import ocsp

from access.identity.ocsp import OcspJob, OcspMode, OcspReply, OcspStep
from access.identity.principal import Answer, Credentials, Deny, Failed, Pass, TimePoint, Wait
from tests.access.identity.authorities import UTC, Authority, facts_of

AUTHORITY, OTHER = Authority(), Authority("Other")
CLIENT = AUTHORITY.client(serial=0xC0FFEE)
CREDENTIALS = Credentials("l", "::1", "id", certificate=facts_of(CLIENT))
REVOKED, UNKNOWN = ocsp.OCSPCertStatus.REVOKED, ocsp.OCSPCertStatus.UNKNOWN
NOW = TimePoint(1.0, UTC)


def step_of(mode: str = "require") -> OcspStep:
    return OcspStep(OcspMode(mode), [AUTHORITY.certificate])


def answered(step: OcspStep, body: bytes) -> Answer:
    wait = step.begin(CREDENTIALS, NOW)
    assert isinstance(wait, Wait)
    return step.resume(CREDENTIALS, wait.job, OcspReply(body), NOW)


def test_the_request_names_the_certificate() -> None:
    """As parsed by a responder."""
    wait = step_of().begin(CREDENTIALS, NOW)
    assert isinstance(wait, Wait) and isinstance(wait.job, OcspJob)
    request = ocsp.load_der_ocsp_request(wait.job.request)
    single = ocsp.load_der_ocsp_response(AUTHORITY.ocsp_answer(CLIENT))
    assert request.serial_number == 0xC0FFEE
    assert request.issuer_key_hash == single.issuer_key_hash
    assert request.issuer_name_hash == single.issuer_name_hash


def test_ocsp_response_is_cached_until_next_update() -> None:
    for status, kind in ((ocsp.OCSPCertStatus.GOOD, Pass), (REVOKED, Deny), (UNKNOWN, Deny)):
        step = step_of()
        assert isinstance(answered(step, AUTHORITY.ocsp_answer(CLIENT, status)), kind)
        assert isinstance(step.begin(CREDENTIALS, TimePoint(2.0, UTC + 86_399)), kind)
        assert isinstance(step.begin(CREDENTIALS, TimePoint(2.0, UTC + 86_400)), Wait)


def test_a_responder_that_the_authority_signed_may_answer() -> None:
    responder = AUTHORITY.client(("responder",), responder=True)
    body = AUTHORITY.ocsp_answer(CLIENT, responder=(responder, AUTHORITY.client_key))
    assert isinstance(answered(step_of(), body), Pass)


def _by(authority: Authority, responder: bool) -> bytes:
    certificate = authority.client(("mallory",), responder=responder)
    return AUTHORITY.ocsp_answer(CLIENT, responder=(certificate, authority.client_key))


UNUSABLE = {
    "empty": b"",
    "long": bytes(70_000),
    "no answer": b"\x30\x03\x0a\x01\x00",
    "try later": b"\x30\x03\x0a\x01\x03",
    "client as responder": _by(AUTHORITY, False),
    "foreign responder": _by(OTHER, True),
    "foreign authority": OTHER.ocsp_answer(CLIENT),
    "another certificate": AUTHORITY.ocsp_answer(AUTHORITY.client()),
    "stale": AUTHORITY.ocsp_answer(CLIENT, days=(-2, -1)),
    "future": AUTHORITY.ocsp_answer(CLIENT, days=(1, 2)),
    "without end": AUTHORITY.ocsp_answer(CLIENT, days=(-1, None)),
    "cut": AUTHORITY.ocsp_answer(CLIENT)[:-1],
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_answer_fails_or_passes_by_mode(name: str) -> None:
    """It is not cached."""
    body = UNUSABLE[name]
    for mode, kind in (("require", Failed), ("soft", Pass)):
        counted: list[str] = []
        step = OcspStep(OcspMode(mode), [AUTHORITY.certificate], partial(counted.append, mode))
        assert isinstance(answered(step, body), kind)
        assert counted == [mode]
        assert isinstance(step.begin(CREDENTIALS, NOW), Wait)


def test_ocsp_no_request_when_off_or_without_certificate() -> None:
    assert isinstance(step_of("off").begin(CREDENTIALS, NOW), Pass)
    assert isinstance(step_of().begin(Credentials("l", "::1", "id"), NOW), Pass)


def test_a_certificate_of_no_authority() -> None:
    foreign = Credentials("l", "::1", "id", certificate=facts_of(OTHER.client()))
    assert isinstance(step_of().begin(foreign, NOW), Failed)
    assert isinstance(step_of("soft").begin(foreign, NOW), Pass)


def test_ocsp_authorities_of_equal_name_are_selected_by_key() -> None:
    """A new key of an old name, as after a rollover."""
    newer = Authority()
    step = OcspStep(OcspMode.REQUIRE, [newer.certificate, AUTHORITY.certificate])
    assert isinstance(answered(step, AUTHORITY.ocsp_answer(CLIENT)), Pass)
