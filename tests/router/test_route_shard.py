"""One route shard: invalidations, and the time at which AddRoutes is answered."""

from collections.abc import Sequence

from router.routes.shard import FORGOTTEN_AT_ONCE, YOUNG_MAX, YOUNG_S, RouteShard
from wire.messages.control import Control
from wire.messages.routes import (
    AddRoutes,
    Destinations,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    ReportRoutes,
    Resolve,
    Resolved,
    RouteEntry,
    RoutesAdded,
    SenderReport,
)


class Owner:
    """A shard with edges that acknowledge invalidations only on request."""

    def __init__(self, edges: Sequence[str] = ("e1", "e2"), partitions: Sequence[int] = (), bound: int = 1000) -> None:
        self.shard = RouteShard(3, 7, edges, partitions, bound)
        self.request = 0
        self.sent: list[tuple[str, Control]] = []

    def ready(self, *edges: str) -> "Owner":
        """Complete the reports and registrations of edges, without routes or topics."""
        for edge in edges or ("e1", "e2"):
            self.report(edge)
            self.resolve(edge, kept=True)
        self.acknowledge()
        self.take()
        return self

    def take(self) -> list[tuple[str, Control]]:
        new = self.shard.take_sends()
        self.sent += new
        return new

    def acknowledge(self, *edges: str) -> None:
        """Edges acknowledge every open invalidation sent to them."""
        self.take()
        for node, message in list(self.sent):
            if isinstance(message, Invalidate) and (not edges or node in edges):
                self.sent.remove((node, message))
                self.shard.invalidated(node, Invalidated(message.number, 3, 7))

    def dropped(self) -> list[list[str]]:
        """Return the filters of each invalidation sent since the last ``take``."""
        return [message.topic_filters for _, message in self.take() if isinstance(message, Invalidate)]

    def resolve(self, edge: str, *topics: str, kept: bool = False) -> None:
        self.request += 1
        self.shard.resolve(edge, Resolve(self.request, 3, 7, list(topics), kept))

    def answer(self, edge: str, topic: str) -> Destinations:
        self.resolve(edge, topic)
        (message,) = [message for node, message in self.take() if isinstance(message, Resolved) and node == edge]
        return message.destinations[message.answers[0]]

    def add(
        self,
        node: str,
        *filters: str,
        partition: int = -1,
        epoch: int = 1,
        version: int = 1,
        share: str = "",
        members: int = 0,
    ) -> int:
        self.request += 1
        routes = [RouteEntry(name, share, members) for name in filters]
        self.shard.add(node, AddRoutes(self.request, 3, 7, partition, epoch, version, routes))
        return self.request

    def remove(self, node: str, *filters: str, partition: int = -1, epoch: int = 1, version: int = 1) -> None:
        routes = [RouteEntry(name) for name in filters]
        self.shard.remove(node, RemoveRoutes(3, 7, partition, epoch, version, routes))

    def report(
        self,
        node: str,
        *filters: str,
        partition: int = -1,
        epoch: int = 1,
        version: int = 1,
        first: bool = True,
        last: bool = True,
    ) -> None:
        routes = [RouteEntry(name) for name in filters]
        self.shard.report(node, ReportRoutes(3, 7, [SenderReport(partition, epoch, version, routes, first, last)]))

    def added(self) -> list[int]:
        self.take()
        return [message.request for _, message in self.sent if isinstance(message, RoutesAdded)]


def test_routes_of_edges_and_partitions_are_answered() -> None:
    """Every destination once, sorted, for any number of matching filters."""
    owner = Owner().ready()
    owner.add("e2", "a/+", "a/b")
    owner.add("s1", "a/#", partition=9)
    owner.add("s1", "x", partition=4)
    assert owner.answer("e1", "a/b") == Destinations(["e2"], [9], [])
    assert owner.answer("e1", "x") == Destinations([], [4], [])
    assert owner.answer("e1", "y") == Destinations()
    assert owner.shard.routes == 4


def test_add_routes_without_cached_topics_is_answered_at_once() -> None:
    """PROTOCOL 7.1: there is no edge to wait for."""
    owner = Owner().ready()
    owner.answer("e1", "other")
    assert owner.add("e2", "a/b") in owner.added()


def test_add_routes_waits_for_every_edge_that_cached_a_matching_topic() -> None:
    """SUBACK means subscribed at every edge: both edges must have dropped their answers."""
    owner = Owner().ready()
    owner.answer("e1", "a/b")
    owner.answer("e2", "a/b")
    request = owner.add("e2", "a/#")
    assert request not in owner.added()
    owner.acknowledge("e1")
    assert request not in owner.added()
    owner.acknowledge("e2")
    assert request in owner.added()


def test_add_routes_waits_for_an_invalidation_in_progress() -> None:
    """Two filters match one cached topic: for the second it is gone from the table, but not yet from the edge."""
    owner = Owner().ready()
    owner.answer("e1", "a/b")
    first, second = owner.add("e2", "a/b"), owner.add("s1", "a/+", partition=1)
    assert not {first, second} & set(owner.added())
    owner.acknowledge("e1")
    assert {first, second} <= set(owner.added())


