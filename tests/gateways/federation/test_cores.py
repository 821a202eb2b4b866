"""Tests rules of single cores: hulls of filters, reordering, the id window, QoS 0 and captures on two connections."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from gateways.federation.agent_context import AgentContext
from gateways.federation.capture import Capture
from gateways.federation.events import (
    AckHost,
    AgentSettings,
    Captured,
    FederationLinkDown,
    FederationLinkUp,
    Inject,
    MarkerSeen,
    NeighbourFrame,
    Recapture,
    Send,
)
from gateways.federation.filters import DisjointHulls, hull, overlaps
from gateways.federation.messages import CustodyAck, Federate, Topic, TopicCores, TopicMessage, decode, encode
from gateways.spool_rows import Put
from mqtt.properties import PropertyId
from mqtt.topics import matches
from tests.fuzz.federation_target import topic_message
from tests.gateways.federation.graphs import core_of, line, subscribe
from tests.gateways.federation.test_hostile import WALL_MS, AgentRig

LEVELS = ("a", "b", "+", "")


def random_filter(random: Random) -> str:
    found = [random.choice(LEVELS) for _ in range(random.randrange(1, 4))]
    if random.random() < 0.3:
        found[-1] = "#"
    return "/".join(found) or "a"


def topics(depth: int = 3) -> list[str]:
    """Return all topics of the small alphabet."""
    found = ["a", "b", "", "c"]
    whole = list(found)
    for _ in range(depth):
        found = [f"{topic}/{level}" for topic in found for level in ("a", "b", "", "c")]
        whole += found
    return [topic for topic in whole if topic]


TOPICS = topics()


def test_overlap_is_what_some_topic_matches() -> None:
    """Compared with the reference matcher, over all topics of a small alphabet."""
    random = Random(1)
    for _ in range(400):
        one, other = random_filter(random), random_filter(random)
        both = any(matches(one, topic) and matches(other, topic) for topic in TOPICS)
        is_empty_topic = "" in (one, other)  # no topic is empty
        assert overlaps(one, other) is both or is_empty_topic, (one, other)


def test_a_hull_matches_all_of_both() -> None:
    """It may match more."""
    random = Random(2)
    for _ in range(400):
        one, other = random_filter(random), random_filter(random)
        if overlaps(one, other):
            wide = hull(one, other)
            assert all(matches(wide, topic) for topic in TOPICS if matches(one, topic) or matches(other, topic))


@pytest.mark.parametrize("seed", range(40))
def test_hulls_are_disjoint_and_match_everything(seed: int) -> None:
    """The arrival order of filters has no effect."""
    random = Random(seed)
    filters = [random_filter(random) for _ in range(random.randrange(1, 9))]
    hulls = DisjointHulls(filters).filters
    assert not [pair for pair in combinations(hulls, 2) if overlaps(*pair)]
    for topic in TOPICS:
        if any(matches(each, topic) for each in filters):
            assert sum(matches(each, topic) for each in hulls) == 1, (filters, hulls, topic)


def injected(*steps: object) -> list[bytes]:
    return [effect.payload for step in steps for effect in step.effects if isinstance(effect, Inject)]  # type: ignore[attr-defined]


def test_an_early_message_waits_for_the_one_before_it() -> None:
    """It waits up to 200 ms, over any pair of paths."""
    rig = AgentRig()
    early = rig.receive("y", topic_message(number=2, after=1, payload=b"second", path=("b", "y")))
    assert injected(early) == []
    assert injected(rig.receive("b", topic_message(payload=b"first"))) == [b"first", b"second"]


def test_an_early_message_waits_200_ms_at_most() -> None:
    """The previous message may never arrive, since another agent was its destination."""
    rig = AgentRig()
    step = rig.receive("b", topic_message(number=2, after=1))
    assert injected(step) == []
    assert step.deadline <= rig.now + 0.2
    rig.now += 0.19
    assert injected(rig.handle()) == [b"21"]
    assert rig.agent.counts["early_given_up"] == 1


def test_an_early_message_outlives_the_process() -> None:
    """It was stored before it could be delivered."""
    rig = AgentRig()
    step = rig.receive("b", topic_message(number=2, after=1))
    assert [decode(each.data) for each in step.effects if isinstance(each, Send)][-1] == CustodyAck(1)
    rig.start()
    assert injected(rig.handle()) or rig.agent.rows.stored == {} or rig.agent.counts["injected"] == 1


def test_a_message_older_than_the_window_says_that_it_may_be_a_repeat() -> None:
    """A user property marks it; a younger message has none."""
    rig = AgentRig(dedup_s=60.0)
    for number, age_ms, is_marked in ((1, 59_000, False), (2, 61_000, True)):
        step = rig.receive("b", topic_message(number=number, custody=number, age_ms=age_ms))
        (effect,) = [each for each in step.effects if isinstance(each, Inject)]
        pairs = effect.properties[PropertyId.USER_PROPERTY]
        assert isinstance(pairs, list)
        assert (("federation-possible-duplicate", "1") in pairs) is is_marked


def test_ids_above_the_bound_make_later_repeats_say_so() -> None:
    """An id that was dropped too early cannot be checked."""
    rig = AgentRig(dedup_ids_max=2)
    for number in range(1, 5):
        rig.receive("b", topic_message(number=number, custody=number))
    rig.now += 10.0
    rig.handle()
    assert rig.agent.counts["ids_over_bound"] == 2
    step = rig.receive("b", topic_message(number=1, custody=5, age_ms=10_100))
    (effect,) = [each for each in step.effects if isinstance(each, Inject)]
    assert ("federation-possible-duplicate", "1") in effect.properties[PropertyId.USER_PROPERTY]  # type: ignore[operator]


def test_qos_0_is_sent_and_never_kept() -> None:
    """No row, no id on disk and no custody acknowledgement."""
    rig = AgentRig()
    ready = rig.receive("b", topic_message(qos=0, custody=0, to=("m", "y")))
    assert ready.writes == []
    sent = [decode(each.data) for each in ready.effects if isinstance(each, Send)]
    assert [each.to for each in sent if isinstance(each, TopicMessage)] == [("y",)]
    assert injected(ready) == [b"21"]


def test_an_agent_counts_echoes_of_a_broker_without_no_local() -> None:
    """A delivered message that returns is not sent again."""
    simulation = line(3, has_no_local=False)
    for name in ("n1", "n2", "n3"):
        subscribe(simulation, name, "a/#")
    simulation.run(4.0)
    sent = [simulation.publish(name, "a/b") for name in ("n1", "n2", "n3") for _ in range(5)]
    simulation.run(5.0)
    for name in ("n1", "n2", "n3"):
        assert simulation.delivered(name, "s") == dict.fromkeys(sent, 1)
        assert core_of(simulation, name).counts["echo"] == 10
        assert core_of(simulation, name).counts["foreign_loop"] == 0


def test_two_connections_separate_copies_without_identifiers() -> None:
    """With MQTT 3.1.1 the new set has its own connection, and the marker returns on both."""
    parts = AgentContext(AgentSettings("f", "m", has_identifiers=False), 0.0, 0, Random(1))
    capture = Capture(parts)

    def effects() -> list[Recapture]:
        found = [each for each in parts.ready.effects if isinstance(each, Recapture)]
        parts.ready.effects.clear()
        return found

    capture.set_wanted(0.0, ["a/b"])
    capture.host_up(False)
    (first,) = effects()
    assert capture.marker_seen(0, first.marker, 0)
    capture.tick(0.0)
    (second,) = effects()
    (connection,) = {each.connection for each in second.subscribe if each.filter == "a/b"}
    assert capture.marker_seen(0, second.marker, connection)
    capture.set_wanted(1.0, ["a/b", "a/+"])
    capture.tick(1.0)
    (change,) = [each for each in effects() if each.subscribe]
    (newer,) = {each.connection for each in change.subscribe if each.filter == "a/+"}
    assert newer == 1 - connection
    assert capture.is_counted("a/b", (), connection)
    assert not capture.is_counted("a/b", (), newer)
    assert capture.is_counted("a/c", (), newer)
    assert not capture.marker_seen(0, change.marker, newer)
    assert capture.is_counted("a/b", (), newer)
    assert capture.is_counted("a/b", (), connection), "the old connection's marker has not come"
    again = Capture(parts)
    rows = {each.key: each.value for each in parts.ready.writes if isinstance(each, Put)}
    again.restore(rows.items())
    assert again.is_counted("a/b", (), newer) and again.is_counted("a/b", (), connection), (
        "a later process knows the same"
    )
    assert capture.marker_seen(0, change.marker, connection)
    assert not capture.is_counted("a/b", (), connection)
    assert effects()[0].unsubscribe == (("a/b", connection),)


def test_a_marker_is_acknowledged() -> None:
    """It would otherwise fill the broker's window."""
    rig = AgentRig()
    assert AckHost(77) in rig.handle(MarkerSeen(77, 12345)).effects


