"""Simulates federations of agents and model brokers on one clock; links are cut or block one way, processes are killed.

``run_seed`` runs and checks one random scenario. Many seeds: python -m tests.gateways.federation.federation_simulation
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from gateways.federation.events import (
    AgentSettings,
    FederationLinkDown,
    FederationLinkUp,
    Inject,
    NeighbourFrame,
    NeighbourPolicy,
)
from gateways.federation.messages import HOPS_MAX, TopicMessage, decode, encode
from mqtt.topics import matches
from tests.gateways.federation.sim_process import SimProcess

RECONNECT_S = 0.3
TOPICS = ("a/b", "a/c", "a/b/c", "b/x", "b/y", "c")
FILTERS = ("a/b", "a/+", "a/#", "+/x", "b/#", "c", "#", "b/+", "a/b/#")
TURNS_S = (0.001, 0.004, 0.01, 0.05, 0.2, 0.5, 1.5)  # durations of an iteration of a busy agent
STANDS_S, STANDS_SHARE = 12.0, 0.005  # rarely, long enough that its neighbours stop routing through it
# agents of a scenario, by the last digits of its seed; larger ones take seconds
LARGE = {11: 24, 37: 32, 61: 40, 83: 50}


@dataclass
class Line:
    """A link between two agents.

    Attributes:
        pair: The incarnations whose frames are transmitted.
        queues: Frames in transit, by receiver.
        blocked: Receivers that get no frames, although the connection appears to be established.
    """

    is_wanted: bool = True
    is_connected: bool = False
    pair: tuple[int, int] | None = None
    number: int = 0
    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    held: dict[str, float] = field(default_factory=dict)


@dataclass
class Publication:
    """A message published by a client."""

    at: str
    topic: str
    qos: int
    when: float
    is_retained: bool = False


class FederationSimulation:
    """Agents, brokers and links.

    Attributes:
        is_busy: Iterations of agents take time and events accumulate meanwhile, as on a loaded machine.
        withholding: Agents that acknowledge the messages of others without forwarding them.
        goes_back: A message may return to an agent, because the onward link was cut twice.
    """

    def __init__(self, seed: int, latency_s: float = 0.005, jitter_s: float = 0.005) -> None:
        self.random = Random(seed)
        self.is_busy = self.goes_back = False
        self.withholding: set[str] = set()
        self.latency_s, self.jitter_s = latency_s, jitter_s
        self.now = 100.0
        self.processes: dict[str, SimProcess] = {}
        self.lines: dict[frozenset[str], Line] = {}
        self.publications: dict[bytes, Publication] = {}
        self.hops: Counter[int] = Counter()
        self.paths: dict[tuple[bytes, str], int] = {}  # hops, by payload and agent
        self.sent: Counter[str] = Counter()
        self.guests: list[tuple[str, str, str]] = []  # temporary clients
        self.policies: dict[str, NeighbourPolicy] = {}  # by agent, applied to its neighbours
        self.handed: list[Inject] = []
        self.first_injected: dict[tuple[bytes, str], float] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._last: dict[str, float] = {}

    # --- time

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (when, self._order, what))

    def in_order(self, what: str, delay_s: float, then: Callable[[], None]) -> None:
        when = max(self._last.get(what, 0.0), self.now + delay_s)
        self._last[what] = when
        self.at(when, then)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.now = end

    def run_until(self, is_so: Callable[[], bool], seconds: float) -> float:
        """Run until a condition holds; return the elapsed time."""
        began = self.now
        while not is_so():
            assert self.now < began + seconds, f"not so within {seconds} s"
            self.run(0.02)
        return self.now - began

    def turn_s(self) -> float:
        """Return the duration of an iteration of a busy agent."""
        return STANDS_S if self.random.random() < STANDS_SHARE else self.random.choice(TURNS_S)

    # --- agents and links

    def add(self, name: str, clock_s: float = 0.0, **settings: Any) -> SimProcess:
        made = AgentSettings("sim", name, **settings)
        process = self.processes[name] = SimProcess(self, made, clock_s)
        return process

    def link(self, one: str, other: str) -> None:
        self.lines[frozenset((one, other))] = Line(queues={one: deque(), other: deque()})

    def start(self) -> None:
        for name in sorted(self.processes):
            self.revive(name)

    def revive(self, name: str) -> None:
        process = self.processes[name]
        if process.core is None:
            process.start()
            process.connect_host()
        self.connect_all()

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        for pair in list(self.lines):
            if name in pair:
                self._disconnect(pair)

    def connect_all(self) -> None:
        for pair in sorted(self.lines, key=sorted):
            self._connect(pair)

    def _connect(self, pair: frozenset[str]) -> None:
        line = self.lines[pair]
        one, other = sorted(pair)
        cores = self.processes[one].core, self.processes[other].core
        if line.is_connected or not line.is_wanted or cores[0] is None or cores[1] is None:
            return
        incarnations = cores[0].incarnation, cores[1].incarnation
        is_resumed = line.pair == incarnations
        if not is_resumed:
            line.pair = incarnations
            line.number += 1
            for queue in line.queues.values():
                queue.clear()
        line.is_connected = True
        line.held.clear()
        for name, peer, incarnation in ((one, other, incarnations[1]), (other, one, incarnations[0])):
            policy = self.policies.get(name, NeighbourPolicy())
            self.processes[name].step([FederationLinkUp(peer, incarnation, is_resumed, policy, line.number)])
        self._kick(pair)

    def _disconnect(self, pair: frozenset[str]) -> None:
        line = self.lines[pair]
        if line.is_connected:
            line.is_connected = False
            one, other = sorted(pair)
            self.processes[one].step([FederationLinkDown(other)])
            self.processes[other].step([FederationLinkDown(one)])

    def cut(self, one: str, other: str) -> None:
        """Close a connection; it is opened again soon unless ``part`` holds."""
        pair = frozenset((one, other))
        self._disconnect(pair)
        self.at(self.now + RECONNECT_S, lambda: self._connect(pair))

    def part(self, one: str, other: str) -> None:
        self.lines[frozenset((one, other))].is_wanted = False
        self._disconnect(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        self.lines[frozenset((one, other))].is_wanted = True
        self._connect(frozenset((one, other)))

    def block(self, receiver: str, sender: str, is_blocked: bool) -> None:
        pair = frozenset((receiver, sender))
        if is_blocked:
            self.lines[pair].blocked.add(receiver)
        else:
            self.lines[pair].blocked.discard(receiver)
            self._kick(pair)

    def hold(self, receiver: str, sender: str, until: float) -> None:
        pair = frozenset((receiver, sender))
        self.lines[pair].held[receiver] = until
        self.at(until, lambda: self._kick(pair))

    def _kick(self, pair: frozenset[str]) -> None:
        for receiver, queue in self.lines[pair].queues.items():
            for _ in queue:
                self._schedule(pair, receiver)

    def send(self, sender: str, receiver: str, data: bytes, link: int) -> None:
        pair = frozenset((sender, receiver))
        line = self.lines[pair]
        if link == line.number:
            line.queues[receiver].append(data)
            self.sent[sender] += 1
            if line.is_connected:
                self._schedule(pair, receiver)

    def _schedule(self, pair: frozenset[str], receiver: str) -> None:
        delay = self.latency_s + self.random.random() * self.jitter_s
        self.in_order(f"{receiver} {sorted(pair)}", delay, lambda: self._deliver(pair, receiver))

    def _deliver(self, pair: frozenset[str], receiver: str) -> None:
        line, process = self.lines[pair], self.processes[receiver]
        is_stopped = receiver in line.blocked or line.held.get(receiver, 0.0) > self.now
        if not line.is_connected or is_stopped or process.core is None or not line.queues[receiver]:
            return
        data = line.queues[receiver].popleft()
        if receiver in self.withholding:
            data = _readdress_frame(data, receiver)
        (sender,) = pair - {receiver}
        self._watch(receiver, data)
        process.step([NeighbourFrame(sender, data)])

    def _watch(self, receiver: str, data: bytes) -> None:
        message = decode(data)
        if isinstance(message, TopicMessage) and not message.is_register:
            self.hops[len(message.path)] += 1
            if receiver in message.to:
                self.paths.setdefault((message.payload, receiver), len(message.path))

    def injected(self, name: str, effect: Inject) -> None:
        self.handed.append(effect)
        self.first_injected.setdefault((effect.payload, name), self.now)

    # --- clients

    def publish(self, name: str, topic: str, qos: int = 2, is_retained: bool = False, payload: bytes = b"") -> bytes:
        payload = payload or b"p%d" % (len(self.publications) + 1)
        self.publications[payload] = Publication(name, topic, qos, self.now, is_retained)
        self.processes[name].broker.publish("client", topic, payload, qos, is_retained)
        return payload

    def delivered(self, name: str, client: str) -> Counter[bytes]:
        return Counter(payload for _, payload in self.processes[name].broker.received.get(client, ()))

    # --- checks

    def faults(self, subscribers: Iterable[tuple[str, str, str]], since: float = 0.0) -> list[str]:
        """Return lost and duplicate publications at subscribers (agent, client, filter), published since a time."""
        found = []
        for name, client, topic_filter in subscribers:
            got = self.delivered(name, client)
            for payload, publication in self.publications.items():
                if not matches(topic_filter, publication.topic) or publication.when < since or not publication.qos:
                    continue
                count = got[payload]
                if count == 0 or (count > 1 and publication.qos == 2 and not publication.is_retained):
                    found.append(
                        f"{payload!r} on {publication.topic} from {publication.at} at {publication.when:.2f}: "
                        f"{count} times at {name} ({topic_filter})"
                    )
        return found

    def guest_faults(self) -> list[str]:
        """Return duplicates at temporary clients."""
        return [
            f"{payload!r}: {count} times at guest {client} of {name}"
            for name, client, _ in self.guests
            for payload, count in self.delivered(name, client).items()
            if count > 1 and payload in self.publications
            if self.publications[payload].qos == 2 and not self.publications[payload].is_retained
        ]

    def quiet_faults(self) -> list[str]:
        """Return violated invariants of a quiet federation whose links are all up."""
        found = []
        alive = {name: process.core for name, process in self.processes.items() if process.core is not None}
        cores: dict[str, set[str]] = {}
        for name, core in alive.items():
            for topic_filter, state in core.election.topics.items():
                if state.wanted is not None or state.core:
                    cores.setdefault(topic_filter, set()).add(state.core)
            if self.processes[name].disk.get("message") or self.processes[name].disk.get("settled"):
                found.append(f"rows are left at {name}")
            if core.counts["not_passed_on"] and not self.withholding:
                found.append(f"{name} accuses an honest neighbour: {self.processes[name].logs}")
            if self.processes[name].closed:
                found.append(f"{name} closed links: {self.processes[name].closed}")
        found += [f"{topic_filter} has cores {names}" for topic_filter, names in cores.items() if len(names) != 1]
        most = HOPS_MAX if self.goes_back else len(alive)
        found += [f"hops: {max(self.hops)}"] if self.hops and max(self.hops) > most else []
        return found + self.kept_faults() + self._mesh_faults()

    def kept_faults(self) -> list[str]:
        """Return messages that are still stored although all destinations are reachable."""
        found = []
        for name, process in self.processes.items():
            kept = list(process.core.rows.stored.values()) if process.core is not None else []
            if kept:
                found.append(f"{name} keeps {[(each.key, each.owed) for each in kept][:3]}")
        return found

    def _mesh_faults(self) -> list[str]:
        """Return filters whose members do not reach the core along the mesh."""
        found = []
        cores = {name: process.core for name, process in self.processes.items() if process.core is not None}
        filters = {topic_filter for core in cores.values() for topic_filter in core.election.topics}
        for topic_filter in sorted(filters):
            for name, core in cores.items():
                state = core.election.topics.get(topic_filter)
                at = name
                for _ in range(len(cores)):
                    if state is None or state.wanted is None or at == state.core:
                        break
                    parents = cores[at].trees.parents(state.core)
                    if not parents or at not in cores[parents[0]].trees.children(topic_filter):
                        found.append(f"mesh of {topic_filter} is broken between {at} and {parents}, for {name}")
                        break
                    at = parents[0]
        return found

    def retained_faults(self, topics: Iterable[str], names: Iterable[str]) -> list[str]:
        """Return topics whose retained message differs between brokers."""
        found = []
        names = list(names)
        for topic in topics:
            values = {}
            for name in names:
                kept = self.processes[name].broker.retained.get(topic)
                values[name] = kept.payload if kept is not None else None
            if len(set(values.values())) > 1:
                found.append(f"retained {topic}: {values}")
        return found


def _readdress_frame(data: bytes, name: str) -> bytes:
    """Return a frame as a withholding agent processes it, addressed to that agent only."""
    message = decode(data)
    if isinstance(message, TopicMessage) and not message.is_register:
        return encode(msgspec.structs.replace(message, to=(name,)))
    return data


BROKERS: tuple[dict[str, bool], ...] = ({}, {"has_identifiers": False})  # MQTT 5; 3.1.1 with level 0x84


def make_graph(simulation: FederationSimulation, count: int, is_mixed: bool = False, **settings: Any) -> list[str]:
    """Add agents in a random connected graph, some with clocks an hour apart, optionally with MQTT 3.1.1 brokers."""
    random = simulation.random
    names = [f"n{each:02}" for each in range(count)]
    for index, name in enumerate(names):
        spool_bytes_max = random.choice((1 << 30, 1 << 30, 1 << 30, 600))
        clock_s = random.choice((0.0, 0.0, 3600.0, -3600.0))
        host = random.choice(BROKERS) if is_mixed else {}
        simulation.add(name, clock_s=clock_s, spool_bytes_max=spool_bytes_max, **settings, **host)
        if index:
            simulation.link(name, random.choice(names[:index]))
    for _ in range(random.randrange(count)):
        one, other = random.sample(names, 2)
        if frozenset((one, other)) not in simulation.lines:
            simulation.link(one, other)
    return names


def run_seed(
    seed: int,
    count: int = 0,
    see: Callable[[FederationSimulation], None] | None = None,
    is_mixed: bool = False,
    is_busy: bool = False,
) -> list[str]:
    """Run one scenario; return the violations."""
    simulation = FederationSimulation(seed)
    random = simulation.random
    count = count or LARGE.get(seed % 100, 0)
    names = make_graph(simulation, count or random.choice((5, 5, 6, 7, 8, 9, 12, 16)), is_mixed)
    simulation.start()
    subscribers = []
    for index in range(random.randrange(2, 6)):
        name, topic_filter = random.choice(names), random.choice(FILTERS)
        subscribers.append((name, f"s{index}", topic_filter))
        simulation.processes[name].broker.subscribe_client(f"s{index}", topic_filter)
    simulation.run(6.0)
    simulation.is_busy = simulation.goes_back = is_busy
    _run_faults(simulation, names)
    simulation.is_busy = False
    for pair in list(simulation.lines):
        one, other = sorted(pair)
        simulation.block(one, other, False)
        simulation.block(other, one, False)
        simulation.lines[pair].is_wanted = True
    for name in names:
        simulation.revive(name)
        simulation.processes[name].connect_host()
    simulation.connect_all()
    simulation.run(40.0)
    found = simulation.kept_faults()
    for name in names:
        simulation.publish(name, random.choice(TOPICS), qos=2)
    simulation.run(10.0)
    interested = {
        topic: [name for name, _, topic_filter in subscribers if matches(topic_filter, topic)] for topic in TOPICS
    }
    if see is not None:
        see(simulation)
    found += simulation.faults(subscribers) + simulation.guest_faults() + simulation.quiet_faults()
    for topic, those in interested.items():
        found += simulation.retained_faults([topic], those)
    return found


def _run_faults(simulation: FederationSimulation, names: list[str]) -> None:
    """Publish at all brokers while links and processes fail."""
    random = simulation.random
    guests: list[tuple[str, str, str]] = []
    for _ in range(random.randrange(30, 80)):
        name = random.choice(names)
        one, other = sorted(random.choice(sorted(simulation.lines, key=sorted)))
        what = random.random()
        if what < 0.1:
            _change_guests(simulation, name, guests)
        elif what < 0.5:
            is_retained = random.random() < 0.15
            simulation.publish(name, random.choice(TOPICS), random.choice((0, 1, 2, 2)), is_retained)
        elif what < 0.58:
            simulation.cut(one, other)
        elif what < 0.66:
            simulation.part(one, other)
        elif what < 0.76:
            simulation.join(one, other)
        elif what < 0.81:
            simulation.block(one, other, random.random() < 0.5)
        elif what < 0.88:
            simulation.kill(name)
        elif what < 0.96:
            simulation.revive(name)
        else:
            simulation.processes[name].disconnect_host()
            simulation.at(simulation.now + 0.5, simulation.processes[name].connect_host)
        simulation.run(random.choice((0.001, 0.01, 0.05, 0.3, 1.0, 4.0)))


def _change_guests(simulation: FederationSimulation, name: str, guests: list[tuple[str, str, str]]) -> None:
    """Let a client subscribe temporarily, so that the others' capture sets change."""
    if guests and simulation.random.random() < 0.4:
        at, client, topic_filter = guests.pop(simulation.random.randrange(len(guests)))
        simulation.processes[at].broker.unsubscribe_client(client, topic_filter)
    else:
        guests.append((name, f"guest{len(simulation.guests)}", simulation.random.choice(FILTERS)))
        simulation.guests.append(guests[-1])
        simulation.processes[name].broker.subscribe_client(*guests[-1][1:])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agents", type=int, default=0)
    parser.add_argument("--mixed", action="store_true", help="some brokers are of MQTT 3.1.1")
    parser.add_argument("--busy", action="store_true", help="turns take their time, and events gather meanwhile")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        found = run_seed(seed, options.agents, is_mixed=options.mixed, is_busy=options.busy)
        if found:
            failed += 1
            print(f"seed {seed}: {len(found)} faults", *found[:6], sep="\n  ")
    print(f"{options.seeds - failed} of {options.seeds} seeds from {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