def test_add_routes_waits_for_a_lazy_invalidation() -> None:
    """One caused by the table's bound or RemoveRoutes."""
    owner = Owner(bound=1).ready()
    owner.answer("e1", "a/b")
    owner.shard.now += YOUNG_S
    owner.answer("e1", "c")  # evicts a/b
    request = owner.add("e2", "a/b")
    assert request not in owner.added()
    owner.acknowledge()
    assert request in owner.added()
    owner = Owner().ready()
    owner.add("e2", "a/#")
    owner.answer("e1", "a/b")
    owner.remove("e2", "a/#", version=2)
    request = owner.add("e2", "a/b", version=3)
    assert request not in owner.added()
    owner.acknowledge()
    assert request in owner.added()


def test_repeated_filter_waits_for_the_first_invalidation() -> None:
    """A4: an existing registration is no reason to answer before its invalidation is acknowledged."""
    owner = Owner().ready()
    owner.answer("e1", "t")
    first = owner.add("e2", "t")
    again = owner.add("e2", "t", version=2)
    assert not {first, again} & set(owner.added())
    owner.acknowledge("e1")
    assert {first, again} <= set(owner.added())


def test_report_invalidates_answers_without_its_routes() -> None:
    """A4 (b): a new primary's report adds a filter that no shard had; AddRoutes of it must wait."""
    owner = Owner(partitions=[7])
    owner.report("s1", partition=7)
    owner.ready()
    assert owner.answer("e1", "t") == Destinations()
    owner.report("s2", "t", partition=7, epoch=2)
    request = owner.add("s2", "t", partition=7, epoch=2, version=2)
    assert request not in owner.added()
    owner.acknowledge("e1")
    assert request in owner.added()


def test_late_remove_does_not_undo_a_newer_add() -> None:
    """route_version orders the messages of one sender."""
    owner = Owner().ready()
    owner.add("e2", "t", version=5)
    owner.remove("e2", "t", version=4)
    assert owner.answer("e1", "t").edges == ["e2"]
    owner.remove("e2", "t", version=6)
    owner.acknowledge()
    assert owner.answer("e1", "t").edges == []


def test_messages_of_former_incarnations_and_epochs_are_dropped() -> None:
    """A newer incarnation replaces the former's routes only by its report."""
    owner = Owner().ready()
    owner.add("s1", "t", partition=2, epoch=4, version=9)
    owner.remove("s1", "t", partition=2, epoch=3, version=99)
    assert owner.answer("e1", "t").partitions == [2]
    owner.report("s2", "u", partition=2, epoch=5, version=1)
    owner.acknowledge()
    assert owner.answer("e1", "t").partitions == []
    assert owner.answer("e1", "u").partitions == [2]


def test_report_in_pieces_keeps_unchanged_routes() -> None:
    """Between two pieces every route of the sender is still answered."""
    owner = Owner().ready()
    owner.add("e2", "a", "b", "gone")
    owner.report("e2", "a", version=2, last=False)
    assert owner.answer("e1", "b").edges == ["e2"]
    owner.report("e2", "b", version=2, first=False)
    owner.acknowledge()
    assert owner.answer("e1", "b").edges == ["e2"]
    assert owner.answer("e1", "gone").edges == []


def test_new_owner_answers_after_all_edges_and_partitions_reported() -> None:
    """A2: counted per edge and per partition, including pending filters."""
    owner = Owner(partitions=[0, 1])
    owner.resolve("e1", "t")
    owner.report("e1")
    owner.report("e2", "t")
    owner.report("s1", partition=0)
    assert owner.shard.collecting
    assert owner.take() == []
    assert owner.shard.missing() == ["partition 1", "topics of e1", "topics of e2"]
    owner.report("s2", "t", partition=1, epoch=6)
    (answer,) = [message for _, message in owner.take() if isinstance(message, Resolved)]
    assert (answer.destinations, answer.answers) == ([Destinations(["e2"], [1], [])], [0])


def test_new_owner_acknowledges_after_registrations_were_received() -> None:
    """A3: the report contains the filter, but an edge uses its cached answer until it receives the new one."""
    owner = Owner()
    owner.report("e1")
    owner.report("e2", "t")
    request = owner.add("e2", "t", version=2)
    owner.resolve("e2", kept=True)
    owner.acknowledge("e2")
    owner.resolve("e1", "t", kept=True)
    sent = [type(message) for node, message in owner.take() if node == "e1"]
    assert sent == [
        Resolved,
        Invalidate,
    ]  # in this order on one link: the acknowledgement proves that the answer was received
    assert request not in owner.added()
    owner.acknowledge("e1")
    assert request in owner.added()


def test_repeated_registration_replaces_the_former() -> None:
    """Only the last answer is used: while reports are missing, one registration per edge is stored."""
    owner = Owner(edges=["e1"], partitions=[0])
    owner.resolve("e1", "t", kept=True)
    owner.resolve("e1", "t", kept=True)
    owner.report("e1")
    owner.report("s1", partition=0)
    assert [message.request for _, message in owner.take() if isinstance(message, Resolved)] == [2]


