"""What a round sends is joined into few frames, none larger than a link takes."""

from storage.joined_frames import FRAME_BYTES, joined_frames
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind

PUSH, ACK, CONTROL = FrameKind.PUSH, FrameKind.PUBLISH_ACK, FrameKind.CONTROL


def test_records_of_a_kind_to_a_node_share_a_frame() -> None:
    """Whatever of another kind or to another node stands between them."""
    sends = [("e1", ACK, b"a"), ("e1", PUSH, b"p"), ("e2", PUSH, b"q"), ("e1", ACK, b"b"), ("e1", PUSH, b"r")]
    assert joined_frames(sends) == [("e1", ACK, b"ab"), ("e1", PUSH, b"pr"), ("e2", PUSH, b"q")]


def test_nothing_passes_a_control_message() -> None:
    """A push that went before an answer stays before it, and one that came after it stays after it."""
    sends = [("e1", PUSH, b"p"), ("e1", CONTROL, b"c"), ("e2", PUSH, b"x"), ("e1", PUSH, b"q"), ("e2", PUSH, b"y")]
    assert joined_frames(sends) == [
        ("e1", PUSH, b"p"),
        ("e1", CONTROL, b"c"),
        ("e2", PUSH, b"xy"),
        ("e1", PUSH, b"q"),
    ]


def test_no_frame_is_larger_than_a_link_takes() -> None:
    """A window of large bodies leaves in one round; it was one frame, and the link refuses more than 8 MiB."""
    records = [bytes([number]) * 200_000 for number in range(64)]
    frames = joined_frames([("e1", PUSH, record) for record in records])
    assert b"".join(payload for _, _, payload in frames) == b"".join(records)
    assert max(len(payload) for _, _, payload in frames) <= FRAME_BYTES < FRAME_BYTES_MAX
