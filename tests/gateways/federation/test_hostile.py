"""Tests bad input of federations; each is refused or dropped with a counted reason and never raises."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from gateways.federation.agent import Agent
from gateways.federation.events import (
    AckHost,
    AgentSettings,
    Captured,
    CloseLink,
    Event,
    FederationLinkUp,
    FederationReady,
    HoldLink,
    HostAcked,
    HostUp,
    Inject,
    InterestChanged,
    MarkerSeen,
    NeighbourFrame,
    NeighbourPolicy,
    Recapture,
    Send,
    SpoolMismatch,
)
from gateways.federation.messages import (
    MESSAGE_BYTES_MAX,
    CoreAnnouncement,
    CustodyAck,
    Federate,
    HelloBack,
    MalformedFederationMessage,
    Message,
    NeighbourHello,
    SubscriptionRequest,
    Topic,
    TopicCores,
    TopicMessage,
    TopicSubscribe,
    decode,
    encode,
)
from gateways.spool_rows import Put
from mqtt.properties import PropertyId
from tests.fuzz.federation_target import GOOD, topic_message

WALL_MS = 1_700_000_000_000
pack = msgspec.msgpack.encode


class AgentRig:
    """An agent "m" with the neighbours "b" and "y", and its disk."""

    def __init__(self, policy: NeighbourPolicy | None = None, wall_ms: int = WALL_MS, **settings: object) -> None:
        self.now = 100.0
        self.wall_ms = wall_ms
        self.settings = AgentSettings("f", "m", **settings)  # type: ignore[arg-type]
        self.disk: dict[str, dict[bytes, bytes]] = {}
        self.markers: list[int] = []
        self.identifiers: dict[str, int] = {}
        self.policy = policy or NeighbourPolicy()
        self.start()

    def start(self) -> None:
        rows = {kind: list(each.items()) for kind, each in self.disk.items()}
        self.agent = Agent(self.settings, rows, self.now, self.wall_ms, Random(1))
        links = [FederationLinkUp(name, 5, False, self.policy, 1) for name in ("b", "y")]
        self.handle(HostUp(False), InterestChanged({"a/+": 2}), *links)
        for name, seq in (("b", 1), ("y", 1)):
            self.receive(name, Federate(name, 7 + seq, 5, 1, 0, 1, (), ("m",)), HelloBack(1))

    def handle(self, *events: Event) -> FederationReady:
        self.now += 0.01
        ready = self.agent.handle(self.now, events)
        for write in ready.writes:
            if isinstance(write, Put):
                self.disk.setdefault(write.kind, {})[write.key] = write.value
            else:
                self.disk.get(write.kind, {}).pop(write.key, None)
        for effect in ready.effects:
            if isinstance(effect, Recapture) and effect.marker:
                self.markers.append(effect.marker)
                self.identifiers |= {each.filter: each.identifier for each in effect.subscribe}
        return ready

    def receive(self, name: str, *messages: Message) -> FederationReady:
        return self.handle(*(NeighbourFrame(name, encode(each)) for each in messages))

    def set_interests(self, *filters: str) -> None:
        """Make "b" the core of filters that others want."""
        topics = tuple(Topic(each, 1, 2, ("b",)) for each in filters)
        self.receive("b", TopicCores("b", 5, 0, topics))
        self.confirm_captures()

    def confirm_captures(self) -> None:
        """Return markers until the capture set is active."""
        while self.markers:
            self.handle(MarkerSeen(0, self.markers.pop(0)))


def closed(ready: FederationReady) -> list[str]:
    return [effect.reason for effect in ready.effects if isinstance(effect, CloseLink)]


UNREADABLE: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "unreadable"),
    ("unknown tag", pack(["xx", 1]), "unreadable"),
    ("a number as tag", pack([1, 1]), "unreadable"),
    ("a map", pack({"hl": 1}), "unreadable"),
    ("nested without end", b"\x91" * 100_000, "unreadable"),
    ("another version", encode(Federate("b", 7, 5, 2, 0, 2, (), ())), "version"),
    ("8 MiB", bytes(MESSAGE_BYTES_MAX + 1), "oversized"),
    ("distance 256", encode(Federate("z", 7, 5, 2, 256, 1, (), ())), "distance"),
    ("distance -1", encode(Federate("z", 7, 5, 2, -1, 1, (), ())), "distance"),
    ("a filter that is none", encode(TopicCores("b", 5, 0, (Topic("a/#/b", 1, 0, ()),))), "filter"),
    ("an empty filter", encode(TopicCores("b", 5, 0, (Topic("", 1, 0, ()),))), "filter"),
    (
        "a filter of $SYS",
        encode(TopicSubscribe("b", 5, 1, "m", 0, (SubscriptionRequest("$SYS/#", 0, True),))),
        "filter",
    ),
    ("a filter of 200 levels", encode(TopicCores("b", 5, 0, (Topic("a/" * 200, 1, 0, ()),))), "filter"),
    ("a topic with a wildcard", encode(topic_message(topic="a/+")), "topic"),
    ("a topic of $SYS", encode(topic_message(topic="$SYS/x")), "topic"),
    ("a number below the first", encode(topic_message(number=0)), "number"),
    ("an incarnation below the first", encode(topic_message(incarnation=0)), "number"),
    ("a number after itself", encode(topic_message(after=1)), "number"),
    ("QoS 3", encode(topic_message(qos=3)), "qos"),
    ("QoS 2 without custody", encode(topic_message(custody=0)), "custody"),
    ("33 hops", encode(topic_message(path=("x",) * 32 + ("b",))), "hops"),
    ("no hops", encode(topic_message(path=())), "hops"),
    ("65 counts", encode(Federate("z", 7, 5, 2, 1, 1, (), (), tuple((f"n{each}", 1) for each in range(65)))), "names"),
    ("a count of no name", encode(Federate("z", 7, 5, 2, 1, 1, (), (), (("", 1),))), "name"),
    ("a count below nothing", encode(Federate("z", 7, 5, 2, 1, 1, (), (), (("b", -1),))), "number"),
    ("to nobody", encode(topic_message(to=())), "names"),
    ("damaged properties", encode(topic_message(properties=b"\x03\xff\xff\xff")), "properties"),
    (
        "digests of another size",
        encode(TopicSubscribe("b", 5, 1, "m", 0, (SubscriptionRequest("a", 0, False, digests=b"1"),))),
        "digests",
    ),
    ("10 002 filters in a page", encode(TopicCores("b", 5, 0, (Topic("a", 1, 0, ()),) * 10_002)), "interests"),
]


def test_repeated_names_count_towards_the_limit() -> None:
    """A neighbour lists one agent a million times; its message is refused."""
    decode(encode(topic_message(to=("y",))))
    with pytest.raises(MalformedFederationMessage, match="names"):
        decode(encode(topic_message(to=("y",) * 4097)))


@pytest.mark.parametrize(("data", "reason"), [each[1:] for each in UNREADABLE], ids=[each[0] for each in UNREADABLE])
def test_undecodable_messages_close_the_link(data: bytes, reason: str) -> None:
    """It is counted by reason and leaves no state."""
    with pytest.raises(MalformedFederationMessage) as raised:
        decode(data)
    assert raised.value.reason == reason
    rig = AgentRig()
    assert closed(rig.handle(NeighbourFrame("b", data))) == [reason]
    assert rig.agent.counts[reason] == 1


@pytest.mark.parametrize("message", GOOD, ids=lambda each: str(type(each).__name__))
def test_valid_messages_round_trip(message: Message) -> None:
    """The samples of the fuzz targets are valid."""
    assert decode(encode(message)) == message


def test_an_agent_may_have_as_many_neighbours_as_there_may_be_agents() -> None:
    """A message listing more than 256 used to close the links of all readers."""
    word = Federate("b", 7, 5, 2, 0, 1, (), tuple(f"shop-{number}" for number in range(1_024)))
    assert decode(encode(word)) == word


@pytest.mark.parametrize("size", range(1, 40))
def test_cut_messages_are_refused(size: int) -> None:
    """No prefix of a message is valid."""
    for message in GOOD:
        data = encode(message)
        if size < len(data):
            with pytest.raises(MalformedFederationMessage):
                decode(data[:size])


RULES: list[tuple[str, str, Message, str, bool]] = [
    ("fd of another name, as a neighbour's own", "b", Federate("z", 9, 5, 2, 0, 1, (), ()), "identity", True),
    ("a core that is not the neighbour", "b", TopicCores("z", 5, 0, (Topic("a", 1, 0, ()),)), "identity", True),
    ("this agent's name", "b", Federate("m", 9, 1 << 60, 2, 1, 1, (), ()), "own_name", False),
    ("this agent as core", "b", TopicCores("m", 1 << 60, 1, (Topic("a", 1, 0, ()),)), "own_core", False),
    ("a core of an incarnation before", "b", TopicCores("b", 4, 0, (Topic("a", 9, 0, ()),)), "former_core", False),
    ("a word of a core that is none", "b", CoreAnnouncement("y", 5, 1, 1, 0, 60.0, 60.0), "not_core", False),
    ("a message of another path", "b", topic_message(path=("z",)), "path", True),
    ("a gap in custody", "b", topic_message(custody=2), "custody", True),
    ("kept what was not sent", "b", CustodyAck(1), "kept", True),
    ("a hello back to no hello", "b", HelloBack(77), "hello_back", False),
    ("nobody wants it here", "b", topic_message(topic="z"), "not_wanted", False),
    ("a destination that rows would take for two", "b", topic_message(to=("m", "x\0y")), "name", True),
    ("an origin whose name would end its row's key", "b", topic_message(agent="b\0"), "name", True),
    ("a message that is too old", "b", topic_message(age_ms=86_400_001), "held_too_long", False),
    ("a message that has expired", "b", topic_message(age_ms=10, expiry_ms=10), "expired", False),
]


@pytest.mark.parametrize(
    ("name", "message", "reason", "is_closed"), [each[1:] for each in RULES], ids=[each[0] for each in RULES]
)
def test_violations_are_counted(name: str, message: Message, reason: str, is_closed: bool) -> None:
    """Identity and numbering errors close the link; late or unwanted messages are dropped."""
    rig = AgentRig()
    ready = rig.receive(name, message)
    assert rig.agent.counts[reason] == 1
    assert closed(ready) == ([reason] if is_closed else [])
    assert not [effect for effect in ready.effects if isinstance(effect, Inject)]


def test_a_message_comes_once_whatever_a_neighbour_repeats() -> None:
    """A neighbour that sends back or repeats causes no second delivery; both are stored and counted."""
    rig = AgentRig()
    first = rig.receive("b", topic_message())
    again = rig.receive("y", topic_message(path=("b", "y")))
    assert [type(each).__name__ for each in (*first.effects, *again.effects)].count("Inject") == 1
    assert rig.agent.counts["repeat"] == 1
    assert decode([each for each in again.effects if isinstance(each, Send)][-1].data) == CustodyAck(1)


def test_a_core_that_announces_itself_from_two_places() -> None:
    """Of two conflicting messages with one number the first is kept."""
    rig = AgentRig()
    rig.receive("b", TopicCores("b", 5, 0, (Topic("k", 3, 0, ("b",)),)))
    rig.receive("y", TopicCores("b", 5, 1, (Topic("k", 3, 0, ("y",)),)))
    assert rig.agent.counts["core_twice"] == 1
    assert rig.agent.election.topics["k"].members == {"b"}


def test_a_clock_that_begins_at_1970() -> None:
    """As on a small computer after power-on: a message is older than its clock, stored, and known after a restart."""
    rig = AgentRig(wall_ms=1_000)
    rig.receive("b", topic_message(age_ms=3_600_000))
    (before,) = rig.agent.rows.stored.values()
    rig.start()
    (after,) = rig.agent.rows.stored.values()
    assert after.born_ms == before.born_ms < 0 and "" in after.owed


def test_interests_above_the_bound_are_not_learned() -> None:
    """The 10 001st filter of a neighbour is dropped and counted; the link stays."""
    rig = AgentRig()
    ready = rig.receive("b", TopicCores("b", 5, 0, tuple(Topic(f"t/{each}", 1, 0, ("b",)) for each in range(10_001))))
    assert rig.agent.counts["interests"] == 1
    assert len(rig.agent.election.topics) == 10_001  # with this broker's own
    assert closed(ready) == []


def test_a_client_with_many_long_filters_does_not_end_its_agent() -> None:
    """Interests are sent in pages; all at once would exceed a frame or a neighbour's filter limit."""
    rig = AgentRig()
    wishes = [SubscriptionRequest(f"{number}/{'x' * 900}", 1, True) for number in range(12_000)]
    rig.agent.trees.send_requests("b", wishes)
    said = [decode(each.data) for each in rig.handle().effects if isinstance(each, Send) and each.neighbour == "b"]
    pages = [each for each in said if isinstance(each, TopicSubscribe)]
    assert [wish for page in pages for wish in page.requests] == wishes
    assert len({page.seq for page in pages}) == len(pages) > 1


