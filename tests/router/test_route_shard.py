"""One route shard: who is told what, and when AddRoutes is answered."""

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
    """A shard with edges that answer invalidations only when told to."""

    def __init__(self, edges: Sequence[str] = ("e1", "e2"), partitions: Sequence[int] = (), bound: int = 1000) -> None:
        self.shard = RouteShard(3, 7, edges, partitions, bound)
        self.request = 0
        self.sent: list[tuple[str, Control]] = []

    def ready(self, *edges: str) -> "Owner":
        """Let edges report nothing and register nothing."""
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
        """Edges acknowledge every invalidation that was sent to them and not acknowledged yet."""
        self.take()
        for node, message in list(self.sent):
            if isinstance(message, Invalidate) and (not edges or node in edges):
                self.sent.remove((node, message))
                self.shard.invalidated(node, Invalidated(message.number, 3, 7))

    def dropped(self) -> list[list[str]]:
        """Return the filters of each order that was sent since the last ``take``."""
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
    """Every delivery destination once, sorted, whatever filters of it match."""
    owner = Owner().ready()
    owner.add("e2", "a/+", "a/b")
    owner.add("s1", "a/#", partition=9)
    owner.add("s1", "x", partition=4)
    assert owner.answer("e1", "a/b") == Destinations(["e2"], [9], [])
    assert owner.answer("e1", "x") == Destinations([], [4], [])
    assert owner.answer("e1", "y") == Destinations()
    assert owner.shard.routes == 4


def test_add_routes_is_answered_when_nobody_caches_a_matching_topic() -> None:
    """PROTOCOL 7.1: nothing to wait for."""
    owner = Owner().ready()
    owner.answer("e1", "other")
    assert owner.add("e2", "a/b") in owner.added()


def test_add_routes_waits_for_every_edge_that_cached_a_matching_topic() -> None:
    """SUBACK means subscribed, everywhere: both edges must have dropped their answers."""
    owner = Owner().ready()
    owner.answer("e1", "a/b")
    owner.answer("e2", "a/b")
    request = owner.add("e2", "a/#")
    assert request not in owner.added()
    owner.acknowledge("e1")
    assert request not in owner.added()
    owner.acknowledge("e2")
    assert request in owner.added()


def test_an_answer_that_is_being_dropped_holds_up_others_too() -> None:
    """Two filters match one cached topic: the second finds it gone from the table, but not yet from the edge."""
    owner = Owner().ready()
    owner.answer("e1", "a/b")
    first, second = owner.add("e2", "a/b"), owner.add("s1", "a/+", partition=1)
    assert not {first, second} & set(owner.added())
    owner.acknowledge("e1")
    assert {first, second} <= set(owner.added())


def test_an_answer_that_is_evicted_or_unrouted_holds_up_add_routes() -> None:
    """A lazy invalidation (the table's bound, RemoveRoutes) is under way when a route is added."""
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


def test_the_same_filter_again_waits_for_the_first_one() -> None:
    """A4: "already registered" is no reason to be answered before its invalidation is acknowledged."""
    owner = Owner().ready()
    owner.answer("e1", "t")
    first = owner.add("e2", "t")
    again = owner.add("e2", "t", version=2)
    assert not {first, again} & set(owner.added())
    owner.acknowledge("e1")
    assert {first, again} <= set(owner.added())


def test_a_report_to_a_standing_owner_drops_answers_that_lack_it() -> None:
    """A4 (b): a new primary's report brings a filter that no shard had; AddRoutes of it must not be believed early."""
    owner = Owner(partitions=[7])
    owner.report("s1", partition=7)
    owner.ready()
    assert owner.answer("e1", "t") == Destinations()
    owner.report("s2", "t", partition=7, epoch=2)
    request = owner.add("s2", "t", partition=7, epoch=2, version=2)
    assert request not in owner.added()
    owner.acknowledge("e1")
    assert request in owner.added()


def test_a_late_remove_does_not_undo_a_newer_add() -> None:
    """route_version orders what one sender says."""
    owner = Owner().ready()
    owner.add("e2", "t", version=5)
    owner.remove("e2", "t", version=4)
    assert owner.answer("e1", "t").edges == ["e2"]
    owner.remove("e2", "t", version=6)
    owner.acknowledge()
    assert owner.answer("e1", "t").edges == []


def test_former_incarnations_and_partition_epochs_say_nothing() -> None:
    """What an older incarnation sends is dropped; a newer one voids the former by its report only."""
    owner = Owner().ready()
    owner.add("s1", "t", partition=2, epoch=4, version=9)
    owner.remove("s1", "t", partition=2, epoch=3, version=99)
    assert owner.answer("e1", "t").partitions == [2]
    owner.report("s2", "u", partition=2, epoch=5, version=1)
    owner.acknowledge()
    assert owner.answer("e1", "t").partitions == []
    assert owner.answer("e1", "u").partitions == [2]


