"""The step ``token``: a JSON Web Token in the password field, or in the data of the MQTT 5 method JWT.

The header is checked before a library parses the token; PyJWT verifies the signature; the claims are checked here, with
the given clock and strict types. Source: RFC 7515, RFC 7519, RFC 8725.
"""

import base64
import re
from dataclasses import dataclass

import jwt

from access.identity.attributes import read_attributes
from access.identity.key_set import KID_CHARACTERS_MAX, FetchKeys, KeySet, TokenKey
from access.identity.principal import (
    UTC_MAX,
    AclReader,
    Allow,
    Answer,
    Credentials,
    Deny,
    Failed,
    Job,
    Pass,
    Principal,
    TimePoint,
    Wait,
    name_fault,
    no_acl,
)
from access.identity.strict_json import is_number, read_json
from access.rules.subject import NOTHING
from mqtt.reasons import ReasonCode

__all__ = ["METHOD", "InvalidToken", "TokenStep", "read_header", "verified_claims"]

METHOD = "JWT"
TOKEN_ID_BYTES_MAX = 256  # as in the policy
TOKEN_BYTES_MAX = 8192
HEADER_DEPTH_MAX = 4
CLAIMS_DEPTH_MAX = 8
CLAIMS_MAX = 256
LEEWAY_S = 30.0
BRACE = b"eyJ"  # a JSON map in base64 that starts with {"
AUDIENCES_MAX = 32
ALGORITHMS = frozenset(
    (
        "HS256",
        "HS384",
        "HS512",
        "RS256",
        "RS384",
        "RS512",
        "PS256",
        "PS384",
        "PS512",
        "ES256",
        "ES384",
        "ES512",
        "EdDSA",
    )
)
VERIFIERS = {name: jwt.PyJWS([name]) for name in ALGORITHMS}  # each supports one algorithm
COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]*)")


class InvalidToken(Exception):
    """A refused token; the text does not quote it."""

    def __init__(self, text: str, code: ReasonCode = ReasonCode.BAD_USER_NAME_OR_PASSWORD) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The used parts of a token's header; its keys and URLs are ignored."""

    algorithm: str
    kid: str


def read_header(token: bytes) -> TokenHeader | None:
    """Return the header of a token, None if the bytes are not a token, such as a password.

    Raises:
        InvalidToken: It is a token that is never accepted.
    """
    found = COMPACT.fullmatch(token)
    if found is None:
        return None
    if len(token) > TOKEN_BYTES_MAX:
        if token.startswith(BRACE):
            raise InvalidToken(f"a token of {len(token)} bytes")
        return None
    try:
        header = read_json(_decoded(found[1]), TOKEN_BYTES_MAX, HEADER_DEPTH_MAX)
    except ValueError:
        if token.startswith(BRACE):
            raise InvalidToken("a header that is unreadable") from None
        return None
    if not isinstance(header, dict) or "alg" not in header:
        return None
    algorithm, kid = header["alg"], header.get("kid", "")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidToken("an algorithm that is not accepted")
    if not isinstance(kid, str) or len(kid) > KID_CHARACTERS_MAX:
        raise InvalidToken("a kid that is no name")
    if "crit" in header or "b64" in header:
        raise InvalidToken("a header with critical parts")
    return TokenHeader(algorithm, kid)


def _decoded(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))


def verified_claims(token: bytes, header: TokenHeader, key: TokenKey) -> dict[str, object]:
    """Return the claims of a token that the key signed; their content is not checked.

    Raises:
        InvalidToken: The signature is invalid, or the claims are not a map within bounds.
    """
    if header.algorithm not in key.algorithms:
        raise InvalidToken("an algorithm that its key has not")
    try:
        payload = VERIFIERS[header.algorithm].decode_complete(token, key.key, [header.algorithm])["payload"]
    except Exception:  # of the library, or of those below it
        raise InvalidToken("a signature that is not its key's") from None
    try:
        claims = read_json(payload, TOKEN_BYTES_MAX, CLAIMS_DEPTH_MAX)
    except ValueError as error:
        raise InvalidToken(f"claims: {error}") from None
    if not isinstance(claims, dict) or len(claims) > CLAIMS_MAX:
        raise InvalidToken(f"claims that are no map of at most {CLAIMS_MAX}")
    return claims


