"""Answers fit into a frame, whatever is subscribed: topics in pieces, one topic's shared groups shortened."""

from router.routes.answers import ANSWER_BYTES, shortened
from router.routes.shard import RouteShard
from wire.messages.control import encode_control
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.ranges import PARTITIONS_MAX
from wire.messages.routes import (
    Destinations,
    GroupDestinations,
    Invalidate,
    Invalidated,
    ReportRoutes,
    Resolve,
    Resolved,
    RouteEntry,
    SenderReport,
)

TOPICS = [f"t/{number}" for number in range(200)]


def shard_with(routes: list[RouteEntry], partitions: int) -> RouteShard:
    """Return a shard where every partition, and the edge e1, has these routes."""
    shard = RouteShard(0, 1, ["e1"], range(partitions), 1000)
    shard.report("e1", ReportRoutes(0, 1, [SenderReport(-1, 1, 1, routes)]))
    for number in range(partitions):
        shard.report("s1", ReportRoutes(0, 1, [SenderReport(number, 1, 1, routes)]))
    return shard


def asked(shard: RouteShard, topics: list[str]) -> Resolved:
    """Return the answer that e1 gets, which must fit into a frame."""
    shard.resolve("e1", Resolve(7, 0, 1, topics))
    (answer,) = [message for _, message in shard.take_sends() if isinstance(message, Resolved)]
    assert len(encode_control(answer)) < FRAME_BYTES_MAX
    return answer


def test_topics_that_fit_no_frame_are_answered_in_pieces() -> None:
    """The router refused to send the answer, and the edge asked for ever."""
    shard = shard_with([RouteEntry("#")], PARTITIONS_MAX)
    left, pieces = TOPICS, 0
    while left:
        answer = asked(shard, left)
        assert all(item == Destinations(["e1"], list(range(PARTITIONS_MAX))) for item in answer.destinations)
        left, pieces = left[len(answer.answers) :], pieces + 1
        assert shard.cached_topics == len(TOPICS) - len(left)
    assert 10 < pieces <= len(TOPICS)


def test_few_destinations_are_answered_at_once() -> None:
    """As before: a question of an ordinary cluster has one answer."""
    assert len(asked(shard_with([RouteEntry("#")], 256), TOPICS).answers) == len(TOPICS)


def test_long_names_of_groups_cannot_keep_a_topic_from_its_answer() -> None:
    """Nine clients with 1 000 groups of long names each made every topic of everybody unanswerable."""
    long = [RouteEntry("#", f"{number:05}" + "x" * 1000, 1) for number in range(9000)]
    shard = shard_with([RouteEntry("#"), RouteEntry("#", "short", 5), *long], 1)
    (answer,) = asked(shard, ["t"]).destinations
    assert (answer.edges, answer.partitions) == (["e1"], [0])
    (short,) = [group for group in answer.groups if group.share == "short/#"]
    assert short == GroupDestinations("short/#", [("e1", 5)], [(0, 5)])
    assert 500 < len(answer.groups) < 9001 and shard.answers_shortened == 1
    assert len(encode_control(Resolved(1, 1, [answer], [0]))) <= ANSWER_BYTES + 100


def test_groups_at_many_partitions_share_the_room() -> None:
    """Each keeps where most of its members are: one destination is enough for it to be served."""
    partitions = [(number, 77 if number == 8000 else 2) for number in range(8192)]
    groups = [GroupDestinations(f"g{number}/#", [], partitions) for number in range(60)]
    answer = shortened(Destinations([], [], groups))
    assert [group.share for group in answer.groups] == sorted(group.share for group in groups)
    assert all((8000, 77) in group.partitions and 1000 < len(group.partitions) < 8192 for group in answer.groups)
    assert len(encode_control(Resolved(1, 1, [answer], [0]))) <= ANSWER_BYTES


def test_only_what_was_answered_is_held_for_the_edge() -> None:
    """What the edge has to ask for again needs no invalidation."""
    shard = shard_with([RouteEntry("#")], PARTITIONS_MAX)
    shard.resolve("e1", Resolve(1, 0, 1, [], kept=True))
    orders = [message for _, message in shard.take_sends() if isinstance(message, Invalidate)]
    for order in orders:
        shard.invalidated("e1", Invalidated(order.number, 0, 1))
    count = len(asked(shard, TOPICS).answers)
    assert shard.cached_topics == count < len(TOPICS)
