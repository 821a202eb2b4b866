"""Measure how long one killed node leaves clients without service, by role of the node.

A schedule's clients give up and back off. These clients repeat one operation as soon as it is answered: *publish*
QoS 1 to their own durable session, *connect* a durable session and disconnect, *subscribe* to a new filter. Their
only timeout is that of CONNECT (0.5 s, then the next edge): they wait on an open connection, and replace a closed
one at once at another edge. The result of a kill is, per client, the longest time between two successes after the
kill. Clients are grouped by the killed node's role for them: their edge, the primary or a backup of their
partition, the leader or another router.
"""

from __future__ import annotations

import contextlib
import datetime
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import trio

from mqtt.codec import StreamDecoder, encode_packet
from mqtt.packets import Connack, Connect, Disconnect, Packet, Puback, Publish, Suback, Subscribe, SubscriptionRequest
from mqtt.properties import PropertyId
from tests.chaos.real_cluster import RealCluster
from tests.chaos.schedule import tier_of
from wire.messages.cluster_map import partition_of

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "unavailability.jsonl"
CONNECT_TIMEOUT_S = 0.5
PERIOD_S = 0.02  # between an answer and the next request
DOWN_S = 6.0  # longer than a lease: takeover is measured, not the restart
CALM_S = 3.0
SETTLE_S = 60.0  # longest wait for a recovery
PER_PAIR = 1  # publishing clients per pair of edge and storage node
GOALS_S = {
    ("edge", "connect"): 1.0,
    ("edge", "publish"): 1.0,
    ("router leader", "subscribe"): 3.0,
    ("router leader", "publish"): 0.0,
    ("other router", "publish"): 0.0,
    ("storage primary", "connect"): 5.0,
    ("storage primary", "publish"): 5.0,
    ("storage backup", "connect"): 0.5,
    ("storage backup", "publish"): 0.5,
}

__all__ = ["GOALS_S", "RESULTS", "Unavailability", "measure", "read_unavailability", "unavailability_table"]


class Unavailability(msgspec.Struct, frozen=True):
    """One kill: the longest wait of each client of one kind, in seconds.

    Attributes:
        role: Role of the killed node for these clients; "none" is a calm time of the same length.
    """

    date: str
    role: str
    kind: str
    node: str
    waits_s: tuple[float, ...]


@dataclass(eq=False)
class _Probe:
    kind: str
    client_id: str
    partition: int
    edge: int  # where it begins, and now is
    successes: list[float] = field(default_factory=list)
    at_edge: str = ""

    def longest_s(self, start: float, end: float) -> float:
        """The longest time without success that began before ``end``, counted from ``start`` on."""
        longest, last = 0.0, start
        for at in self.successes:
            if at > start:
                longest = max(longest, at - last)
                last = at
            if at > end:
                return longest
        return max(longest, end - last)


