"""The PROXY protocol header of a load balancer, versions 1 (text) and 2 (binary). Sans-IO.

Finds the exact end of the header in the received bytes, because TLS may start after it. If a header is expected, every
connection must start with one; ``edge/listeners/proxied_socket.py`` reads it and checks its sender.
Source: haproxy's proxy-protocol.txt; CRC-32C from RFC 3720, appendix B.4.
"""

import ipaddress
import struct
from collections.abc import Iterator

from access.identity.principal import name_fault

__all__ = ["HEADER_BYTES_MAX", "InvalidProxyHeader", "ProxyHeader", "crc32c"]

V1_PREFIX = b"PROXY "
V1_BYTES_MAX = 107  # with its line end
V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V2_FIXED_BYTES = 16
HEADER_BYTES_MAX = V2_FIXED_BYTES + 2048  # addresses and options (TLVs)
LOCAL, PROXY = 0, 1  # commands of version 2
CHECKSUM, TLS = 0x03, 0x20  # types of TLVs
COMMON_NAME = 0x22  # within the TLS option
HAS_CERTIFICATE = 0x02 | 0x04  # of its flags: in this connection, or in the session that it resumed
ADDRESS_BYTES = {0x00: 0, 0x11: 12, 0x21: 36, 0x31: 216}  # of stream families: unknown, IPv4, IPv6, Unix


class InvalidProxyHeader(ValueError):
    """The data is no header, or a malformed one, or of a version that is not accepted."""


class ProxyHeader:
    """One connection's header.

    Attributes:
        complete: All of it was taken.
        source: (address, port) of the client in the header; None without one.
        local: LOCAL command, a connection of the load balancer itself: the addresses of the header are ignored.
        common_name: Of the client's certificate, if the load balancer verified it; "" without one, None for an invalid
            client name.
    """

    def __init__(self, versions: str) -> None:
        """versions: "v1", "v2" or "any"."""
        self.complete = False
        self.source: tuple[str, int] | None = None
        self.local = False
        self.common_name: str | None = ""
        self._versions = versions
        self._taken = b""

    @property
    def begun(self) -> bool:
        """Whether a byte of it was received."""
        return bool(self._taken)

    def take(self, waiting: bytes) -> int:
        """Return how many of the peeked bytes belong to the header; exactly those must be read.

        Raises:
            InvalidProxyHeader: This is not a header of an accepted version.
        """
        data = self._taken + waiting
        try:
            end = self._end_of(data)
            if end > 0:
                self._read(data[:end])
        except InvalidProxyHeader:
            raise
        except ValueError as error:
            raise InvalidProxyHeader(str(error)) from None
        count = (end or len(data)) - len(self._taken)
        self._taken = data[: len(self._taken) + count]
        self.complete = end > 0
        return count

    def _end_of(self, data: bytes) -> int:
        """Return the end of the header, 0 while it is incomplete: then all the bytes belong to it."""
        if data[: len(V2_SIGNATURE)] == V2_SIGNATURE[: len(data)]:
            if self._versions == "v1":
                raise InvalidProxyHeader("version 2 is not accepted")
            return _end_of_v2(data)
        if self._versions == "v2" or data[: len(V1_PREFIX)] != V1_PREFIX[: len(data)]:
            raise InvalidProxyHeader("no PROXY header")
        end = data.find(b"\r\n", 0, V1_BYTES_MAX)
        if end < 0 and len(data) >= V1_BYTES_MAX:
            raise InvalidProxyHeader("header too long")
        return end + 2 if end >= 0 else 0

    def _read(self, header: bytes) -> None:
        if header[:1] == V2_SIGNATURE[:1]:
            self._read_v2(header)
        else:
            self._read_v1(header)

    def _read_v1(self, header: bytes) -> None:
        words = header[:-2].decode("ascii").split(" ")
        if words[1] == "UNKNOWN":
            return
        if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
            raise InvalidProxyHeader("malformed header")
        make = ipaddress.IPv4Address if words[1] == "TCP4" else ipaddress.IPv6Address
        source, _ = make(words[2]), make(words[3])
        port, _ = _port(words[4]), _port(words[5])
        self.source = (str(source), port)

    def _read_v2(self, header: bytes) -> None:
        command, family = header[12] & 0x0F, header[13]
        if command == LOCAL:  # the receiver must ignore the addresses
            self.local = True
            return
        size = ADDRESS_BYTES.get(family)
        if size is None or len(header) < V2_FIXED_BYTES + size:
            raise InvalidProxyHeader("no address of a stream")
        options = V2_FIXED_BYTES + size
        if family == 0x11:
            self.source = (str(ipaddress.IPv4Address(header[16:20])), int.from_bytes(header[24:26], "big"))
        elif family == 0x21:
            self.source = (str(ipaddress.IPv6Address(header[16:32])), int.from_bytes(header[48:50], "big"))
        if family:
            for kind, value in _options(header, options):
                if kind == TLS:
                    self.common_name = _verified_name(value)


def _end_of_v2(data: bytes) -> int:
    if len(data) < V2_FIXED_BYTES:
        return 0
    version_command, _, length = struct.unpack_from(">BBH", data, len(V2_SIGNATURE))
    end = V2_FIXED_BYTES + int(length)
    if version_command >> 4 != 2 or version_command & 0x0F not in (LOCAL, PROXY) or end > HEADER_BYTES_MAX:
        raise InvalidProxyHeader("malformed header")
    return end if len(data) >= end else 0


def _port(word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 5 or int(word) > 65535:
        raise InvalidProxyHeader("malformed port")
    return int(word)


def _options(header: bytes, at: int) -> list[tuple[int, bytes]]:
    """Return the options; each must lie within the header, the checksum be correct, and the TLS option be unique."""
    found = []
    for kind, start, end in _walk(header, at):
        value = header[start:end]
        if kind == CHECKSUM:
            checksum = int.from_bytes(value, "big")
            if len(value) != 4 or checksum != crc32c(header[:start] + bytes(4) + header[end:]):
                raise InvalidProxyHeader("wrong checksum")
        found.append((kind, value))
    if sum(1 for kind, _ in found if kind == TLS) > 1:
        raise InvalidProxyHeader("two options about TLS")
    return found


def _walk(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield type, start and end of each option."""
    while at < len(data):
        if at + 3 > len(data):
            raise InvalidProxyHeader("an option is cut off")
        kind, start = data[at], at + 3
        at = start + int.from_bytes(data[at + 1 : start], "big")
        if at > len(data):
            raise InvalidProxyHeader("an option is cut off")
        yield kind, start, at


def _verified_name(option: bytes) -> str | None:
    """Return the name of a verified certificate from the TLS option, "" without one, None for an invalid one."""
    if len(option) < 5:
        raise InvalidProxyHeader("an option is cut off")
    names = [option[start:end] for kind, start, end in _walk(option, 5) if kind == COMMON_NAME]
    if not option[0] & HAS_CERTIFICATE or int.from_bytes(option[1:5], "big") != 0 or not names:
        return ""  # 0: the sender verified it
    try:
        name = names[0].decode()
    except UnicodeDecodeError:
        return None
    return name if len(names) == 1 and not name_fault(name) else None


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC_TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
