"""Password records: parse, create and verify. Reads Mosquitto's three formats; creates argon2id.

A record's parameters are bounded before any computation, because they define the cost of a hash. ``HashJob`` runs in
the shell's hash thread and uses only its own fields. Source: mosquitto_passwd(1), RFC 9106 (argon2id), RFC 8018
(PBKDF2), and the PHC string format.
"""

import base64
import enum
import hashlib
import hmac
import re
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

__all__ = [
    "HashJob",
    "HashKind",
    "PasswordRecord",
    "encode_record",
    "has_argon2",
    "make_record",
    "parse_record",
    "verify",
]

RECORD_CHARACTERS_MAX = 512
MEMORY_KIB_MAX = 256 * 1024
ITERATIONS_MAX = 10_000_000  # of PBKDF2: about 4 s
PASSES_MAX = 64  # of argon2
PASSES_KIB_MAX = 1024 * 1024  # memory times passes: about 2 s
LANES_MAX = 16
SALT_BYTES_MIN, SALT_BYTES_MAX = 8, 64
DIGEST_BYTES = 64  # of SHA-512, also as PBKDF2 uses it
OWN_MEMORY_KIB, OWN_PASSES, OWN_LANES = 19_456, 2, 1  # OWASP's second choice: 19 MiB
OWN_DIGEST_BYTES, OWN_SALT_BYTES = 32, 16

NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=([1-9][0-9]{0,9}),t=([1-9][0-9]{0,9}),p=([1-9][0-9]{0,9})"
    r"\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)",
    re.ASCII,
)


class HashKind(enum.StrEnum):
    """Format of a record, by its prefix."""

    SHA512 = "$6$"
    PBKDF2 = "$7$"
    ARGON2ID = "$argon2id$"


@dataclass(frozen=True, slots=True)
class PasswordRecord:
    """Parameters to verify a password.

    Attributes:
        iterations: Of PBKDF2, or passes of argon2; 1 for SHA-512.
        memory_kib: Of argon2, otherwise 0.
        lanes: Of argon2, otherwise 0.
    """

    kind: HashKind
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    iterations: int = 1
    memory_kib: int = 0
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class HashJob:
    """Run ``run`` in the hash thread; the result is its bool.

    Attributes:
        known: The record is a user's; otherwise the hash only spends time.
    """

    user: str
    record: PasswordRecord
    password: bytes = field(repr=False)
    known: bool = True
    kind: str = field(default="hash", init=False)

    def run(self) -> bool:
        """Return whether the password matches the record."""
        return verify(self.record, self.password)


def parse_record(text: str) -> PasswordRecord:
    """Parse a record.

    Raises:
        ValueError: It has another format, or parameters beyond the bounds; the text does not quote the record.
    """
    if len(text) > RECORD_CHARACTERS_MAX:
        raise ValueError(f"a hash of {len(text)} characters")
    if text.startswith(HashKind.ARGON2ID):
        return _argon2id(text)
    fields = text.split("$")
    if text.startswith(HashKind.SHA512) and len(fields) == 4:
        record = PasswordRecord(HashKind.SHA512, _bytes(fields[2]), _bytes(fields[3]))
    elif text.startswith(HashKind.PBKDF2) and len(fields) == 5:
        iterations = _number("iterations", fields[2], ITERATIONS_MAX)
        record = PasswordRecord(HashKind.PBKDF2, _bytes(fields[3]), _bytes(fields[4]), iterations)
    else:
        raise ValueError("no hash ($6$, $7$ or $argon2id$)")
    if len(record.digest) != DIGEST_BYTES:
        raise ValueError(f"a hash of {len(record.digest)} bytes, not {DIGEST_BYTES}")
    return _with_salt(record)