class _Connection:
    """One connection of a probe, packets in and out."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream, self._decoder = stream, StreamDecoder(5)
        self._waiting: list[Packet] = []

    async def send(self, packet: Packet) -> None:
        await self._stream.send_all(encode_packet(packet, 5))

    async def receive(self, wanted: type[Packet]) -> Packet:
        """Return the next packet of a kind; messages are acknowledged meanwhile.

        Raises:
            trio.BrokenResourceError: The connection has ended.
        """
        while True:
            while not self._waiting:
                data = await self._stream.receive_some(65_536)
                if not data:
                    raise trio.BrokenResourceError
                self._waiting += self._decoder.feed(data)
            packet = self._waiting.pop(0)
            if isinstance(packet, Publish) and packet.qos:
                await self.send(Puback(packet.packet_identifier or 0))
            if isinstance(packet, Disconnect):
                raise trio.BrokenResourceError
            if isinstance(packet, wanted):
                return packet


class _Probes:
    """All probes of one cluster."""

    def __init__(self, cluster: RealCluster, placements: list[dict[str, Any]], seed: int) -> None:
        self._cluster, self._rng = cluster, random.Random(seed)
        self._edges = [node for node in cluster.nodes() if tier_of(node) == "edge"]
        self._brokers = cluster.brokers()
        self.placements = placements
        storages = [node for node in cluster.nodes() if tier_of(node) == "storage"]
        self.all: list[_Probe] = []
        for number in range(len(self._edges)):
            for storage in storages:
                for copy in range(PER_PAIR):
                    for kind in ("publish", "connect"):
                        self.all.append(self._new(f"{kind}-{number}-{storage}-{copy}", kind, number, storage))
            self.all.append(_Probe("subscribe", f"probe-subscribe-{number}", -1, number))

    def _new(self, name: str, kind: str, edge: int, storage: str) -> _Probe:
        """Find a client identifier whose partition has its primary there."""
        for attempt in range(10_000):
            client_id = f"probe-{name}-{attempt}"
            partition = partition_of(client_id, len(self.placements))
            if self.placements[partition]["primary"] == storage:
                return _Probe(kind, client_id, partition, edge)
        raise ValueError(f"{storage} is primary of nothing")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for probe in self.all:
                nursery.start_soon(self._run, probe)

    async def _run(self, probe: _Probe) -> None:
        while True:
            with contextlib.suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await self._one_connection(probe)
                continue  # ended in order
            probe.at_edge = ""
            probe.edge = (probe.edge + 1) % len(self._edges)
            await trio.sleep(PERIOD_S)

    async def _one_connection(self, probe: _Probe) -> None:
        with trio.move_on_after(CONNECT_TIMEOUT_S) as patience:
            stream = await trio.open_tcp_stream(*self._brokers[probe.edge])
        if patience.cancelled_caught:
            raise trio.BrokenResourceError
        async with stream:
            connection = _Connection(stream)
            with trio.move_on_after(CONNECT_TIMEOUT_S) as patience:
                await self._connect(connection, probe)
            if patience.cancelled_caught:
                raise trio.BrokenResourceError
            probe.at_edge = self._edges[probe.edge]
            if probe.kind == "publish":
                await self._publish(connection, probe)
            elif probe.kind == "subscribe":
                await self._subscribe(connection, probe)
            else:
                probe.successes.append(trio.current_time())
                await connection.send(Disconnect(0))
                await trio.sleep(PERIOD_S)

    async def _connect(self, connection: _Connection, probe: _Probe) -> None:
        expiry = 0 if probe.kind == "subscribe" else 600
        await connection.send(
            Connect(
                probe.client_id,
                protocol_version=5,
                clean_start=probe.kind == "subscribe",
                keep_alive_s=0,
                properties={PropertyId.SESSION_EXPIRY_INTERVAL: expiry},
            )
        )
        answer = await connection.receive(Connack)
        assert isinstance(answer, Connack)
        if answer.reason_code:
            raise trio.BrokenResourceError

    async def _publish(self, connection: _Connection, probe: _Probe) -> None:
        topic = f"probe/{probe.client_id}"
        await connection.send(Subscribe(1, [SubscriptionRequest(topic, 1)]))
        await connection.receive(Suback)
        identifier = 0
        while True:
            identifier = identifier % 60_000 + 2
            await connection.send(Publish(topic, b"probe", 1, False, packet_identifier=identifier))
            answer = await connection.receive(Puback)
            assert isinstance(answer, Puback)
            if answer.reason_code < 0x80:
                probe.successes.append(trio.current_time())
            await trio.sleep(PERIOD_S)

    async def _subscribe(self, connection: _Connection, probe: _Probe) -> None:
        number = 0
        while True:
            number = number % 60_000 + 1
            topic_filter = f"probe{self._rng.randrange(1 << 30)}/{number % 50}"
            await connection.send(Subscribe(number, [SubscriptionRequest(topic_filter, 0)]))
            answer = await connection.receive(Suback)
            assert isinstance(answer, Suback)
            if answer.reason_codes[0] < 0x80:
                probe.successes.append(trio.current_time())
            await trio.sleep(PERIOD_S)
            if number % 200 == 0:
                return  # a session has a bound of subscriptions


def _role(probe: _Probe, node: str, leader: str, placements: list[dict[str, Any]], edge: str) -> str:
    """Return a node's role for a client; "" if it has none."""
    if tier_of(node) == "edge":
        return "edge" if edge == node else ""
    if tier_of(node) == "router":
        return "router leader" if node == leader else "other router"
    if probe.partition < 0:
        return ""
    placement = placements[probe.partition]
    if placement["primary"] == node:
        return "storage primary"
    return "storage backup" if node in placement["in_sync"] else ""


