"""Fuzz targets of federation: the ten messages as bytes, and an agent between two hostile neighbours.

An input of the agent is a sender (one byte) and a message. No exception is raised, and the agent's state
stays bounded. The agent is replaced after ``INPUTS_MAX`` inputs.
"""

from __future__ import annotations

from random import Random

from gateways.federation.agent import Agent
from gateways.federation.events import (
    AgentSettings,
    FederationLinkUp,
    HostUp,
    InterestChanged,
    NeighbourFrame,
    NeighbourPolicy,
)
from gateways.federation.messages import (
    CoreAnnouncement,
    CustodyAck,
    Federate,
    HelloBack,
    MalformedFederationMessage,
    Message,
    NeighbourHello,
    Reconsider,
    ReconsiderTopicCore,
    SubscriptionRequest,
    Topic,
    TopicCores,
    TopicMessage,
    TopicSubscribe,
    TopologyUpdate,
    decode,
    encode,
    pack_properties,
)
from mqtt.properties import PropertyId

__all__ = ["FEDERATION_CORE", "FEDERATION_MESSAGES", "GOOD", "check_agent", "federation_messages"]

INPUTS_MAX = 300
TOPICS_MANY = 64
PAGES_EACH = 8  # inputs: the pages cost as much as the rest
PROPERTIES = pack_properties({PropertyId.CONTENT_TYPE: "text", PropertyId.USER_PROPERTY: [("a", "b")]})


def topic_message(**changes: object) -> TopicMessage:
    """Return a message from the neighbour "b" to "m"."""
    fields: dict[str, object] = {
        "agent": "b",
        "incarnation": 5,
        "number": 1,
        "after": 0,
        "custody": 1,
        "topic": "a/b",
        "payload": b"21",
        "qos": 2,
        "is_retained": False,
        "is_register": False,
        "stamp": 0,
        "age_ms": 3,
        "expiry_ms": 0,
        "properties": PROPERTIES,
        "to": ("m",),
        "path": ("b",),
    }
    return TopicMessage(**{**fields, **changes})  # type: ignore[arg-type]


GOOD: tuple[Message, ...] = (
    NeighbourHello(1),
    HelloBack(1),
    Federate("b", 7, 5, 2, 0, 1, ("b.example:10500",), ("m", "z")),
    Federate("z", 8, 5, 2, 1, 1, (), ("b",)),
    Federate("z", 8, 5, 3, 1, 1, (), ("b",), (("m", 3), ("b", 1 << 40))),
    Reconsider(7, "b", "z"),
    CoreAnnouncement("b", 5, 1, 0, 12345, 3600.0, 86400.0),
    TopicCores("b", 5, 0, (Topic("a/#", 1, 2, ("b", "z")), Topic("c", 2, 0, ("b",), 9, True))),
    ReconsiderTopicCore("a/+", "b", "m"),
    TopicSubscribe(
        "z",
        5,
        1,
        "m",
        1,
        (SubscriptionRequest("a/+", 1, True), SubscriptionRequest("a/+", 0, False, digests=bytes(2048))),
    ),
    TopicSubscribe("b", 5, 2, "z", 0, (SubscriptionRequest("a/#", 0, False, True),)),
    topic_message(),
    topic_message(custody=0, qos=0, to=("m", "z")),
    topic_message(custody=0, is_retained=True, is_register=True, stamp=17),
    topic_message(number=2, after=1, custody=2, is_retained=True, stamp=18, expiry_ms=60_000, to=("z",)),
    TopologyUpdate("b", 5, 1, 0, ("b",), ("z",), False, "silent"),
    CustodyAck(1),
)
FEDERATION_MESSAGES = tuple(encode(each) for each in GOOD)
FEDERATION_CORE = tuple(bytes((who,)) + data for who in (0, 1) for data in FEDERATION_MESSAGES)


def federation_messages(data: bytes) -> None:
    """Decoded messages are equal after encoding and decoding."""
    try:
        message = decode(data)
    except MalformedFederationMessage as malformed:
        assert malformed.reason.isidentifier()
        return
    assert decode(encode(message)) == message


class _Hostile:
    """An agent that is renewed now and then, and the inputs that it has had."""

    def __init__(self) -> None:
        self._seen: list[bytes] = []
        self._agent: Agent | None = None
        self._now = 0.0

    def _begin(self) -> Agent:
        self._now, self._seen = 100.0, []
        settings = AgentSettings("f", "m", topics_max=TOPICS_MANY, registers_max=TOPICS_MANY, spool_bytes_max=100_000)
        agent = Agent(settings, {}, self._now, 1_700_000_000_000, Random(1))
        links = [FederationLinkUp(name, 5, False, NeighbourPolicy(interests_max=50)) for name in ("b", "y")]
        agent.handle(self._now, [HostUp(False), InterestChanged({"a/+": 2}), *links])
        return agent

    def check(self, data: bytes) -> None:
        if self._agent is None or len(self._seen) >= INPUTS_MAX:
            self._agent = self._begin()
        agent = self._agent
        self._seen.append(data)
        self._now += 0.05
        neighbour = "y" if data[:1] and data[0] & 1 else "b"
        try:
            agent.handle(self._now, [NeighbourFrame(neighbour, data[1:])])
            assert len(agent.election.topics) <= TOPICS_MANY
            assert len(agent.registers) <= TOPICS_MANY
            if len(self._seen) % PAGES_EACH == 0:
                agent.status(), agent.topics(), agent.explain_topic("a/b"), agent.graph()
        except Exception as error:
            error.add_note(f"inputs: {[each.hex() for each in self._seen]}")
            self._agent = None
            raise


check_agent = _Hostile().check
