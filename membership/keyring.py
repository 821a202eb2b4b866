"""The keys of gossip: known keys, the sealing key, and their source.

All known keys open, one seals. So a rotation is: install everywhere, use everywhere, remove everywhere; a member one
step behind can still communicate. Keys come from a file that only its owner can read, or from a file descriptor: never
from a command line or the environment, which other processes can read. Source: NIST SP 800-38D section 8.3 for the
limit of random nonces per key.
"""

import base64
import binascii
import hashlib
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conf.synced_folder import sync_folder

__all__ = [
    "KEYS_MAX",
    "KEY_BYTES",
    "KEY_ID_BYTES",
    "KeyExhausted",
    "KeyRing",
    "KeyRingError",
    "generate_key",
    "key_id",
    "parse_key",
    "read_key_descriptor",
    "read_key_file",
    "write_key_file",
]

KEY_BYTES = 32  # AES-256
KEY_ID_BYTES = 8  # enough to distinguish a few keys; does not reveal the key
KEYS_MAX = 8  # a rotation needs two; more are leftovers
KEY_FILE_BYTES_MAX = 4096
SEALS_MAX = 2**32  # random 96-bit nonces under one key: collision probability stays below 2**-32
_HEADING = "# gossip keys of StrataMQ, base64; the first one seals, all open. Keep at mode 0600.\n"


class KeyRingError(ValueError):
    """A refused key, key file or step of a rotation; the state is unchanged."""


class KeyExhausted(KeyRingError):
    """This process sealed the maximum of packets for one key: rotate."""


def generate_key() -> bytes:
    """Return a new random key."""
    return os.urandom(KEY_BYTES)


def key_id(key: bytes) -> bytes:
    """Return the public name of a key: a truncated hash with its own label."""
    return hashlib.sha256(b"stratamq gossip key id\0" + key).digest()[:KEY_ID_BYTES]


