"""LinkCore: frames arrive once and in order across any failures of connections."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.links.link import Frame, LinkCore, LinkError, LinkFull
from wire.messages.frames import FRAME_BYTES_MAX, HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind

CONTROL = FrameKind.CONTROL


def connected_pair(resend_bytes_max: int = 1 << 20) -> tuple[LinkCore, LinkCore]:
    left, right = LinkCore(resend_bytes_max), LinkCore(resend_bytes_max)
    left.connected(0)
    right.connected(0)
    return left, right


def reconnect(left: LinkCore, right: LinkCore) -> None:
    left.disconnected()
    right.disconnected()
    left.connected(right.taken)
    right.connected(left.taken)


def test_frames_arrive_with_kind_number_flags_and_payload() -> None:
    """Numbers count from 1 per direction."""
    left, right = connected_pair()
    assert left.send(CONTROL, b"one") == 1
    assert left.send(FrameKind.PUSH, b"", flags=5) == 2
    assert right.receive(left.take_output()) == [
        Frame(CONTROL, 1, b"one", 0),
        Frame(FrameKind.PUSH, 2, b"", 5),
    ]
    assert right.taken == 2


def test_link_any_split_gives_the_same_frames() -> None:
    left, right = connected_pair()
    for size in (0, 1, 300, 5):
        left.send(CONTROL, bytes(size))
    data = left.take_output()
    frames = [frame for i in range(len(data)) for frame in right.receive(data[i : i + 1])]
    assert [len(frame.payload) for frame in frames] == [0, 1, 300, 5]


def test_link_sends_taken_in_the_same_flush_as_the_reply() -> None:
    """TAKEN precedes the replies that were written in the same iteration."""
    left, right = connected_pair()
    left.send(CONTROL, b"question")
    right.receive(left.take_output())
    assert right.wants_flush
    right.send(CONTROL, b"answer")
    assert left.peer_taken == 0
    assert [frame.payload for frame in left.receive(right.take_output())] == [b"answer"]
    assert left.peer_taken == 1
    assert left.bytes_unacknowledged == 0
    assert not right.wants_flush


def test_link_sends_one_taken_per_flush() -> None:
    """One small frame per flush, none if the number is unchanged."""
    left, right = connected_pair()
    for _ in range(100):
        left.send(CONTROL, b"x")
    right.receive(left.take_output())
    assert len(right.take_output()) == HEADER_BYTES + 8
    assert right.take_output() == b""
    right.keepalive()
    assert len(right.take_output()) == HEADER_BYTES + 8


def test_link_resumes_at_the_first_untaken_frame() -> None:
    """Frames lost with a connection are written again, taken ones are not."""
    left, right = connected_pair()
    left.send(CONTROL, b"1")
    right.receive(left.take_output())  # taken, but the TAKEN is lost with the connection
    left.send(CONTROL, b"2")
    left.take_output()  # lost
    left.send(CONTROL, b"3")
    reconnect(left, right)
    assert left.peer_taken == 1
    assert [frame.number for frame in right.receive(left.take_output())] == [2, 3]


def test_link_send_while_disconnected_is_buffered() -> None:
    left, right = LinkCore(), LinkCore()
    left.send(CONTROL, b"early")
    assert left.take_output() == b""
    left.connected(0)
    right.connected(0)
    assert [frame.payload for frame in right.receive(left.take_output())] == [b"early"]


def test_duplicates_below_taken_are_dropped_and_counted() -> None:
    """A frame number is delivered once."""
    left, right = connected_pair()
    left.send(CONTROL, b"1")
    data = left.take_output()
    assert len(right.receive(data)) == 1
    assert right.receive(data) == []
    assert right.frames_duplicate == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HEADER.pack(FRAME_BYTES_MAX + 1, CONTROL, 0, PROTOCOL_VERSION, 1), "8388609 bytes"),
        (HEADER.pack(0, CONTROL, 0, PROTOCOL_VERSION + 1, 1), "version 9"),
        (HEADER.pack(0, CONTROL, 0, PROTOCOL_VERSION, 2), "gap: frame 2 came after frame 0"),
        (HEADER.pack(0, CONTROL, 0, PROTOCOL_VERSION, 0), "gap"),
        (HEADER.pack(0, FrameKind.HELLO, 0, PROTOCOL_VERSION, 0), "second HELLO"),
        (HEADER.pack(1, FrameKind.TAKEN, 0, PROTOCOL_VERSION, 0) + b"1", "TAKEN of 1 bytes"),
        (HEADER.pack(8, FrameKind.TAKEN, 0, PROTOCOL_VERSION, 0) + (9).to_bytes(8, "big"), "TAKEN 9"),
    ],
)
def test_link_refuses_broken_streams(data: bytes, why: str) -> None:
    """Each framing error closes the link; an excessive length does so before its bytes are buffered."""
    core = LinkCore()
    core.connected(0)
    with pytest.raises(LinkError, match=why):
        core.receive(data)


def test_frames_before_an_error_in_the_same_read_stay_untaken() -> None:
    """They were not returned, so the peer must resend them."""
    left, right = connected_pair()
    left.send(CONTROL, b"good")
    with pytest.raises(LinkError):
        right.receive(left.take_output() + HEADER.pack(0, CONTROL, 0, PROTOCOL_VERSION, 7))
    assert right.taken == 0
    reconnect(left, right)
    assert [frame.payload for frame in right.receive(left.take_output())] == [b"good"]


@pytest.mark.parametrize("claimed", [0, 3])
def test_link_refuses_an_impossible_taken_in_hello(claimed: int) -> None:
    """It must be between the last received number and the last sent one."""
    left, right = connected_pair()
    left.send(CONTROL, b"1")
    left.send(CONTROL, b"2")
    right.receive(left.take_output())
    left.receive(right.take_output())
    left.disconnected()
    with pytest.raises(LinkError):
        left.connected(claimed)


def test_resend_buffer_is_bounded() -> None:
    """Above the bound ``send`` raises; taken frames free space."""
    left, right = connected_pair(resend_bytes_max=100)
    left.send(CONTROL, bytes(60))
    assert left.room() == 100 - 60 - HEADER_BYTES
    with pytest.raises(LinkFull):
        left.send(CONTROL, bytes(30))
    right.receive(left.take_output())
    left.receive(right.take_output())
    assert left.room() == 100
    assert left.send(CONTROL, bytes(30)) == 2


def test_output_is_cut_at_frames() -> None:
    """A long backlog leaves in pieces of whole frames."""
    left, right = connected_pair()
    for _ in range(10):
        left.send(CONTROL, bytes(1000))
    pieces = []
    while data := left.take_output(bytes_max=2500):
        pieces.append(len(right.receive(data)))
    assert pieces == [3, 3, 3, 1]


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_link_delivers_once_and_in_order_over_a_lossy_connection(seed: int, steps: int) -> None:
    """Bytes are split and connections end at random; each frame arrives once, in order, in both directions."""
    rng = random.Random(seed)
    sides = connected_pair()
    wires = [b"", b""]
    sent: list[list[bytes]] = [[], []]
    received: list[list[bytes]] = [[], []]

    def deliver(source: int, count: int) -> None:
        data, wires[source] = wires[source][:count], wires[source][count:]
        received[1 - source] += [frame.payload for frame in sides[1 - source].receive(data)]

    for step in range(steps):
        side = rng.randrange(2)
        action = rng.random()
        if action < 0.5:
            payload = step.to_bytes(4, "big") * rng.randrange(1, 5)
            sides[side].send(CONTROL, payload)
            sent[side].append(payload)
        elif action < 0.7:
            wires[side] += sides[side].take_output(rng.choice([10, 1000]))
        elif action < 0.95:
            deliver(side, rng.randrange(50))
        else:
            wires = [b"", b""]
            reconnect(*sides)
    for _ in range(4):
        for side in (0, 1):
            while sides[side].wants_flush:
                wires[side] += sides[side].take_output()
            deliver(side, len(wires[side]))
    assert received == [sent[1], sent[0]]
    assert sides[0].bytes_unacknowledged == sides[1].bytes_unacknowledged == 0
