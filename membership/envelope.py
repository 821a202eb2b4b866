"""Encryption and authentication of all datagrams and of all frames of a TCP exchange.

In clear: envelope version, a tag of the cluster's name (which identifies a neighbour cluster's packets in counters),
key id, nonce. Bound as associated data: the same, the cluster's full name, the protocol version, and the channel. The
rest is encrypted with AES-256-GCM.

A datagram is also bound to two sessions: only the process it was sent to accepts it, only from the process of a known
member, and each packet number once. So a replay fails at any member, also at a restarted one, without synchronized
clocks. A new member becomes known by a TCP exchange, which has its own challenge (``exchange.py``).

This module does not log or raise for input of peers. It changes only its counters and the replay window.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from struct import Struct

from cryptography.exceptions import InvalidTag

from membership.keyring import KEY_ID_BYTES, KeyRing
from membership.members import Members
from membership.packets import DATAGRAM_BYTES_MAX, MalformedGossip, Message, decode_messages

__all__ = ["BODY_BYTES_MAX", "DROP_REASONS", "PROTOCOL_VERSION", "Envelope"]

PROTOCOL_VERSION = 1
_MAGIC = bytes((0x5A, PROTOCOL_VERSION))
_TAG_BYTES = 4
_NONCE_BYTES = 12
_NONCES_DRAWN = 64
_AUTH_BYTES = 16
_OUTSIDE_BYTES = len(_MAGIC) + _TAG_BYTES + KEY_ID_BYTES
_NONCE_END = _OUTSIDE_BYTES + _NONCE_BYTES
_HEADER = Struct(">QQQ")  # sender's session, recipient's session, packet number
SEALED_EXTRA_BYTES = _NONCE_END + _AUTH_BYTES
BODY_BYTES_MAX = DATAGRAM_BYTES_MAX - SEALED_EXTRA_BYTES - _HEADER.size

DROP_REASONS = (
    "oversized",
    "truncated",
    "unknown_protocol",
    "wrong_cluster",
    "unknown_key",
    "forged",
    "own_packet",
    "stale_recipient",
    "unknown_sender",
    "replayed",
    "malformed",
)


class Envelope:
    """Seals and opens for one process."""

    def __init__(
        self, cluster: str, session: int, key_ring: KeyRing, members: Members, random_bytes: Callable[[int], bytes]
    ) -> None:
        """Bind to a cluster and to the local session.

        Args:
            cluster: The cluster's name, up to 64 bytes.
            session: The local one.
            key_ring: Shared with key rotation.
            members: Known sessions, and their replay windows.
            random_bytes: Returns that many unpredictable bytes; the system's generator in production.
        """
        name = cluster.encode()
        if not 1 <= len(name) <= 64 or b"\0" in name:
            raise ValueError("a cluster name has 1 to 64 bytes, none of them zero")
        self._session = session
        self._key_ring = key_ring
        self._members = members
        self._random_bytes = random_bytes
        self._nonces: list[bytes] = []
        self._number = 0
        self._prefix = _MAGIC + hashlib.sha256(b"stratamq cluster\0" + name).digest()[:_TAG_BYTES]
        self._suffix = b"\0" + name + b"\0"
        self.dropped: Counter[str] = Counter()

    def seal_datagram(self, recipient_session: int, body: bytes) -> bytes:
        """Seal the body of a datagram for one process.

        Raises:
            KeyExhausted: The sealing key has reached its limit.
        """
        self._number += 1
        return self.seal(_HEADER.pack(self._session, recipient_session, self._number) + body, b"datagram")

    def open_datagram(self, data: bytes) -> tuple[int, list[Message]] | None:
        """Return the sender's session and its messages, or None if the packet was dropped and counted."""
        try:
            return self._open_datagram(data)
        except _Dropped as dropped:
            self.dropped[dropped.reason] += 1
            return None

    def seal(self, content: bytes, channel: bytes) -> bytes:
        """Seal any content under a channel, which the receiver must also use.

        Raises:
            KeyExhausted: The sealing key has reached its limit.
        """
        cipher = self._key_ring.sealing_cipher()
        outside = self._prefix + self._key_ring.primary_id
        if not self._nonces:  # one system call for many; an Envelope must not be used on both sides of a fork
            drawn = self._random_bytes(_NONCE_BYTES * _NONCES_DRAWN)
            self._nonces = [drawn[at : at + _NONCE_BYTES] for at in range(0, len(drawn), _NONCE_BYTES)]
        nonce = self._nonces.pop()
        return outside + nonce + cipher.encrypt(nonce, content, outside + self._suffix + channel)

    def open(self, data: bytes, channel: bytes) -> bytes | None:
        """Return the content, or None if the data was dropped and counted."""
        try:
            return self._open(data, channel)
        except _Dropped as dropped:
            self.dropped[dropped.reason] += 1
            return None

    def _open_datagram(self, data: bytes) -> tuple[int, list[Message]]:
        if len(data) > DATAGRAM_BYTES_MAX:
            raise _Dropped("oversized")
        content = self._open(data, b"datagram")
        if len(content) < _HEADER.size:
            raise _Dropped("malformed")
        sender, recipient, number = _HEADER.unpack_from(content)
        if sender == self._session:
            raise _Dropped("own_packet")
        if recipient != self._session:
            raise _Dropped("stale_recipient")
        member = self._members.by_session(sender)
        if member is None:
            raise _Dropped("unknown_sender")
        if not member.replay.take(number):
            raise _Dropped("replayed")
        try:
            return sender, decode_messages(content[_HEADER.size :])
        except MalformedGossip:
            raise _Dropped("malformed") from None

    def _open(self, data: bytes, channel: bytes) -> bytes:
        if len(data) < SEALED_EXTRA_BYTES:
            raise _Dropped("truncated")
        outside = data[:_OUTSIDE_BYTES]
        if outside[: len(self._prefix)] != self._prefix:
            raise _Dropped("unknown_protocol" if outside[: len(_MAGIC)] != _MAGIC else "wrong_cluster")
        cipher = self._key_ring.opening_cipher(outside[len(self._prefix) :])
        if cipher is None:
            raise _Dropped("unknown_key")
        try:
            return cipher.decrypt(data[_OUTSIDE_BYTES:_NONCE_END], data[_NONCE_END:], outside + self._suffix + channel)
        except InvalidTag:
            raise _Dropped("forged") from None


class _Dropped(Exception):
    def __init__(self, reason: str) -> None:
        self.reason = reason
