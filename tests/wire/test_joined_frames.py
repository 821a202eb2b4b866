"""Output of an iteration is joined into few frames, none above the limit of a link."""

from wire.links import joined_frames as joining
from wire.links.joined_frames import FRAME_BYTES
from wire.messages.cluster_map import NodeEntry
from wire.messages.connects import ConnectAnswer, decode_answers, encode_record
from wire.messages.control import CONTROLS_BYTES, CONTROLS_MAX, decode_controls, encode_control
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.sessions import InboundReleased, SessionClosed, SessionOpened

PUSH, ACK, CONTROL, CONTROLS = FrameKind.PUSH, FrameKind.PUBLISH_ACK, FrameKind.CONTROL, FrameKind.CONTROLS
ANSWERS = FrameKind.CONNECT_ANSWERS
NODES = {name: NodeEntry(name, tier, 1, f"{name}:1") for name, tier in (("e1", "edge"), ("r1", "router"))}
RELEASED = [InboundReleased(number) for number in range(2 * CONTROLS_MAX + 1)]


def joined_frames(sends: list[tuple[str, int, bytes]]) -> list[tuple[str, int, bytes]]:
    return joining.joined_frames(sends, NODES)


def test_joined_frames_share_a_frame_per_kind_and_node() -> None:
    """Also with records of other kinds or nodes between them."""
    sends = [("e1", ACK, b"a"), ("e1", PUSH, b"p"), ("e2", PUSH, b"q"), ("e1", ACK, b"b"), ("e1", PUSH, b"r")]
    assert joined_frames(sends) == [("e1", ACK, b"ab"), ("e1", PUSH, b"pr"), ("e2", PUSH, b"q")]


def test_joined_frames_keep_order_around_control_messages() -> None:
    """A push before a reply stays before it, and one after it stays after it."""
    sends = [("e1", PUSH, b"p"), ("e1", CONTROL, b"c"), ("e2", PUSH, b"x"), ("e1", PUSH, b"q"), ("e2", PUSH, b"y")]
    assert joined_frames(sends) == [
        ("e1", PUSH, b"p"),
        ("e1", CONTROL, b"c"),
        ("e2", PUSH, b"xy"),
        ("e1", PUSH, b"q"),
    ]


def test_joined_frames_stay_below_the_link_limit() -> None:
    """A window of large bodies was one frame of more than 8 MiB, which the link refused."""
    records = [bytes([number]) * 200_000 for number in range(64)]
    frames = joined_frames([("e1", PUSH, record) for record in records])
    assert b"".join(payload for _, _, payload in frames) == b"".join(records)
    assert max(len(payload) for _, _, payload in frames) <= FRAME_BYTES < FRAME_BYTES_MAX


def test_joined_frames_share_a_frame_for_replies_to_an_edge() -> None:
    """Not for replies to a router: only edges decode them."""
    answers = [encode_control(message) for message in RELEASED]
    frames = joined_frames([(node, CONTROL, answer) for answer in answers for node in ("e1", "r1")])
    assert [(kind, payload) for node, kind, payload in frames if node == "r1"] == [(CONTROL, one) for one in answers]
    to_edge = [(kind, payload) for node, kind, payload in frames if node == "e1"]
    assert [kind for kind, _ in to_edge] == [CONTROLS, CONTROLS, CONTROL]
    assert [message for _, payload in to_edge[:2] for message in decode_controls(payload)] == RELEASED[:-1]
    assert to_edge[2][1] == answers[-1]


def test_joined_frames_split_replies_around_another_record() -> None:
    """A reply after a push leaves after it, in a separate frame."""
    answer = encode_control(RELEASED[0])
    sends = [("e1", CONTROL, answer), ("e1", PUSH, b"p"), ("e1", CONTROL, answer), ("e1", CONTROL, answer)]
    assert [kind for _, kind, _ in joined_frames(sends)] == [CONTROL, PUSH, CONTROLS]


def test_joined_frames_share_a_frame_for_connect_answers() -> None:
    """A single answer has an array too; pushes to the opened session stay after its answer."""
    answers: list[ConnectAnswer] = [SessionOpened(1, 2, 3, 0, 4), SessionClosed(5, True)]
    records = [encode_record(answer) for answer in answers]
    sends = [("e1", ANSWERS, records[0]), ("e1", ANSWERS, records[1]), ("e1", PUSH, b"p"), ("e1", ANSWERS, records[1])]
    frames = joined_frames(sends)
    assert [kind for _, kind, _ in frames] == [ANSWERS, PUSH, ANSWERS]
    assert [decode_answers(frames[place][2]) for place in (0, 2)] == [answers, answers[1:]]


def test_joined_frames_long_replies_have_separate_frames() -> None:
    """A page of retained messages is as long as many replies."""
    long = bytes(CONTROLS_BYTES)
    frames = joined_frames([("e1", CONTROL, long), ("e1", CONTROL, b"short"), ("e1", CONTROL, long)])
    assert [kind for _, kind, _ in frames] == [CONTROL] * 3