@pytest.mark.parametrize("policy", [NeighbourPolicy(messages_per_s=10.0), NeighbourPolicy(bytes_per_s=50.0)])
def test_a_neighbour_is_rate_limited(policy: NeighbourPolicy) -> None:
    """Above its messages or bytes per second its link is not read."""
    rig = AgentRig(policy)
    ready = rig.receive("b", *[NeighbourHello(1 << 32) for each in range(100)])
    held = [effect for effect in ready.effects if isinstance(effect, HoldLink) and effect.neighbour == "b"]
    assert held[-1].until > rig.now + 8.0


def test_a_full_spool_acknowledges_nobody() -> None:
    """Neither the broker nor a neighbour, until there is capacity; then both, in order."""
    rig = AgentRig(spool_bytes_max=1000)
    rig.set_interests("a/#")
    taken: list[int] = []
    sent = 0

    def see(ready: FederationReady) -> FederationReady:
        nonlocal sent
        taken.extend(effect.ref for effect in ready.effects if isinstance(effect, AckHost))
        to_b = [each for each in ready.effects if isinstance(each, Send) and each.neighbour == "b"]
        sent += len([each for each in to_b if isinstance(decode(each.data), TopicMessage)])
        return ready

    for ref in range(1, 8):
        see(rig.handle(Captured(ref, "a/b", bytes(100), 2, False, {}, (rig.identifiers["a/#"],))))
    assert 0 < len(taken) < 7
    see(rig.receive("y", topic_message(path=("y",), to=("b",), payload=bytes(6000))))  # each hop has its own capacity
    ready = see(rig.receive("y", topic_message(number=2, custody=2, path=("y",), to=("b",))))
    assert [effect.neighbour for effect in ready.effects if isinstance(effect, HoldLink)] == ["y"]
    assert not [each for each in ready.effects if isinstance(each, Send) and isinstance(decode(each.data), CustodyAck)]
    for _ in range(9):
        assert closed(see(rig.receive("b", CustodyAck(sent)))) == []
    assert taken == list(range(1, 8))
    assert sent == 9
    assert not rig.agent.rows.stored


