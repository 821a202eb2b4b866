"""An edge splits its response to a claims poll into messages that fit a frame."""

from edge.clients.claims import MESSAGE_BYTES_MAX, split_claims
from wire.messages.control import encode_control
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.sessions import Claim, PollClaims

POLL = PollClaims(5, 3, 9)


def test_many_claims_are_split_into_frames() -> None:
    """One message of 50 000 clients with long IDs exceeded a frame: the new primary polled forever."""
    many = range(50_000)
    claims = [Claim(f"{number:06}" + "ü" * 250, number, 1 << 40, 1 << 60, "ö" * 250, (1 << 62) - 1) for number in many]
    pieces = list(split_claims(POLL, claims))
    assert [claim for piece in pieces for claim in piece.claims] == claims
    assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert max(len(encode_control(piece)) for piece in pieces) <= MESSAGE_BYTES_MAX + 100 < FRAME_BYTES_MAX
    assert {(piece.request, piece.partition, piece.partition_epoch) for piece in pieces} == {(5, 3, 9)}


def test_empty_claims_are_one_message() -> None:
    """It states that no client is connected."""
    (piece,) = split_claims(POLL, [])
    assert (piece.claims, piece.first, piece.last) == ([], True, True)
