"""Keys that verify tokens: from files, and from a JWKS that is fetched periodically, as events.

A key has its algorithms; a token selects one of them and never provides a key. Source: RFC 7517, RFC 7518.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from access.identity.strict_json import read_json

__all__ = ["FetchKeys", "KeySet", "KeySource", "TokenKey", "key_of_pem", "key_of_secret", "read_jwks"]

JWKS_BYTES_MAX = 65_536
JWKS_DEPTH_MAX = 8
KEYS_MAX = 100
KID_CHARACTERS_MAX = 256
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
RSA_EXPONENT_MAX = (1 << 32) - 1  # a huge one makes each verification slow
REFRESH_S = 300.0
RETRY_S = 30.0  # after a failure, and between fetches for unknown names
FETCH_S_MAX = 10.0  # a longer fetch counts as failed
KEPT_S = 24 * 3600.0

RSA = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518 section 3.2

PublicKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key with its permitted algorithms; ``kid`` is empty if it has no name."""

    kid: str
    algorithms: frozenset[str]
    key: PublicKey | bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FetchKeys:
    """Fetch the JWKS and pass it to the key source; waiting logins share one fetch. Any result resumes the step."""

    kind: str = field(default="jwks", init=False)


def key_of_pem(content: bytes, kid: str = "") -> TokenKey:
    """Return the public key of a PEM text.

    Raises:
        ValueError: It is not a key, too weak, or of an unsupported algorithm.
    """
    try:
        key = load_pem_public_key(content)
    except Exception:  # the library documents no exceptions
        raise ValueError("no public key in PEM") from None
    return TokenKey(kid, _algorithms(key), key)  # type: ignore[arg-type]  # _algorithms raises for other types


def key_of_secret(content: bytes, algorithm: str, kid: str = "") -> TokenKey:
    """Return a shared secret as a key for one HMAC algorithm.

    Raises:
        ValueError: The algorithm is not an HMAC, or the secret is too short or another kind of key.
    """
    if algorithm not in SECRET_BYTES_MIN:
        raise ValueError(f"a secret is for {', '.join(SECRET_BYTES_MIN)} only")
    if b"-----BEGIN" in content or content.startswith((b"ssh-", b"ecdsa-")):
        raise ValueError("a public or private key is no secret")
    if len(content) < SECRET_BYTES_MIN[algorithm]:
        raise ValueError(f"a secret of {len(content)} bytes; {algorithm} wants {SECRET_BYTES_MIN[algorithm]} or more")
    return TokenKey(kid, frozenset((algorithm,)), content)


def read_jwks(content: bytes) -> tuple[TokenKey, ...]:
    """Return the keys of a JWKS that verify tokens; others are skipped, as RFC 7517 section 5 requires.

    Shared secrets are skipped too: readers of the set could create tokens.

    Raises:
        ValueError: It is not a JWKS, has too many keys, a private key, a repeated name, or no key that verifies tokens.
    """
    read = read_json(content, JWKS_BYTES_MAX, JWKS_DEPTH_MAX)
    listed = read.get("keys") if isinstance(read, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"a JWKS without a list of at most {KEYS_MAX} keys")
    keys: list[TokenKey] = []
    for each in listed:
        if not isinstance(each, dict):
            raise ValueError("a JWKS with a key that is no map")
        if each.get("kty") != "oct" and "d" in each:
            raise ValueError("a JWKS with a private key; whoever reads it can make tokens")
        key = _jwk(each)
        if key is None:
            continue
        if key.kid and any(key.kid == other.kid for other in keys):
            raise ValueError("a JWKS with two keys of one kid")
        keys.append(key)
    if not keys:
        raise ValueError("a JWKS without a key that verifies tokens")
    return tuple(keys)


