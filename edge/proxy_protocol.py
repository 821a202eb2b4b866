"""The PROXY protocol header that a load balancer sends first, versions 1 (text) and 2 (binary).

Where it is expected every connection must begin with one; anything else closes it.
Source: haproxy's proxy-protocol.txt.
"""

import ipaddress
import struct

from edge.hot.options import StreamFilter

__all__ = ["ProxyHeader"]

V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V1_BYTES_MAX = 107
V2_BYTES_MAX = 16 + 2048  # addresses and options (TLVs)


class ProxyHeader:
    """Cuts the header off the front of a connection; a ``StreamFilter`` around another one.

    Attributes:
        source: (address, port) of the client that the header names; None for LOCAL and UNKNOWN.
    """

    def __init__(self, versions: str, inner: StreamFilter | None = None) -> None:
        self.source: tuple[str, int] | None = None
        self._versions = versions
        self._inner = inner
        self._buffer: bytearray | None = bytearray()

    def receive(self, data: bytes) -> bytes | None:
        """Return the bytes behind the header; None when there is no valid one."""
        if self._buffer is None:
            return self._pass_on(data)
        self._buffer += data
        try:
            end = self._parse(bytes(self._buffer))
        except ValueError:
            return None
        if end < 0:
            return b""
        rest = bytes(self._buffer[end:])
        self._buffer = None
        return self._pass_on(rest)

    def _pass_on(self, data: bytes) -> bytes | None:
        if self._inner is None or not data:
            return data
        return self._inner.receive(data)

    def _parse(self, data: bytes) -> int:
        """Return where the header ends, -1 while it is incomplete.

        Raises:
            ValueError: This is not a header of an accepted version.
        """
        if data[: len(V2_SIGNATURE)] == V2_SIGNATURE[: len(data)]:
            if self._versions == "v1":
                raise ValueError("version 2 is not accepted")
            return self._parse_v2(data)
        if self._versions == "v2" or data[:6] != b"PROXY "[: len(data)]:
            raise ValueError("no PROXY header")
        return self._parse_v1(data)

    def _parse_v1(self, data: bytes) -> int:
        end = data.find(b"\r\n")
        if end < 0:
            if len(data) > V1_BYTES_MAX:
                raise ValueError("header too long")
            return -1
        if end + 2 > V1_BYTES_MAX:
            raise ValueError("header too long")
        words = data[:end].decode("ascii").split(" ")
        if len(words) >= 2 and words[1] == "UNKNOWN":
            return end + 2
        if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
            raise ValueError("malformed header")
        port = int(words[4])
        if not 0 <= port <= 65535:
            raise ValueError("port out of range")
        self.source = (str(ipaddress.ip_address(words[2])), port)
        return end + 2

    def _parse_v2(self, data: bytes) -> int:
        if len(data) < 16:
            return -1
        version_command, family, length = struct.unpack_from(">BBH", data, 12)
        end = 16 + int(length)
        if version_command >> 4 != 2 or version_command & 0x0F > 1 or end > V2_BYTES_MAX:
            raise ValueError("malformed header")
        if len(data) < end:
            return -1
        if version_command & 0x0F == 1:
            if family == 0x11 and length >= 12:
                self.source = (str(ipaddress.IPv4Address(data[16:20])), struct.unpack_from(">H", data, 24)[0])
            elif family == 0x21 and length >= 36:
                self.source = (str(ipaddress.IPv6Address(data[16:32])), struct.unpack_from(">H", data, 48)[0])
        return end

    def wrap(self, data: bytes) -> bytes:
        """Return the bytes that carry MQTT bytes to the client."""
        return data if self._inner is None else self._inner.wrap(data)

    def take_output(self) -> bytes:
        """Return what the inner layer has to say."""
        return b"" if self._inner is None else self._inner.take_output()
