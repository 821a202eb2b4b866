"""The fast path and the slow path of CONNECT agree on every packet near the common one."""

import pytest

from mqtt import Connect, RemoteProtocolError, decode_packet, encode_packet
from mqtt.decode_connect import _any, _plain
from mqtt.limits import DEFAULT_LIMITS

PLAIN = [
    encode_packet(Connect(client_id, clean_start, 300, version), version)[2:]
    for client_id in ("c", "gerät-7", "x" * 40)
    for clean_start in (False, True)
    for version in (4, 5)
]


@pytest.mark.parametrize("body", PLAIN)
def test_decode_connect_fast_path_is_used(body: bytes) -> None:
    found = _plain(0x10, body)
    assert found is not None
    assert found == _any(0x10, body, DEFAULT_LIMITS) == decode_packet(0x10, body, 5)


@pytest.mark.parametrize("body", PLAIN)
def test_decode_connect_fast_path_agrees_with_the_slow_path(body: bytes) -> None:
    """Every byte changed to every value, every cut, and bytes after the end."""
    near = [body[:at] + bytes((value,)) + body[at + 1 :] for at in range(len(body)) for value in range(256)]
    near += [body[:size] for size in range(len(body))] + [body + b"\0", body + body]
    for first_byte in (0x10, 0x11, 0x18):
        for changed in near:
            found = _plain(first_byte, changed)
            if found is not None:
                assert found == _any(first_byte, changed, DEFAULT_LIMITS)


@pytest.mark.parametrize("client_id", [b"\xed\xa0\x80", b"a\0b", b"a\x01b", b"\xff"])
def test_decode_connect_invalid_characters_use_the_slow_path(client_id: bytes) -> None:
    body = b"\0\4MQTT\4\2\0\x3c" + len(client_id).to_bytes(2, "big") + client_id
    assert _plain(0x10, body) is None
    with pytest.raises(RemoteProtocolError):
        decode_packet(0x10, body, 5)


@pytest.mark.parametrize(("version", "name"), [(3, b"\0\6MQIsdp"), (4, b"\0\4MQTT")])
def test_decode_connect_bridge_bit(version: int, name: bytes) -> None:
    """Levels 0x83 and 0x84, also in a round trip."""
    packet = Connect("bridge", False, 60, version, bridge=True)
    data = encode_packet(packet, version)
    assert data[2:].startswith(name + bytes((0x80 | version,)))
    assert decode_packet(0x10, data[2:], version) == packet


@pytest.mark.parametrize(
    "body", [b"\0\4MQTT\x85\2\0\x3c\0\0\1c", b"\0\4MQTT\x83\2\0\x3c\0\1c", b"\0\6MQIsdp\x84\2\0\x3c\0\1c"]
)
def test_decode_connect_bridge_bit_in_other_versions_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_packet(0x10, body, 5)
