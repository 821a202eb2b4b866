"""Reason codes: the tables of MQTT 5.0, and their 3.1.1 equivalents."""

from mqtt import ConnectReturnCode, LocalProtocolError, MalformedPacket, MqttError, RemoteProtocolError
from mqtt.reasons import (
    ALLOWED_REASON_CODES,
    CLIENT_DISCONNECT_REASON_CODES,
    PacketType,
    ReasonCode,
    connect_return_code,
)


def test_all_values() -> None:
    """Section 2.4 has 43 values, with NORMAL_DISCONNECTION and GRANTED_QOS_0 as other names of SUCCESS."""
    values = {0x00, 0x01, 0x02, 0x04, 0x10, 0x11, 0x18, 0x19, *range(0x80, 0xA3)}
    assert {int(code) for code in ReasonCode} == values
    assert [ReasonCode[name].name for name in ("GRANTED_QOS_0", "NORMAL_DISCONNECTION")] == ["SUCCESS", "SUCCESS"]


def test_tables_use_known_codes() -> None:
    """Every packet's table is a part of section 2.4, and every code is used."""
    used = frozenset().union(*ALLOWED_REASON_CODES.values())
    assert used == {int(code) for code in ReasonCode}
    assert CLIENT_DISCONNECT_REASON_CODES.issubset(ALLOWED_REASON_CODES[PacketType.DISCONNECT])
    assert len(ALLOWED_REASON_CODES[PacketType.CONNACK]) == 22
    assert len(ALLOWED_REASON_CODES[PacketType.DISCONNECT] - {0x8C}) == 29


def test_return_codes() -> None:
    """Only codes of a CONNACK are translated, and all codes of 3.1.1 are reachable."""
    heard = {connect_return_code(code) for code in ReasonCode} - {None}
    assert heard == set(ConnectReturnCode)
    for code in ReasonCode:
        assert connect_return_code(code) is None or code in ALLOWED_REASON_CODES[PacketType.CONNACK]


def test_errors_carry_codes() -> None:
    """A default per class, another per instance."""
    assert MqttError().reason_code == 0x80
    assert RemoteProtocolError("x").reason_code == 0x82
    assert MalformedPacket("x").reason_code == 0x81
    assert LocalProtocolError("x").reason_code == 0x83
    assert RemoteProtocolError("x", ReasonCode.TOPIC_ALIAS_INVALID).reason_code == 0x94
    assert RemoteProtocolError("x").reason_code == 0x82