async def _targets(cluster: RealCluster, rng: random.Random) -> list[str]:
    """Return one node of each role in any order; the leader is found just before its kill."""
    chosen = [rng.choice([n for n in cluster.nodes() if tier_of(n) == tier]) for tier in ("edge", "storage")]
    chosen += ["leader", "other router"]
    rng.shuffle(chosen)
    return chosen


async def measure(cluster: RealCluster, rounds: int, seed: int) -> list[Unavailability]:
    """Kill one node of each role in each round; return the clients' waits."""
    found: list[Unavailability] = []
    rng = random.Random(f"{seed}/unavailability")
    await cluster.recovered()
    probes = _Probes(cluster, (await cluster.ask("ring show"))["partitions"], seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probes.run)
        await trio.sleep(CALM_S)
        for _ in range(rounds):
            start = trio.current_time()
            await trio.sleep(DOWN_S)
            found += _found(dict.fromkeys(probes.all, "none"), "", start)
            for target in await _targets(cluster, rng):
                found += await _one_kill(cluster, probes, target, rng)
        nursery.cancel_scope.cancel()
    return found


async def _one_kill(cluster: RealCluster, probes: _Probes, target: str, rng: random.Random) -> list[Unavailability]:
    placements = (await cluster.ask("ring show"))["partitions"]
    leader = str((await cluster.ask("cluster status"))["leader"])
    node = target
    if target == "leader":
        node = leader
    elif target == "other router":
        node = rng.choice([n for n in cluster.nodes() if tier_of(n) == "router" and n != leader])
    roles = {probe: _role(probe, node, leader, placements, probe.at_edge) for probe in probes.all}
    start = trio.current_time()
    await cluster.kill(node)
    await trio.sleep(DOWN_S)
    found = _found(roles, node, start)
    await cluster.restart(node)
    with trio.move_on_after(SETTLE_S):
        await cluster.recovered()
    await trio.sleep(CALM_S)
    return found


def _found(roles: dict[_Probe, str], node: str, start: float) -> list[Unavailability]:
    waits: dict[tuple[str, str], list[float]] = defaultdict(list)
    end = trio.current_time()
    for probe, role in roles.items():
        if role:
            waits[role, probe.kind].append(round(probe.longest_s(start, end), 3))
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    return [Unavailability(date, role, kind, node, tuple(sorted(some))) for (role, kind), some in sorted(waits.items())]


def read_unavailability(path: Path = RESULTS) -> list[Unavailability]:
    """Return the stored results."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Unavailability) for line in path.read_bytes().splitlines()]


def unavailability_table(found: Iterable[Unavailability]) -> str:
    """Return the Markdown table: per role and kind, median and worst of all clients of all kills, and the goal."""
    grouped: dict[tuple[str, str], list[Unavailability]] = defaultdict(list)
    for entry in found:
        grouped[entry.role, entry.kind].append(entry)
    roles = ("none", "edge", "router leader", "other router", "storage primary", "storage backup")
    lines = ["| killed | client waits for | kills | clients | median | worst | goal |", "|---|---|---|---|---|---|---|"]
    for role in roles:
        for kind in ("connect", "publish", "subscribe"):
            entries = grouped[role, kind]
            waits = [wait for entry in entries for wait in entry.waits_s]
            if waits:
                goal = f"{GOALS_S[role, kind]:g} s" if (role, kind) in GOALS_S else ""
                name, kills = ("nobody", 0) if role == "none" else (role, len(entries))
                figures = f"{median(waits):.2f} s | {max(waits):.2f} s"
                lines.append(f"| {name} | {kind} | {kills} | {len(waits)} | {figures} | {goal} |")
    return "\n".join(lines)
