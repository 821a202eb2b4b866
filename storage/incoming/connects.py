"""Connects of edges: connections that open and end. Those that leave nothing on the disk are answered in their turn.

Plain is the CONNECT of a session that ends with its connection, without a will, whose client ID nobody has and nothing
is kept of; and the end of such a connection. It writes nothing, and waits for no commit of messages: only for one that
changes claims, sessions or wills. All others go the way of every request. What a plain one does here is what it would
do there (``tests/storage/test_connects.py`` plays both).

| state of a claim | holds | way out |
|---|---|---|
| plain | a Holder in memory, its answer with those of the turn | the end of a turn with a lease: answered |
| other | as ``storage/sessions/ownership.py`` and ``waiting.py`` have it | answered with its operation, or Moved |

Decisions: docs/adr/0202-connects-of-a-turn.md, docs/adr/0214-plain-connects-wait-for-no-message.md.
"""

from collections.abc import Sequence

from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions
from storage.incoming.requests import Requests
from storage.state.partition import Output
from wire.messages.connects import ConnectAnswer, ConnectRequest, encode_record
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.sessions import OpenSession
from wire.node.lease_holder import LeaseHolder

__all__ = ["Connects"]


class Connects:
    """The claims and reports that come to one node.

    Args:
        turn: Whether there is a lease.
        lease: The map.
        partitions: Those whose primary is this node.
        requests: Takes what is not plain.
    """

    def __init__(self, turn: Iteration, lease: LeaseHolder, partitions: Partitions, requests: Requests) -> None:
        self._turn = turn
        self._lease = lease
        self._partitions = partitions
        self._requests = requests
        self._answers: list[tuple[HostedPartition, str, bytes]] = []  # of this turn

    def take(self, peer: PeerKey, asked: Sequence[ConnectRequest]) -> None:
        """Take the requests of one frame, in order."""
        edge, incarnation = peer.node, peer.incarnation
        may_be_plain = not self._turn.fenced and self._lease.map.is_alive(edge, incarnation)
        hosted_ones = self._partitions.hosted
        for request in asked:
            hosted = hosted_ones.get(request.partition)
            if may_be_plain and hosted is not None and hosted.takes_plain(request.partition_epoch):
                claims = hosted.plain_claims
                answer: ConnectAnswer | None
                if isinstance(request, OpenSession):
                    answer = claims.open(request, edge, incarnation)
                else:
                    answer = claims.close(request, edge, incarnation)
                if answer is not None:
                    self._answers.append((hosted, edge, encode_record(answer)))
                    continue
            self._requests.ask(peer, request)

    def answers(self, *, fenced: bool) -> list[Output]:
        """Return the answers of this turn; without a lease their partitions keep them until there is one."""
        taken, self._answers = self._answers, []
        leave: list[Output] = []
        for hosted, edge, payload in taken:
            number = hosted.partition.number
            if not self._partitions.is_hosted(number, hosted):
                continue  # the next primary asks the edges what is open
            if fenced:
                hosted.partition.emit(edge, FrameKind.CONNECT_ANSWERS, payload)
                self._partitions.touch(number, hosted, changed=False)
            else:
                leave.append((edge, FrameKind.CONNECT_ANSWERS, payload))
        return leave
