"""Random faults at every step: crashes, power losses, wiped disks, cut links, slow disks, lost and repeated frames.

Invariants: every acknowledged message is once, in order, in its subscriber's queue; replicas at equal op_index are
equal; one node acknowledges per partition_epoch. A failing seed becomes a test of its own.
"""

import random

import pytest

from storage.core import StorageCore
from tests.storage.replicas import assert_equal_states, heal_placement
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_settings
from wire.messages.batches import PublishMessage, decode_publish_acks
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey

STEPS = 400
PARTITIONS = 2
CLIENTS = ("alice", "bob", "carol")


class Chaos:
    """One seeded run."""

    def __init__(self, seed: int, *, lossy: bool) -> None:
        self.rng = random.Random(seed)
        log_max = self.rng.choice((5, 40, 10_000))
        self.cluster = Cluster(
            nodes=3,
            replicas=3,
            min_in_sync=2,
            partitions=PARTITIONS,
            settings=with_settings(log_operations_max=log_max, acks_per_row=self.rng.choice((1, 64))),
            seed=seed,
        )
        self.lossy = lossy
        self.speakers: dict[tuple[int, int], str] = {}
        self.down: dict[str, float] = {}
        self.cut_until: dict[tuple[str, str], float] = {}
        self.slow_until: dict[str, float] = {}
        self.sent: dict[str, list[tuple[int, bytes]]] = {name: [] for name in CLIENTS}
        self.number = 0
        self.edge = self.cluster.edges["e1"]
        self.clients = {name: self.edge.open(name) for name in CLIENTS}
        for name, client in self.clients.items():
            self.edge.subscribe(client, f"{name}/#")
            if name != "carol":
                self.edge.close(client)
        self.cluster.filter = self._frame

    def _frame(self, source: PeerKey, target: str, kind: int, payload: bytes) -> bool:
        """Record the acknowledging node; lose or repeat replication frames, which links never do."""
        if kind == FrameKind.PUBLISH_ACK and source.node in self.cluster.nodes:
            core = self.cluster.nodes[source.node].core
            for ack in decode_publish_acks(payload):
                hosted = core.partitions.get(ack.partition)
                if hosted is not None:
                    acknowledging = self.speakers.setdefault((ack.partition, hosted.partition.epoch), source.node)
                    assert acknowledging == source.node, (
                        f"two primaries acknowledge p{ack.partition}/{hosted.partition.epoch}"
                    )
        if self.lossy and kind in (FrameKind.REPLICATE, FrameKind.REPLICATE_ACK):
            chance = self.rng.random()
            if chance < 0.03:
                return False
            if chance < 0.06:
                self.cluster.repeat(source, target, kind, payload)
        return True

    def publish(self) -> None:
        """Send one message to one client."""
        name = self.rng.choice(CLIENTS)
        self.number += 1
        payload = str(self.number).encode() * self.rng.choice((1, 1, 200))
        partition = self.clients[name].session >> 48
        tag = self.edge.publish(PublishMessage(0, f"{name}/x".encode(), payload, self.rng.choice((1, 2))), partition)
        self.sent[name].append((tag, payload))

    def fault(self) -> None:
        """Inject a fault that the guarantees still cover."""
        cluster, rng = self.cluster, self.rng
        what = rng.choice(("kill", "power", "wipe", "cut", "slow", "fast_restart"))
        names = sorted(cluster.nodes)
        if not names:
            return
        name = rng.choice(names)
        if what in ("kill", "power", "fast_restart"):
            cluster.kill(name, power=what == "power", declare=what != "fast_restart")
            self.down[name] = cluster.now + (0.02 if what == "fast_restart" else rng.uniform(0.1, 2.0))
        elif what == "wipe":
            placements = cluster.map.partitions
            others = [
                sum(1 for other in placement.in_sync if other != name and other in cluster.nodes)
                for placement in placements
            ]
            if min(others) >= 1 and not self.down:
                cluster.kill(name, wipe=True)
                self.down[name] = cluster.now + rng.uniform(0.1, 1.0)
        elif what == "cut" and len(names) > 1:
            one, other = rng.sample(names, 2)
            cluster.cut(one, other)
            self.cut_until[one, other] = cluster.now + rng.uniform(0.05, 3.0)
        else:
            cluster.nodes[name].disk_slow = True
            self.slow_until[name] = cluster.now + rng.uniform(0.05, 3.0)

    def recover(self, *, everything: bool = False) -> None:
        """End the faults whose time has come."""
        cluster = self.cluster
        for name in [name for name, until in self.down.items() if everything or until <= cluster.now]:
            del self.down[name]
            cluster.start(name)
        for pair in [pair for pair, until in self.cut_until.items() if everything or until <= cluster.now]:
            del self.cut_until[pair]
            cluster.heal(*pair)
        for name in [name for name, until in self.slow_until.items() if everything or until <= cluster.now]:
            del self.slow_until[name]
            if name in cluster.nodes:
                cluster.nodes[name].disk_slow = False

    def client_acknowledges(self) -> None:
        """Let the connected client acknowledge some of its messages."""
        client = self.clients["carol"]
        for push in list(client.outbound.values()):
            if self.rng.random() < 0.3:
                packet_type = 4 if push.qos == 1 else (7 if push.pubrel else 5)
                if client.answered.get(push.session_seq, 0) != packet_type:
                    self.edge.acknowledge(push, packet_type)

    def run(self) -> None:
        """Run steps with faults, then without, then check the result."""
        for step in range(STEPS):
            if self.rng.random() < 0.4:
                self.publish()
            if self.rng.random() < 0.03:
                self.fault()
            self.client_acknowledges()
            self.recover()
            self.cluster.step()
            if step % 10 == 0:
                assert_equal_states(self.cluster)
        self.recover(everything=True)
        self.lossy = False
        heal_placement(self.cluster, 3)
        self.cluster.run(1.0)
        self.cluster.settle()
        assert_equal_states(self.cluster)
        self.check_result()

    def check_result(self) -> None:
        """Check that every acknowledged message arrived once, in order, and that no request is unanswered."""
        assert not self.edge.unfinished
        for name in CLIENTS:
            expected = [payload for tag, payload in self.sent[name] if self.edge.acked[tag] == 0]
            if name == "carol":
                got = self.drain(self.clients[name])
            else:
                got = self.drain(self.cluster.edges["e2"].open(name), self.cluster.edges["e2"])
            assert got == expected, f"{name}: {len(got)} of {len(expected)}"

    def drain(self, client: Connection, edge: Edge | None = None) -> list[bytes]:
        """Acknowledge all messages until none arrives; return the first transmissions, in order."""
        holder = edge or self.edge
        while client.outbound:
            for push in list(client.outbound.values()):
                holder.acknowledge(push, 4 if push.qos == 1 else (7 if push.pubrel else 5))
            self.cluster.settle()
        return [push.payload for push in client.received if not push.pubrel]


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_with_reliable_links_keep_the_invariants(seed: int) -> None:
    """Crashes, power losses, wiped and slow disks, links that are down for a while."""
    Chaos(seed, lossy=False).run()


