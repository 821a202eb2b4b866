"""Origins in PUBACK and PUBREC: only clients that requested them receive them, on every path of a message."""

import struct
from typing import Any

import pytest

from tests.clients.packets import ack, publish, split
from tests.edge.loop.harness import Broker, Node
from tests.edge.loop.test_traces import traced
from wire.messages.batches import OriginKind, encode_publish_ack
from wire.messages.frames import FrameKind
from wire.messages.hello import first_number

NAME = b"stratamq-origin"


def requesting_client(broker: Broker, properties: bytes = b"", **options: Any) -> Any:
    broker.hot.origin_prefix = b"e7/7/"
    broker.handler.session_options = {"tells_origins": True, **options}
    client = broker.client(5, properties)
    broker.handler.session_options = {}
    return client


def with_storage(hot: Any) -> tuple[Broker, Node]:
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    for partition in (4, 6):
        broker.hot.set_primary(partition, store.peer)
    broker.route_to(partitions=(4,))
    return broker, store


def acknowledgements(broker: Broker, conn: Any) -> list[tuple[int, int, int, str]]:
    """Return first byte, identifier, reason code and origin ("" for none) of each packet."""
    found = []
    for data in broker.take(conn):
        body = data[2:]
        identifier, code = int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0
        origin = ""
        if len(body) > 3:
            assert body[3] == len(body) - 4 and body[4:7] == b"\x26" + struct.pack(">H", len(NAME))
            assert body[7 : 7 + len(NAME)] == NAME
            rest = body[7 + len(NAME) :]
            assert rest[:2] == struct.pack(">H", len(rest) - 2)
            origin = rest[2:].decode()
        found.append((data[0], identifier, code, origin))
    return found


def test_origin_is_reported_for_live_and_durable_subscribers_and_none(hot: Any) -> None:
    """Each number equals that of the record for other nodes."""
    broker, store = with_storage(hot)
    client = requesting_client(broker)
    broker.send(client, publish(b"t", b"a", 1, 1, 5) + publish(b"t", b"b", 2, 2, 5))
    tags = [record.tag for record in store.records()]
    store.send(FrameKind.PUBLISH_ACK, b"".join(encode_publish_ack(tag, 4, 0) for tag in tags))
    assert acknowledgements(broker, client) == [(0x40, 1, 0, f"e7/7/{tags[0]}"), (0x50, 2, 0, f"e7/7/{tags[1]}")]
    broker = Broker(hot)
    client = requesting_client(broker)
    broker.send(client, publish(b"t", b"a", 1, 1, 5) + publish(b"t", b"b", 2, 2, 5))
    (_, _, first, one), (_, _, second, other) = acknowledgements(broker, client)
    assert (first, second) == (0x10, 0) and one != other and one.startswith("e7/7/")
    live = broker.subscriber(b"#", 2)
    broker.send(client, publish(b"t", b"a", 1, 3, 5))
    assert acknowledgements(broker, client)[0][:3] == (0x40, 3, 0)
    assert len(broker.take(live)) == 1


def test_origin_is_not_reported_without_request_or_to_3_1_1(hot: Any) -> None:
    broker = Broker(hot)
    live, both = broker.subscriber(b"#", 1), publish(b"t", b"a", 1, 1, 5) + publish(b"t", b"b", 2, 2, 5)
    broker.send(other := broker.client(5), both)
    assert broker.raw(other) == ack(0x40, 1) + ack(0x50, 2)
    broker.handler.session_options = {"tells_origins": True}
    broker.send(old := broker.client(4), publish(b"t", b"a", 1, 1) + publish(b"t", b"b", 2, 2))
    assert broker.raw(old) == ack(0x40, 1) + ack(0x50, 2)
    assert len(split(broker.raw(live))) == 4


