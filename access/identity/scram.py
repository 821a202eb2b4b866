"""SCRAM-SHA-256 as an authentication method of MQTT 5: the server side of the exchange, and the file of users.

The file has one line per user, ``name:iterations:salt:stored_key:server_key`` (the last three in base64), which does
not permit a login elsewhere; ``user_line`` creates one. The cluster's users have a verifier of the same values,
``SCRAM-SHA-256$iterations:salt$stored_key:server_key``, all with the same iterations. An unknown name takes as long as
a known one, and its challenge looks alike. Channel binding is not offered. Source: RFC 5802 (messages), RFC 7677
(SHA-256), RFC 4013 (preparation of strings).
"""

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from access.files import AccessFileError, read_access_file, text_lines

__all__ = ["Scram", "ScramAnswer", "ScramUser", "load_users", "make_verifier", "read_verifier", "saslprep", "user_line"]

NAME = "SCRAM-SHA-256"
ITERATIONS = 4096  # the minimum of RFC 7677; a line may have more
# of each user of the cluster, and in challenges of unknown names; the client computes them
CLUSTER_ITERATIONS = 100_000
ITERATIONS_MAX = 10_000_000
VERIFIER = re.compile(
    r"SCRAM-SHA-256\$([1-9][0-9]{3,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)", re.ASCII
)
MESSAGE_BYTES_MAX = 4096
FILE_BYTES_MAX = 64 * 1024 * 1024
NONCE_CHARACTERS_MAX = 256
SALT_BYTES = 16
SALT_BYTES_MAX = 64  # of a line: the maximum in a challenge of an unknown name