def test_a_report_in_pieces_never_takes_away_what_stays() -> None:
    """Between two pieces every route of the sender is still answered."""
    owner = Owner().ready()
    owner.add("e2", "a", "b", "gone")
    owner.report("e2", "a", version=2, last=False)
    assert owner.answer("e1", "b").edges == ["e2"]
    owner.report("e2", "b", version=2, first=False)
    owner.acknowledge()
    assert owner.answer("e1", "b").edges == ["e2"]
    assert owner.answer("e1", "gone").edges == []


def test_a_new_owner_answers_when_every_edge_and_partition_was_reported() -> None:
    """A2: counted per edge and per partition, pending filters included."""
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


def test_a_new_owner_acknowledges_when_registrations_were_answered_and_taken() -> None:
    """A3: the filter is there already, by report; but an edge goes on with its kept answer until it takes ours."""
    owner = Owner()
    owner.report("e1")
    owner.report("e2", "t")
    request = owner.add("e2", "t", version=2)
    owner.resolve("e2", kept=True)
    owner.acknowledge("e2")
    owner.resolve("e1", "t", kept=True)
    sent = [type(message) for node, message in owner.take() if node == "e1"]
    assert sent == [Resolved, Invalidate]  # in this order on one link: what comes back was read behind the answer
    assert request not in owner.added()
    owner.acknowledge("e1")
    assert request in owner.added()


def test_a_repeated_registration_replaces_the_former() -> None:
    """Only the last answer will be taken: while reports are missing, one registration per edge is kept."""
    owner = Owner(edges=["e1"], partitions=[0])
    owner.resolve("e1", "t", kept=True)
    owner.resolve("e1", "t", kept=True)
    owner.report("e1")
    owner.report("s1", partition=0)
    assert [message.request for _, message in owner.take() if isinstance(message, Resolved)] == [2]


def test_a_dead_edge_is_waited_for_by_nobody() -> None:
    """Its routes go, its cached answers are no concern, its report is not missed."""
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
    while owner.shard.sweeps:
        owner.shard.go_on(10)
    assert owner.shard.routes == 0
    assert owner.add("s1", "u", partition=1) in owner.added()  # e1's cached answer ended with e1


def test_a_restarted_edge_counts_as_another_incarnation() -> None:
    """What the former incarnation cached does not matter, what the new one caches does."""
    owner = Owner(edges=["e1"]).ready("e1")
    owner.answer("e1", "t")
    owner.shard.edge_dead("e1")
    owner.answer("e1", "u")
    assert owner.add("s1", "t", partition=1) in owner.added()
    assert owner.add("s1", "u", partition=1, version=2) not in owner.added()


def test_many_incarnations_of_edges_take_their_bits_back() -> None:
    """Two hundred restarts: holders are still told apart."""
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


def test_the_table_of_cached_topics_is_bounded() -> None:
    """Past the bound the oldest are invalidated at their edges."""
    owner = Owner(bound=2).ready()
    for topic in "abcd":
        owner.shard.now += YOUNG_S
        owner.resolve("e1", topic)
    assert owner.shard.cached_topics == 2
    assert owner.dropped() == [["a"], ["b"]]


def test_an_answer_stays_until_its_edge_could_use_it() -> None:
    """Several topics under way for each place in the table: an answer that is void when it comes is asked for again."""
    owner = Owner(bound=2).ready()
    for topic in "abcd":
        owner.resolve("e1", topic)
    assert (owner.shard.cached_topics, owner.dropped()) == (4, [])
    owner.shard.now += YOUNG_S
    owner.resolve("e1", "e")
    assert (owner.shard.cached_topics, owner.dropped()) == (2, [["a", "b", "c"]])


def test_young_answers_have_a_bound_too() -> None:
    """However many topics are asked for within a second, and a question has but some dropped in one go."""
    owner = Owner(bound=10).ready()
    topics = [f"t/{number}" for number in range(YOUNG_MAX + 1_000)]
    for begin in range(0, len(topics), 200):
        owner.resolve("e1", *topics[begin : begin + 200])
    for question in range(10):  # longer than those of our edges
        owner.resolve("e1", *(f"long/{question}/{number}" for number in range(5_000)))
    assert owner.shard.cached_topics <= 10 + YOUNG_MAX
    owner.take()
    owner.shard.now += YOUNG_S
    owner.resolve("e1", "last")
    assert [len(names) for names in owner.dropped()] == [FORGOTTEN_AT_ONCE]


def test_an_unanswered_invalidation_is_repeated_and_reported() -> None:
    """A full link may have refused it; who waits longer than two leases says for whom."""
    owner = Owner().ready()
    owner.answer("e1", "t")
    owner.shard.now = 10.0
    owner.add("e2", "t")
    owner.take()
    owner.shard.tick(10.5)
    assert owner.take() == []
    owner.shard.tick(11.5)
    assert [node for node, message in owner.take() if isinstance(message, Invalidate)] == ["e1"]
    assert owner.shard.waited_for(13.0, 4.0) == (set(), set())
    assert owner.shard.waited_for(14.5, 4.0) == ({"e1"}, set())
