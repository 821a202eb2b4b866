"""Answers fit a frame for any subscriptions: topics in several answers, shared groups shortened."""

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
    """Return a shard in which every partition, and the edge e1, has these routes."""
    shard = RouteShard(0, 1, ["e1"], range(partitions), 1000)
    shard.report("e1", ReportRoutes(0, 1, [SenderReport(-1, 1, 1, routes)]))
    for number in range(partitions):
        shard.report("s1", ReportRoutes(0, 1, [SenderReport(number, 1, 1, routes)]))
    return shard


def resolve_topics(shard: RouteShard, topics: list[str]) -> Resolved:
    """Return the answer for e1, which must fit a frame."""
    shard.resolve("e1", Resolve(7, 0, 1, topics))
    (answer,) = [message for _, message in shard.take_sends() if isinstance(message, Resolved)]
    assert len(encode_control(answer)) < FRAME_BYTES_MAX
    return answer


def test_resolve_beyond_frame_size_is_answered_in_pieces() -> None:
    """Otherwise the edge would repeat its request forever."""
    shard = shard_with([RouteEntry("#")], PARTITIONS_MAX)
    left, pieces = TOPICS, 0
    while left:
        answer = resolve_topics(shard, left)
        assert all(item == Destinations(["e1"], list(range(PARTITIONS_MAX))) for item in answer.destinations)
        left, pieces = left[len(answer.answers) :], pieces + 1
        assert shard.cached_topics == len(TOPICS) - len(left)
    assert 10 < pieces <= len(TOPICS)


def test_resolve_of_few_destinations_is_answered_once() -> None:
    assert len(resolve_topics(shard_with([RouteEntry("#")], 256), TOPICS).answers) == len(TOPICS)


def test_long_share_names_do_not_block_the_answer_of_a_topic() -> None:
    """Regression: nine clients with 1 000 groups of long names each made every topic unanswerable."""
    long = [RouteEntry("#", f"{number:05}" + "x" * 1000, 1) for number in range(9000)]
    shard = shard_with([RouteEntry("#"), RouteEntry("#", "short", 5), *long], 1)
    (answer,) = resolve_topics(shard, ["t"]).destinations
    assert (answer.edges, answer.partitions) == (["e1"], [0])
    (short,) = [group for group in answer.groups if group.share == "short/#"]
    assert short == GroupDestinations("short/#", [("e1", 5)], [(0, 5)])
    assert 500 < len(answer.groups) < 9001 and shard.answers_shortened == 1
    assert len(encode_control(Resolved(1, 1, [answer], [0]))) <= ANSWER_BYTES + 100


def test_shortened_groups_keep_the_destinations_with_most_members() -> None:
    """One destination is enough to serve a group."""
    partitions = [(number, 77 if number == 8000 else 2) for number in range(8192)]
    groups = [GroupDestinations(f"g{number}/#", [], partitions) for number in range(60)]
    answer = shortened(Destinations([], [], groups))
    assert [group.share for group in answer.groups] == sorted(group.share for group in groups)
    assert all((8000, 77) in group.partitions and 1000 < len(group.partitions) < 8192 for group in answer.groups)
    assert len(encode_control(Resolved(1, 1, [answer], [0]))) <= ANSWER_BYTES


def test_only_answered_topics_are_recorded_as_cached() -> None:
    """Topics beyond the answer need no invalidation."""
    shard = shard_with([RouteEntry("#")], PARTITIONS_MAX)
    shard.resolve("e1", Resolve(1, 0, 1, [], kept=True))
    orders = [message for _, message in shard.take_sends() if isinstance(message, Invalidate)]
    for order in orders:
        shard.invalidated("e1", Invalidated(order.number, 0, 1))
    count = len(resolve_topics(shard, TOPICS).answers)
    assert shard.cached_topics == count < len(TOPICS)
