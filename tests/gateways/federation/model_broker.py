"""A broker model that behaves like Mosquitto 2.0 as far as an agent can observe.

It has sessions, No Local, one copy of a message per overlapping subscription, retained messages and a log.
Each session's queue is ordered. The model loses state only in ``restart_empty``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mqtt.properties import Properties
from mqtt.topics import matches

AGENT = "agent"
CONNECTIONS = (AGENT, "agent-b")  # the agent's connections; with MQTT 5 only the first one
MARKERS = "agent-m"


@dataclass(frozen=True)
class Subscription:
    qos: int
    no_local: bool = False
    as_published: bool = False
    identifier: int = 0


@dataclass(frozen=True)
class Copy:
    """A message in a session's queue; ``number`` is used like a packet identifier."""

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
    queue: list[Copy] = field(default_factory=list)  # unacknowledged
    is_up: bool = False
    refs: set[int] = field(default_factory=set)  # of QoS 2 messages published by this client


@dataclass(frozen=True)
class Kept:
    payload: bytes
    qos: int
    properties: Properties


class ModelBroker:
    """See the module.

    Attributes:
        received: Messages of subscribers, by name, as (payload, qos) in order.
        on_copy: Called with each copy for the agent while it is connected.
        on_interest: Called for each log line with the filter and the QoS, or None at its end.
    """

    def __init__(self, on_copy: Callable[[Copy], None], on_interest: Callable[[str, int | None], None]) -> None:
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, Kept] = {}
        self.received: dict[str, list[tuple[str, bytes]]] = {}
        self.merges_copies = False
        self._on_copy, self._on_interest = on_copy, on_interest
        self._number = 0

    def connect(self, is_clean: bool, connections: int = 1) -> bool:
        """Connect the agent and send unacknowledged copies again; return Session Present."""
        is_present = True
        for name in CONNECTIONS[:connections]:
            if is_clean:
                self.sessions.pop(name, None)
            is_present = is_present and name in self.sessions
            self.sessions.setdefault(name, Session()).is_up = True
        return is_present

    def resume(self) -> None:
        """Send unacknowledged copies again."""
        for name in CONNECTIONS:
            for copy in list(self.sessions[name].queue) if name in self.sessions else ():
                self._on_copy(copy)

    def disconnect(self) -> None:
        for name in CONNECTIONS:
            if name in self.sessions:
                self.sessions[name].is_up = False

    def restart_empty(self) -> None:
        """Lose all state, like a killed broker without persistence."""
        self.sessions.clear()
        self.retained.clear()

    def subscribe_client(self, client: str, topic_filter: str, qos: int = 2) -> None:
        """Subscribe a client of this broker that never disconnects."""
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
        if not any(
            topic_filter in other.subscriptions for name, other in self.sessions.items() if name not in CONNECTIONS
        ):
            self._on_interest(topic_filter, None)

    def subscribe_agent(
        self, topic_filter: str, subscription: Subscription, wants_retained: bool, connection: int = 0
    ) -> None:
        self.sessions[CONNECTIONS[connection]].subscriptions[topic_filter] = subscription
        if wants_retained:
            for topic, kept in list(self.retained.items()):
                if matches(topic_filter, topic):
                    self._queue(
                        connection, topic, kept.payload, kept.qos, True, kept.properties, subscription.identifier
                    )

    def unsubscribe_agent(self, topic_filter: str, connection: int = 0) -> None:
        self.sessions[CONNECTIONS[connection]].subscriptions.pop(topic_filter, None)

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
        """Accept a PUBLISH; a QoS 2 message of the agent with a known ref is acknowledged but not sent."""
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
                if name not in CONNECTIONS:
                    self.received[name].append((topic, payload))
                else:
                    self._queue(
                        CONNECTIONS.index(name),
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
        session = self.sessions[CONNECTIONS[connection]]
        self._number += 1
        copy = Copy(self._number, topic, payload, qos, is_retained, properties, identifier, connection)
        if qos:
            session.queue.append(copy)
        if session.is_up:
            self._on_copy(copy)

    def acknowledge(self, number: int) -> None:
        for name in CONNECTIONS:
            if (session := self.sessions.get(name)) is not None:
                session.queue = [each for each in session.queue if each.number != number]