def test_repeat_has_origin_of_its_message_until_pubrel(hot: Any) -> None:
    broker = Broker(hot)
    broker.subscriber(b"#", 1)
    client = requesting_client(broker)
    message = publish(b"t", b"a", 2, 9, 5)
    broker.send(client, message)
    broker.send(client, publish(b"t", b"b", 2, 10, 5))
    broker.send(client, publish(b"t", b"a", 2, 9, 5, dup=True))
    first, second, repeat = acknowledgements(broker, client)
    assert first == repeat and first != second
    broker.send(client, ack(0x62, 9))
    broker.send(client, message)
    released, again = acknowledgements(broker, client)
    assert released == (0x70, 9, 0, "") and again[3] not in ("", first[3])


@pytest.mark.parametrize("written", [False, True])
def test_core_message_reports_its_origin(hot: Any, written: bool) -> None:
    """A durable session's inbound counter; for a retained message the number of the retained copy."""
    broker, store = with_storage(hot)
    client = requesting_client(broker)
    broker.handler.inbound = lambda _, inbound, _route: broker.handler.inbounds.append(inbound)  # type: ignore[method-assign, assignment]
    broker.send(client, publish(b"t", b"a", 1, 1, 5, retain=True))
    route, inbound = hot.state.Route(b"t", partitions=(4,)), broker.handler.inbounds.pop()
    if written:
        broker.hot.publish(route, inbound, written=(77, 6))
    else:
        broker.hot.publish(route, inbound, origin_kind=OriginKind.SESSION, origin_a=252 << 48 | 17, origin_b=9)
    broker.turn()
    (tag,) = {record.tag for record in store.records()}
    store.send(FrameKind.PUBLISH_ACK, encode_publish_ack(tag, 4, 0))
    assert acknowledgements(broker, client) == [(0x40, 1, 0, "e7/7/77" if written else "session/252-17/9")]


def test_acknowledged_message_reports_the_given_origin(hot: Any) -> None:
    broker = Broker(hot)
    client = requesting_client(broker)
    broker.handler.inbound = lambda _, inbound, _route: broker.handler.inbounds.append(inbound)  # type: ignore[method-assign, assignment]
    broker.send(client, publish(b"t", b"a", 1, 1, 5, retain=True))
    inbound = broker.handler.inbounds.pop()
    broker.hot.bears(inbound, OriginKind.EDGE, 0, 78)
    broker.hot.acknowledge(inbound, 0x97)
    broker.turn()
    assert acknowledgements(broker, client) == [(0x40, 1, 0x97, "e7/7/78")]


@pytest.mark.parametrize(("margin", "fits"), [(0, True), (-1, False)])
def test_origin_is_omitted_above_maximum_packet_size(hot: Any, margin: int, fits: bool) -> None:
    broker = Broker(hot)
    size = len(NAME) + 11 + len(f"e7/7/{wire_number(broker)}")
    client = requesting_client(broker, b"\x27" + struct.pack(">I", size + margin))
    broker.send(client, publish(b"t", b"a", 1, 1, 5) + publish(b"t", b"b", 2, 2, 5))
    puback, pubrec = acknowledgements(broker, client)
    assert (bool(puback[3]), bool(pubrec[3])) == (fits, fits) and puback[2] == 0x10


def wire_number(broker: Broker) -> int:
    """Return the number of the next message."""
    return first_number(broker.hot.incarnation) + 1


def test_traced_refused_message_reports_the_trace_origin(hot: Any) -> None:
    broker = Broker(hot)
    sink = traced(broker)
    client = requesting_client(broker)
    broker.send(client, publish(b"t", b"a", 1, 1, 5))
    ((_, _, code, origin),) = acknowledgements(broker, client)
    assert code == 0x10 and origin == f"e7/7/{sink.events[0][2]}"
    assert sink.stages() == ["received", "refused"]


def test_long_origin_has_two_byte_lengths(hot: Any) -> None:
    broker = Broker(hot)
    client = requesting_client(broker)
    broker.hot.origin_prefix = b"n" * 120 + b"/7/"
    broker.send(client, publish(b"t", b"a", 1, 1, 5))
    (data,) = broker.take(client)
    block = data[7:]
    assert data[:1] == b"\x40" and data[1] & 0x80 and data[3:6] == b"\x00\x01\x10"
    assert data[6] & 0x80 and block.startswith(b"\x01\x26") and block[19:21] == struct.pack(">H", len(block) - 21)
