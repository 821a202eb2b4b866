"""First bytes of a client, and the PROXY header as an edge reads it."""

from ipaddress import ip_address

import pytest

from edge.listeners.proxy_protocol import ProxyHeader
from gateways.balancer.first_bytes import WrongFirstBytes, read_connect
from gateways.balancer.proxy_header import TlsFacts, proxy_header
from mqtt.codec import encode_packet
from mqtt.packets import Connect, Pingreq

BYTES_MAX = 64 * 1024


@pytest.mark.parametrize("version", [4, 5])
def test_read_connect_partial_input_returns_none(version: int) -> None:
    whole = encode_packet(Connect("sensor", protocol_version=version), version)
    for count in range(len(whole)):
        assert read_connect(whole[:count], BYTES_MAX) is None
    found = read_connect(whole + b"\xc0\x00", BYTES_MAX)
    assert found is not None and (found.client_id, found.protocol_version) == ("sensor", version)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "not_mqtt"),
        (b"\x16\x03\x01\x02\x00", "not_mqtt"),
        (encode_packet(Pingreq(), 5), "not_mqtt"),
        (b"\x10\xff\xff\xff\xff\x01", "malformed"),
        (b"\x10\xff\xff\x03", "too_large"),
        (b"\x10\x04abcd", "malformed"),
        (b"\x10\x0a\x00\x04MQTT\x05\x02\x00\x3c", "malformed"),
        (encode_packet(Connect("x" * 60_000, username="y" * 6_000), 5), "too_large"),
    ],
)
def test_read_connect_invalid_bytes_raises_reason(data: bytes, reason: str) -> None:
    with pytest.raises(WrongFirstBytes, match=reason):
        read_connect(data, BYTES_MAX)


@pytest.mark.parametrize(
    ("source", "destination", "seen"),
    [
        (("10.1.2.3", 4000), ("10.0.0.1", 8883), ("10.1.2.3", 4000)),
        (("fd00::3", 4000), ("fd00::1", 8883), ("fd00::3", 4000)),
        (("fe80::3%eth0", 4000), ("fe80::1%eth0", 8883), ("fe80::3", 4000)),
        (("10.1.2.3", 4000), ("::1", 8883), ("10.1.2.3", 4000)),
        (("nonsense", 4000), ("::1", 8883), None),
    ],
)
def test_proxy_header_is_parsed_by_edge(
    source: tuple[str, int], destination: tuple[str, int], seen: tuple[str, int] | None
) -> None:
    """The common name only of a verified certificate."""
    for facts, name in ((None, ""), (TlsFacts("TLSv1.3"), ""), (TlsFacts("TLSv1.3", "sensor-1"), "sensor-1")):
        data = proxy_header(source, destination, b"1-2", facts)
        header = ProxyHeader("v2")
        assert header.take(data + b"\x10\x00") == len(data) and header.complete
        if seen is None:
            assert header.source is None and not header.common_name
            continue
        assert not header.local and header.common_name == name and header.source is not None
        host = ip_address(header.source[0])
        assert str(getattr(host, "ipv4_mapped", None) or host) == seen[0] and header.source[1] == seen[1]
