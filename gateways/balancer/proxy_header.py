"""The PROXY header (version 2) of a relayed connection: client address and facts of terminated TLS.

Source: haproxy's proxy-protocol.txt. The edges read it in ``edge/listeners/proxy_protocol.py``.
"""

import ipaddress
import struct
from typing import NamedTuple

__all__ = ["TlsFacts", "proxy_header"]

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
PROXY = 0x21  # version 2, a proxied connection
UNKNOWN, TCP4, TCP6 = 0x00, 0x11, 0x21
UNIQUE_ID, TLS = 0x05, 0x20  # types of TLVs
VERSION, COMMON_NAME = 0x21, 0x22  # sub-types of TLS
USES_TLS, HAS_CERTIFICATE = 0x01, 0x02  # flags of TLS


class TlsFacts(NamedTuple):
    """Facts of TLS terminated at the balancer; ``common_name`` only of a verified certificate."""

    version: str
    common_name: str = ""


def proxy_header(source: tuple[str, int], destination: tuple[str, int], unique: bytes, tls: TlsFacts | None) -> bytes:
    """Return the header.

    Args:
      source: Address and port of the client.
      destination: Address and port to which it connected.
      unique: Identifies the connection in logs, at most 128 bytes.
      tls: None for a connection in clear.
    """
    options = _option(UNIQUE_ID, unique[:128])
    if tls is not None:
        named = _option(COMMON_NAME, tls.common_name.encode()[:255]) if tls.common_name else b""
        flags = USES_TLS | (HAS_CERTIFICATE if tls.common_name else 0)
        verified = 0 if tls.common_name else 1
        options += _option(TLS, struct.pack(">BI", flags, verified) + _option(VERSION, tls.version.encode()) + named)
    family, addresses = _addresses(source, destination)
    body = addresses + options
    return SIGNATURE + struct.pack(">BBH", PROXY, family, len(body)) + body


def _option(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def _addresses(source: tuple[str, int], destination: tuple[str, int]) -> tuple[int, bytes]:
    try:
        ends = [ipaddress.ip_address(host.partition("%")[0]) for host, _ in (source, destination)]
    except ValueError:
        return UNKNOWN, b""
    ports = struct.pack(">HH", source[1], destination[1])
    if all(isinstance(end, ipaddress.IPv4Address) for end in ends):
        return TCP4, ends[0].packed + ends[1].packed + ports
    six = [end.packed if end.version == 6 else b"\0" * 10 + b"\xff\xff" + end.packed for end in ends]
    return TCP6, six[0] + six[1] + ports
