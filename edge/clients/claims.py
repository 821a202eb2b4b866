"""Claims polls: a partition's new primary requests the claims of its clients that this edge holds.

Each message of the response fits into a frame, however many clients of a partition an edge holds. After a partition's
poll the edge ignores responses of its former primaries to CONNECTs.
"""

from collections.abc import Iterator

from edge.clients.clients import Clients
from edge.clients.phase import ClientPhase
from edge.node.node import EdgeNode
from wire.messages.sessions import Claim, Claims, PollClaims, SessionOpened

__all__ = ["MESSAGE_BYTES_MAX", "ClaimsPolls", "split_claims"]

MESSAGE_BYTES_MAX = 1024 * 1024  # of one message, at least one claim; well below FRAME_BYTES_MAX
CLAIM_BYTES = 64  # besides client ID and owner (up to 4 bytes a character)


class ClaimsPolls:
    """Answers the polls of one edge's partitions."""

    def __init__(self, node: EdgeNode, clients: Clients) -> None:
        self._node = node
        self._clients = clients
        self._polled: dict[int, int] = {}  # partition -> highest partition_epoch of its polls

    def __len__(self) -> int:
        return len(self._polled)

    def answer(self, node: str, poll: PollClaims) -> None:
        """Send the claims of a partition's clients."""
        self._polled[poll.partition] = max(poll.partition_epoch, self._polled.get(poll.partition, 0))
        claims = [
            Claim(client.client_id, client.number, client.owner_epoch, client.session, client.owner, client.owner_made)
            for client in self._clients.at_partition(poll.partition)
            # A client that is opening has owner_epoch 0: its CONNECT may be committed, and is requested again.
            if client.phase in (ClientPhase.OPEN, ClientPhase.OPENING)
        ]
        for piece in split_claims(poll, claims):
            if not self._node.tell(node, piece):
                return  # the primary ignores an incomplete response and polls again

    def is_outdated(self, opened: SessionOpened) -> bool:
        """Return whether a response to CONNECT is of a former primary."""
        return opened.partition_epoch < self._polled.get(opened.partition, 0)


def split_claims(poll: PollClaims, claims: list[Claim]) -> Iterator[Claims]:
    """Return the messages that answer a poll, in order; one empty message if there are no claims."""
    begin = size = 0
    for position, claim in enumerate(claims):
        length = CLAIM_BYTES + 4 * (len(claim.client_id) + len(claim.owner))
        if size and size + length > MESSAGE_BYTES_MAX:
            yield _message(poll, claims, begin, position)
            begin, size = position, 0
        size += length
    yield _message(poll, claims, begin, len(claims))


def _message(poll: PollClaims, claims: list[Claim], begin: int, end: int) -> Claims:
    return Claims(poll.request, poll.partition, poll.partition_epoch, claims[begin:end], begin == 0, end == len(claims))
