"""Key rotation at one member: the request, its execution, and the answer.

A request changes the local key ring, and the key file is written before a positive answer. ``admin.py`` contacts all
members and evaluates the answers together.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import trio

from membership.exchange import BadExchange
from membership.keyring import KEY_BYTES, KEY_ID_BYTES, KEYS_MAX, KeyRing, KeyRingError, key_id, write_key_file
from membership.metadata import Name

__all__ = [
    "KeyManager",
    "KeyOperation",
    "KeyRequest",
    "KeyResponse",
    "decode_request",
    "decode_response",
    "encode_keys",
]

DETAIL_MAX = 200

KeyId = Annotated[bytes, msgspec.Meta(max_length=KEY_ID_BYTES)]
KeyOperation = Literal["list", "install", "use", "remove"]


class KeyRequest(msgspec.Struct, frozen=True, array_like=True):
    """One step of a rotation. Only ``install`` contains the secret, sealed with a key that all members have."""

    operation: KeyOperation
    key_id: KeyId = b""
    key: Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)] = b""


class KeyResponse(msgspec.Struct, frozen=True, array_like=True):
    """One member's result and its current keys."""

    name: Name
    ok: bool
    detail: Annotated[str, msgspec.Meta(max_length=DETAIL_MAX, pattern=r"^[ -~]*$")]  # for an operator's terminal
    key_ids: Annotated[tuple[KeyId, ...], msgspec.Meta(max_length=KEYS_MAX)]  # the sealing one first
    persisted: bool  # false: the keys came by file descriptor, a restart loses the step


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(KeyRequest)
_responses = msgspec.msgpack.Decoder(KeyResponse)


def encode_keys(message: KeyRequest | KeyResponse) -> bytes:
    """Encode a request or response."""
    return _encoder.encode(message)


def decode_request(content: bytes) -> KeyRequest:
    """Decode a request.

    Raises:
        BadExchange: Not a key request.
    """
    try:
        return _requests.decode(content)
    except Exception:  # RecursionError and UnicodeDecodeError among others: the bytes are the cause
        raise BadExchange("key request") from None


def decode_response(content: bytes) -> KeyResponse:
    """Decode a response.

    Raises:
        BadExchange: Not a key response.
    """
    try:
        return _responses.decode(content)
    except Exception:
        raise BadExchange("key response") from None


class KeyManager:
    """Executes key requests on this member, one at a time."""

    def __init__(self, name: str, key_ring: KeyRing, key_file: Path | None) -> None:
        self._name = name
        self._key_ring = key_ring
        self._key_file = key_file
        self._lock = trio.Lock()

    async def carry_out(self, request: KeyRequest) -> KeyResponse:
        """Execute a request; a repeat gets the same answer, so a lost answer may be requested again."""
        async with self._lock:
            before = self._key_ring.keys
            try:
                changed = self._apply(request)
            except KeyRingError as error:
                return self._response(False, str(error))
            if changed and self._key_file is not None:
                try:
                    # The secrets are copied before the thread starts; the lock keeps the order of writes.
                    await trio.to_thread.run_sync(write_key_file, self._key_file, self._key_ring.keys)
                except OSError as error:
                    self._restore(before)
                    return self._response(False, f"cannot write {self._key_file}: {error.strerror}")
            return self._response(True, "changed" if changed else "unchanged")

    def _apply(self, request: KeyRequest) -> bool:
        ring = self._key_ring
        match request.operation:
            case "list":
                return False
            case "install":
                return ring.install(request.key)
            case "use":
                return ring.use(request.key_id)
            case "remove":
                return ring.remove(request.key_id)

    def _restore(self, keys: list[bytes]) -> None:
        """Undo a step that could not be written: after a restart the member must have the reported keys."""
        wanted = {key_id(key) for key in keys}
        for key in keys:
            if key_id(key) not in self._key_ring.key_ids:
                self._key_ring.install(key)
        self._key_ring.use(key_id(keys[0]))
        for name in self._key_ring.key_ids:
            if name not in wanted:
                self._key_ring.remove(name)

    def _response(self, ok: bool, detail: str) -> KeyResponse:
        printable = detail.encode("ascii", "backslashreplace").decode()[:DETAIL_MAX]
        return KeyResponse(self._name, ok, printable, self._key_ring.key_ids, self._key_file is not None)