def test_a_neighbour_without_custody_is_avoided() -> None:
    """After ten seconds its messages take another path, which is logged."""
    rig = AgentRig()
    rig.receive("b", Federate("b", 8, 5, 2, 0, 1, (), ("m", "z")), Federate("z", 11, 5, 2, 1, 1, (), ("b", "y")))
    rig.receive("y", Federate("y", 9, 5, 2, 0, 1, (), ("m", "z")))
    rig.receive("b", TopicCores("z", 5, 1, (Topic("k", 1, 2, ("z",)),)))
    rig.confirm_captures()
    rig.handle(Captured(1, "k", b"", 2, False, {}, (rig.identifiers["k"],)))
    assert len(rig.agent.rows.stored) == 1
    through: list[str] = []
    for _ in range(30):
        rig.now += 1.0
        ready = rig.receive("b", HelloBack(1))
        ready2 = rig.receive("y", HelloBack(1))
        for effect in (*ready.effects, *ready2.effects):
            if isinstance(effect, Send) and isinstance(decode(effect.data), TopicMessage):
                through.append(effect.neighbour)
        if rig.now % 4 < 1:
            rig.receive("y", Federate("y", 9, 5, int(rig.now), 0, 1, (), ("m", "z")))
            rig.receive("b", Federate("z", 11, 5, int(rig.now), 1, 1, (), ("b", "y")))
            rig.receive("b", Federate("b", 8, 5, int(rig.now), 0, 1, (), ("m", "z")))
        rig.receive("b", CustodyAck(0))  # repeats the last one
    assert rig.agent.counts["not_kept"] >= 1
    assert "y" in through