def _jwk(jwk: Mapping[str, object]) -> TokenKey | None:
    kid, algorithm, use, operations = (jwk.get(name) for name in ("kid", "alg", "use", "key_ops"))
    if use not in (None, "sig") or (operations is not None and operations != ["verify"]):
        return None
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARACTERS_MAX):
        return None
    try:
        key: object
        if jwk.get("kty") == "RSA":
            key = RSAAlgorithm.from_jwk(dict(jwk))
        elif jwk.get("kty") == "EC":
            key = ECAlgorithm.from_jwk(dict(jwk))
        elif jwk.get("kty") == "OKP":
            key = OKPAlgorithm.from_jwk(dict(jwk))
        else:
            return None
        algorithms = _algorithms(key)
    except Exception:  # the library raises its own errors, ValueError, TypeError and KeyError
        return None
    if algorithm is not None:
        algorithms &= {algorithm}
    return TokenKey(kid or "", algorithms, key) if algorithms else None  # type: ignore[arg-type]


def _algorithms(key: object) -> frozenset[str]:
    if isinstance(key, rsa.RSAPublicKey):
        if not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX or key.public_numbers().e > RSA_EXPONENT_MAX:
            raise ValueError(f"an RSA key of {key.key_size} bits, not {RSA_BITS_MIN} to {RSA_BITS_MAX}")
        return RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return frozenset((CURVES[key.curve.name],))
    if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return frozenset(("EdDSA",))
    raise ValueError("a key of no algorithm of tokens")


class KeySource:
    """A JWKS at a URL, updated by the shell's fetches.

    The shell calls ``is_due`` each second, also fetches when a login waits, and calls ``began`` and then ``loaded`` or
    ``failed`` for each fetch.
    """

    def __init__(self) -> None:
        self.keys: tuple[TokenKey, ...] = ()
        self.failures = 0
        self._next_at = float("-inf")
        self._began_at: float | None = None
        self._loaded_at: float | None = None
        self._asked_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a fetch is due."""
        return now >= self._next_at and not self._is_fetching(now)

    def grant_fetch(self, now: float) -> bool:
        """Return whether a token may wait for a fetch: one is running, or the last one for a token was 30 s ago."""
        if self._is_fetching(now):
            return True
        if now - self._asked_at < RETRY_S:
            return False
        self._asked_at = self._began_at = now  # it starts now: concurrent logins wait for the same one
        return True

    def began(self, now: float) -> None:
        """Record the start of a fetch."""
        self._began_at = now

    def loaded(self, content: bytes, now: float) -> str:
        """Store the keys of a response; return the error, empty on success. On an error the old keys stay."""
        try:
            self.keys = read_jwks(content)
        except ValueError as error:
            self.failed(now)
            return str(error)
        self._began_at = None
        self._loaded_at = now
        self._next_at = now + REFRESH_S
        return ""

    def failed(self, now: float) -> None:
        """Record a failed fetch; the old keys stay."""
        self.failures += 1
        self._began_at = None
        self._next_at = now + RETRY_S

    def expire(self) -> None:
        """Make a fetch due, because the URL changed. The former keys stay until then."""
        self._next_at = float("-inf")

    def is_fresh(self, now: float) -> bool:
        """Return whether the keys were fetched within 24 h."""
        return self._loaded_at is not None and now - self._loaded_at < KEPT_S

    def _is_fetching(self, now: float) -> bool:
        return self._began_at is not None and now - self._began_at < FETCH_S_MAX


class KeySet:
    """Keys of a listener: from files, and from a source if it has one."""

    def __init__(self, keys: Sequence[TokenKey] = (), source: KeySource | None = None) -> None:
        self._keys = tuple(keys)
        self.source = source

    def find(self, kid: str, algorithm: str, now: float) -> TokenKey | None:
        """Return the only key that fits a token, None if several or none do.

        Args:
            kid: Of the token's header; empty if it has none, and then only one key may fit.
            algorithm: Of the token's header.
            now: Monotonic seconds; keys of a stale source are not used.
        """
        source = self.source.keys if self.source is not None and self.source.is_fresh(now) else ()
        found = [key for key in (*self._keys, *source) if not kid or key.kid == kid]
        found = [key for key in found if algorithm in key.algorithms]
        return found[0] if len(found) == 1 else None

    def is_stale(self, now: float) -> bool:
        """Return whether the keys of the source were not fetched within 24 h."""
        return self.source is not None and not self.source.is_fresh(now)
