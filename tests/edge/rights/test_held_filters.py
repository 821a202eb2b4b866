"""Filters of large resumed sessions are read in pages, authorized, and removed if refused."""

from edge.session_filter_reads import ANSWER_S, CONCURRENT_READS_MAX, WAITING_MIN
from tests.edge.edge_harness import Edge, Session, cluster_map
from tests.edge.rights.ruled import acl, book, come, principal, roles, ruled
from tests.edge.rights.test_resumed_filters import DURABLE, taken
from tests.edge.rights.test_sweep import ALL, LESS, turns
from wire.messages.cluster_map import PartitionEntry
from wire.messages.map_pages import map_pages
from wire.messages.sessions import FiltersListed, ListFilters, OpenSession, SessionOpened, SessionSubscription


def resumed(edge: Edge, client_id: str = "anna", session: int = 5) -> Session:
    """Return a connection of anna with too many filters for the CONNECT response."""
    edge.held = {OpenSession, ListFilters}
    client = come(edge, principal("anna", client_id), properties=DURABLE, clean_start=False)
    (asked,) = edge.take(OpenSession)
    edge.storage(SessionOpened(asked.request, asked.partition, 1, 0, 9, asked.partition << 48 | session, True))
    edge.held = {ListFilters}
    turns(edge)
    client.read()
    return client


def tell(edge: Edge, *filters: str, next_skip: int = 0, again: bool = False) -> int:
    """Answer the pending request with a page; return its start."""
    (asked,) = edge.take(ListFilters)
    edge.storage(FiltersListed(asked.request, [SessionSubscription(name, 1) for name in filters], next_skip, again))
    turns(edge)
    assert isinstance(asked, ListFilters)
    return asked.skip


def test_each_page_is_authorized_then_the_next_is_requested() -> None:
    edge = ruled(roles(device=LESS))
    anna = resumed(edge)
    assert tell(edge, "down/a", "more/a", next_skip=2) == 0
    assert taken(edge) == ["more/a"]
    assert tell(edge, "$share/g/more/b", "down/b") == 2
    assert taken(edge) == ["$share/g/more/b", "more/a"] and not edge.take(ListFilters)
    assert set(anna.client.subscriptions) == {"down/a", "down/b"} and anna.client.conn.judge_pushes


def test_newer_subscription_is_kept() -> None:
    edge = ruled(roles(device=ALL))
    anna = resumed(edge)
    anna.subscribe("down/a", qos=0)
    tell(edge, "down/a", "down/b")
    assert {name: one.qos for name, one in anna.client.subscriptions.items()} == {"down/a": 0, "down/b": 1}


def test_later_permission_removal_applies_to_page_filters() -> None:
    edge = ruled(roles(device=ALL))
    resumed(edge)
    tell(edge, "down/a", "more/a")
    assert not taken(edge)
    edge.core.replace_rules(book(roles(device=LESS)))
    turns(edge)
    assert taken(edge) == ["more/a"]


def test_page_with_partly_granted_filter() -> None:
    edge = ruled(acl("user anna\ntopic read down/#\ntopic deny down/secret"))
    anna = resumed(edge)
    tell(edge, "down/#")
    assert not taken(edge) and anna.client.partial == {"down/#"} and anna.client.conn.judge_pushes


def test_new_primary_is_read_from_the_start() -> None:
    edge = ruled(roles(device=LESS))
    resumed(edge)
    tell(edge, "down/a", next_skip=1)
    assert tell(edge, again=True) == 1
    assert tell(edge, "more/a") == 0
    assert taken(edge) == ["more/a"]


