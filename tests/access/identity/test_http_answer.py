"""Requests to an operator's server and its responses: strict types, bounds, and never an allow by mistake."""

import json

import pytest

from access.identity.http_answer import HttpJob, HttpReply, HttpStep, cache_s, read_answer, request_body
from access.identity.principal import Allow, Answer, Credentials, Deny, Failed, Pass, TimePoint, Wait
from access.rules.rules import Action, Tier, make_rule
from mqtt.reasons import ReasonCode
from tests.access.identity.authorities import Authority, facts_of

NOW = TimePoint(1.0, 1_800_000_000.0)
ALICE = Credentials("l", "::1", "id", "alice", b"secret")


def reply(answer: object, status: int = 200, content_type: str = "application/json", control: str = "") -> HttpReply:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return HttpReply(status, content_type, body, control)


ACL = [{"permission": "allow", "action": "publish", "topic": "a"}]
TIERS = ((make_rule(True, Action.PUBLISH, "a"),),)


def rules(acl: object) -> tuple[Tier, ...]:
    if acl == ["bad"]:
        raise ValueError("no rules")
    assert acl == ACL
    return TIERS


def answer_of(result: object, step: HttpStep | None = None) -> Answer:
    step = step or HttpStep(bytes(32), read_acl=rules)
    wait = step.begin(ALICE, NOW)
    assert isinstance(wait, Wait)
    return step.resume(ALICE, wait.job, result, NOW)


def test_request_body_has_emqx_format() -> None:
    """In EMQX's format; its key reveals nothing without the secret of the process."""
    certificate = Authority().client(("device-1",))
    credentials = Credentials("tls", "10.0.0.1", "id", 'a"b\\', "pässword".encode(), facts_of(certificate))
    body = request_body(credentials)
    assert body is not None
    assert json.loads(body) == {
        "clientid": "id",
        "username": 'a"b\\',
        "password": "pässword",
        "peerhost": "10.0.0.1",
        "listener": "tls",
        "cert_common_name": "device-1",
        "cert_subject": "CN=device-1",
    }
    without = request_body(Credentials("tls", "10.0.0.1", "id", "alice"))
    assert without is not None and json.loads(without)["password"] is None
    one, two = (HttpStep(secret).begin(ALICE, NOW) for secret in (bytes(32), bytes(31) + b"x"))
    assert isinstance(one, Wait) and isinstance(two, Wait)
    assert isinstance(one.job, HttpJob) and isinstance(two.job, HttpJob)
    assert one.job.body == two.job.body and one.job.cache_key != two.job.cache_key
    assert "secret" not in repr(one)


def test_http_step_requests_verdict_of_clients_with_user_name() -> None:
    step = HttpStep(bytes(32))
    assert step.begin(Credentials("l", "::1", "id"), NOW) == Pass()
    assert step.begin(Credentials("l", "::1", "id", None, b"x"), NOW) == Pass()
    assert step.begin(Credentials("l", "::1", "id", "alice", b"x", method="JWT"), NOW) == Pass()
    for user, password in (("alice", b"\xff"), ("", b"x"), ("a\0", b"x"), ("a\nb", b"x"), ("\ud800", b"x")):
        assert isinstance(step.begin(Credentials("l", "::1", "id", user, password), NOW), Deny)
    assert isinstance(step.begin(Credentials("l", "::1", "\ud800", "alice", b"x"), NOW), Deny)