def test_a_returning_message_is_stored_again() -> None:
    """A neighbour's acknowledgement may refer to a copy that it has sent back meanwhile."""
    rig = AgentRig()
    rig.receive("y", Federate("y", 9, 5, 2, 0, 1, (), ("m", "z")), Federate("z", 11, 5, 2, 1, 1, (), ("y",)))
    sent = rig.receive("b", topic_message(to=("z",)))
    assert [each.neighbour for each in sent.effects if isinstance(each, Send) and b"a/b" in each.data] == ["y"]
    rig.receive("y", topic_message(to=("z",), path=("b", "m", "y")))
    rig.receive("y", CustodyAck(1))
    (stored,) = rig.agent.rows.stored.values()
    assert "z" in stored.owed
    rig.now += 0.5
    again = rig.handle()
    assert [each.neighbour for each in again.effects if isinstance(each, Send) and b"a/b" in each.data] == ["y"]
    rig.receive("y", CustodyAck(2))
    assert not rig.agent.rows.stored


def test_custody_of_a_message_is_acknowledged_over_the_next_link() -> None:
    """Both happened in one step, so the acknowledgement is sent over the next link, which resumes the frames."""
    rig = AgentRig()
    told = rig.handle(NeighbourFrame("b", encode(topic_message())), FederationLinkDown("b"))
    assert not [each for each in told.effects if isinstance(each, Send) and each.neighbour == "b"]
    again = rig.handle(FederationLinkUp("b", 5, True, rig.policy, 1))
    assert CustodyAck(1) in [
        decode(each.data) for each in again.effects if isinstance(each, Send) and each.neighbour == "b"
    ]


