"""One agent's process and its broker in the simulation; its spool loses unsynced rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from conf.events import EVENTS
from gateways.federation.agent import Agent
from gateways.federation.events import (
    AckHost,
    AgentSettings,
    Captured,
    CaptureFilter,
    CloseLink,
    Event,
    FederationReady,
    HoldLink,
    HostAcked,
    HostDown,
    HostUp,
    Inject,
    InterestChanged,
    Log,
    MarkerSeen,
    Recapture,
    Send,
)
from gateways.spool_rows import Put
from tests.gateways.federation.model_broker import AGENT, CONNECTIONS, MARKERS, Copy, ModelBroker, Subscription

if TYPE_CHECKING:
    from tests.gateways.federation.federation_simulation import FederationSimulation

WALL_MS = 1_700_000_000_000
SYNC_S = 0.004
HOST_S = 0.001


class SimProcess:
    """See the module.

    Attributes:
        disk: Rows that were synced, by kind.
        core: None while the process is dead.
        life: Counts the starts; actions of an earlier process are ignored.
    """

    def __init__(self, simulation: FederationSimulation, settings: AgentSettings, clock_s: float) -> None:
        self.simulation, self.settings, self.clock_s = simulation, settings, clock_s
        self.name = settings.agent
        self.disk: dict[str, dict[bytes, bytes]] = {}
        self.taken: set[int] = set()  # numbers of copies that were acknowledged in the same transaction
        self.open: dict[int, Inject] = {}  # sent to the broker's session, durable
        self.core: Agent | None = None
        self.life = self.connection_count = 0
        self.logs: list[str] = []
        self.closed: list[str] = []
        self.broker = ModelBroker(self._on_copy, self._on_interest)
        self.interests: dict[str, int] = {}
        self.is_host_up = False
        self._handed: set[int] = set()
        self._gathered: list[Event] = []  # while a transaction is in progress, in a busy simulation
        self._commit_at = 0.0
        self._wake_at = -1.0
        self.is_full = False
        self.connections = 1 if settings.has_identifiers else 2

    # --- the process

    def start(self) -> None:
        simulation = self.simulation
        self.life += 1
        self._handed.clear()
        self._gathered.clear()
        rows = {kind: list(each.items()) for kind, each in self.disk.items()}
        wall_ms = WALL_MS + int((simulation.now + self.clock_s) * 1000)
        seed = Random(simulation.random.getrandbits(32))
        self.core = Agent(self.settings, rows, simulation.now, wall_ms, seed)
        self._commit_at = simulation.now
        self.step([InterestChanged(dict(self.interests))] if self.interests else [])

    def kill(self) -> None:
        self.core = None
        self.life += 1
        self.disconnect_host()

    def step(self, events: Iterable[Event] = ()) -> None:
        """Pass events to the core; its writes are synced after a delay, and its effects are applied then."""
        core, simulation = self.core, self.simulation
        if core is None:
            return
        if simulation.is_busy and self._commit_at > simulation.now:
            self._gathered += events
            return
        events = [*self._gathered, *events]
        self._gathered.clear()
        ready = core.handle(simulation.now, events)
        acked = [each.ref for each in events if isinstance(each, HostAcked)]
        takes_s = simulation.turn_s() if simulation.is_busy else SYNC_S if ready.writes else 0.0
        self._commit_at = max(self._commit_at, simulation.now + takes_s)
        life = self.life
        simulation.at(self._commit_at, lambda: self._commit(life, ready, acked))
        if simulation.is_busy:
            simulation.at(self._commit_at, lambda: self._turn(life))
        deadline = max(ready.deadline, simulation.now + 0.0005)
        if self._wake_at <= simulation.now or deadline < self._wake_at:
            self._wake_at = deadline
            simulation.at(deadline, lambda: self._wake(life, deadline))

    def _wake(self, life: int, deadline: float) -> None:
        if life == self.life and self._wake_at == deadline:
            self._wake_at = -1.0
            self.step()

    def _turn(self, life: int) -> None:
        """Process the accumulated events in one call of the core, as ``AgentLoop`` does."""
        if life == self.life and self._gathered:
            self.step()

    def _commit(self, life: int, ready: FederationReady, acked: list[int]) -> None:
        if life != self.life:
            return
        for write in ready.writes:
            if isinstance(write, Put):
                self.disk.setdefault(write.kind, {})[write.key] = write.value
            else:
                self.disk.get(write.kind, {}).pop(write.key, None)
        for ref in acked:
            self.open.pop(ref, None)
        self.taken.update(each.ref for each in ready.effects if isinstance(each, AckHost))
        for effect in ready.effects:
            self._perform(effect)

    def _perform(self, effect: object) -> None:
        match effect:
            case Send(neighbour, data, link):
                self.simulation.send(self.name, neighbour, data, link)
            case AckHost(ref):
                if self.is_host_up:
                    self.broker.acknowledge(ref)
            case Inject():
                self._inject(effect)
            case Recapture():
                self._recapture(effect)
            case HoldLink(neighbour, until):
                self.simulation.hold(self.name, neighbour, until)
            case CloseLink(neighbour, reason):
                self.closed.append(f"{neighbour}: {reason}")
                self.simulation.cut(self.name, neighbour)
            case Log(event, values):
                self.logs.append(EVENTS[event].sentence.format_map(values))

    # --- the broker

    def connect_host(self) -> None:
        core = self.core
        if core is None or self.is_host_up:
            return
        is_present = self.broker.connect(core.is_new and not self.disk.get("capture"), self.connections)
        self.is_host_up = True
        self.connection_count += 1
        if not is_present:
            self.open.clear()
        self.step([HostUp(is_present)])
        for each in list(self.open.values()):
            self._publish(each)
        self.broker.resume()

    def disconnect_host(self) -> None:
        if self.is_host_up:
            self.is_host_up = False
            self.connection_count += 1
            self.broker.disconnect()
            self.step([HostDown()])

    def _inject(self, effect: Inject) -> None:
        if effect.ref:
            if effect.ref in self.open:
                return
            self.open[effect.ref] = effect
        if self.is_host_up:
            self._publish(effect)

    def _publish(self, effect: Inject) -> None:
        count, life = self.connection_count, self.life
        properties = effect.properties if self.connections == 1 else {}

        def answer() -> None:
            if count == self.connection_count and life == self.life:
                self.step([HostAcked(effect.ref)])

        def publish() -> None:
            self.broker.publish(
                CONNECTIONS[effect.connection],
                effect.topic,
                effect.payload,
                effect.qos,
                effect.is_retained,
                properties,
                effect.ref,
            )
            self.simulation.injected(self.name, effect)
            if effect.ref and self.connections == 1:
                self.simulation.at(self.simulation.now + HOST_S, answer)
            elif effect.ref:  # after earlier packets of the broker on that connection
                self._down(effect.connection, answer)

        self._up(effect.connection, publish)

    def _up(self, connection: int, action: Callable[[], None]) -> None:
        """Schedule an action at the broker; each connection has its own delay."""
        if self.connections == 1:
            action()
            return
        count, simulation = self.connection_count, self.simulation

        def arrive() -> None:
            if count == self.connection_count:
                action()

        simulation.in_order(f"to host {self.name} {connection}", simulation.random.uniform(0.0, 4 * HOST_S), arrive)

    def _recapture(self, effect: Recapture) -> None:
        if not self.is_host_up:
            return
        assert self.core is not None
        topic, number, count = self.core.marker_topic, effect.marker, self.connection_count
        waits = len(effect.subscribe)
        sender = MARKERS if self.connections > 1 and self.settings.has_no_local else AGENT

        def publish() -> None:
            if count == self.connection_count:
                self.broker.publish(sender, topic, b"%d" % number, 2)

        def subscribe(each: CaptureFilter) -> None:
            nonlocal waits
            no_local = self.settings.has_no_local and (each.no_local or self.connections > 1)
            subscription = Subscription(2, no_local, True, each.identifier)
            self.broker.subscribe_agent(each.filter, subscription, each.wants_retained, each.connection)
            waits -= 1
            if not waits and number:
                self.simulation.at(self.simulation.now + HOST_S, publish)

        for topic_filter, connection in effect.unsubscribe:
            self._up(connection, partial(self.broker.unsubscribe_agent, topic_filter, connection))
        for each in effect.subscribe:
            self._up(each.connection, partial(subscribe, each))
        if number and not effect.subscribe:
            self.simulation.at(self.simulation.now + HOST_S, publish)

    def _on_copy(self, copy: Copy) -> None:
        count, life = self.connection_count, self.life

        def arrive() -> None:
            if count != self.connection_count or life != self.life or self.core is None:
                return
            if copy.number in self.taken:
                self.broker.acknowledge(copy.number)
            elif copy.number not in self._handed:
                if copy.qos:
                    self._handed.add(copy.number)
                self.step([self._event(copy)])

        self._down(copy.connection, arrive)

    def _down(self, connection: int, arrive: Callable[[], None]) -> None:
        """Schedule an arrival from the broker, in the order of its connection."""
        delay_s = HOST_S if self.connections == 1 else self.simulation.random.uniform(HOST_S, 4 * HOST_S)
        self.simulation.in_order(f"host {self.name} {connection}", delay_s, arrive)

    def _event(self, copy: Copy) -> Event:
        assert self.core is not None
        ref = copy.number if copy.qos else 0
        if copy.topic == self.core.marker_topic:
            return MarkerSeen(ref, int(copy.payload), copy.connection)
        identifiers = (copy.identifier,) if self.connections == 1 else ()
        return Captured(
            ref,
            copy.topic,
            copy.payload,
            copy.qos,
            copy.is_retained,
            dict(copy.properties),
            identifiers,
            copy.connection,
        )

    def _on_interest(self, topic_filter: str, qos: int | None) -> None:
        if qos is None:
            self.interests.pop(topic_filter, None)
            self.step([InterestChanged({}, (topic_filter,))])
        else:
            self.interests[topic_filter] = qos
            self.step([InterestChanged({topic_filter: qos})])