def _argon2id(text: str) -> PasswordRecord:
    found = ARGON2ID.fullmatch(text)
    if found is None:
        raise ValueError("no argon2id hash ($argon2id$v=19$m=...,t=...,p=...$salt$hash)")
    memory_kib = _number("argon2 memory m (KiB)", found[1], MEMORY_KIB_MAX)
    passes = _number("argon2 passes t", found[2], PASSES_MAX)
    lanes = _number("argon2 lanes p", found[3], LANES_MAX)
    if memory_kib * passes > PASSES_KIB_MAX:
        raise ValueError(f"argon2 with m times t beyond {PASSES_KIB_MAX} KiB")
    if memory_kib < 8 * lanes:  # RFC 9106 section 3.1
        raise ValueError("argon2 memory m below 8 KiB for each lane")
    salt, digest = _bytes(_padded(found[4])), _bytes(_padded(found[5]))
    if not 16 <= len(digest) <= 64:
        raise ValueError(f"an argon2id hash of {len(digest)} bytes, not 16 to 64")
    return _with_salt(PasswordRecord(HashKind.ARGON2ID, salt, digest, passes, memory_kib, lanes))


def _with_salt(record: PasswordRecord) -> PasswordRecord:
    if not SALT_BYTES_MIN <= len(record.salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a salt of {len(record.salt)} bytes, not {SALT_BYTES_MIN} to {SALT_BYTES_MAX}")
    return record


def _number(name: str, text: str, most: int) -> int:
    if NUMBER.fullmatch(text) is None or int(text) > most:
        raise ValueError(f"{name} beyond 1 to {most}")
    return int(text)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:  # including binascii.Error and UnicodeEncodeError
        raise ValueError("a salt or hash that is no base64") from None


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def encode_record(record: PasswordRecord) -> str:
    """Return the text of a record for ``parse_record``."""
    salt, digest = (base64.b64encode(each).decode() for each in (record.salt, record.digest))
    if record.kind == HashKind.SHA512:
        return f"$6${salt}${digest}"
    if record.kind == HashKind.PBKDF2:
        return f"$7${record.iterations}${salt}${digest}"
    cost = f"m={record.memory_kib},t={record.iterations},p={record.lanes}"
    return f"$argon2id$v=19${cost}${salt.rstrip('=')}${digest.rstrip('=')}"


def make_record(password: bytes, salt: bytes) -> PasswordRecord:
    """Return a new record of a password; costs about 30 ms.

    Args:
        password: As in CONNECT.
        salt: 16 random bytes, never reused.
    """
    assert len(salt) == OWN_SALT_BYTES
    empty = PasswordRecord(HashKind.ARGON2ID, salt, bytes(OWN_DIGEST_BYTES), OWN_PASSES, OWN_MEMORY_KIB, OWN_LANES)
    return PasswordRecord(empty.kind, salt, _digest(empty, password), OWN_PASSES, OWN_MEMORY_KIB, OWN_LANES)


def verify(record: PasswordRecord, password: bytes) -> bool:
    """Return whether the password matches the record; an empty one never does.

    PBKDF2 pads a short password with NUL, so a password that ends in NUL would equal the one without.
    """
    right = hmac.compare_digest(_digest(record, password), record.digest)
    return right and bool(password) and not (record.kind == HashKind.PBKDF2 and password.endswith(b"\0"))


def _digest(record: PasswordRecord, password: bytes) -> bytes:
    if record.kind == HashKind.SHA512:
        return hashlib.sha512(password + record.salt).digest()
    if record.kind == HashKind.PBKDF2:
        return hashlib.pbkdf2_hmac("sha512", password, record.salt, record.iterations, DIGEST_BYTES)
    return Argon2id(
        salt=record.salt,
        length=len(record.digest),
        iterations=record.iterations,
        lanes=record.lanes,
        memory_cost=record.memory_kib,
    ).derive(password)


def has_argon2() -> bool:
    """Return whether the library supports argon2id here; checked at start."""
    try:
        _digest(PasswordRecord(HashKind.ARGON2ID, bytes(16), bytes(32), 1, 8, 1), b"probe")
    except UnsupportedAlgorithm:
        return False
    return True
