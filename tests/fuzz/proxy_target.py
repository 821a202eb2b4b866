"""Fuzz target of PROXY headers: bytes of a load balancer, or an impostor, before TLS."""

from edge.listeners.proxy_protocol import HEADER_BYTES_MAX, InvalidProxyHeader, ProxyHeader
from tests.edge.test_proxy_protocol import GOOD, WRONG

__all__ = ["PROXY_HEADERS", "proxy_headers"]

_HEADERS = [good[1] for good in GOOD] + [wrong[1] for wrong in WRONG]
PROXY_HEADERS = tuple(b"\x03" + header + b"\x16\x03\x01" for header in _HEADERS)
VERSIONS = ("any", "v1", "v2", "any")


def _taken(versions: str, data: bytes, step: int) -> tuple[int, tuple[str, int] | None, bool] | None:
    """Return the header's end, its address and whether it is local; None when it was refused."""
    proxy, taken, seen = ProxyHeader(versions), 0, 0
    try:
        while not proxy.complete and seen < len(data):
            seen = min(len(data), seen + step)
            taken += proxy.take(data[taken:seen])
            assert taken <= seen and taken <= HEADER_BYTES_MAX
            assert proxy.complete or taken == seen, "bytes of an incomplete header were left in the socket"
    except InvalidProxyHeader:
        return None
    return (taken if proxy.complete else -1), proxy.source, proxy.local


def proxy_headers(data: bytes) -> None:
    """The cuts of the stream do not matter, and LOCAL has no address."""
    choice = data[0] if data else 0
    whole = _taken(VERSIONS[choice & 3], data[1:], len(data) + 1)
    if whole is not None and whole[2]:
        assert whole[1] is None, "LOCAL has the addresses of the connection, whatever its header says"
    assert _taken(VERSIONS[choice & 3], data[1:], 1 + (choice >> 2)) == whole