@dataclass(frozen=True, slots=True)
class ScramUser:
    """Server-side values of a user, which do not permit a login."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True)
class ScramAnswer:
    """Response of an exchange to one message of the client; implements ``ScramReply`` of ``scram_step``."""

    data: bytes = b""
    identity: str = ""
    refused: bool = False
    asks: str = ""


REFUSED = ScramAnswer(refused=True)


def saslprep(text: str) -> str:
    """Return the prepared form in which names and passwords are compared (RFC 4013).

    Raises:
        ValueError: It has a forbidden character, or mixes writing directions.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    forbidden = (
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
    )
    if any(test(char) for char in prepared for test in forbidden):
        raise ValueError("forbidden character")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
        raise ValueError("left-to-right and right-to-left text mixed")
    return prepared


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def make_user(password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramUser:
    """Derive the stored values of a password (RFC 5802 section 3)."""
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return ScramUser(iterations, salt, stored_key, _hmac(salted, b"Server Key"))


def user_line(name: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> str:
    """Return a user's line of the file, without newline.

    Args:
        salt: ``SALT_BYTES`` of randomness, never reused.

    Raises:
        ValueError: The name is empty or has a colon or a forbidden character.
    """
    prepared = saslprep(name)
    if not prepared or ":" in prepared:
        raise ValueError(f"{name!r} is no user name: empty, or with a colon")
    user = make_user(password, salt, iterations)
    fields = (base64.b64encode(field).decode() for field in (user.salt, user.stored_key, user.server_key))
    return ":".join((prepared, str(iterations), *fields))


def make_verifier(name: str, password: str, salt: bytes) -> str:
    """Return the verifier of a user of the cluster.

    Args:
        salt: ``SALT_BYTES`` of randomness, never reused.

    Raises:
        ValueError: Clients cannot send the name unchanged, or the password has a forbidden character.
    """
    if saslprep(name) != name:
        raise ValueError(f"clients send {name!r} as {saslprep(name)!r}")
    user = make_user(password, salt, CLUSTER_ITERATIONS)
    shown = [base64.b64encode(field).decode() for field in (user.salt, user.stored_key, user.server_key)]
    return f"{NAME}${user.iterations}:{shown[0]}${shown[1]}:{shown[2]}"


def read_verifier(text: str) -> ScramUser:
    """Return the values of a verifier.

    Raises:
        ValueError: It belongs to another method, or is invalid.
    """
    found = VERIFIER.fullmatch(text)
    if found is None:
        raise ValueError("no verifier of SCRAM-SHA-256")
    salt, stored_key, server_key = (base64.b64decode(found[number], validate=True) for number in (2, 3, 4))
    iterations = int(found[1])
    if not ITERATIONS <= iterations <= ITERATIONS_MAX or not salt or len(stored_key) != 32 or len(server_key) != 32:
        raise ValueError("a verifier out of its ranges")
    return ScramUser(iterations, salt, stored_key, server_key)


def load_users(path: Path) -> dict[str, ScramUser]:
    """Read the file of users.

    Raises:
        AccessFileError: It is missing, accessible to others than its owner, or a line (named by number) is malformed.
    """
    content = read_access_file(path, FILE_BYTES_MAX)
    if path.stat().st_mode & 0o077:
        raise AccessFileError(path, 0, f"readable by others; run chmod 600 {path}")
    users: dict[str, ScramUser] = {}
    for number, line in text_lines(path, content):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, iterations, *keys = line.split(":")
            salt, stored_key, server_key = (base64.b64decode(key, validate=True) for key in keys)
            user = ScramUser(int(iterations), salt, stored_key, server_key)
            if not name or name in users or not ITERATIONS <= user.iterations <= ITERATIONS_MAX or not salt:
                raise ValueError
            if len(stored_key) != 32 or len(server_key) != 32 or len(salt) > SALT_BYTES_MAX:
                raise ValueError
        except (ValueError, binascii.Error):
            raise AccessFileError(
                path, number, "expected name:iterations:salt:stored_key:server_key, each name once"
            ) from None
        users[name] = user
    if not users:
        raise AccessFileError(path, 0, "names no user; add one, or take the file out of the settings")
    return users


class Scram:
    """The method; implements ``Method`` of ``scram_step``.

    Args:
        users: By prepared name.
        new_nonce: Returns a new printable nonce without commas.
        secret: Derives the challenges of unknown names: the same at every edge of the cluster.
        asks: Other sources exist too: an exchange continues after their response.
    """

    name = NAME

    def __init__(
        self, users: Mapping[str, ScramUser], new_nonce: Callable[[], str], secret: bytes, asks: bool = False
    ) -> None:
        self._users = users
        self._new_nonce = new_nonce
        self._secret = secret
        self._asks = asks
        # Challenges of unknown names have the same forms as those of the file's users.
        forms = {(user.iterations, len(user.salt)) for user in users.values()}
        forms |= {(CLUSTER_ITERATIONS, SALT_BYTES)} if asks else set()
        self._forms = sorted(forms) or [(ITERATIONS, SALT_BYTES)]

    def begin(self) -> "ScramExchange":
        """Start an exchange."""
        return ScramExchange(self.lookup, self._new_nonce(), self._asks)

    def has(self, name: str) -> bool:
        """Return whether a name is known locally; then no other source is asked."""
        return name in self._users

    def lookup(self, name: str, told: ScramUser | None = None) -> tuple[ScramUser, bool]:
        """Return the values for a challenge, and whether the name is a user; unknown names keep their salt."""
        form = int.from_bytes(_hmac(self._secret, b"form" + name.encode())[:8], "big") % len(self._forms)
        iterations, salt_bytes = self._forms[form]
        dummy = ScramUser(
            iterations,
            hmac.digest(self._secret, b"salt" + name.encode(), "sha512")[:salt_bytes],
            _hmac(self._secret, b"stored" + name.encode()),
            _hmac(self._secret, b"server" + name.encode()),
        )
        known = self._users.get(name, told)
        return (dummy, False) if known is None else (known, True)


class ScramExchange:
    """One exchange: client-first, server-first, client-final, server-final (RFC 5802 section 5)."""

    def __init__(
        self, lookup: Callable[[str, ScramUser | None], tuple[ScramUser, bool]], nonce: str, asks: bool
    ) -> None:
        self._lookup = lookup
        self._nonce = nonce
        self._asks = asks
        self._name = ""
        self._header = ""
        self._first_bare = ""
        self._server_first = ""
        self._user: ScramUser | None = None
        self._known = False

    def receive(self, data: bytes) -> ScramAnswer:
        """Process a message of the client."""
        if len(data) > MESSAGE_BYTES_MAX:
            return REFUSED
        try:
            message = data.decode()
            return self._first(message) if self._user is None else self._final(message)
        except (ValueError, binascii.Error):
            return REFUSED

    def _first(self, message: str) -> ScramAnswer:
        binding, authorized_as, bare = message.split(",", 2)
        if binding not in ("n", "y") or authorized_as:
            return REFUSED  # "p": requests channel binding, which is not offered; or an authorization identity
        name, nonce = bare.split(",")[:2]
        if not name.startswith("n=") or not nonce.startswith("r=") or not 2 < len(nonce) <= NONCE_CHARACTERS_MAX:
            return REFUSED  # also "m=": an extension that the server must understand
        escapes = name.replace("=2C", "").replace("=3D", "")
        if "=" in escapes[2:]:
            return REFUSED
        self._name = saslprep(name[2:].replace("=2C", ",").replace("=3D", "="))
        self._header = f"{binding},{authorized_as},"
        self._first_bare = bare
        self._nonce = nonce[2:] + self._nonce
        if not self._asks:
            return self._challenge(None)
        return ScramAnswer(asks=self._name) if self._name else REFUSED

    def told(self, verifier: str) -> ScramAnswer:
        """Continue with the verifier of the requested name; "" if it is unknown."""
        try:
            told = read_verifier(verifier)
        except (ValueError, binascii.Error):
            told = None
        return self._challenge(told)

    def _challenge(self, told: ScramUser | None) -> ScramAnswer:
        self._user, self._known = self._lookup(self._name, told)
        salt = base64.b64encode(self._user.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._user.iterations}"
        return ScramAnswer(self._server_first.encode())

    def _final(self, message: str) -> ScramAnswer:
        user, self._user = self._user, None  # no message may follow
        assert user is not None
        without_proof, _, proof = message.rpartition(",p=")
        fields = without_proof.split(",")
        bound = base64.b64encode(self._header.encode()).decode()
        if len(fields) < 2 or fields[0] != f"c={bound}" or fields[1] != f"r={self._nonce}":
            return REFUSED
        signed = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        given = base64.b64decode(proof, validate=True)
        signature = _hmac(user.stored_key, signed)
        if len(given) != len(signature):
            return REFUSED
        client_key = bytes(one ^ two for one, two in zip(given, signature, strict=True))
        right = hmac.compare_digest(hashlib.sha256(client_key).digest(), user.stored_key)
        verifier = base64.b64encode(_hmac(user.server_key, signed))
        if not (right and self._known):
            return REFUSED
        return ScramAnswer(b"v=" + verifier, self._name)