def test_a_neighbour_that_was_merely_slow_is_trusted_again() -> None:
    """Its acknowledgement restores trust at once, not half a minute later, since it may be the only path."""
    rig = AgentRig()
    rig.receive("b", TopicCores("b", 5, 0, (Topic("k", 1, 2, ("b",)),)))
    rig.confirm_captures()
    rig.handle(Captured(1, "k", b"", 2, False, {}, (rig.identifiers["k"],)))
    rig.now += 12.0
    rig.receive("b", HelloBack(1), Federate("b", 8, 5, 3, 0, 1, (), ("m",)))
    assert rig.agent.counts["not_kept"] == 1 and "b" not in rig.agent.overlay.up()
    rig.receive("b", CustodyAck(1))
    assert "b" in rig.agent.overlay.up() and not rig.agent.rows.stored


def test_a_spool_of_another_federation_is_refused() -> None:
    """So is one of another agent, and one that cannot be read."""
    rig = AgentRig()
    rows = {kind: list(each.items()) for kind, each in rig.disk.items()}
    with pytest.raises(SpoolMismatch, match="federation f"):
        Agent(AgentSettings("g", "m"), rows, 0.0, WALL_MS, Random(1))
    with pytest.raises(SpoolMismatch, match="agent m"):
        Agent(AgentSettings("f", "n"), rows, 0.0, WALL_MS, Random(1))
    damaged: list[dict[str, list[tuple[bytes, bytes]]]] = [
        {"topic": [(b"a", b"\xc1")]},
        {"topic": [(b"\xff", b"\x90")]},
        {"capture": [(b"a", b"1")]},
        {"register": [(b"a", b"1")]},
        {"message": [(b"a", b"1")]},
        {"seen": [(b"a", b"1")]},
        {"settled": [(b"a", b"1")]},
        {"agent": [each for each in rows["agent"] if each[0] != b"rows"]},
    ]
    for each in damaged:
        with pytest.raises(SpoolMismatch):
            Agent(AgentSettings("f", "m"), {**rows, **each}, 0.0, WALL_MS, Random(1))