def test_an_announcement_from_before_the_end_is_stale() -> None:
    """It may have waited in a link that was cut; forwarded, it would circulate without end."""
    rig = AgentRig()
    rig.receive("b", TopicCores("b", 5, 0, (Topic("k", 3, 0, ("b",)),)))
    rig.receive("b", TopicCores("b", 5, 0, (Topic("k", 4, 0, (), is_ended=True),)))
    late = rig.receive("y", TopicCores("b", 5, 1, (Topic("k", 3, 0, ("b",)),)))
    assert "k" not in rig.agent.election.topics
    assert not [each for each in late.effects if isinstance(each, Send) and isinstance(decode(each.data), TopicCores)]


def test_a_retained_message_of_qos_0_does_not_replace_a_clients_newer_one() -> None:
    """It was sent before the client's was captured. The order at the broker is unknown, so the newer is sent again."""
    rig = AgentRig()
    rig.set_interests("a/b")
    old = topic_message(qos=0, custody=0, is_retained=True, stamp=1, payload=b"old")
    assert [each for each in rig.receive("b", old).effects if isinstance(each, Inject)]
    mine = Captured(7, "a/b", b"new", 1, True, {}, (rig.identifiers["a/b"],))
    again = [each for each in rig.handle(mine).effects if isinstance(each, Inject)]
    assert [(each.payload, each.is_retained) for each in again] == [(b"new", True)]
    rig.now += 60.0
    later = Captured(8, "a/b", b"later", 1, True, {}, (rig.identifiers["a/b"],))
    assert not [each for each in rig.handle(later).effects if isinstance(each, Inject)]


def test_a_deletion_is_remembered_for_a_day() -> None:
    """An older value does not return. After that day no row is left, and an old deletion is ignored."""
    rig = AgentRig()
    rig.set_interests("a/b")
    rig.receive("b", topic_message(is_retained=True, stamp=WALL_MS + 5, payload=b""))
    rig.receive("b", topic_message(number=2, custody=2, is_retained=True, stamp=WALL_MS + 4, payload=b"old"))
    assert len(rig.agent.registers) == 1 and not rig.disk["register"][b"a/b"].endswith(b"old")
    rig.now += 86_400.0 - 60.0
    rig.handle()
    assert len(rig.agent.registers) == 1
    rig.now += 200.0
    rig.handle()
    assert not len(rig.agent.registers) and not rig.disk["register"]
    rig.receive("b", topic_message(number=3, custody=3, is_retained=True, stamp=WALL_MS + 5, payload=b""))
    assert not len(rig.agent.registers)


def test_a_deletion_from_a_clock_that_is_years_behind_deletes() -> None:
    """The current value came from that clock as well."""
    rig = AgentRig()
    rig.receive("b", topic_message(is_retained=True, stamp=1_000, payload=b"value"))
    later = rig.receive("b", topic_message(number=2, custody=2, is_retained=True, stamp=1_001, payload=b""))
    assert [(each.payload, each.is_retained) for each in later.effects if isinstance(each, Inject)] == [(b"", True)]
    kept = rig.agent.registers.get("a/b")
    assert kept is None or not kept.payload


def test_a_message_makes_32_hops() -> None:
    """The 32nd agent delivers it to its own broker and does not forward it, which is counted."""
    rig = AgentRig()
    path = (*(f"h{number}" for number in range(31)), "b")
    ready = rig.receive("b", topic_message(to=("m", "y"), path=path))
    assert [each.topic for each in ready.effects if isinstance(each, Inject)] == ["a/b"]
    assert not [each for each in ready.effects if isinstance(each, Send) and each.neighbour == "y"]
    assert rig.agent.counts["hops"] == 1


def test_a_hull_is_wider_than_what_is_wanted() -> None:
    """Messages that match the hull but no interest are acknowledged, dropped and counted."""
    rig = AgentRig()
    rig.set_interests("a/+/x", "a/b/+")
    ((hull_of_both, identifier),) = [each for each in rig.identifiers.items() if each[0].startswith("a/")]
    assert hull_of_both == "a/+/+"
    ready = rig.handle(Captured(7, "a/c/y", b"", 2, False, {}, (identifier,)))
    assert AckHost(7) in ready.effects and not [each for each in ready.effects if isinstance(each, Send)]
    assert rig.agent.counts["captured_for_nothing"] == 1