def test_dead_edge_is_not_waited_for() -> None:
    """Its routes are removed, its cached answers and missing report are ignored."""
    owner = Owner(edges=["e1", "e2", "e3"])
    owner.report("e1")
    owner.report("e2")
    owner.resolve("e1", "t", kept=True)
    owner.resolve("e2", "t", kept=True)
    owner.acknowledge()
    owner.shard.edge_dead("e3")
    owner.acknowledge()
    first = owner.add("e1", "t")
    owner.acknowledge("e1")
    assert first not in owner.added()
    owner.shard.edge_dead("e2")
    assert first in owner.added()
    owner.answer("e1", "u")
    owner.shard.edge_dead("e1")
    while owner.shard.has_slices:
        owner.shard.run_slice(10)
    assert owner.shard.routes == 0
    assert owner.add("s1", "u", partition=1) in owner.added()  # the edge's death removed its cached answer


def test_restarted_edge_counts_as_another_incarnation() -> None:
    """Topics that the former incarnation cached are ignored."""
    owner = Owner(edges=["e1"]).ready("e1")
    owner.answer("e1", "t")
    owner.shard.edge_dead("e1")
    owner.answer("e1", "u")
    assert owner.add("s1", "t", partition=1) in owner.added()
    assert owner.add("s1", "u", partition=1, version=2) not in owner.added()


def test_bits_of_ended_edge_incarnations_are_reused() -> None:
    """Two hundred restarts: holders are still distinguished."""
    owner = Owner(edges=["e1"]).ready("e1")
    owner.answer("e1", "t")
    for number in range(200):
        owner.answer(f"x{number}", f"topic/{number}")
        owner.shard.edge_dead(f"x{number}")
    owner.answer("e2", "t")
    request = owner.add("s1", "t", "topic/#", partition=1)
    owner.take()
    assert {node for node, message in owner.sent if isinstance(message, Invalidate)} == {"e1", "e2"}
    owner.acknowledge()
    assert request in owner.added()


def test_shared_groups_name_destinations_with_members() -> None:
    """A new destination invalidates; a changed member count does not."""
    owner = Owner().ready()
    owner.add("e1", "t", share="g", members=1)
    owner.add("s1", "t", share="g", members=2, partition=5)
    (group,) = owner.answer("e2", "t").groups
    assert (group.share, group.edges, group.partitions) == ("g/t", [("e1", 1)], [(5, 2)])
    recounted = owner.add("e1", "t", share="g", members=4, version=2)
    assert recounted in owner.added()
    destination = owner.add("e2", "t", share="g", members=1)
    assert destination not in owner.added()
    owner.acknowledge()
    assert [group.edges for group in owner.answer("e2", "t").groups] == [[("e1", 4), ("e2", 1)]]


def test_table_of_cached_topics_is_bounded() -> None:
    """Beyond the bound the oldest are invalidated at their edges."""
    owner = Owner(bound=2).ready()
    for topic in "abcd":
        owner.shard.now += YOUNG_S
        owner.resolve("e1", topic)
    assert owner.shard.cached_topics == 2
    assert owner.dropped() == [["a"], ["b"]]


def test_young_answer_is_not_evicted() -> None:
    """Otherwise an edge with more topics than the table would receive only void answers."""
    owner = Owner(bound=2).ready()
    for topic in "abcd":
        owner.resolve("e1", topic)
    assert (owner.shard.cached_topics, owner.dropped()) == (4, [])
    owner.shard.now += YOUNG_S
    owner.resolve("e1", "e")
    assert (owner.shard.cached_topics, owner.dropped()) == (2, [["a", "b", "c"]])


def test_young_answers_are_bounded() -> None:
    """For any number of topics requested within a second."""
    owner = Owner(bound=10).ready()
    topics = [f"t/{number}" for number in range(YOUNG_MAX + 1_000)]
    for begin in range(0, len(topics), 200):
        owner.resolve("e1", *topics[begin : begin + 200])
    for question in range(10):  # longer than those of edges
        owner.resolve("e1", *(f"long/{question}/{number}" for number in range(5_000)))
    assert owner.shard.cached_topics <= 10 + YOUNG_MAX
    owner.take()
    owner.shard.now += YOUNG_S
    owner.resolve("e1", "last")
    assert [len(names) for names in owner.dropped()] == [FORGOTTEN_AT_ONCE]


def test_unanswered_invalidation_is_repeated_and_reported() -> None:
    """A full link may have refused it; after two leases the edge is reported."""
    owner = Owner().ready()
    owner.answer("e1", "t")
    owner.shard.now = 10.0
    owner.add("e2", "t")
    owner.take()
    owner.shard.tick(10.5)
    assert owner.take() == []
    owner.shard.tick(11.5)
    assert [node for node, message in owner.take() if isinstance(message, Invalidate)] == ["e1"]
    assert owner.shard.find_unanswered(13.0, 4.0) == (set(), set())
    assert owner.shard.find_unanswered(14.5, 4.0) == ({"e1"}, set())
