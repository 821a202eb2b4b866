"""What waits for a storage node's loop is taken in order, and never nothing; long frames in several turns."""

import random

from storage.core import BatchSynced, Event
from storage.turn_events import ACK_WEIGHT, MESSAGE_WEIGHT, REQUEST_WEIGHT, WEIGHT_MAX, TurnEvents
from wire.decoding import Unreadable
from wire.messages.batches import (
    PublishMessage,
    PublishRun,
    PushAck,
    decode_publish,
    decode_push_acks,
    encode_message,
    encode_push_ack,
    encode_run,
)
from wire.messages.control import join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, PeerKey
from wire.node.events import FrameArrived, LinkUp

EDGE = PeerKey("e1", TIER_EDGE, 1)
PER_TURN = WEIGHT_MAX // MESSAGE_WEIGHT


def waiting(*events: Event) -> TurnEvents:
    events_waiting = TurnEvents()
    for event in events:
        events_waiting.append(event)
    return events_waiting


def turns(*events: Event) -> list[list[Event]]:
    """Return what each turn takes."""
    left, found = waiting(*events), []
    while left:
        found.append(left.take())
        assert found[-1], "a turn that takes nothing"
    return found


def payloads(taken: list[list[Event]]) -> list[bytes]:
    return [event.payload for turn in taken for event in turn if isinstance(event, FrameArrived)]


def test_events_are_taken_by_weight() -> None:
    request, message = FrameArrived(EDGE, FrameKind.CONTROL, b""), FrameArrived(EDGE, FrameKind.PUBLISH, b"")
    link = LinkUp(PeerKey("r1", TIER_ROUTER, 1))
    assert waiting().take() == []
    assert turns(request) == [[request]]
    assert len(turns(*[message] * 3_000)[0]) == PER_TURN
    mixed = turns(*[message] * 100, *[request] * 100)
    assert len(mixed[0]) == 100 + (WEIGHT_MAX - 100 * MESSAGE_WEIGHT) // REQUEST_WEIGHT
    assert turns(*[link] * 50) == [[link] * 50]
    joined = FrameArrived(EDGE, FrameKind.CONTROLS, join_controls([b"\xc0"] * 10))
    assert [len(turn) for turn in turns(*[joined] * 4)] == [2, 2]  # by their messages
    assert [len(turn) for turn in turns(*map(BatchSynced, range(25)))] == [10, 10, 5]


def test_a_long_frame_of_messages_is_taken_in_several_turns() -> None:
    """Whatever kinds of records it has; what came behind it stays behind it."""
    rng = random.Random(7)
    records = []
    for tag in range(2_000):
        places = tuple(range(rng.choice((0, 1, 1, 1, 3, 40))))
        message = PublishMessage(tag, b"t", bytes(rng.randrange(60)), 1, partitions=places, epochs=places)
        message.share = b"g/t" if rng.random() < 0.2 else b""
        message.owner = bytes(rng.choices(b"abc", k=rng.randrange(9)))
        records.append(encode_message(message) if rng.random() < 0.9 else encode_run(PublishRun(5, b"t", b"packets")))
    frame = FrameArrived(EDGE, FrameKind.PUBLISH, b"".join(records))
    behind = LinkUp(PeerKey("r1", TIER_ROUTER, 1))
    taken = turns(LinkUp(EDGE), frame, behind)
    pieces = payloads(taken)
    assert b"".join(pieces) == frame.payload
    assert [record for piece in pieces for record in decode_publish(piece)] == decode_publish(frame.payload)
    assert (
        max(sum(len(getattr(one, "partitions", ())) or 1 for one in decode_publish(p)) for p in pieces) < PER_TURN + 40
    )
    assert taken[-1][-1] is behind and behind not in taken[0]


def test_a_long_frame_of_acknowledgements_is_taken_in_several_turns() -> None:
    frame = FrameArrived(
        EDGE, FrameKind.PUSH_ACK, b"".join(encode_push_ack(PushAck(1, 1, 1, seq, 4, 0)) for seq in range(1_000))
    )
    pieces = payloads(turns(frame))
    assert [ack.session_seq for piece in pieces for ack in decode_push_acks(piece)] == list(range(1_000))
    assert max(map(len, pieces)) <= WEIGHT_MAX // ACK_WEIGHT * 38 and len(pieces) > 3


def test_a_frame_that_is_broken_anywhere_is_taken_to_its_end() -> None:
    """The decoder refuses what is no record; here nothing raises and nothing is lost."""
    rng = random.Random(11)
    whole = b"".join(
        encode_message(PublishMessage(tag, b"t", b"m" * 20, 1, partitions=(0,), epochs=(1,))) for tag in range(400)
    )
    refused = 0
    for _ in range(300):
        data = bytearray(whole[: rng.randrange(1_001, len(whole))])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for kind, decode in ((FrameKind.PUBLISH, decode_publish), (FrameKind.PUSH_ACK, decode_push_acks)):
            pieces = payloads(turns(FrameArrived(EDGE, kind, bytes(data))))
            assert b"".join(pieces) == data
            try:
                decode(bytes(data))
            except Unreadable:
                refused += 1
    assert refused > 300


def test_only_pubacks_of_subscribers_may_wait() -> None:
    """PUBREC and PUBCOMP are waited for, as is everything else; half a record is for the decoder to refuse."""
    pubacks = b"".join(encode_push_ack(PushAck(1, 1, 1, number, 4, 0)) for number in range(3))
    rest = FrameArrived(EDGE, FrameKind.PUSH_ACK, pubacks)
    assert not waiting(rest, rest).pressing
    for kind, payload in (
        (FrameKind.PUSH_ACK, pubacks + encode_push_ack(PushAck(1, 1, 1, 9, 5, 0))),
        (FrameKind.PUSH_ACK, encode_push_ack(PushAck(1, 1, 1, 9, 7, 0)) + pubacks),
        (FrameKind.PUSH_ACK, pubacks[:-1]),
        (FrameKind.PUSH_ACK, pubacks + b"\x04"),
        (FrameKind.PUBLISH, pubacks),
    ):
        events = waiting(rest, FrameArrived(EDGE, kind, payload), rest)
        assert events.pressing
        while events:
            assert events.pressing
            events.take()
        assert not events.pressing
    assert waiting(BatchSynced(1)).pressing
