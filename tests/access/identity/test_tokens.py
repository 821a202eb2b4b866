"""Tokens: keys select algorithms, claims are checked strictly."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from access.identity.key_set import FetchKeys, KeySet, KeySource, TokenKey, key_of_pem, key_of_secret
from access.identity.principal import Allow, Answer, Credentials, Deny, Failed, Pass, TimePoint, Wait
from access.identity.tokens import TOKEN_BYTES_MAX, TokenStep, read_header
from access.rules.rules import Action, Tier, make_rule
from mqtt.reasons import ReasonCode

NOW = TimePoint(100.0, 1_800_000_000.0)
EXP = int(NOW.utc) + 600
SECRET = b"s" * 64
EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


KEYS = KeySet(
    [
        key_of_pem(pem(EC_KEY), "ec"),
        key_of_pem(pem(RSA_KEY), "rsa"),
        key_of_pem(pem(ED_KEY), "ed"),
        key_of_secret(SECRET, "HS256", "hs"),
    ]
)
SIGNERS: Mapping[str, tuple[str, object]] = {
    "ES256": ("ec", EC_KEY),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("rsa", RSA_KEY)),
    "EdDSA": ("ed", ED_KEY),
    "HS256": ("hs", SECRET),
}


def token(claims: object | None = None, algorithm: str = "ES256", **header: object) -> bytes:
    """Return a token with valid claims, or with others."""
    kid, key = SIGNERS[algorithm]
    payload = json.dumps({"sub": "alice", "exp": EXP} if claims is None else claims).encode()
    return signed(payload, algorithm, key, {"kid": kid, **header})


def signed(payload: bytes, algorithm: str, key: object, header: dict[str, object]) -> bytes:
    return jwt.PyJWS().encode(payload, key, algorithm, header).encode()  # type: ignore[arg-type]


def part(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def by_hand(header: object, claims: object, key: bytes = SECRET) -> bytes:
    """Return an HMAC-SHA-256 token with any header, which a library would refuse to create."""
    body = part(header) + b"." + part(claims)
    return body + b"." + part(hmac.digest(key, body, hashlib.sha256))


def given_by(password: bytes | None, method: str = "", data: bytes = b"") -> Credentials:
    return Credentials("l", "::1", "id", "mallory", password, None, method, data)


def answer_of(password: bytes, step: TokenStep | None = None, moment: TimePoint = NOW) -> Answer:
    return (step or TokenStep(KEYS)).begin(given_by(password), moment)


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_each_algorithm_by_its_key(algorithm: str) -> None:
    """The user is the claim's, never the CONNECT's."""
    answer = answer_of(token(algorithm=algorithm))
    assert isinstance(answer, Allow)
    assert (answer.principal.user, answer.principal.expires_at_utc, answer.principal.client_id) == (
        "alice",
        EXP + 30.0,
        "id",
    )
    damaged = token(algorithm=algorithm)[:-8] + b"AAAAAAAA"
    assert answer_of(damaged) == Deny(
        ReasonCode.BAD_USER_NAME_OR_PASSWORD, "token with a signature that is not its key's"
    )


def test_a_token_in_authentication_data() -> None:
    """MQTT 5 section 4.12: the method JWT; the password is then ignored."""
    step = TokenStep(KEYS)
    assert isinstance(step.begin(given_by(b"secret", "JWT", token()), NOW), Allow)
    assert isinstance(step.begin(given_by(token(), "JWT", b""), NOW), Deny)
    assert isinstance(step.begin(given_by(token(), "JWT", b"no token"), NOW), Deny)
    assert isinstance(step.begin(given_by(token(), "SCRAM-SHA-256", token()), NOW), Pass)


@pytest.mark.parametrize(
    "password",
    [
        None,
        b"",
        b"secret",
        b"a.b",
        b"a.b.c",
        b"1.2.3.4",
        b"\0.\0.\0",
        b"e30.e30.",
        b"x" * 65_535,
        b"x.y." + b"z" * 60_000,
    ],
)
def test_passwords_are_for_another_step(password: bytes | None) -> None:
    assert TokenStep(KEYS).begin(given_by(password), NOW) == Pass()


HEADERS: dict[str, object] = {
    "none": {"alg": "none", "kid": "ec"},
    "None": {"alg": "None"},
    "empty": {"alg": ""},
    "number": {"alg": 1},
    "list": {"alg": ["HS256"]},
    "unknown": {"alg": "ES256K"},
    "public key as secret": {"alg": "HS256", "kid": "rsa"},
    "another of HMAC": {"alg": "HS512", "kid": "hs"},
    "kid as number": {"alg": "HS256", "kid": 1},
    "long kid": {"alg": "HS256", "kid": "x" * 257},
    "unknown kid": {"alg": "HS256", "kid": "../../etc/passwd"},
    "critical": {"alg": "HS256", "kid": "hs", "crit": ["exp"]},
    "b64": {"alg": "HS256", "kid": "hs", "b64": False},
    "own key": {"alg": "ES256", "kid": "x", "jwk": {"kty": "oct", "k": "AAAA"}},
    "nested": b'{"alg":"HS256","kid":"hs","x":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "doubled": b'{"alg":"HS256","kid":"hs","alg":"none"}',
    "cut": b'{"alg":"HS256"',
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_are_refused(name: str) -> None:
    """RFC 8725 section 3.1; the signature is valid in each of them."""
    for key in (SECRET, pem(RSA_KEY), b""):
        answer = answer_of(by_hand(HEADERS[name], {"sub": "alice", "exp": EXP}, key))
        assert isinstance(answer, Deny) and answer.code == ReasonCode.BAD_USER_NAME_OR_PASSWORD


def test_a_token_without_signature() -> None:
    header, claims = part({"alg": "HS256", "kid": "hs"}), part({"sub": "alice", "exp": EXP})
    for text in (
        header + b"." + claims + b".",
        header + b"." + claims + b"." + b"A" * 43,
        header + b"..",
        header + b"..A",
    ):
        assert isinstance(answer_of(text), Deny)


CLAIMS: dict[str, object] = {
    "no exp": {"sub": "alice"},
    "exp of text": {"sub": "alice", "exp": str(EXP)},
    "exp of true": {"sub": "alice", "exp": True},
    "exp null": {"sub": "alice", "exp": None},
    "exp list": {"sub": "alice", "exp": [EXP]},
    "exp 2^63": {"sub": "alice", "exp": 2**63},
    "exp -2^63": {"sub": "alice", "exp": -(2**63)},
    "exp 1e308": {"sub": "alice", "exp": 1e308},
    "exp NaN": b'{"sub":"alice","exp":NaN}',
    "exp infinite": b'{"sub":"alice","exp":1e999}',
    "exp 1000 digits": b'{"sub":"alice","exp":1' + b"0" * 1000 + b"}",
    "passed": {"sub": "alice", "exp": int(NOW.utc) - 30},
    "not yet": {"sub": "alice", "exp": EXP, "nbf": int(NOW.utc) + 31},
    "nbf of text": {"sub": "alice", "exp": EXP, "nbf": "0"},
    "nbf null": {"sub": "alice", "exp": EXP, "nbf": None},
    "iat of the future": {"sub": "alice", "exp": EXP, "iat": int(NOW.utc) + 31},
    "aud of others": {"sub": "alice", "exp": EXP, "aud": "bank"},
    "empty aud": {"sub": "alice", "exp": EXP, "aud": []},
    "no sub": {"exp": EXP},
    "empty sub": {"sub": "", "exp": EXP},
    "sub of NUL": {"sub": "alice\0", "exp": EXP},
    "sub with a break": {"sub": "alice\nadmin", "exp": EXP},
    "sub of numbers": {"sub": 1, "exp": EXP},
    "sub of half a character": b'{"sub":"\\ud800","exp":%d}' % EXP,
    "doubled sub": b'{"sub":"alice","exp":%d,"sub":"bob"}' % EXP,
    "acl without reader": {"sub": "alice", "exp": EXP, "acl": []},
    "acl null": {"sub": "alice", "exp": EXP, "acl": None},
    "attributes of numbers": {"sub": "alice", "exp": EXP, "client_attrs": {"a": 1}},
    "nested": b'{"sub":"alice","exp":%d,"x":' % EXP + b"[" * 1000 + b"]" * 1000 + b"}",
    "300 claims": {"sub": "alice", "exp": EXP, **{f"c{number}": 1 for number in range(300)}},
    "10 000 claims": {"sub": "alice", "exp": EXP, **{f"c{number}": 1 for number in range(10_000)}},
    "a list": [1],
    "a string": "x",
    "no JSON": b"\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_that_are_refused(name: str) -> None:
    """The signature is valid in each of them."""
    assert isinstance(answer_of(by_hand({"alg": "HS256", "kid": "hs"}, CLAIMS[name])), Deny)


def test_leeway_is_half_a_minute() -> None:
    """Clocks of issuers differ."""
    for claims in ({"exp": int(NOW.utc) - 29}, {"exp": EXP, "nbf": int(NOW.utc) + 30, "iat": int(NOW.utc) + 30}):
        assert isinstance(answer_of(token({"sub": "alice", **claims})), Allow)
    assert isinstance(answer_of(token(), moment=TimePoint(0.0, float("nan"))), Deny)


def test_issuer_and_audience_are_demanded_where_set() -> None:
    step = TokenStep(KEYS, issuer="https://id", audience="mqtt", user_claim="name")
    good = {"name": "bob", "exp": EXP, "iss": "https://id", "aud": ["web", "mqtt"]}
    answer = answer_of(token(good), step)
    assert isinstance(answer, Allow) and answer.principal.user == "bob"
    assert isinstance(answer_of(token({**good, "aud": "mqtt"}), step), Allow)
    wrong: list[dict[str, object]] = [
        {"iss": "https://id/"},
        {"iss": ["https://id"]},
        {"aud": "web"},
        {"aud": ["mqtt", 1]},
    ]
    wrong += [{"aud": {"mqtt": 1}}, {"aud": ["x"] * 32 + ["mqtt"]}]
    for change in wrong:
        assert isinstance(answer_of(token({**good, **change}), step), Deny)
    for missing in ("iss", "aud"):
        assert isinstance(answer_of(token({key: good[key] for key in good if key != missing}), step), Deny)


def test_token_acl_is_passed_to_reader() -> None:
    """Invalid rules refuse the client, instead of being skipped."""
    values: list[object] = []
    tiers = ((make_rule(True, Action.PUBLISH, "a/+"),),)

    def read(acl: object) -> tuple[Tier, ...]:
        values.append(acl)
        if acl == "bad":
            raise ValueError("no rules")
        return tiers

    step = TokenStep(KEYS, read_acl=read)
    acl = {"pub": ["a/+"], "sub": [], "all": []}
    answer = answer_of(token({"sub": "alice", "exp": EXP, "acl": acl, "client_attrs": {"site": "x"}}), step)
    assert isinstance(answer, Allow) and values == [acl]
    assert (answer.principal.tiers, answer.principal.attributes) == (tiers, {"site": "x"})
    assert isinstance(answer_of(token({"sub": "alice", "exp": EXP, "acl": "bad"}), step), Deny)
    answer = answer_of(token({"sub": "alice", "exp": EXP, "is_superuser": True}), step)
    assert isinstance(answer, Allow) and answer.principal.roles == ()


def test_a_long_token() -> None:
    """At most 8 KiB."""

    def long(size: int) -> bytes:
        text = token({"sub": "alice", "exp": EXP, "x": ""})
        return token({"sub": "alice", "exp": EXP, "x": "y" * ((size - len(text)) * 3 // 4)})

    fits, too_long = long(TOKEN_BYTES_MAX), long(TOKEN_BYTES_MAX + 4)
    assert len(fits) <= TOKEN_BYTES_MAX < len(too_long)
    assert isinstance(answer_of(fits), Allow)
    assert isinstance(answer_of(too_long), Deny)


def test_an_unknown_key_waits_for_a_fetch_once_in_half_a_minute() -> None:
    """Keys may rotate; a flood of unknown names causes no more fetches."""
    source = KeySource()
    step = TokenStep(KeySet(source=source))
    wait = answer_of(token(), step)
    assert wait == Wait(FetchKeys())
    assert answer_of(token(), step) == Wait(FetchKeys())  # concurrent: it is in progress
    source.failed(99.0)
    assert isinstance(answer_of(token(), step), Failed)  # no fetch succeeded, and one was requested
    source.began(100.0)
    assert answer_of(token(), step) == Wait(FetchKeys())  # shares the running fetch
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY.public_key()))
    assert source.loaded(json.dumps({"keys": [{**public, "kid": "ec"}]}).encode(), 101.0) == ""
    assert isinstance(step.resume(given_by(token()), FetchKeys(), None, NOW), Allow)
    strange = token(kid="new")
    for now, kind in ((102.0, Deny), (129.9, Deny), (130.0, Wait), (131.0, Deny), (159.9, Deny), (160.0, Wait)):
        assert isinstance(answer_of(strange, step, TimePoint(now, NOW.utc)), kind), now
        if kind is Wait:
            source.failed(now)
    assert isinstance(step.resume(given_by(strange), FetchKeys(), None, NOW), Deny)
    assert isinstance(answer_of(token(), step, TimePoint(101.0 + 24 * 3600 - 1, NOW.utc)), Allow)
    stale = TimePoint(101.0 + 24 * 3600, NOW.utc)
    assert isinstance(answer_of(token(), step, stale), Wait)
    assert isinstance(step.resume(given_by(token()), FetchKeys(), None, stale), Failed)


def test_a_key_without_the_algorithm_is_not_used_even_when_handed_in() -> None:
    header = read_header(token())
    assert header is not None and (header.algorithm, header.kid) == ("ES256", "ec")
    two = KeySet([TokenKey("", frozenset(("ES256",)), EC_KEY.public_key())] * 2)
    assert two.find("", "ES256", 0) is None  # the token cannot choose between them
    assert KEYS.find("", "ES256", 0) is not None
    assert KEYS.find("", "RS256", 0) is KEYS.find("rsa", "RS256", 0)
    assert KEYS.find("ec", "RS256", 0) is None


def test_the_name_by_which_a_token_is_revoked() -> None:
    """Its jti; a jti that cannot be revoked is refused, a token without one is accepted."""
    for name, expected in (("7f3c", "7f3c"), (None, "")):
        claims = {"sub": "alice", "exp": EXP, **({"jti": name} if name else {})}
        answer = TokenStep(KEYS).begin(Credentials("tls", "192.0.2.1", "c", "alice", token(claims)), NOW)
        assert isinstance(answer, Allow) and answer.principal.token_id == expected
    for wrong in (7, "", "x" * 257, "a\nb", ["7f3c"], None):
        answer = TokenStep(KEYS).begin(
            Credentials("tls", "192.0.2.1", "c", "alice", token({"sub": "alice", "exp": EXP, "jti": wrong})), NOW
        )
        assert isinstance(answer, Deny), wrong
