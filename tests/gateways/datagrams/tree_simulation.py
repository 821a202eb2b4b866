"""Trees of datagram nodes and devices on one clock: datagrams are lost, duplicated and delayed, nodes restart.

``run_seed`` returns the promised and the received messages. Many seeds: python -m
tests.gateways.datagrams.tree_simulation
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from gateways.datagrams.device import Device
from gateways.datagrams.jurisdiction import JOIN_LEASE_S
from gateways.datagrams.messages import Code, Datagram, DatagramPublish, Endpoint, PubAck, decode, encode
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.node_events import Arrived, DatagramNodeSettings, DatagramReady
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.subscribers import DatagramPeer
from gateways.datagrams.subtrees import is_within
from mqtt.topics import matches

PARTS = ("a", "b", "a/x", "a/y")


class AllowAll:
    """Rules that allow all."""

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        return not name and bool(topic) and qos >= 0

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        return not name and bool(topic_filter) and qos >= 0


def endpoint(number: int) -> Endpoint:
    return Endpoint(bytes((10, 0, number >> 8, number & 255)), 1000)


@dataclass
class Actor:
    """One process, a node or a device, and its next wake-up."""

    address: Endpoint
    node: DatagramNode | None = None
    device: Device | None = None
    make: Callable[[bool], DatagramNode] | None = None  # argument: whether it ran before
    wake: float = -1.0


@dataclass
class Publication:
    topic: str
    qos: int
    began: float
    code: int | None = None
    ended: float = 0.0


@dataclass
class WantedFilter:
    filter: str
    qos: int
    since: float = 1e9


@dataclass
class Record:
    """Record of a run.

    Attributes:
      publications: By payload.
      subscriptions: Subscriptions by device; ``since`` is the time of the grant.
      received: Payloads by device, with the times of their copies.
      between: PUBLISH datagrams from node to node.
      given_up: Devices that a node gave up, with the first time.
    """

    publications: dict[bytes, Publication] = field(default_factory=dict)
    subscriptions: dict[Endpoint, WantedFilter] = field(default_factory=dict)
    received: dict[Endpoint, dict[bytes, list[float]]] = field(default_factory=dict)
    control: int = 0
    data: int = 0
    answers: int = 0
    between: int = 0
    given_up: dict[Endpoint, float] = field(default_factory=dict)


class TreeSimulation:
    """A root, nodes below it, and devices."""

    def __init__(self, seed: int, loss: float = 0.0, late_s: float = 0.02, double: float = 0.0) -> None:
        self.random = Random(seed)
        self.loss, self.late_s, self.double = loss, late_s, double
        self.now = 100.0
        self.actors: dict[Endpoint, Actor] = {}
        self.nodes: set[Endpoint] = set()
        self.cut: set[frozenset[Endpoint]] = set()  # pairs without connectivity
        self.record = Record()
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._life = 0
        self._lives = 0

    def at(self, when: float, action: Callable[[], object]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (when, self._order, action))

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    def add_node(self, number: int, subtree: str, parent: int | None) -> Actor:
        address = endpoint(number)
        up = DatagramPeer(endpoint(parent)) if parent is not None else None

        def make(ran_before: bool) -> DatagramNode:
            self._lives += 1
            parts = tuple(each for each in PARTS if is_within(each, subtree) and each != subtree)
            waits_s = 25.0 if up is None else JOIN_LEASE_S if parts else 0.0
            settings = DatagramNodeSettings(
                subtree,
                address,
                {"": parts} if parts else {},
                incarnation=self._lives,
                first_number=self._lives << 40,
                holds_from=self.now + waits_s if ran_before else 0.0,
            )
            return DatagramNode(settings, AllowAll(), Proofs(bytes([number]) * 32), up)

        actor = self.actors[address] = Actor(address, node=make(False), make=make)
        self.nodes.add(address)
        self._wake(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        actor.node = None

    def restart(self, actor: Actor) -> None:
        assert actor.make is not None
        actor.node = actor.make(True)
        self._wake(actor)

    def add_device(self, number: int, home: int, relay: bool = False) -> Actor:
        address = endpoint(number)
        actor = Actor(address, device=Device((endpoint(home),), number << 32, relay=relay))
        self.actors[address] = actor
        self.record.received[address] = {}
        return actor

    def publish(self, actor: Actor, topic: str, qos: int = 1) -> bytes:
        assert actor.device is not None
        payload = b"%d" % len(self.record.publications)
        self.record.publications[payload] = Publication(topic, qos, self.now)
        actor.device.publish(self.now, int(payload), topic, payload, qos)
        self._device_step(actor, [])
        return payload

    def subscribe(self, actor: Actor, topic_filter: str, qos: int = 1) -> None:
        assert actor.device is not None
        self.record.subscriptions[actor.address] = WantedFilter(topic_filter, qos)
        actor.device.subscribe(self.now, 1_000_000, topic_filter, qos)
        self._device_step(actor, [])

    def _wake(self, actor: Actor) -> None:
        core = actor.node or actor.device
        if core is None:
            return
        when = core.next_deadline()
        if when is not None and actor.wake != when:
            actor.wake = when
            self.at(max(when, self.now), lambda: self._on_wake(actor, when))

    def _on_wake(self, actor: Actor, when: float) -> None:
        if actor.wake != when:
            return
        actor.wake = -1.0
        if actor.node is not None:
            self._node_step(actor, actor.node.handle(self.now))
        elif actor.device is not None:
            self._device_step(actor, [])

    def _node_step(self, actor: Actor, ready: DatagramReady) -> None:
        for peer in ready.given_up:
            self.record.given_up.setdefault(peer.endpoint, self.now)
        for sent in ready.send:
            data = encode(sent.packet)
            if sent.bytes_max and len(data) > sent.bytes_max:
                continue
            self._transmit(actor.address, sent.peer.endpoint, sent.packet, data)
        self._wake(actor)

    def _device_step(self, actor: Actor, arrived: list[tuple[Endpoint, Datagram]]) -> None:
        assert actor.device is not None
        ready = actor.device.handle(self.now, arrived)
        for outcome in ready.outcomes:
            if outcome.ref == 1_000_000:
                if outcome.code == Code.SUBSCRIBED:
                    self.record.subscriptions[actor.address].since = self.now
            else:
                publication = self.record.publications[b"%d" % outcome.ref]
                publication.code, publication.ended = outcome.code, self.now
        for message in ready.delivered:
            self.record.received[actor.address].setdefault(message.payload, []).append(self.now)
        for target, packet in ready.send:
            self._transmit(actor.address, target, packet, encode(packet))
        self._wake(actor)

    def _transmit(self, source: Endpoint, target: Endpoint, packet: Datagram, data: bytes) -> None:
        record = self.record
        if isinstance(packet.body, DatagramPublish):
            record.data += 1
            record.between += source in self.nodes and target in self.nodes
        elif isinstance(packet.body, PubAck) and packet.body.code in (Code.DISTRIBUTED, Code.DELIVERED):
            record.answers += 1
        else:
            record.control += 1
        if self.random.random() < self.loss or frozenset((source, target)) in self.cut:
            return
        for _ in range(2 if self.random.random() < self.double else 1):
            late = self.random.uniform(0.0005, self.late_s)
            self.at(self.now + late, lambda: self._arrive(source, target, data))

    def _arrive(self, source: Endpoint, target: Endpoint, data: bytes) -> None:
        actor = self.actors.get(target)
        if actor is None:
            return
        packet = decode(data)
        if actor.node is not None:
            self._node_step(
                actor, actor.node.handle(self.now, [Arrived(DatagramPeer(source), "", packet, len(data), False)])
            )
        elif actor.device is not None:
            self._device_step(actor, [(source, packet)])

    def lost(self) -> list[tuple[Endpoint, bytes]]:
        """Return the answered messages that did not reach a device subscribed before.

        A subscriber that did not answer five tries has no guarantee from then on.
        """
        missing = []
        for payload, publication in self.record.publications.items():
            if publication.code != Code.DISTRIBUTED or not publication.qos:
                continue
            for address, subscription in self.record.subscriptions.items():
                if publication.ended >= self.record.given_up.get(address, 1e9):
                    continue
                is_owed = (
                    subscription.qos
                    and subscription.since < publication.began
                    and matches(subscription.filter, publication.topic)
                )
                if is_owed and payload not in self.record.received[address]:
                    missing.append((address, payload))
        return missing


def run_seed(seed: int) -> TreeSimulation:
    """Return one run of four nodes with loss, duplication and delay; nodes restart while devices publish."""
    random = Random(seed)
    tree = TreeSimulation(seed, loss=random.choice([0, 0.01, 0.05, 0.2]), late_s=0.3, double=0.02)
    nodes = [tree.add_node(1, "", None), tree.add_node(2, "a", 1), tree.add_node(3, "b", 1), tree.add_node(4, "a/x", 2)]
    devices = [tree.add_device(100 + number, random.choice([1, 2, 3, 4])) for number in range(6)]
    for device in devices[2:]:
        tree.subscribe(device, random.choice(["#", "a/#", "+/x/#", "b/+", "a/x/1", "a/x/#"]))
    for _ in range(60):
        when = 100 + random.uniform(0, 60)
        device, topic = random.choice(devices[:2]), random.choice(["a/x/1", "a/y", "b/1", "b/x", "c", "a/x"])
        tree.at(when, partial(tree.publish, device, topic))
    for _ in range(random.randrange(4)):
        node, when = random.choice(nodes[1:]), 100 + random.uniform(0, 50)
        tree.at(when, partial(tree.kill, node))
        tree.at(when + random.uniform(0.1, 30), partial(tree.restart, node))
    tree.run_until(260)
    return tree


def main() -> int:
    """Run many seeds; the first failing one is named."""
    parser = argparse.ArgumentParser(description="Trees of datagram nodes under loss and deaths, from seeds.")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args()
    answered = 0
    for seed in range(options.seed, options.seed + options.seeds):
        tree = run_seed(seed)
        assert not tree.lost(), f"seed {seed}: {tree.lost()}"
        answered += sum(each.code == Code.DISTRIBUTED for each in tree.record.publications.values())
    print(f"{options.seeds} seeds, {answered} messages answered: none lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
