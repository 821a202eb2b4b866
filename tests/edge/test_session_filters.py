"""Many filters of a durable session: requests in pieces, one after the other; one response, in order, at the end."""

import pytest

from edge.subscriptions.session_filters import FILTERS_PER_PIECE
from mqtt.packets import Suback, Unsuback
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode
from tests.edge.edge_harness import Edge, Session, cluster_map
from wire.messages.map_pages import map_pages
from wire.messages.retained import DeliverRetained, RetainedDelivered, RetainedMessage
from wire.messages.sessions import SessionSubscribed, SessionUnsubscribed, SubscribeSession, UnsubscribeSession

MANY = 3 * FILTERS_PER_PIECE + 5
FILTERS = [f"a/{number}/+" for number in range(MANY)]


@pytest.fixture
def edge() -> Edge:
    edge = Edge()
    edge.held = {SubscribeSession, UnsubscribeSession}
    return edge


def durable(edge: Edge, version: int = 5) -> Session:
    if version == 5:
        return edge.client("c", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 3600})
    return edge.client("c", version, clean_start=False)


def pieces(edge: Edge, codes: list[int]) -> list[SubscribeSession]:
    """Answer piece by piece with these codes; a piece must not be sent before the response to the previous one."""
    taken = []
    left = list(codes)
    while asked := edge.take(SubscribeSession):
        (piece,) = asked
        count = len(piece.subscriptions)
        answers, left = left[:count], left[count:]
        taken.append(piece)
        edge.storage(SessionSubscribed(piece.request, answers, [False] * count))
    return taken


def test_subscribe_in_pieces_is_answered_once_in_order(edge: Edge) -> None:
    session = durable(edge)
    codes = [number % 3 if number % 7 else 0x97 for number in range(MANY)]
    session.subscribe(*FILTERS)
    session.subscribe("later", identifier=2)  # paused: handled after all of it
    found = pieces(edge, codes)
    assert [one.topic_filter for piece in found for one in piece.subscriptions] == FILTERS
    assert [len(piece.subscriptions) for piece in found] == [FILTERS_PER_PIECE] * 3 + [5]
    (suback,) = session.read()
    assert isinstance(suback, Suback) and suback.packet_identifier == 1 and suback.reason_codes == codes
    edge.turn()
    assert [one.topic_filter for piece in pieces(edge, [2]) for one in piece.subscriptions] == ["later"]
    assert set(session.client.subscriptions) == {
        name for name, code in zip(FILTERS, codes, strict=True) if code < 0x80
    } | {"later"}


def test_pieces_share_one_retained_read(edge: Edge) -> None:
    """All have the first request's number, which identifies the copies and the end of the hold."""
    edge.held.add(DeliverRetained)
    edge.retained = [RetainedMessage("a/0/x", b"p", 0, b"", 0)]
    session = durable(edge)
    session.subscribe(*FILTERS[: 2 * FILTERS_PER_PIECE])
    first, second = pieces(edge, [0] * 2 * FILTERS_PER_PIECE)
    assert first.read == second.read == first.request
    edge.turn()
    delivered = []
    while asked := edge.take(DeliverRetained):
        delivered += asked
        for request in asked:
            edge.storage(RetainedDelivered(request.request, taken=len(request.messages)))
        edge.turn()
    assert {request.read for request in delivered} == {first.request}
    assert [request.done for request in delivered].count(True) == 1 and delivered[-1].done


def test_new_primary_gets_only_the_unanswered_piece(edge: Edge) -> None:
    session = durable(edge)
    session.subscribe(*FILTERS)
    (first,) = edge.take(SubscribeSession)
    edge.storage(SessionSubscribed(first.request, [1] * FILTERS_PER_PIECE, [False] * FILTERS_PER_PIECE))
    (second,) = edge.take(SubscribeSession)
    edge.router(*map_pages(cluster_map(2, primary="s1", partition_epoch=2)))
    (again,) = edge.take(SubscribeSession)
    assert again.request == second.request and again.partition_epoch == 2 and again.read == first.request
    edge.storage(SessionSubscribed(again.request, [1] * FILTERS_PER_PIECE, [False] * FILTERS_PER_PIECE), "s1")
    while asked := edge.take(SubscribeSession):
        count = len(asked[0].subscriptions)
        edge.storage(SessionSubscribed(asked[0].request, [1] * count, [False] * count), "s1")
    (suback,) = session.read()
    assert suback.reason_codes == [1] * MANY


def test_closed_client_sends_no_further_piece(edge: Edge) -> None:
    session = durable(edge)
    session.subscribe(*FILTERS)
    (first,) = edge.take(SubscribeSession)
    session.drop()
    edge.storage(SessionSubscribed(first.request, [1] * FILTERS_PER_PIECE, [False] * FILTERS_PER_PIECE))
    assert not edge.take(SubscribeSession)


@pytest.mark.parametrize("version", [4, 5])
def test_piece_without_request_is_refused(edge: Edge, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    session = durable(edge, version)
    session.subscribe(*FILTERS)
    (first,) = edge.take(SubscribeSession)
    monkeypatch.setattr(edge.core.requests, "_max", 0)
    edge.storage(SessionSubscribed(first.request, [1] * FILTERS_PER_PIECE, [False] * FILTERS_PER_PIECE))
    (suback,) = session.read()
    refusal = ReasonCode.QUOTA_EXCEEDED if version == 5 else 0x80
    assert suback.reason_codes == [1] * FILTERS_PER_PIECE + [refusal] * (MANY - FILTERS_PER_PIECE)
    assert list(session.client.subscriptions) == FILTERS[:FILTERS_PER_PIECE]


def test_unsubscribe_in_pieces_is_answered_once_in_order(edge: Edge) -> None:
    session = durable(edge)
    session.subscribe(*FILTERS)
    pieces(edge, [0] * MANY)
    session.read()
    session.unsubscribe(*FILTERS)
    codes = [0x11 if number % 5 else 0 for number in range(MANY)]
    left, sizes = list(codes), []
    while asked := edge.take(UnsubscribeSession):
        (piece,) = asked
        sizes.append(len(piece.topic_filters))
        answers, left = left[: sizes[-1]], left[sizes[-1] :]
        edge.storage(SessionUnsubscribed(piece.request, answers))
    assert sizes == [FILTERS_PER_PIECE] * 3 + [5]
    (unsuback,) = session.read()
    assert isinstance(unsuback, Unsuback) and unsuback.reason_codes == codes
    assert not session.client.subscriptions
