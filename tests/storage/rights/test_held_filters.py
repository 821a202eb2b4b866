"""Filters of a live session that exceed the response to its CONNECT are sent to its edge in pages."""

from storage.rights.filters import TOLD_MAX
from storage.sessions.held_filters import LISTS_MAX, PAGE_FILTERS
from tests.storage.rights.test_filters import connect, reported, subscribe
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.sessions import FiltersListed, ListFilters, SessionOpened

COUNT = 2 * PAGE_FILTERS + 7


def page(edge: Edge, of: Connection, skip: int) -> FiltersListed:
    request = edge.ask(ListFilters(*edge.head(0), of.session, of.owner_epoch, skip))
    edge.cluster.settle()
    (answer,) = (one for one in edge.answers(FiltersListed) if one.request == request)
    assert isinstance(answer, FiltersListed)
    return answer


def names(*pages: FiltersListed) -> list[str]:
    return [one.topic_filter for told_page in pages for one in told_page.subscriptions]


def held(count: int, **options: int) -> tuple[Cluster, Edge, Connection]:
    """Return a live session with so many filters."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(filters_per_session_max=10_000), **options)
    first, _ = connect(edge, 7)
    subscribe(edge, first, *(f"{number:06}" for number in range(count)), judged=7)
    return cluster, edge, first


def test_filter_pages_with_concurrent_changes_list_each_filter_once() -> None:
    """Removed filters do not shift the pages; the edge knows added ones."""
    _, edge, alice = held(COUNT)
    first = page(edge, alice, 0)
    edge.unsubscribe(alice, "000003")
    edge.unsubscribe(alice, f"{COUNT - 1:06}")
    subscribe(edge, alice, "new", judged=7)
    second = page(edge, alice, first.next_skip)
    last = page(edge, alice, second.next_skip)
    assert (len(first.subscriptions), len(second.subscriptions), last.next_skip) == (PAGE_FILTERS, PAGE_FILTERS, 0)
    assert names(first, second, last) == [f"{number:06}" for number in range(COUNT - 1)]
    assert {one.qos for one in first.subscriptions} == {1}


def test_filter_pages_with_long_names_are_small() -> None:
    cluster, edge = with_edge(partitions=1)
    alice, _ = connect(edge, 7)
    long = [f"{number}".ljust(40_000, "x") for number in range(5)]
    subscribe(edge, alice, *long, judged=7)
    pages = [page(edge, alice, 0)]
    while pages[-1].next_skip:
        pages.append(page(edge, alice, pages[-1].next_skip))
    assert len(pages) == 3 and names(*pages) == long
    assert len(cluster.primary(0).core.partitions[0].held_filters) == 0


def test_filter_pages_after_failover_restart() -> None:
    """Its filters may have another order."""
    cluster, edge, alice = held(COUNT, nodes=2, replicas=2)
    first = page(edge, alice, 0)
    cluster.kill(cluster.primary(0).key.node)
    cluster.run(5.0)
    answer = page(edge, alice, first.next_skip)
    assert answer.again and not answer.subscriptions
    assert page(edge, alice, 0).next_skip


def test_closed_connection_gets_no_filter_pages() -> None:
    """Nor is an edge without the session."""
    _, edge, alice = held(3)
    connect(edge, 7)
    assert page(edge, alice, 0) == FiltersListed(edge.answers(FiltersListed)[-1].request)
    unknown = Connection("c", 99)
    unknown.session, unknown.owner_epoch = alice.session + 1, alice.owner_epoch
    assert page(edge, unknown, 0).subscriptions == []


def test_unfinished_filter_reads_are_bounded() -> None:
    """The oldest one restarts."""
    cluster, edge = with_edge(partitions=1)
    clients = [edge.open(f"c{number}") for number in range(LISTS_MAX + 1)]
    for client in clients:
        edge.subscribe(client, *(f"{number}" for number in range(PAGE_FILTERS + 1)))
    skips = [page(edge, client, 0).next_skip for client in clients]
    assert len(cluster.primary(0).core.partitions[0].held_filters) == LISTS_MAX
    assert page(edge, clients[0], skips[0]).again and names(page(edge, clients[1], skips[1])) == [f"{PAGE_FILTERS}"]


def test_filters_beyond_one_response_are_read_completely() -> None:
    _, edge, _ = held(TOLD_MAX + 1)
    alice, answer = connect(edge, 8)
    assert isinstance(answer, SessionOpened) and not answer.judged and reported(answer) == []
    pages = [page(edge, alice, 0)]
    while pages[-1].next_skip:
        pages.append(page(edge, alice, pages[-1].next_skip))
    assert names(*pages) == [f"{number:06}" for number in range(TOLD_MAX + 1)]
