"""Fuzz targets of credentials: password files, revocation lists, tokens, JWKS and HTTP answers.

Hostile bytes give the documented error or a correct value: never more users than lines, never a lost revoked
serial, never a client accepted by an unsigned token.
"""

import contextlib
import hashlib
import hmac
import json
import warnings
from base64 import urlsafe_b64encode
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.utils import CryptographyDeprecationWarning

from access.files import AccessFileError
from access.identity.certificates import certificate_facts
from access.identity.http_answer import HttpReply, cache_s, read_answer
from access.identity.key_set import KeySet, TokenKey, key_of_pem, key_of_secret, read_jwks
from access.identity.password_file import parse_password_file
from access.identity.passwords import encode_record, parse_record
from access.identity.principal import Allow, Credentials, TimePoint, name_fault
from access.identity.revocation import revocation_set
from access.identity.tokens import TokenStep
from access.rules.claims import read_acl
from tests.access.identity.authorities import UTC, Authority, der
from tests.access.identity.test_http_answer import NONSENSE
from tests.access.identity.test_key_set import EC, ED, RSA, jwks
from tests.access.identity.test_passwords import KNOWN

__all__ = [
    "CERTIFICATES",
    "HTTP_ANSWERS",
    "LISTS",
    "PASSWORD_FILES",
    "TOKENS",
    "certificates",
    "http_answers",
    "lists",
    "password_files",
    "tokens",
]

FILE = Path("file")
SECRET = b"fuzz" * 16
_AUTHORITY = Authority(secret=7)  # kept inputs are good in another process too

# --- password files

_HASHES = [text for text, _ in KNOWN.values()]
PASSWORD_FILES = (
    "".join(f"user-{number}:{text}\n" for number, text in enumerate(_HASHES)).encode(),
    "".join(f"user-{number}:{text}\r\n" for number, text in enumerate(_HASHES)).encode(),
    b"# comment\n\nalice:" + _HASHES[0].encode(),
)


def password_files(data: bytes) -> None:
    """Each user has a line that its name and its record make again."""
    try:
        users = parse_password_file(FILE, data)
    except AccessFileError as error:
        assert "\n" not in error.message and error.message.isprintable()
        return
    lines = [line for line in data.decode().split("\n") if line.rstrip("\r") and not line.startswith("#")]
    assert 0 < len(users) == len(lines)
    for (name, record), line in zip(users.items(), lines, strict=True):
        assert line.startswith(f"{name}:") and not name_fault(name)
        assert parse_record(encode_record(record)) == record
        assert record.memory_kib <= 256 * 1024 and record.iterations <= 10_000_000


# --- certificates and lists

_CLIENT = _AUTHORITY.client(
    alternatives=[x509.DNSName("a.example"), x509.UniformResourceIdentifier("stratamq://c/e/n")]
)
CERTIFICATES = (der(_CLIENT), der(_AUTHORITY.certificate))
_DER_LIST = x509.load_pem_x509_crl(_AUTHORITY.crl([7, 8])).public_bytes(serialization.Encoding.DER)
LISTS = (_AUTHORITY.crl([7, 8]), _DER_LIST)


def certificates(data: bytes) -> None:
    """Facts or ValueError."""
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)  # of serials that are not positive
        facts = certificate_facts(data)
        assert int(facts.serial, 16) > 0
        assert facts.fingerprint == hashlib.sha256(data).hexdigest()
        assert facts.of_cluster or not any("stratamq://" in name[:11] for each in facts.names.values() for name in each)


def lists(data: bytes) -> None:
    """The signature refuses damage, and the order of damaged serials is undefined."""
    with contextlib.suppress(AccessFileError):
        found = revocation_set([(FILE, data)], [_AUTHORITY.certificate], UTC)
        assert found.revoked == 2


# --- tokens

_KEYS = KeySet([key_of_secret(SECRET, "HS256", "k")])
_STEP = TokenStep(_KEYS, read_acl=read_acl)
_NOW = TimePoint(0.0, 1_800_000_000.0)


def _part(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


_HEADER = json.dumps({"alg": "HS256", "kid": "k", "typ": "JWT"}).encode()
_CLAIMS = json.dumps(
    {"sub": "alice", "exp": 1_800_000_600, "nbf": 1, "aud": "x", "acl": {"pub": ["a/#"]}, "client_attrs": {"a": "b"}}
).encode()
_PLAIN = json.dumps({"sub": "alice", "exp": 1_800_000_600}).encode()
# The first byte chooses: damaged claims under a right signature, a damaged header under one, or a damaged whole.
TOKENS = (
    b"\0" + _CLAIMS,
    b"\0" + _PLAIN,
    b"\1" + _HEADER,
    b"\2" + _part(_HEADER) + b"." + _part(_PLAIN) + b"." + _part(bytes(32)),
    b"\3" + jwks(EC, RSA, ED),
)


def tokens(data: bytes) -> None:
    """A client is admitted by a right signature alone, as a plain name, until a time that is one."""
    choice, rest = (data[0] & 3 if data else 0), data[1:]
    if choice == 3:
        _jwks(rest)
        return
    header, claims = (_HEADER, rest) if choice == 0 else (rest, _PLAIN)
    body = _part(header) + b"." + _part(claims)
    token = rest if choice == 2 else body + b"." + _part(hmac.digest(SECRET, body, "sha256"))
    answer = _STEP.begin(Credentials("l", "::1", "id", None, token), _NOW)
    if isinstance(answer, Allow):
        assert choice != 2, "nobody signed it"
        principal = answer.principal
        assert principal.expires_at_utc is not None and _NOW.utc - 30 < principal.expires_at_utc < 2**40
        assert not name_fault(principal.user)
        assert choice == 1 or json.loads(claims)["sub"] == principal.user


def _jwks(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        keys = read_jwks(data)
        assert 0 < len(keys) <= 100
        assert all(isinstance(key, TokenKey) and key.algorithms and not isinstance(key.key, bytes) for key in keys)
    with contextlib.suppress(ValueError):
        key_of_pem(data)


# --- HTTP answers

_GOOD = {"result": "allow", "is_superuser": False, "client_attrs": {"a": "b"}, "acl": [{"topic": "a"}], "expire_at": 9}
HTTP_ANSWERS = (
    json.dumps(_GOOD).encode(),
    b'{"result":"deny"}',
    b'{"result":"ignore"}',
    *(reply.body for reply in NONSENSE if isinstance(reply, HttpReply) and 0 < len(reply.body) < 1000),
)


def http_answers(data: bytes) -> None:
    """An allow needs its literal, and an undecodable answer is never cached."""
    reply = HttpReply(200, "application/json", data, "max-age=60")
    try:
        answer = read_answer(reply)
    except ValueError:
        assert cache_s(reply) == 0
        return
    decoded = json.loads(data)
    assert (answer.result, answer.is_superuser) == (decoded["result"], decoded.get("is_superuser", False))
    assert answer.acl == decoded.get("acl") and dict(answer.attributes) == decoded.get("client_attrs", {})
    assert cache_s(reply) == (60 if answer.result == "allow" else 5)