def test_a_message_row_that_is_damaged_is_counted() -> None:
    """The rest of the spool is used."""
    agent = Agent(AgentSettings("f", "m"), {"message": [(b"b\0" + bytes(16), bytes(20) + b"\xc1")]}, 0.0, 1, Random(1))
    assert agent.counts["row_unreadable"] == 1


def test_unsubscribed_messages_are_acknowledged_and_dropped() -> None:
    """Unrequested messages from a broker use no spool capacity."""
    rig = AgentRig()
    rig.set_interests("b/#")
    for identifiers in ((), (99,)):
        ready = rig.handle(Captured(7, "z", b"", 1, False, {}, identifiers))
        assert [effect.ref for effect in ready.effects if isinstance(effect, AckHost)] == [7]
    assert rig.agent.counts["copy_not_counted"] == 2
    ready = rig.handle(Captured(8, "b/$", b"", 1, False, {}, (rig.identifiers["b/#"],)))
    assert AckHost(8) in ready.effects
    assert not rig.handle(HostAcked(12345)).writes


def test_a_second_agent_at_the_same_broker_does_not_send_again() -> None:
    """A message delivered by another agent has its mark and is dropped here."""
    other, rig = AgentRig(), AgentRig()
    rig.set_interests("a/#")
    handed = [each for each in other.receive("b", topic_message()).effects if isinstance(each, Inject)]
    properties = dict(handed[0].properties)
    assert PropertyId.USER_PROPERTY in properties
    captured = Captured(5, "a/b", b"21", 2, False, properties, (rig.identifiers["a/#"],))
    assert AckHost(5) in rig.handle(captured).effects
    assert rig.agent.counts["foreign_loop"] == 1
    assert not [each for each in rig.receive("b", topic_message()).effects if isinstance(each, Inject)]
    assert rig.agent.counts["repeat"] == 1


@pytest.mark.parametrize("mark", ["f/b/1/x", "f/b", "", "g/b/1/2/00000000", "f/b/" + "9" * 30 + "/1/00000000"])
def test_an_invalid_mark_is_a_clients_property(mark: str) -> None:
    """It is not forwarded, and the message is an ordinary one."""
    rig = AgentRig()
    rig.set_interests("a/#")
    properties: dict[int, object] = {PropertyId.USER_PROPERTY: [("federation-id", mark), ("own", "1")]}
    rig.handle(Captured(5, "a/b", b"21", 2, False, properties, (rig.identifiers["a/#"],)))
    assert rig.agent.counts["captured"] == 1
