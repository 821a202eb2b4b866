"""A client ID belongs to the user that holds it or owns its session: another user's CONNECT is refused."""

import pytest

from storage.state import keys
from storage.state.rows import WillRow, unpack
from tests.storage.requests import DELAYED_WILL, fired, message
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge

NOT_AUTHORIZED = 0x87
ANN, BOB, NOBODY = ("ann", 5), ("bob", 6), ("", 0)
ANOTHER_ANN = ("ann", 9)  # deleted and created again: possibly another person
STRANGERS = [BOB, ANOTHER_ANN, ("ann", 0), ("Ann", 5), ("", 5), NOBODY]


def queued(cluster: Cluster, edge: Edge, owner: tuple[str, int] = ANN) -> Connection:
    """Create a disconnected session of client "c" with one queued message."""
    connection = edge.open("c", "a/b", owner=owner)
    edge.close(connection)
    edge.publish(message("for ann"), 0)
    cluster.settle()
    return connection


def refusals(cluster: Cluster) -> int:
    """Return how often a CONNECT was refused because another user owns the client ID."""
    return sum(node.core.event_counts().get("refused_owner", 0) for node in cluster.nodes.values())


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("expiry_s", [0, 3600])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_stored_session_refuses_other_users(
    stranger: tuple[str, int], expiry_s: int, clean_start: bool, crash: bool
) -> None:
    """With and without Clean Start; the user resumes it, also after a restart of all nodes."""
    cluster, edge = with_edge(partitions=1)
    first = queued(cluster, edge)
    if crash:
        cluster.crash_all()
    other = cluster.edges["e2"].open("c", owner=stranger, clean_start=clean_start, expiry_s=expiry_s)
    assert (other.refused, other.owner_epoch, other.received) == (NOT_AUTHORIZED, 0, [])
    assert refusals(cluster) == 1
    again = edge.open("c", owner=ANN)
    assert again.session == first.session
    assert [push.payload for push in again.received] == [b"for ann"]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("expiry_s", [0, 3600])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_live_connection_refuses_takeover_by_another_user(
    stranger: tuple[str, int], expiry_s: int, crash: bool
) -> None:
    """Without kick or will; also an ephemeral one, which a new primary knows only by the edge's claim."""
    cluster, edge = with_edge(partitions=1)
    first = edge.open("c", owner=ANN, expiry_s=expiry_s, will=DELAYED_WILL)
    if crash:
        cluster.crash_all()
    other = cluster.edges["e2"].open("c", owner=stranger, clean_start=True, expiry_s=0)
    cluster.run(5.0)
    assert other.refused == NOT_AUTHORIZED and refusals(cluster) == 1
    assert first.open and edge.kicked == [] and fired(cluster) == []


@pytest.mark.parametrize("will", [False, True])
def test_ephemeral_client_without_row_is_owned_by_its_claim(will: bool) -> None:
    cluster, edge = with_edge(partitions=1)
    first = edge.open("c", owner=ANN, expiry_s=0, will=DELAYED_WILL if will else None)
    cluster.crash_all()
    assert cluster.edges["e2"].open("c", owner=BOB, expiry_s=0).refused == NOT_AUTHORIZED
    assert first.open
    assert not cluster.edges["e2"].open("c", owner=ANN, expiry_s=0).refused
    assert not first.open


@pytest.mark.parametrize("expiry_s", [0, 3600])
def test_claim_without_user_keeps_the_known_owner(expiry_s: int) -> None:
    """The partition's own rows have priority over a claim, which an older edge sends without a user."""
    cluster, edge = with_edge(partitions=1)
    edge.open("c", owner=ANN, expiry_s=expiry_s, will=DELAYED_WILL).owner = NOBODY
    cluster.crash_all()
    assert cluster.edges["e2"].open("c", owner=BOB).refused == NOT_AUTHORIZED


