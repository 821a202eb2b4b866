"""MQTT 5.0 sections 4.3 and 4.4 on the client's side: what is sent again, and what is handed over once."""

from __future__ import annotations

from mqtt.client_session import ClientSession, OpenPublish
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from stratamq.history.payloads import make_payload, read_payload


def opened(session: ClientSession, operation: int, qos: int) -> int:
    identifier = session.next_identifier(set())
    packet = Publish("a", b"", qos, packet_identifier=identifier)
    session.outbound[identifier] = OpenPublish(operation, packet)
    return identifier


def test_open_publishes_go_out_again_in_order_and_released_ones_as_pubrel() -> None:
    session = ClientSession()
    first, second, third = (opened(session, number, 2) for number in (1, 2, 3))
    publish, answer = session.acknowledged(Pubrec(second))
    assert publish is not None and publish.operation == 2
    assert answer == Pubrel(second)
    assert session.acknowledged(Pubrec(second)) == (None, Pubrel(second))  # answered once, released again
    again = session.resumed()
    assert [operation for operation, _ in again] == [1, 0, 3]
    assert [type(packet) for _, packet in again] == [Publish, Pubrel, Publish]
    assert all(packet.dup for _, packet in again if isinstance(packet, Publish))
    session.acknowledged(Pubcomp(second))
    assert list(session.outbound) == [first, third]


def test_a_refused_pubrec_frees_the_identifier() -> None:
    session = ClientSession()
    identifier = opened(session, 1, 2)
    publish, answer = session.acknowledged(Pubrec(identifier, 0x97))
    assert publish is not None
    assert answer is None
    assert not session.outbound


def test_a_forgotten_session_leaves_only_unanswered_publishes_unknown() -> None:
    session = ClientSession()
    released, _ = opened(session, 1, 2), opened(session, 2, 1)
    session.acknowledged(Pubrec(released))
    assert session.forget() == [2]
    assert session.acknowledged(Puback(2)) == (None, None)


def test_qos_2_is_handed_over_once_until_released() -> None:
    session = ClientSession()
    packet = Publish("a", b"", 2, packet_identifier=5)
    assert session.received(packet) == (True, Pubrec(5))
    assert session.received(packet) == (False, Pubrec(5))
    assert session.release(Pubrel(5)) == Pubcomp(5)
    assert session.release(Pubrel(5)) == Pubcomp(5, 0x92)
    assert session.received(packet) == (True, Pubrec(5))


def test_identifiers_stay_in_their_range_and_skip_those_in_use() -> None:
    session = ClientSession(first_identifier=10, last_identifier=12)
    assert [opened(session, 1, 1), opened(session, 2, 1)] == [10, 11]
    del session.outbound[10]
    assert session.next_identifier({12}) == 10


def test_payloads_show_damage() -> None:
    data = make_payload("p0-1", filler_bytes=20)
    assert read_payload(data) == ("p0-1", True)
    assert read_payload(make_payload("")) == ("", True)
    for position in range(len(data)):
        altered = data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :]
        assert read_payload(altered)[1] is False, position
    assert read_payload(data[:-1])[1] is False