@pytest.mark.parametrize("seed", range(100, 108))
def test_random_faults_with_lossy_links_keep_the_invariants(seed: int) -> None:
    """The protocol itself is idempotent: frames of replication are lost and repeated too."""
    Chaos(seed, lossy=True).run()


@pytest.mark.parametrize("seed", range(200, 208))
def test_short_iterations_send_the_frames_of_full_ones(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A core that runs all its parts in each iteration sends the same frames at the same times under faults."""
    judged: list[bool] = []

    def noted(core: StorageCore, now: float) -> bool:
        judged.append(has_only_messages(core, now))
        return judged[-1]

    has_only_messages = StorageCore.has_only_messages
    monkeypatch.setattr(StorageCore, "has_only_messages", noted)
    short = frames_of(Chaos(seed, lossy=True))
    assert sum(judged) > len(judged) / 8
    monkeypatch.setattr(StorageCore, "has_only_messages", lambda *_: False)
    assert frames_of(Chaos(seed, lossy=True)) == short


def frames_of(chaos: Chaos) -> list[tuple[float, str, str, int, bytes]]:
    """Return all frames of a run, with their times."""
    frames = []
    passes = chaos.cluster.filter

    def note(source: PeerKey, target: str, kind: int, payload: bytes) -> bool:
        frames.append((chaos.cluster.now, source.node, target, kind, payload))
        return passes(source, target, kind, payload)

    chaos.cluster.filter = note
    chaos.run()
    return frames
