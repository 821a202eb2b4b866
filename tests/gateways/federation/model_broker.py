"""A broker that behaves as Mosquitto 2.0 does, as far as an agent notices it.

Sessions, No Local, one copy of a message for each overlapping subscription, retained messages, and its log.

One order for each session's queue. Nothing is lost while the model stands; ``restart_empty`` loses all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mqtt.properties import Properties
from mqtt.topics import matches

AGENT = "agent"
LANES = (AGENT, "agent-b")  # its connections, of which an agent of MQTT 5 has the first alone
MARKERS = "agent-m"


@dataclass(frozen=True)
class Subscription:
    qos: int
    no_local: bool = False
    as_published: bool = False
    identifier: int = 0


@dataclass(frozen=True)
class Copy:
    """A message in a session's queue; ``number`` stands for its packet identifier."""

    number: int
    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    properties: Properties
    identifier: int
    connection: int = 0


@dataclass
class Session:
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    queue: list[Copy] = field(default_factory=list)  # not acknowledged
    is_up: bool = False
    refs: set[int] = field(default_factory=set)  # of QoS 2 messages that this client published


@dataclass(frozen=True)
class Kept:
    payload: bytes
    qos: int
    properties: Properties


class ModelBroker:
    """See the module.

    Attributes:
        received: What subscribers got, by name: (payload, qos) in order.
        on_copy: Called with each copy for the agent while it is connected.
        on_interest: Called with each line of the log: filter, QoS or None for the end.
    """

    def __init__(self, on_copy: Callable[[Copy], None], on_interest: Callable[[str, int | None], None]) -> None:
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, Kept] = {}
        self.received: dict[str, list[tuple[str, bytes]]] = {}
        self.merges_copies = False
        self._on_copy, self._on_interest = on_copy, on_interest
        self._number = 0

    def connect(self, is_clean: bool, connections: int = 1) -> bool:
        """Connect the agent; return Session Present. What it had not acknowledged comes again."""
        is_present = True
        for name in LANES[:connections]:
            if is_clean:
                self.sessions.pop(name, None)
            is_present = is_present and name in self.sessions
            self.sessions.setdefault(name, Session()).is_up = True
        return is_present

    def resume(self) -> None:
        """Send again what the agent did not acknowledge."""
        for name in LANES:
            for copy in list(self.sessions[name].queue) if name in self.sessions else ():
                self._on_copy(copy)

    def disconnect(self) -> None:
        for name in LANES:
            if name in self.sessions:
                self.sessions[name].is_up = False

    def restart_empty(self) -> None:
        """Lose everything, as a broker without persistence that is killed."""
        self.sessions.clear()
        self.retained.clear()

    def subscribe_client(self, client: str, topic_filter: str, qos: int = 2) -> None:
        """Subscribe a client of this broker, which never goes away."""
        session = self.sessions.setdefault(client, Session(is_up=True))
        session.subscriptions[topic_filter] = Subscription(qos)
        self.received.setdefault(client, [])
        for topic, kept in list(self.retained.items()):
            if matches(topic_filter, topic):
                self.received[client].append((topic, kept.payload))
        self._on_interest(topic_filter, qos)

    def unsubscribe_client(self, client: str, topic_filter: str) -> None:
        session = self.sessions[client]
        del session.subscriptions[topic_filter]
        if not any(topic_filter in other.subscriptions for name, other in self.sessions.items() if name not in LANES):
            self._on_interest(topic_filter, None)

    def subscribe_agent(
        self, topic_filter: str, subscription: Subscription, wants_retained: bool, connection: int = 0
    ) -> None:
        self.sessions[LANES[connection]].subscriptions[topic_filter] = subscription
        if wants_retained:
            for topic, kept in list(self.retained.items()):
                if matches(topic_filter, topic):
                    self._queue(
                        connection, topic, kept.payload, kept.qos, True, kept.properties, subscription.identifier
                    )

    def unsubscribe_agent(self, topic_filter: str, connection: int = 0) -> None:
        self.sessions[LANES[connection]].subscriptions.pop(topic_filter, None)

    def publish(
        self,
        client: str,
        topic: str,
        payload: bytes,
        qos: int = 2,
        is_retained: bool = False,
        properties: Properties | None = None,
        ref: int = 0,
    ) -> None:
        """Take a PUBLISH; a QoS 2 one of the agent with a ref that is known is answered and not sent."""
        if ref and qos == 2:
            refs = self.sessions[client].refs
            if ref in refs:
                return
            refs.add(ref)
        if is_retained:
            if payload:
                self.retained[topic] = Kept(payload, qos, properties or {})
            else:
                self.retained.pop(topic, None)
        for name, session in list(self.sessions.items()):
            for topic_filter, subscription in list(session.subscriptions.items()):
                if not matches(topic_filter, topic) or (subscription.no_local and name == client):
                    continue
                if name not in LANES:
                    self.received[name].append((topic, payload))
                else:
                    self._queue(
                        LANES.index(name),
                        topic,
                        payload,
                        min(qos, subscription.qos),
                        is_retained and subscription.as_published,
                        properties or {},
                        subscription.identifier,
                    )

    def _queue(
        self,
        connection: int,
        topic: str,
        payload: bytes,
        qos: int,
        is_retained: bool,
        properties: Properties,
        identifier: int,
    ) -> None:
        session = self.sessions[LANES[connection]]
        self._number += 1
        copy = Copy(self._number, topic, payload, qos, is_retained, properties, identifier, connection)
        if qos:
            session.queue.append(copy)
        if session.is_up:
            self._on_copy(copy)

    def acknowledge(self, number: int) -> None:
        for name in LANES:
            if (session := self.sessions.get(name)) is not None:
                session.queue = [each for each in session.queue if each.number != number]
