"""The answer to a claims poll in messages that fit into a frame, however many clients of a partition an edge holds."""

from collections.abc import Iterator

from wire.messages import Claim, Claims, PollClaims

__all__ = ["PIECE_BYTES", "claims_in_pieces"]

PIECE_BYTES = 1024 * 1024  # of one message, one claim at least; well below FRAME_BYTES_MAX
CLAIM_BYTES = 48  # beside the client ID, whose characters take up to four bytes


def claims_in_pieces(poll: PollClaims, claims: list[Claim]) -> Iterator[Claims]:
    """Return the messages that answer a poll, in order; without claims, one that says just that."""
    begin = size = 0
    for position, claim in enumerate(claims):
        length = CLAIM_BYTES + 4 * len(claim.client_id)
        if size and size + length > PIECE_BYTES:
            yield _piece(poll, claims, begin, position)
            begin, size = position, 0
        size += length
    yield _piece(poll, claims, begin, len(claims))


def _piece(poll: PollClaims, claims: list[Claim], begin: int, end: int) -> Claims:
    return Claims(poll.request, poll.partition, poll.partition_epoch, claims[begin:end], begin == 0, end == len(claims))
