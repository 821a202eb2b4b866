"""Keys of tokens: PEM, secrets, and a JWKS that rotates, fails or is hostile."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from access.identity.key_set import (
    FETCH_S_MAX,
    JWKS_BYTES_MAX,
    KEPT_S,
    KeySource,
    key_of_pem,
    key_of_secret,
    read_jwks,
)
from tests.access.identity.test_tokens import EC_KEY, ED_KEY, RSA_KEY, pem

EC: dict[str, Any] = {**json.loads(ECAlgorithm.to_jwk(EC_KEY.public_key())), "kid": "ec"}
RSA: dict[str, Any] = {**json.loads(RSAAlgorithm.to_jwk(RSA_KEY.public_key())), "kid": "rsa"}
RSA.pop("key_ops", None)
ED: dict[str, Any] = {**json.loads(OKPAlgorithm.to_jwk(ED_KEY.public_key())), "kid": "ed"}


def jwks(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_algorithms_come_from_the_key() -> None:
    found = {key.kid: key.algorithms for key in read_jwks(jwks(EC, RSA, ED, {**RSA, "kid": "one", "alg": "PS256"}))}
    assert found == {
        "ec": {"ES256"},
        "rsa": {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"},
        "ed": {"EdDSA"},
        "one": {"PS256"},
    }


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "alg": "HS256"},
        {**RSA, "alg": "HS256"},
        {**RSA, "alg": "none"},
        {**RSA, "alg": "RSA-OAEP"},
        {**RSA, "use": "enc"},
        {**RSA, "key_ops": ["sign"]},
        {**RSA, "kid": 7},
        {**RSA, "kid": "x" * 257},
        {**RSA, "n": "AQAB"},
        {**RSA, "n": "A" * 3000},
        {**RSA, "e": "A" * 300},
        {**RSA, "e": "AAAA"},
        {**RSA, "n": 5},
        {**EC, "alg": "ES384"},
        {**EC, "crv": "P-521"},
        {**EC, "crv": "secp256k1"},
        {**EC, "x": EC["y"]},
        {**ED, "x": "AAAA"},
        {**ED, "crv": "X25519"},
        {"kty": "unknown"},
        {},
    ],
)
def test_keys_that_are_left_out(key: object) -> None:
    """Weak, for another use, secret, or damaged; the others stay."""
    assert [each.kid for each in read_jwks(jwks(key, ED))] == ["ed"]
    with pytest.raises(ValueError, match="without a key"):
        read_jwks(jwks(key))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[1]}',
        b"<html>",
        jwks(EC, EC),
        jwks({**EC, "d": "AAAA"}),
        jwks(*[{"kty": "x"}] * 101),
        jwks(EC) + b" " * JWKS_BYTES_MAX,
        b'{"keys":' + b"[" * 1000 + b"]" * 1000 + b"}",
    ],
)
def test_sets_that_are_refused(content: bytes) -> None:
    """The old keys stay."""
    source = KeySource()
    assert source.loaded(jwks(EC), 0.0) == ""
    assert source.loaded(content, 1.0)
    assert [key.kid for key in source.keys] == ["ec"] and source.failures == 1


def test_when_a_fetch_is_due() -> None:
    """Each 300 s; 30 s after a failure; never two at once; a hanging one is abandoned."""
    source = KeySource()
    assert source.is_due(0.0) and not source.is_fresh(0.0)
    source.began(0.0)
    assert not source.is_due(FETCH_S_MAX - 1) and source.is_due(FETCH_S_MAX)
    source.loaded(jwks(EC), 1.0)
    assert not source.is_due(300.9) and source.is_due(301.0)
    source.began(301.0)
    source.failed(303.0)
    assert not source.is_due(332.9) and source.is_due(333.0)
    assert source.is_fresh(1.0 + KEPT_S - 1) and not source.is_fresh(1.0 + KEPT_S)


def test_keys_of_files() -> None:
    assert key_of_pem(pem(RSA_KEY), "a").kid == "a"
    assert key_of_secret(b"x" * 48, "HS384").algorithms == {"HS384"}
    small = rsa.generate_private_key(65537, 1024)
    private = EC_KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    brainpool = ec.generate_private_key(ec.SECP256K1())
    for content in (b"", pem(EC_KEY)[:-40], private, pem(small), pem(brainpool), b"\0" * 100):
        with pytest.raises(ValueError, match="key"):
            key_of_pem(content)
    assert key_of_pem(pem(ed25519.Ed25519PrivateKey.generate())).algorithms == {"EdDSA"}


@pytest.mark.parametrize(
    ("content", "algorithm"),
    [
        (pem(RSA_KEY), "HS256"),
        (b"ssh-ed25519 AAAA" * 4, "HS256"),
        (b"", "HS256"),
        (b"x" * 31, "HS256"),
        (b"x" * 63, "HS512"),
        (b"x" * 64, "RS256"),
        (b"x" * 64, "none"),
    ],
)
def test_secrets_that_are_refused(content: bytes, algorithm: str) -> None:
    """A public key, a short secret, an algorithm of another kind."""
    with pytest.raises(ValueError, match="secret"):
        key_of_secret(content, algorithm)