def parse_key(text: str) -> bytes:
    """Decode one base64 key.

    Raises:
        KeyRingError: Not base64, or not 32 bytes. The text is not repeated: it may be a secret.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise KeyRingError("a gossip key is not base64") from None
    if len(key) != KEY_BYTES:
        raise KeyRingError(f"a gossip key has {len(key)} bytes, not {KEY_BYTES}")
    return key


def _parse_keys(text: str, source: str) -> list[bytes]:
    keys = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line and not line.startswith("#"):
            try:
                keys.append(parse_key(line))
            except KeyRingError as error:
                raise KeyRingError(f"{source}:{number}: {error}") from None
    if not 1 <= len(keys) <= KEYS_MAX:
        raise KeyRingError(f"{source} holds {len(keys)} keys, not 1 to {KEYS_MAX}")
    return list(dict.fromkeys(keys))


def read_key_file(path: Path) -> list[bytes]:
    """Read keys, the sealing one first.

    Raises:
        KeyRingError: Not a regular file, readable by other users, of another owner, or not keys.
        OSError: The file cannot be opened.
    """
    if path.is_dir():
        raise KeyRingError(f"{path} is a folder; name a file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())  # of the opened file: the path may change
        if not stat.S_ISREG(status.st_mode):
            raise KeyRingError(f"{path} is not a regular file")
        if status.st_mode & 0o077:
            raise KeyRingError(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}; gossip keys need 0600")
        if status.st_uid not in (os.geteuid(), 0):
            raise KeyRingError(f"{path} belongs to user {status.st_uid}, not to us")
        data = file.read(KEY_FILE_BYTES_MAX + 1)
    return _parse_keys(_decode(data, str(path)), str(path))


def read_key_descriptor(descriptor: int) -> list[bytes]:
    """Read keys from an inherited file descriptor to its end, and close it.

    Raises:
        KeyRingError: Too long, or not keys.
        OSError: The descriptor cannot be read.
    """
    source = f"file descriptor {descriptor}"
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(KEY_FILE_BYTES_MAX + 1)
    return _parse_keys(_decode(data, source), source)


def _decode(data: bytes, source: str) -> str:
    if len(data) > KEY_FILE_BYTES_MAX:
        raise KeyRingError(f"{source} is longer than {KEY_FILE_BYTES_MAX} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise KeyRingError(f"{source} does not hold base64 keys") from None


def write_key_file(path: Path, keys: list[bytes]) -> None:
    """Replace a key file atomically: mode 0600 from its creation, and synced before this returns.

    Raises:
        OSError: The old file is unchanged.
    """
    text = _HEADING + "".join(base64.b64encode(key).decode() + "\n" for key in keys)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class KeyRing:
    """The keys of this process. Changes are validated before they take effect."""

    def __init__(self, keys: list[bytes], *, seals_max: int = SEALS_MAX) -> None:
        """Set the keys, the sealing one first.

        Raises:
            KeyRingError: No key, too many, or one of a wrong size.
        """
        if not 1 <= len(keys) <= KEYS_MAX:
            raise KeyRingError(f"{len(keys)} keys, not 1 to {KEYS_MAX}")
        if any(len(key) != KEY_BYTES for key in keys):
            raise KeyRingError(f"a gossip key has {KEY_BYTES} bytes")
        self._keys = {key_id(key): key for key in keys}
        self._ciphers = {name: AESGCM(key) for name, key in self._keys.items()}
        self._seals_max = seals_max
        self._seals: dict[bytes, int] = {}
        self.primary_id = key_id(keys[0])

    @property
    def key_ids(self) -> tuple[bytes, ...]:
        """IDs of all known keys, the sealing one first."""
        return (self.primary_id, *(name for name in self._keys if name != self.primary_id))

    @property
    def keys(self) -> list[bytes]:
        """The secret keys, the sealing one first, for the key file."""
        return [self._keys[name] for name in self.key_ids]

    @property
    def seals(self) -> int:
        """Number of packets that this process sealed with the current key."""
        return self._seals.get(self.primary_id, 0)

    def rotation_due(self, members: int) -> bool:
        """Return whether ``members`` members with our packet count have used half of the key's limit."""
        return self.seals * members >= self._seals_max // 2

    def sealing_cipher(self) -> AESGCM:
        """Return the cipher of the sealing key, and count one use.

        Raises:
            KeyExhausted: The key has reached its limit: sending stops, because a repeated nonce would be worse.
        """
        count = self._seals.get(self.primary_id, 0)
        if count >= self._seals_max:
            raise KeyExhausted("the gossip key is used up: rotate it")
        self._seals[self.primary_id] = count + 1
        return self._ciphers[self.primary_id]

    def opening_cipher(self, name: bytes) -> AESGCM | None:
        """Return the cipher of a key id, or None if it is unknown."""
        return self._ciphers.get(name)

    def install(self, key: bytes) -> bool:
        """Add a key that only opens for now; return whether it is new.

        Raises:
            KeyRingError: The ring is full, or the key has a wrong size.
        """
        if len(key) != KEY_BYTES:
            raise KeyRingError(f"a gossip key has {KEY_BYTES} bytes")
        name = key_id(key)
        if name in self._keys:
            return False
        if len(self._keys) >= KEYS_MAX:
            raise KeyRingError(f"the key ring holds {KEYS_MAX} keys already; remove one first")
        self._keys[name] = key
        self._ciphers[name] = AESGCM(key)
        return True

    def use(self, name: bytes) -> bool:
        """Make a known key the sealing one; return whether it was another.

        Raises:
            KeyRingError: The key is not installed here.
        """
        if name not in self._keys:
            raise KeyRingError(f"key {name.hex()} is not installed")
        changed = name != self.primary_id
        self.primary_id = name
        return changed

    def remove(self, name: bytes) -> bool:
        """Remove a key; return whether it existed.

        Raises:
            KeyRingError: It is the sealing key.
        """
        if name == self.primary_id:
            raise KeyRingError(f"key {name.hex()} seals; use another one first")
        self._ciphers.pop(name, None)
        return self._keys.pop(name, None) is not None
