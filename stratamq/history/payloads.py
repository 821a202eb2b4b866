"""Payloads with an identifier and a checksum.

``identifier|CRC-32 in hex|filler``: the checksum covers identifier and filler, so altered bytes are detected without
stored copies (R3).
"""

from __future__ import annotations

import zlib

__all__ = ["make_payload", "read_payload"]


def make_payload(identifier: str, filler_bytes: int = 0) -> bytes:
    """Return the payload of a unique identifier; "" is the empty payload, which clears a retained message."""
    if not identifier:
        return b""
    name, filler = identifier.encode(), b"." * filler_bytes
    return b"%s|%08x|%s" % (name, zlib.crc32(name + filler), filler)


def read_payload(payload: bytes) -> tuple[str, bool]:
    """Return (identifier, intact); for a foreign payload its first bytes as text and False."""
    if not payload:
        return "", True
    parts = payload.split(b"|", 2)
    if len(parts) != 3 or b"%08x" % zlib.crc32(parts[0] + parts[2]) != parts[1]:
        return payload[:64].decode("utf-8", "backslashreplace"), False
    return parts[0].decode(), True