def test_concurrent_reads_are_bounded_and_skip_closed_clients() -> None:
    edge = ruled(roles(device=LESS))
    clients = [resumed(edge, f"anna{number}", 5 + number) for number in range(CONCURRENT_READS_MAX + 2)]
    asked = edge.take(ListFilters)
    assert len(asked) == CONCURRENT_READS_MAX
    clients[0].drop()
    clients[CONCURRENT_READS_MAX].drop()
    for one in asked:
        edge.storage(FiltersListed(one.request, [SessionSubscription("more/a", 1)]))
    turns(edge)
    (last,) = edge.take(ListFilters)
    assert last.session & 0xFFFF == 5 + CONCURRENT_READS_MAX + 1
    assert taken(edge) == ["more/a"] * (CONCURRENT_READS_MAX - 1)


def test_reconnecting_client_does_not_accumulate() -> None:
    """An unresponsive partition uses all slots; closed connections are removed."""
    edge = ruled(roles(device=LESS))
    for number in range(CONCURRENT_READS_MAX):
        resumed(edge, f"anna{number}", 5 + number)
    last = resumed(edge, "last", 99).client
    for _ in range(3 * WAITING_MIN):
        resumed(edge, "again", 100).drop()
    assert edge.core.held_filters.waiting <= WAITING_MIN + 1
    for one in edge.take(ListFilters):
        edge.storage(FiltersListed(one.request))
    turns(edge)
    assert last.session in [one.session for one in edge.take(ListFilters)]


def test_partition_without_primary_does_not_delay_others() -> None:
    """It loses its primary during four reads, with others queued."""
    edge = ruled(roles(device=LESS))
    names = [f"anna{number}" for number in range(40)]
    edge.router(*map_pages(cluster_map(2)))
    lost = edge.core.node.map.partition_for(names[0])
    there = [name for name in names if edge.core.node.map.partition_for(name) == lost][: CONCURRENT_READS_MAX + 2]
    other = next(name for name in names if edge.core.node.map.partition_for(name) != lost)
    for number, name in enumerate(there):
        resumed(edge, name, 5 + number)
    assert [one.partition for one in edge.take(ListFilters)] == [lost] * CONCURRENT_READS_MAX
    moved = cluster_map(3)
    moved.partitions[lost] = PartitionEntry(2, "", ("s0",))
    edge.router(*map_pages(moved))
    resumed(edge, other, 99)
    assert [one.partition for one in edge.take(ListFilters)] == [edge.core.node.map.partition_for(other)]


def test_unresponsive_partition_does_not_delay_others() -> None:
    """Its primary hangs during four reads; no further ones are sent until it responds."""
    edge = ruled(roles(device=LESS))
    place = edge.core.node.map.partition_for
    names = [f"anna{number}" for number in range(60)]
    hung = place(names[0])
    there = [name for name in names if place(name) == hung][: CONCURRENT_READS_MAX + 2]
    others = [name for name in names if place(name) != hung][:2]
    for number, name in enumerate((*there, others[0])):
        resumed(edge, name, 5 + number)
    asked = edge.take(ListFilters)
    assert [one.partition for one in asked] == [hung] * CONCURRENT_READS_MAX
    assert edge.core.held_filters.next_deadline() == edge.now + ANSWER_S
    edge.turn(ANSWER_S)
    assert [one.partition for one in edge.take(ListFilters)] == [place(others[0])]
    resumed(edge, others[1], 99)
    assert [one.partition for one in edge.take(ListFilters)] == [place(others[1])]
    edge.storage(FiltersListed(asked[0].request, [SessionSubscription("more/a", 1)]))
    turns(edge)
    assert taken(edge) == ["more/a"] and not edge.take(ListFilters), "three of it and two others are under way"
    for one in asked[1:]:
        edge.storage(FiltersListed(one.request))
    turns(edge)
    assert [one.partition for one in edge.take(ListFilters)] == [hung] * 2


def test_session_without_filters_is_not_read() -> None:
    edge = ruled(roles(device=LESS))
    edge.held = {OpenSession, ListFilters}
    come(edge, principal("anna", "anna"), properties=DURABLE, clean_start=False)
    (asked,) = edge.take(OpenSession)
    edge.storage(SessionOpened(asked.request, asked.partition, 1, 0, 9, 5, True, judged=True))
    turns(edge)
    assert not edge.take(ListFilters)
