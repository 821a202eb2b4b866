"""Claims polls: a partition's new primary asks which of its clients this edge holds.

The answer goes in messages that fit into a frame, however many clients of a partition an edge holds. Once a partition
has polled, answers of its former primaries to CONNECTs count no more.
"""

from collections.abc import Iterator

from edge.clients.clients import Clients
from edge.clients.phase import ClientPhase
from edge.node.node import EdgeNode
from wire.messages.sessions import Claim, Claims, PollClaims, SessionOpened

__all__ = ["PIECE_BYTES", "ClaimsPolls", "claims_in_pieces"]

PIECE_BYTES = 1024 * 1024  # of one message, one claim at least; well below FRAME_BYTES_MAX
CLAIM_BYTES = 64  # beside client ID and owner, whose characters take up to four bytes


class ClaimsPolls:
    """Answers the polls of one edge's partitions."""

    def __init__(self, node: EdgeNode, clients: Clients) -> None:
        self._node = node
        self._clients = clients
        self._polled: dict[int, int] = {}  # partition -> highest partition_epoch of a poll

    def __len__(self) -> int:
        return len(self._polled)

    def answer(self, node: str, poll: PollClaims) -> None:
        """Name the claims of a partition's clients."""
        self._polled[poll.partition] = max(poll.partition_epoch, self._polled.get(poll.partition, 0))
        claims = [
            Claim(client.client_id, client.number, client.owner_epoch, client.session, client.owner, client.owner_made)
            for client in self._clients.at_partition(poll.partition)
            # One that is still opening has owner_epoch 0: its CONNECT may be committed, and is asked again.
            if client.phase in (ClientPhase.OPEN, ClientPhase.OPENING)
        ]
        for piece in claims_in_pieces(poll, claims):
            if not self._node.tell(node, piece):
                return  # without the last piece none counts, and the poll comes again

    def is_outdated(self, opened: SessionOpened) -> bool:
        """Return whether an answer to CONNECT is of a primary that another one has followed."""
        return opened.partition_epoch < self._polled.get(opened.partition, 0)


def claims_in_pieces(poll: PollClaims, claims: list[Claim]) -> Iterator[Claims]:
    """Return the messages that answer a poll, in order; without claims, one that says just that."""
    begin = size = 0
    for position, claim in enumerate(claims):
        length = CLAIM_BYTES + 4 * (len(claim.client_id) + len(claim.owner))
        if size and size + length > PIECE_BYTES:
            yield _piece(poll, claims, begin, position)
            begin, size = position, 0
        size += length
    yield _piece(poll, claims, begin, len(claims))


def _piece(poll: PollClaims, claims: list[Claim], begin: int, end: int) -> Claims:
    return Claims(poll.request, poll.partition, poll.partition_epoch, claims[begin:end], begin == 0, end == len(claims))
