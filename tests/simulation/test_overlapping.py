"""Overlapping subscriptions of one session: ephemeral and stored sessions get the same copies, with either setting."""

from typing import NamedTuple

import pytest

from edge.node.limits import EdgeLimits
from tests.clients.packets import ack, publish, subscribe
from tests.simulation.cluster import Cluster, Knobs
from tests.simulation.raw_client import RawClient

NO_LOCAL, AS_PUBLISHED, NO_RETAINED = 4, 8, 0x20  # options of SUBSCRIBE
PUBREL = 0x62


class Wish(NamedTuple):
    """One subscription."""

    topic_filter: str  # {} is the case's own topic
    options: int
    identifier: int = 0


class Case(NamedTuple):
    """Subscriptions, one message, and the expected copies; each copy once if identifiers have no leading space."""

    wishes: tuple[Wish, ...]
    copies: tuple[str, ...]
    merged: tuple[str, ...]
    retain: bool = False
    own: bool = False  # the session publishes it itself
    version: int = 5


TWO = (Wish("{}/#", 0, 1), Wish("{}/+", 1, 2))
MIXED = (Wish("{}/#", 2 | NO_LOCAL, 1), Wish("{}/+", 1, 1))
CASES = {
    "two identifiers": Case(TWO, ("q0 #1", "q1 #2"), ("q1 #1 #2",)),
    "QoS 2 and 1": Case((Wish("{}/#", 2, 1), Wish("{}/a", 1, 2)), ("q2 #1", "q1 #2"), ("q2 #1 #2",)),
    "one identifier twice": Case((Wish("{}/#", 0, 5), Wish("{}/a", 1, 5)), ("q1 #5",), ("q1 #5 #5",)),
    "no identifiers": Case((Wish("{}/#", 0), Wish("{}/+", 2), Wish("{}/a", 1)), ("q2",), ("q2",)),
    "with and without": Case((Wish("{}/#", 1), Wish("{}/+", 0, 3), Wish("{}/a", 2)), ("q2", "q0 #3"), ("q2 #3",)),
    "MQTT 3.1.1": Case((Wish("{}/#", 0), Wish("{}/+", 1)), ("q1",), ("q1",), version=4),
    "Retain As Published of one": Case(
        (Wish("{}/#", 1 | AS_PUBLISHED | NO_RETAINED, 1), Wish("{}/+", 1 | NO_RETAINED, 2)),
        ("q1 retain #1", "q1 #2"),
        ("q1 retain #1 #2",),
        retain=True,
    ),
    "No Local of one, its own message": Case(
        (Wish("{}/#", 2 | NO_LOCAL, 1), Wish("{}/+", 1, 2)), ("q1 #2",), ("q1 #2",), own=True
    ),
    "No Local of one, of another": Case(
        (Wish("{}/#", 2 | NO_LOCAL, 1), Wish("{}/+", 1, 2)), ("q2 #1", "q1 #2"), ("q2 #1 #2",)
    ),
    "No Local of a part, its own message": Case(MIXED, ("q1 #1",), ("q1 #1",), own=True),
    "No Local of a part, of another": Case(MIXED, ("q2 #1",), ("q2 #1 #1",)),
    "No Local of all, its own message": Case(
        (Wish("{}/#", 2 | NO_LOCAL, 1), Wish("{}/+", 1 | NO_LOCAL, 2)), (), (), own=True
    ),
    "a shared one beside": Case(
        (Wish("$share/g/{}/#", 1, 1), Wish("{}/+", 0, 2)), ("q0 #2", "q1 #1"), ("q0 #2", "q1 #1")
    ),
}  # fmt: skip


def cluster_with(overlapping: str) -> Cluster:
    made = Cluster(
        f"overlapping {overlapping}", Knobs(edges=2, edge=EdgeLimits(sys_interval_s=0, overlapping=overlapping))
    )
    made.start_all()
    return made


@pytest.fixture(scope="module")
def copies() -> Cluster:
    return cluster_with("copies")


@pytest.fixture(scope="module")
def merged() -> Cluster:
    return cluster_with("merged")


