"""Disconnected sessions are sent to an edge in pages, and lose the filters that it revokes."""

from collections.abc import Callable

import pytest

from storage.sessions import disconnected
from tests.storage.requests import message
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.disconnected_sessions import (
    DisconnectedListed,
    DisconnectedRevoked,
    DisconnectedSession,
    ListDisconnected,
    RevokeDisconnected,
)

ANN, BOB = ("ann", 3), ("bob", 4)


def ask(edge: Edge, first: int = 0, skip: int = 0, *users: str) -> DisconnectedListed:
    request = edge.ask(ListDisconnected(*edge.head(0), first, skip, list(users)))
    edge.cluster.settle()
    pages = [one for one in edge.answers(DisconnectedListed) if one.request == request]
    assert len(pages) == 1 and isinstance(pages[0], DisconnectedListed)
    return pages[0]


def pages(
    edge: Edge, *users: str, meanwhile: Callable[[DisconnectedListed], None] = lambda _: None
) -> list[DisconnectedListed]:
    """Return every page of partition 0, with an action after each."""
    found: list[DisconnectedListed] = []
    first = skip = 0
    while True:
        page = ask(edge, first, skip, *users)
        found.append(page)
        meanwhile(page)
        if not page.next_first:
            return found
        first, skip = page.next_first, page.next_skip


def reported(edge: Edge, *users: str) -> dict[str, list[str]]:
    """Return the filters of each reported session."""
    filters: dict[str, list[str]] = {}
    for page in pages(edge, *users):
        for one in page.sessions:
            filters.setdefault(one.client_id, []).extend(held.topic_filter for held in one.filters)
    return filters


def revoke(edge: Edge, one: DisconnectedSession, *names: str) -> int:
    request = edge.ask(RevokeDisconnected(*edge.head(0), one.session, one.owner_epoch, list(names)))
    edge.cluster.settle()
    (answer,) = (answer for answer in edge.answers(DisconnectedRevoked) if answer.request == request)
    return int(answer.removed)


def remaining_filters(cluster: Cluster, client_id: str) -> list[str]:
    return sorted(cluster.primary(0).core.partitions[0].partition.by_client[client_id].subscriptions)


def leave_disconnected(edge: Edge, client_id: str, *filters: str, owner: tuple[str, int] = ANN) -> Connection:
    connection = edge.open(client_id, *filters, owner=owner)
    edge.close(connection)
    return connection


def test_disconnected_sessions_of_cluster_users_are_reported() -> None:
    cluster, edge = with_edge(partitions=1)
    leave_disconnected(edge, "a", "x", "y")
    leave_disconnected(edge, "b", "z", owner=BOB)
    leave_disconnected(edge, "empty")
    leave_disconnected(edge, "nobody", "x", owner=("", 0))
    leave_disconnected(edge, "by-file", "x", owner=("file", 0))
    edge.open("here", "x", owner=ANN)
    assert reported(edge) == {"a": ["x", "y"], "b": ["z"]}
    assert reported(edge, "bob") == {"b": ["z"]}
    cluster.crash_all()
    assert reported(edge) == {"a": ["x", "y"], "b": ["z"]}


@pytest.mark.parametrize("crash", [False, True])
def test_revoked_filter_is_removed_with_its_route(crash: bool) -> None:
    """Queued messages stay and are authorized at delivery; a group's copies go to other members."""
    cluster, edge = with_edge(partitions=1)
    leave_disconnected(edge, "a", "x", "y")
    edge.publish(message("before", "x"), 0)
    cluster.settle()
    (page,) = pages(edge)
    assert revoke(edge, page.sessions[0], "x", "never") == 1
    if crash:
        cluster.crash_all()
    assert remaining_filters(cluster, "a") == ["y"] and revoke(edge, page.sessions[0], "x") == 0
    edge.publish(message("behind", "x"), 0)
    cluster.settle()
    assert [push.payload for push in edge.open("a", owner=ANN).received] == [b"before"]


def test_client_that_reconnected_keeps_its_filters() -> None:
    """Connected or disconnected again: its CONNECT authorized its filters."""
    cluster, edge = with_edge(partitions=1)
    leave_disconnected(edge, "a", "x")
    (page,) = pages(edge)
    connection = edge.open("a", owner=ANN)
    assert revoke(edge, page.sessions[0], "x") == 0
    edge.close(connection)
    assert revoke(edge, page.sessions[0], "x") == 0
    assert remaining_filters(cluster, "a") == ["x"]


def test_disconnected_pages_are_bounded_and_list_each_filter_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnected, "PAGE_FILTERS", 4)
    monkeypatch.setattr(disconnected, "PAGE_SESSIONS", 3)
    _, edge = with_edge(partitions=1)
    wanted: dict[str, list[str]] = {}
    for at, count in enumerate((1, 0, 0, 0, 0, 11, 4, 3, 3)):
        wanted[f"c{at}"] = [f"{at}/{number}" for number in range(count)]
        leave_disconnected(edge, f"c{at}", *wanted[f"c{at}"])
    found = pages(edge)
    assert all(sum(len(one.filters) for one in page.sessions) <= 4 for page in found)
    assert reported(edge) == {name: filters for name, filters in wanted.items() if filters}


ORDERS = ["z", "a", "y", "b", "x", "c", "w", "d"]  # not the order of the store's keys


@pytest.mark.parametrize("pages_before", [1, 2, 3])
def test_failover_within_a_paged_session_skips_no_filter(pages_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next primary has the remaining filters in the order of their keys."""
    monkeypatch.setattr(disconnected, "PAGE_FILTERS", 2)
    cluster, edge = with_edge(nodes=2, replicas=2, partitions=1)
    leave_disconnected(edge, "a", *ORDERS)
    found: list[str] = []

    def meanwhile(page: DisconnectedListed) -> None:
        (one,) = page.sessions
        found.extend(held.topic_filter for held in one.filters)
        assert revoke(edge, one, *(name for name in found[-2:] if name < "x")) <= 2
        if len(found) == 2 * pages_before:
            cluster.kill(cluster.map.partitions[0].primary)
            cluster.settle(10.0)

    pages(edge, meanwhile=meanwhile)
    assert set(found) == set(ORDERS) and remaining_filters(cluster, "a") == ["x", "y", "z"]


def test_filter_changes_between_pages_shift_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was connected so briefly that its edge could not authorize its filters."""
    monkeypatch.setattr(disconnected, "PAGE_FILTERS", 4)
    _, edge = with_edge(partitions=1)
    leave_disconnected(edge, "a", *ORDERS)
    first = ask(edge)
    connection = edge.open("a", "new", owner=ANN)
    edge.unsubscribe(connection, *ORDERS[:3])
    edge.close(connection)
    second = ask(edge, first.next_first, first.next_skip)
    assert [held.topic_filter for held in second.sessions[0].filters] == ORDERS[4:] and not second.next_first