def test_answers() -> None:
    """Allow with rights and expiry, allow without a body, deny, ignore."""
    full = {"result": "allow", "is_superuser": True, "client_attrs": {"a": "b"}, "acl": ACL, "expire_at": NOW.utc + 9}
    answer = answer_of(reply(full, content_type="Application/JSON; charset=utf-8"))
    assert isinstance(answer, Allow)
    principal = answer.principal
    assert (principal.user, principal.method, principal.attributes) == ("alice", "http", {"a": "b"})
    assert (principal.tiers, principal.expires_at_utc) == (TIERS, NOW.utc + 9)
    assert principal.roles == ()  # no role is set for superusers
    answer = answer_of(reply(full), HttpStep(bytes(32), "root", rules))
    assert isinstance(answer, Allow) and answer.principal.roles == ("root",)
    answer = answer_of(reply({"result": "allow"}), HttpStep(bytes(32), "root", rules))
    assert isinstance(answer, Allow) and (answer.principal.roles, answer.principal.tiers) == ((), ())
    assert isinstance(answer_of(reply(b"", 204, "")), Allow)
    assert isinstance(answer_of(reply({"result": "deny"})), Deny)
    assert isinstance(answer_of(reply({"result": "ignore", "is_superuser": True})), Pass)
    assert answer_of(reply({"result": "allow", "expire_at": NOW.utc})) == Deny(
        ReasonCode.NOT_AUTHORIZED, "http: an answer that has expired"
    )


NONSENSE: list[object] = [
    None,
    "allow",
    TimeoutError(),
    reply({"result": "allow"}, 201),
    reply({"result": "allow"}, 302),
    reply({"result": "allow"}, 500),
    reply({"result": "allow"}, 204),
    reply({"result": "allow"}, content_type="text/html"),
    reply({"result": "allow"}, content_type=""),
    reply(b""),
    reply(b"allow"),
    reply(b'{"result":"allow"'),
    reply(b'{"result":"deny","result":"allow"}'),
    reply(b"\xef\xbb\xbf" + b'{"result":"allow"}'),
    reply(b'{"result":"allow","expire_at":NaN}'),
    reply(b'{"result":"allow","acl":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    reply(b'{"result":"allow"}' + b" " * 65_536),
    reply([]),
    reply([{"result": "allow"}]),
    reply("allow"),
    reply({}),
    reply({"result": True}),
    reply({"result": ["allow"]}),
    reply({"result": "ALLOW"}),
    reply({"result": "allow "}),
    reply({"result": "allow", "is_superuser": "false"}),
    reply({"result": "allow", "is_superuser": 0}),
    reply({"result": "allow", "is_superuser": None}),
    reply({"result": "allow", "expire_at": "1"}),
    reply({"result": "allow", "expire_at": 2**63}),
    reply({"result": "allow", "expire_at": -1}),
    reply({"result": "allow", "expire_at": True}),
    reply({"result": "allow", "expire_at": None}),
    reply({"result": "allow", "expires_at": 1}),
    reply({"result": "allow", "client_attrs": ["a"]}),
    reply({"result": "allow", "client_attrs": {"a": 1}}),
    reply({"result": "allow", "acl": None}),
    reply({"result": "allow", "acl": "all"}),
    reply({"result": "allow", "acl": ["bad"]}),
    reply({"result": "allow", "ACL": []}),
]


@pytest.mark.parametrize("number", range(len(NONSENSE)))
def test_http_step_invalid_response_is_an_error_and_not_cached(number: int) -> None:
    """Wrong status, type, name, form, redirect, or no response."""
    result = NONSENSE[number]
    assert isinstance(answer_of(result), Failed)
    if isinstance(result, HttpReply) and b"bad" not in result.body:
        assert cache_s(result) == 0


def test_http_step_rules_are_refused_without_http_acl() -> None:
    assert isinstance(answer_of(reply({"result": "allow", "acl": []}), HttpStep(bytes(32))), Failed)


@pytest.mark.parametrize(
    ("answer", "control", "seconds"),
    [
        ("allow", "max-age=60", 60),
        ("allow", "private, Max-Age=7", 7),
        ("allow", "max-age=99999", 300),
        ("allow", "", 0),
        ("allow", "max-age=-1", 0),
        ("allow", "max-age=٣", 0),
        ("allow", "max-age=1, max-age=300", 0),
        ("allow", "max-age=60, no-store", 0),
        ("deny", "max-age=60", 5),
        ("ignore", "", 5),
        ("deny", "no-cache", 0),
    ],
)
def test_cache_s_of_response(answer: str, control: str, seconds: int) -> None:
    assert cache_s(reply({"result": answer}, control=control)) == seconds


def test_an_answer_is_read_without_a_step() -> None:
    assert read_answer(reply({"result": "deny", "acl": []})).acl == []