class TokenStep:
    """The step ``token``.

    Args:
        keys: Verify tokens.
        issuer: Required ``iss``; empty accepts any.
        audience: Required in ``aud``; if empty, a token with ``aud`` is refused, because it is for others.
        user_claim: Claim that becomes the user.
        read_acl: Parses the claim ``acl``.
    """

    name = "token"
    methods: tuple[str, ...] = (METHOD,)

    def __init__(
        self,
        keys: KeySet,
        issuer: str = "",
        audience: str = "",
        user_claim: str = "sub",
        read_acl: AclReader = no_acl,
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._user_claim = user_claim
        self._read_acl = read_acl

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Check the token, or request new keys if its key is unknown."""
        return self._check(credentials, moment, may_fetch=True)

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Check again with the keys after a fetch."""
        del result
        if not isinstance(job, FetchKeys):
            return Failed("token: a result that nobody asked for")
        return self._check(credentials, moment, may_fetch=False)

    def _check(self, credentials: Credentials, moment: TimePoint, may_fetch: bool) -> Answer:
        if credentials.method not in ("", METHOD):
            return Pass()
        token = credentials.data if credentials.method else credentials.password
        try:
            header = read_header(token) if token else None
            if header is None or token is None:
                return self._no_token(credentials)
            key = self._keys.find(header.kid, header.algorithm, moment.now)
            if key is None:
                return self._no_key(moment.now, may_fetch)
            return self._allow(credentials, verified_claims(token, header, key), moment.utc)
        except InvalidToken as error:
            return Deny(error.code, f"token with {error}")

    def _no_token(self, credentials: Credentials) -> Answer:
        if credentials.method:
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the method JWT without a token")
        return Pass()

    def _no_key(self, now: float, may_fetch: bool) -> Answer:
        source = self._keys.source
        if may_fetch and source is not None and source.grant_fetch(now):
            return Wait(FetchKeys())
        if self._keys.is_stale(now):
            return Failed("token: no JWKS within 24 h")
        return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "token with a key that is not known")

    def _allow(self, credentials: Credentials, claims: dict[str, object], utc: float) -> Answer:
        expires = _time(claims, "exp")
        if expires is None:
            raise InvalidToken("no exp")
        if not utc < expires + LEEWAY_S:
            raise InvalidToken("an exp that has passed", ReasonCode.NOT_AUTHORIZED)
        for name in ("nbf", "iat"):
            if not (_time(claims, name) or 0) <= utc + LEEWAY_S:
                raise InvalidToken(f"an {name} of the future", ReasonCode.NOT_AUTHORIZED)
        if self._issuer and claims.get("iss") != self._issuer:
            raise InvalidToken("another issuer", ReasonCode.NOT_AUTHORIZED)
        if not _is_for(claims.get("aud"), self._audience):
            raise InvalidToken("another audience", ReasonCode.NOT_AUTHORIZED)
        user = claims.get(self._user_claim)
        if not isinstance(user, str) or name_fault(user):
            raise InvalidToken(f"no plain name as {self._user_claim}", ReasonCode.NOT_AUTHORIZED)
        try:
            tiers = self._read_acl(claims["acl"]) if "acl" in claims else ()
            attributes = read_attributes(claims["client_attrs"]) if "client_attrs" in claims else NOTHING
        except ValueError as error:
            raise InvalidToken(f"rights that are none: {error}", ReasonCode.NOT_AUTHORIZED) from None
        return Allow(
            Principal(
                user,
                self.name,
                credentials.client_id,
                tiers=tiers,
                attributes=attributes,
                expires_at_utc=expires + LEEWAY_S,  # like the check at login: both by the clock of this edge
                token_id=_token_id(claims),
            )
        )


def _time(claims: dict[str, object], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if not is_number(value) or not 0 <= value <= UTC_MAX:
        raise InvalidToken(f"an {name} that is no time")
    return float(value)


def _token_id(claims: dict[str, object]) -> str:
    """Return the name by which a token can be revoked; a name that revocations cannot hold is refused."""
    if "jti" not in claims:
        return ""
    name = claims["jti"]
    if not isinstance(name, str) or name_fault(name) or len(name.encode()) > TOKEN_ID_BYTES_MAX:
        raise InvalidToken(f"a jti that is no plain name of at most {TOKEN_ID_BYTES_MAX} bytes")
    return name


def _is_for(audience: object, own: str) -> bool:
    """Return whether a token is for this listener (RFC 7519 section 4.1.3)."""
    if audience is None:
        return not own
    listed = [audience] if isinstance(audience, str) else audience
    if not isinstance(listed, list) or len(listed) > AUDIENCES_MAX or not all(isinstance(each, str) for each in listed):
        return False
    return bool(own) and own in listed
