"""An edge's claims arrive in pieces: no connection is ended before the last piece, and a single piece is no reply."""

import pytest

from tests.storage.scripted_edge import Connection
from tests.storage.storage_cluster import Cluster
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.sessions import Claim, Claims, PollClaims

NAMES = ["a", "b", "c"]


def answering(cluster: Cluster, connections: list[Connection], rounds: list[list[int]]) -> list[list[int]]:
    """Let e1 answer each poll with the next list of pieces, one client in each; return the remaining lists."""
    edge = cluster.edges["e1"]

    def polled(message: PollClaims, source: PeerKey) -> None:
        for number in rounds.pop(0) if len(rounds) > 1 else rounds[0]:
            one = connections[number]
            claims = [Claim(one.client_id, one.number, one.owner_epoch, one.session)]
            answer = Claims(
                message.request, message.partition, message.partition_epoch, claims, number == 0, number == 2
            )
            cluster.send(edge.key, source.node, FrameKind.CONTROL, encode_control(answer))

    edge.polled = polled  # type: ignore[method-assign]
    return rounds


@pytest.mark.parametrize("before", [[], [[0]], [[0, 1], [0]], [[1, 2]], [[2], [0, 1]]], ids=repr)
def test_incomplete_claims_reply_ends_no_connection(before: list[list[int]]) -> None:
    """With a truncated reply, connections missing in it would be ended, with their wills."""
    cluster = Cluster(partitions=1)
    connections = [cluster.edges["e1"].open(name) for name in NAMES]
    rounds = answering(cluster, connections, [*before, [0, 1, 2]])
    cluster.crash_all()
    cluster.run(10.0)
    assert rounds == [[0, 1, 2]]
    hosted = cluster.primary(0).core.partitions[0]
    assert hosted.serving
    assert {session.client_id for session in hosted.partition.sessions.values() if session.edge} == set(NAMES)
