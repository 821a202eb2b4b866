"""A will is published in the name of its owner, at any delay and by any primary."""

import pytest

from tests.storage.requests import WILL, fired
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.wills import SessionWill

ANN = ("ann", 5)


def owners(cluster: Cluster) -> set[tuple[str, int]]:
    """Return the owners of the wills in all FireWill orders."""
    return {(will.owner, will.owner_made) for edge in cluster.edges.values() for will in edge.wills}


@pytest.mark.parametrize("expiry_s", [0, 60])
@pytest.mark.parametrize("delay_s", [0, 3])
@pytest.mark.parametrize("crash", [False, True])
def test_fired_will_contains_its_owner(expiry_s: int, delay_s: int, crash: bool) -> None:
    """With the client's address; also in repeats after a crash of all nodes, which come from rows alone."""
    cluster, edge = with_edge(partitions=1)
    edge.answer_wills = cluster.edges["e2"].answer_wills = False
    will = SessionWill("w", b"gone", 1, delay_s=delay_s, address="192.0.2.1", fingerprint="ab" * 32)
    edge.close(edge.open("c", owner=ANN, expiry_s=expiry_s, will=will), clean=False)
    if crash:
        cluster.crash_all()
    cluster.run(5.0)
    if crash:
        cluster.crash_all()
        cluster.run(2.0)
    assert fired(cluster) == [b"gone"] and owners(cluster) == {ANN}
    ordered = [order.will for edge in cluster.edges.values() for order in edge.wills]
    assert {(one.address, one.fingerprint) for one in ordered} == {("192.0.2.1", "ab" * 32)}


def test_takeover_publishes_the_will_of_the_former_owner() -> None:
    """The connection had no owner; the user that takes the client ID does not own its will."""
    cluster, edge = with_edge(partitions=1)
    edge.open("c", will=WILL)
    cluster.edges["e2"].open("c", owner=ANN)
    cluster.run(1.0)
    assert fired(cluster) == [b"gone"] and owners(cluster) == {("", 0)}