def test_same_user_takes_over_its_connection() -> None:
    cluster, edge = with_edge(partitions=1)
    first = queued(cluster, edge)
    edge.open("c", owner=ANN)
    newer = cluster.edges["e2"].open("c", owner=ANN)
    assert newer.session == first.session and not newer.refused
    replaced = edge.open("c", owner=ANN, clean_start=True)
    assert replaced.session not in (0, first.session) and refusals(cluster) == 0


@pytest.mark.parametrize("crash", [False, True])
def test_unowned_session_goes_to_the_first_user(crash: bool) -> None:
    """A session of an older version, or of a client without a user, then belongs to that user."""
    cluster, edge = with_edge(partitions=1)
    first = queued(cluster, edge, NOBODY)
    taken = edge.open("c", owner=ANN)
    assert taken.session == first.session
    edge.close(taken)
    if crash:
        cluster.crash_all()
    for stranger in (NOBODY, BOB):
        assert cluster.edges["e2"].open("c", owner=stranger).refused == NOT_AUTHORIZED


def test_clients_without_user_are_unaffected() -> None:
    cluster, edge = with_edge(partitions=1)
    edge.open("c")
    assert not cluster.edges["e2"].open("c").refused
    assert not edge.open("c", clean_start=True).refused


def test_pending_connect_of_another_user_is_refused_when_processed() -> None:
    """Both wait for the end of an unowned connection: the first gets the client ID, the other is refused."""
    cluster, edge = with_edge(partitions=1)
    edge.answer_kicks = False
    edge.open("c")
    ann = cluster.edges["e2"].open("c", owner=ANN, settle=False)
    cluster.run(0.05)
    bob = edge.open("c", owner=BOB, settle=False)
    cluster.run(10.0)
    assert ann.owner_epoch and not ann.refused
    assert bob.refused == NOT_AUTHORIZED and not bob.owner_epoch


def test_other_users_connects_do_not_fill_the_owners_queue() -> None:
    """They are refused at once, while the owner's own CONNECT waits for its older connection."""
    cluster, edge = with_edge(partitions=1)
    edge.answer_kicks = False
    edge.open("c", owner=ANN)
    newer = cluster.edges["e2"].open("c", owner=ANN, settle=False)
    cluster.run(0.05)
    strangers = [edge.open("c", owner=BOB, settle=False) for _ in range(200)]
    cluster.run(0.2)
    assert {stranger.refused for stranger in strangers[-1:]} == {NOT_AUTHORIZED} and refusals(cluster) == 200
    cluster.run(10.0)
    assert newer.owner_epoch


def test_client_id_is_free_after_its_session_ended() -> None:
    cluster, edge = with_edge(partitions=1)
    edge.close(edge.open("c", owner=ANN, expiry_s=2))
    cluster.run(5.0)
    other = edge.open("c", owner=BOB)
    assert not other.refused and other.session
    edge.close(other, expiry_s=0)
    assert not edge.open("c", owner=ANN, expiry_s=0).refused


def test_will_rows_contain_the_owner() -> None:
    """The will outlives its connection, and the primary."""
    cluster, edge = with_edge(partitions=1)
    edge.open("c", owner=ANN, expiry_s=0, will=DELAYED_WILL)
    cluster.crash_all()
    value = cluster.primary(0).core.partitions[0].partition.get(keys.will_key(0, "c"))
    assert value is not None
    row = unpack(WillRow, value)
    assert (row.owner, row.owner_made) == ANN


def test_filters_granted_without_user_are_unauthorized_for_a_user() -> None:
    """``judged`` does not pass to the user that takes over the session."""
    cluster, edge = with_edge(partitions=1)
    number = queued(cluster, edge, NOBODY).session
    (session,) = (found for found in cluster.primary(0).core.partitions[0].partition.sessions.values())
    assert session.number == number
    session.judged = 77
    edge.close(edge.open("c", owner=ANN))
    assert session.judged == 0
    session.judged = 77
    edge.open("c", owner=ANN)
    assert session.judged == 77
