"""Rows of an exactly-once bridge: content, order of commits, and held output."""

from random import Random

import pytest

from gateways.bridges.exchanges import ASKED, DONE, SENT, DamagedExchangeRow, SinkExchange, SinkExchanges
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.mqtt_bridge import subscriptions
from gateways.bridges.mqtt_end import MqttEnd
from gateways.bridges.mqtt_rules import MqttRules
from gateways.bridges.pump import BridgePump, PumpBounds
from gateways.spool_rows import Delete, Put
from mqtt.client_session import ClientSession, StateChange
from mqtt.packets import Publish

PACKET = Publish("b/1", b"payload", 2, packet_identifier=7)


def exchanges() -> SinkExchanges:
    sides = ("cluster", "remote")
    ends = {side: MqttEnd(side, lambda: 0.0, lambda: 0) for side in sides}
    pump = BridgePump(PumpBounds(), Random(1))
    flow = BridgeFlow(
        "out", pump, MqttRules([], "out", "b").apply_rules, ends["cluster"].finish, lambda: 0.0, lambda: 0
    )
    return SinkExchanges(ends, {side: ClientSession(is_kept=True) for side in sides}, [flow], "b")


@pytest.mark.parametrize(
    "exchange",
    [
        SinkExchange(1),
        SinkExchange(2**40, "in", True, 65_535, "t/ü", 2**50, PACKET),
        SinkExchange(3, "", False, 0, "", 0, PACKET),
    ],
)
def test_exchange_decode_returns_encoded_row(exchange: SinkExchange) -> None:
    assert SinkExchange.decode(exchange.encode()) == exchange


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00" * 10,
        b"\x00\x09" + bytes(20),
        SinkExchange(1, packet=PACKET).encode()[:-8],
        b"\x00" * 22 + b"\x30\x03\x00\x01a",
    ],
)
def test_exchange_decode_invalid_row_raises(value: bytes) -> None:
    with pytest.raises(DamagedExchangeRow):
        SinkExchange.decode(value)
    with pytest.raises(DamagedExchangeRow):
        exchanges().restore([(b"r\x00\x01", value)], [], [])


def test_exchanges_restore_invalid_key_raises() -> None:
    with pytest.raises(DamagedExchangeRow):
        exchanges().restore([], [(b"x\x00\x01", b"")], [])


def test_exchanges_keep_holds_output_until_commit() -> None:
    """One order over both sides: later output does not overtake, and output without rows is sent at once."""
    made, sent = exchanges(), list[str]()
    made.keep("cluster", [], lambda: sent.append("ping"))
    assert sent == ["ping"]
    made.keep("cluster", [StateChange("taken", 5)], lambda: sent.append("pubrec"))
    made.keep("remote", [], lambda: sent.append("behind"))
    assert sent == ["ping"]
    assert made.begin_commit() == [Put(DONE, b"c\x00\x05", b"")]
    made.keep("cluster", [StateChange("finished", 5)], lambda: sent.append("pubcomp"))
    assert sent == ["ping"]
    made.committed()
    assert sent == ["ping", "pubrec", "behind"]
    assert made.begin_commit() == [Delete(DONE, b"c\x00\x05")]
    made.committed()
    assert sent[-1] == "pubcomp"


def test_exchanges_finished_message_is_stored_once() -> None:
    made = exchanges()
    made.finished("cluster", 5)
    made.keep("cluster", [StateChange("taken", 5)], lambda: None)
    assert made.begin_commit() == [Put(DONE, b"c\x00\x05", b"")]


def test_exchanges_lost_session_deletes_its_rows() -> None:
    """Those of the other side stay, without a reference to the lost session."""
    made = exchanges()
    row = SinkExchange(4, "out", False, 9, "a/1", 0, PACKET)
    requests = subscriptions({"a/#": 2})
    made.record_filters("cluster", requests)
    made.begin_commit()
    made.committed()
    made.restore([(b"r\x00\x07", row.encode())], [(b"c\x00\x05", b"")], [(b"c", b"2 a/#")])
    assert made.has_filters("cluster", requests)
    made.keep("cluster", [StateChange("forgotten")], lambda: None)
    writes = made.begin_commit()
    assert Delete(DONE, b"c\x00\x05") in writes and Delete(ASKED, b"c") in writes and len(writes) == 3
    (sent,) = [SinkExchange.decode(each.value) for each in writes if isinstance(each, Put) and each.kind == SENT]
    assert sent.source_identifier == 0 and sent.packet is not None and not made.has_filters("cluster", requests)