class Played:
    """The session of a case, and the publishing client."""

    def __init__(self, cluster: Cluster, name: str, case: Case, *, stored: bool) -> None:
        self.topic = name
        self.client = RawClient(cluster, f"{name}-c", case.version, stored=stored)
        self.other = RawClient(cluster, f"{name}-o", 5)
        for wish in case.wishes:
            wanted = wish.topic_filter.format(name).encode()
            came = self.client.say(subscribe(wanted, wish.options, case.version, wish.identifier))
            assert came == [f"SUBACK {wish.options & 3:#04x}"]

    def publish(self, payload: bytes, qos: int = 2, *, retain: bool = False, own: bool = False) -> list[str]:
        """Publish to the topic; return the received copies."""
        sender = self.client if own else self.other
        packet = publish(f"{self.topic}/a".encode(), payload, qos, 9, sender.version, retain=retain)
        came = sender.say(packet + ack(PUBREL, 9) if qos == 2 else packet)
        return copies_in(came if own else self.client.read(), payload)


def copies_in(came: list[str], payload: bytes) -> list[str]:
    return [
        text.removeprefix("PUBLISH ").replace(f" {payload.decode()}", "") for text in came if text.startswith("PUBLISH")
    ]


@pytest.mark.parametrize("stored", [False, True], ids=["ephemeral", "stored"])
@pytest.mark.parametrize("setting", ["copies", "merged"])
@pytest.mark.parametrize("name", CASES)
def test_copies_of_one_message(copies: Cluster, merged: Cluster, name: str, setting: str, stored: bool) -> None:
    case = CASES[name]
    cluster, wanted = (copies, case.copies) if setting == "copies" else (merged, case.merged)
    played = Played(cluster, f"t{list(CASES).index(name)}{int(stored)}", case, stored=stored)
    came = played.publish(b"m", retain=case.retain, own=case.own)
    # the order of identifiers in a merged copy is undefined
    assert sorted(sorted(text.split()) for text in came) == sorted(sorted(text.split()) for text in wanted)


@pytest.mark.parametrize("edge", ["e1", "e2"])
def test_stored_session_gets_its_copies_later(copies: Cluster, edge: str) -> None:
    """Queued during its absence, and delivered on the next connection."""
    played = Played(copies, f"later-{edge}", Case(TWO, (), ()), stored=True)
    played.client.drop()
    played.publish(b"m")
    came = copies_in(played.client.open(edge=edge), b"m")
    assert came == ["q1 #2"]  # QoS 0 is not queued for an absent client
    played.client.drop()
    assert copies_in(played.client.open(edge=edge), b"m") == ["q1 dup #2"]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("stored", [False, True], ids=["ephemeral", "stored"])
def test_copies_of_a_message_precede_the_next_message(copies: Cluster, qos: int, stored: bool) -> None:
    """[MQTT-4.6.0-6]: also where the edge reads many messages at once."""
    played = Played(
        copies, f"run{qos}{int(stored)}", Case((Wish("{}/#", 1, 1), Wish("{}/+", 1, 2)), (), ()), stored=stored
    )
    topic = f"{played.topic}/a".encode()
    played.other.say(*[publish(topic, b"%d" % at, qos, at + 1, 5) for at in range(9)])
    came = [text.split(" ", 2)[2] for text in played.client.read()]
    assert came == [f"{at} #{identifier}" for at in range(9) for identifier in (1, 2)]


@pytest.mark.parametrize("stored", [False, True], ids=["ephemeral", "stored"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["wildcard first", "name first"])
def test_retained_copy_belongs_to_its_subscription(copies: Cluster, order: tuple[int, int], stored: bool) -> None:
    """Each subscription gets the retained message with its identifier, and the following live one."""
    wishes = {1: Wish("{}/#", 1, 1), 2: Wish("{}/a", 1, 2)}
    played = Played(copies, f"kept{order[0]}{int(stored)}", Case((), (), ()), stored=stored)
    assert played.publish(b"old", 1, retain=True) == []
    for number in order:
        came = played.client.say(subscribe(wishes[number].topic_filter.format(played.topic).encode(), 1, 5, number))
        assert copies_in(came, b"old") == [f"q1 retain #{number}"]
    assert sorted(played.publish(b"new", 1, retain=True)) == ["q1 #1", "q1 #2"]
