"""Bounds of stored sessions per partition, and none for an address without rate limit tokens."""

import pytest

from tests.storage.scripted_edge import Edge, encoded
from tests.storage.storage_cluster import with_edge, with_settings
from wire.messages.sessions import CloseSession, OpenSession, SessionExpired, SessionOpened


def connect(edge: Edge, client_id: str, **changes: object) -> SessionOpened:
    """Open a connection and return the answer."""
    asked = {"clean_start": False, "expiry_s": 100, "may_create": True} | changes
    request = OpenSession(*edge.head(0), client_id, next(edge.cluster.numbers), **asked)  # type: ignore[arg-type]
    edge.cluster.send(edge.key, edge.cluster.map.partitions[0].primary, *encoded(request))
    edge.cluster.settle()
    (answer,) = [one for one in edge.answers(SessionOpened) if one.request == request.request]
    assert isinstance(answer, SessionOpened)
    return answer


def test_stored_sessions_are_bounded_per_partition() -> None:
    """0x97 for one more.

    Existing ones are resumed and replaced, ephemeral ones are accepted, and an end frees a place.
    """
    cluster, edge = with_edge(partitions=1, settings=with_settings(sessions_max=2))
    alice = connect(edge, "alice")
    assert [alice.reason_code, connect(edge, "bob").reason_code] == [0, 0]
    assert connect(edge, "carol").reason_code == 0x97
    cluster.crash_all()
    assert connect(edge, "carol").reason_code == 0x97
    assert connect(edge, "carol", expiry_s=0).reason_code == 0
    assert connect(edge, "alice").session_present
    replaced = connect(edge, "alice", clean_start=True)
    assert (replaced.reason_code, replaced.session_present) == (0, False)
    edge.ask(CloseSession(*edge.head(0), "alice", replaced.owner_epoch, True, 0))
    cluster.settle()
    assert connect(edge, "dave").reason_code == 0
    assert cluster.nodes["s1"].core.event_counts()["refused_sessions_max"] >= 1


def test_stored_sessions_of_one_user_are_bounded_per_partition() -> None:
    """0x97 for one more of that user.

    Other users are unaffected, unowned ones are not counted, an end frees a place.
    """
    cluster, edge = with_edge(partitions=1, settings=with_settings(sessions_per_user_max=2))
    first = connect(edge, "a1", owner="ann")
    assert [first.reason_code, connect(edge, "a2", owner="ann").reason_code] == [0, 0]
    assert connect(edge, "a3", owner="ann").reason_code == 0x97
    cluster.crash_all()
    assert connect(edge, "a3", owner="ann").reason_code == 0x97
    assert connect(edge, "a3", owner="ann", expiry_s=0).reason_code == 0
    assert connect(edge, "a1", owner="ann").session_present
    assert [connect(edge, f"n{at}").reason_code for at in range(4)] == [0] * 4
    assert connect(edge, "b1", owner="bob").reason_code == 0
    last = connect(edge, "a2", owner="ann", clean_start=True)
    edge.ask(CloseSession(*edge.head(0), "a2", last.owner_epoch, True, 0))
    cluster.settle()
    assert connect(edge, "n0", owner="ann").session_present, "an unowned session goes to the first user that opens it"
    assert connect(edge, "a4", owner="ann").reason_code == 0x97
    assert cluster.nodes["s1"].core.event_counts()["refused_sessions_user"] >= 1


def test_address_without_tokens_may_resume_a_session() -> None:
    """``may_create`` refuses only new stored sessions, and the older connection of that client continues."""
    cluster, edge = with_edge(partitions=1)
    connect(edge, "alice")
    assert connect(edge, "alice", may_create=False).session_present
    assert connect(edge, "alice", may_create=False, clean_start=True).reason_code == 0
    assert connect(edge, "ephemeral", may_create=False, expiry_s=0).reason_code == 0
    kicked = len(edge.kicked)
    assert connect(edge, "ephemeral", may_create=False).reason_code == 0x97
    assert connect(edge, "new", may_create=False).reason_code == 0x97
    assert len(edge.kicked) == kicked
    assert cluster.nodes["s1"].core.event_counts()["refused_session_rate"] == 2
    assert sum(cluster.nodes["s1"].core.partition_metrics.session_counts().values()) == 1


@pytest.mark.parametrize("events", [False, True])
def test_expired_session_is_reported_to_an_edge(events: bool) -> None:
    """Once, by the primary, with the session's user; only with storage.events."""
    cluster, edge = with_edge(settings=with_settings(events=events))
    edge.close(edge.open("alice"), expiry_s=1)
    cluster.run(3.0)
    said = [message for one in cluster.edges.values() for message in one.answers(SessionExpired)]
    assert [message.client_id for message in said] == (["alice"] if events else [])
