"""Table 2-4 of MQTT 5.0: each of the 27 properties in each of the 15 packets and the will."""

import pytest

from mqtt import PacketType, PropertyId, RemoteProtocolError, decode_properties, encode_properties
from tests.mqtt.property_table import PLACES, TABLE

REPEATABLE = {(0x26, place) for place in PLACES} | {(0x0B, "Publish")}


def test_all_27() -> None:
    assert [row[0] for row in TABLE] == sorted(PropertyId)
    assert len(TABLE) == 27


@pytest.mark.parametrize(("identifier", "value", "allowed"), TABLE, ids=[f"{row[0]:#04x}" for row in TABLE])
def test_properties_packets_and_multiplicity(identifier: int, value: object, allowed: str) -> None:
    """Permitted packets decode; other packets and repetitions are protocol errors (0x82)."""
    once = encode_properties({identifier: value})
    for name, place in PLACES.items():
        if name not in allowed.split():
            with pytest.raises(RemoteProtocolError) as misplaced:
                decode_properties(once, 0, place)
            assert misplaced.value.reason_code == 0x82
            continue
        assert decode_properties(once, 0, place) == ({identifier: value}, len(once))
        twice = bytes((2 * (len(once) - 1),)) + 2 * once[1:]
        if (identifier, name) in REPEATABLE:
            assert isinstance(value, list)
            assert decode_properties(twice, 0, place)[0] == {identifier: value * 2}
        else:
            with pytest.raises(RemoteProtocolError) as repeated:
                decode_properties(twice, 0, place)
            assert repeated.value.reason_code == 0x82


@pytest.mark.parametrize(("identifier", "value", "allowed"), TABLE, ids=[f"{row[0]:#04x}" for row in TABLE])
def test_cut_short_is_malformed_everywhere(identifier: int, value: object, allowed: str) -> None:
    """A value that ends with the block is 0x81, also in forbidden packets."""
    whole = encode_properties({identifier: value})
    for size in range(1, len(whole) - 1):
        block = bytes((size,)) + whole[1 : 1 + size]
        for place in PLACES.values():
            with pytest.raises(RemoteProtocolError) as caught:
                decode_properties(block + b"\0" * 8, 0, place)
            assert caught.value.reason_code == 0x81, allowed


@pytest.mark.parametrize("identifier", sorted(set(range(0x100)) - {row[0] for row in TABLE}))
def test_unknown_identifiers(identifier: int) -> None:
    """0x81 for any following bytes (section 2.2.2.2)."""
    head = bytes((identifier,)) if identifier < 0x80 else bytes((identifier & 0x7F | 0x80, 1))
    block = bytes((len(head) + 1,)) + head + b"\x01"
    with pytest.raises(RemoteProtocolError) as caught:
        decode_properties(block, 0, PacketType.PUBLISH)
    assert caught.value.reason_code == 0x81
