"""Connects of edges: connections that open and end. Those without disk state are answered in the same iteration.

The fast path takes a CONNECT without a will whose session ends with its connection, if the client ID has no owner and
no stored state. It also takes the end of such a connection. It writes no row and waits for no commit of messages, only
for commits that change claims, sessions or wills. All others take the general request path. Both paths give the same
result (``tests/storage/test_connects.py`` compares them).

| claim | state | response |
|---|---|---|
| fast path | a SessionOwner in memory, its response buffered | at the end of an iteration with a lease |
| other | see ``sessions/ownership.py`` and ``hosting/pending_until_serving.py`` | with its operation, or Moved |

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
    """The claims and reports that arrive at one node.

    Args:
        iteration: Whether the node has a lease.
        lease: The map.
        partitions: The partitions with this node as primary.
        requests: The general path.
    """

    def __init__(self, iteration: Iteration, lease: LeaseHolder, partitions: Partitions, requests: Requests) -> None:
        self._iteration = iteration
        self._lease = lease
        self._partitions = partitions
        self._requests = requests
        self._answers: list[tuple[HostedPartition, str, bytes]] = []  # of this iteration

    def take(self, peer: PeerKey, asked: Sequence[ConnectRequest]) -> None:
        """Process the requests of one frame, in order."""
        edge, incarnation = peer.node, peer.incarnation
        may_be_plain = not self._iteration.fenced and self._lease.map.is_alive(edge, incarnation)
        hosted_ones = self._partitions.hosted
        for request in asked:
            hosted = hosted_ones.get(request.partition)
            if may_be_plain and hosted is not None and hosted.can_claim_fast(request.partition_epoch):
                claims = hosted.fast_path_claims
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
        """Return the responses of this iteration; without a lease their partitions keep them until there is one."""
        taken, self._answers = self._answers, []
        leave: list[Output] = []
        for hosted, edge, payload in taken:
            number = hosted.partition.number
            if not self._partitions.is_hosted(number, hosted):
                continue  # the next primary polls the edges for open connections
            if fenced:
                hosted.partition.emit(edge, FrameKind.CONNECT_ANSWERS, payload)
                self._partitions.touch(number, hosted, changed=False)
            else:
                leave.append((edge, FrameKind.CONNECT_ANSWERS, payload))
        return leave
