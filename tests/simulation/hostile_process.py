"""A node with a valid certificate that says what is not its to say: to everybody, at random, in one life after another.

Its links are honest (HELLO, numbers, repeats); what it sends on them stands outside its cells of
``wire/links/allowed.py``: messages about the edges, sessions and partitions of others, with right and wrong epochs,
Raft in another's name, what it was sent or had said before, payloads that nobody can decode, frames with wrong numbers.
An edge may register itself, and keeps no lease. What a member could spoil inside its cells (a router its shards, a
storage node its partitions) is no business of the table: those do not register.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from router.raft.messages import RequestVote, TimeoutNow, encode_message
from tests.fuzz.nested import nested
from tests.simulation.link_process import LinkConnection, LinkProcess, Target
from tests.simulation.process import World
from tests.simulation.router_process import RouterProcess
from tests.simulation.storage_process import StorageProcess
from tests.wire.forged_messages import FORGED, Victim, forged_controls, forged_frames, framed, is_inside_its_cell
from wire.links.allowed import CELLS, Rule, fault_of, may_send
from wire.messages.batches import encode_publish_ack
from wire.messages.cluster_map import ClusterMap, NodeEntry
from wire.messages.control import decode_control, decode_controls, encode_control
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey, first_number
from wire.messages.nodes import Register

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

__all__ = ["HostileProcess"]

TIERS = (TIER_EDGE, TIER_STORAGE, TIER_ROUTER)
LIVES_MAX = 40
LIFE_S = (0.2, 2.0)  # then it starts again, for its victims have closed its links by then
BURST_S = 0.1  # mean time between two bursts
BURST_FRAMES = 4
REMEMBERED = 200  # frames that it may say again
TAGS = 400  # of an edge's messages that one forged frame acknowledges
SHIFTS = (-1, 1, 2, 1_000, -(10**6), 1 << 32, -(1 << 32))
SHIFTED = ("epoch", "partition_epoch", "sender_epoch", "owner_epoch", "shard_epoch", "route_version", "incarnation")
TOPICS = ("retained/0", "qos0/0", "a/b")

Said = tuple[int, bytes]


class HostileProcess(LinkProcess):
    """One hostile node over its lives; all that it does comes from one random stream."""

    def __init__(self, world: World, cluster: "Cluster", rng: random.Random) -> None:
        self.tier = tier = rng.choice(TIERS)
        super().__init__(world, f"{tier[0]}9", [], rng.uniform(-500.0, 100_000.0))
        self._cluster = cluster
        self._draws = rng
        self._remembered: deque[Said] = deque(maxlen=REMEMBERED)
        self._registered = False
        self._subtle = False
        self.said = 0
        self.lives = 0

    # -- lives

    def start(self, incarnation: int) -> None:
        """Begin a life: link to everybody there is."""
        self.lives += 1
        self._registered = False
        # Nothing that ends its link: who and where are what is wrong. A router has nothing of that kind to say.
        self._subtle = self._draws.random() < 0.6 and self.tier != TIER_ROUTER
        self.begin_links(incarnation, random.Random(self._draws.random()))
        for name, node in self._cluster.nodes.items():
            self._add_target(Target(name, node.tier, f"{name}:1"), (name, f"{name}:1"))
        self.later(self._draws.expovariate(1 / BURST_S), self._burst)
        self.later(self._draws.uniform(*LIFE_S), self._start_repeated)

    def _start_repeated(self) -> None:
        self.end()
        if self.lives < LIVES_MAX:
            self.world.scheduler.after(self._draws.uniform(0.05, 0.5), self._cluster.start_hostile)

    def kill(self) -> None:
        """End it for good."""
        self.lives = LIVES_MAX
        self.end()

    # -- links

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        """Keep it, for others."""
        del peer
        self._remembered.append((kind, payload))

    def on_up(self, peer: PeerKey) -> None:
        """A victim is within reach."""

    def on_down(self, peer: PeerKey) -> None:
        """It has closed the link, or ended."""

    def turn(self) -> None:
        """One turn of its links."""
        self.read_links()
        self.flush_links()

    # -- what is said

    def _burst(self) -> None:
        rng = self._draws
        connected = self.table.connected()
        cluster_map = self._newest_map()
        if connected and cluster_map is not None:
            for _ in range(rng.randrange(1, BURST_FRAMES + 1)):
                self._say(rng.choice(connected), cluster_map)
        self.later(rng.expovariate(1 / BURST_S), self._burst)

    def _newest_map(self) -> ClusterMap | None:
        maps = [node.core.machine.map for node in self._cluster.nodes.values() if isinstance(node, RouterProcess)]
        newest = max(maps, key=lambda one: one.epoch)
        return newest if newest.partitions and newest.shards and newest.live(TIER_EDGE) else None

    def _say(self, peer: PeerKey, cluster_map: ClusterMap) -> None:
        rng = self._draws
        loud = 0 if self._subtle else 2
        ways: list[tuple[int, Callable[[PeerKey, ClusterMap], Said | None]]] = [
            (8, self._forged), (4, self._of_another_epoch), (3, self._acknowledgements), (2, self._repeated),
            (loud, self._unreadable), (loud, self._raft), (1, self._registration),
        ]  # fmt: skip
        way = rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]
        said = way(peer, cluster_map)
        if said is None:
            return
        self.said += 1
        self._remembered.append(said)
        if loud and rng.random() < 0.05:
            self._send_badly_numbered(peer.node, *said)
            return
        for _ in range(rng.choice((1, 1, 1, 2))):
            self.table.send(peer.node, *said)

    def _send_badly_numbered(self, node: str, kind: int, payload: bytes) -> None:
        """Write a frame whose number was used, or leaves a gap: the one is passed over, the other ends the link."""
        link = self.table.get(node)
        if link is not None and isinstance(link.connection, LinkConnection):
            number = self._draws.choice((link.core.last_sent, 1, link.core.last_sent + 5))
            link.connection.end.send(HEADER.pack(len(payload), kind, 0, PROTOCOL_VERSION, number) + payload)

    def _passes(self, peer: PeerKey, kind: int, payload: bytes) -> bool:
        """Whether something is outside our cells, and thus to be said."""
        me = PeerKey(self.node, self.tier, self.incarnation)
        if is_inside_its_cell(me, peer.tier, kind, payload):
            return False
        if self._subtle and (kind in (FrameKind.RAFT, FrameKind.PUBLISH) or not may_send(self.tier, peer.tier, kind)):
            return False
        if kind == FrameKind.CONTROLS:
            return all(self._passes(peer, FrameKind.CONTROL, encode_control(one)) for one in decode_controls(payload))
        if kind == FrameKind.CONNECT_ANSWERS:
            return not self._registered  # a live edge may indeed have been asked
        if kind != FrameKind.CONTROL:
            return True
        message = decode_control(payload)
        if self._subtle and fault_of(me, peer.tier, message):
            return False
        # A live edge may indeed have been asked.
        return not (self._registered and CELLS[type(message)].rule is Rule.ASKED)

    def _forged(self, peer: PeerKey, cluster_map: ClusterMap) -> Said | None:
        frames = [(int(kind), payload) for kind, _, payload in forged_frames(self._victim(cluster_map))]
        frames = [(kind, payload) for kind, payload in frames if self._passes(peer, kind, payload)]
        return self._draws.choice(frames) if frames else None

    def _of_another_epoch(self, peer: PeerKey, cluster_map: ClusterMap) -> Said | None:
        rng = self._draws
        messages = list(forged_controls(self._victim(cluster_map)))
        messages = [one for one in messages if self._passes(peer, *framed(one))]
        if not messages:
            return None
        message: Any = rng.choice(messages)
        names = [name for name in SHIFTED if hasattr(message, name)]
        if names:
            name = rng.choice(names)
            message = msgspec.structs.replace(message, **{name: max(0, getattr(message, name) + rng.choice(SHIFTS))})
        kind, payload = framed(message)
        try:
            return (int(kind), payload) if self._passes(peer, kind, payload) else None
        except ValueError:  # out of its range
            return None if self._subtle else (int(kind), payload)

    def _acknowledgements(self, peer: PeerKey, cluster_map: ClusterMap) -> Said | None:
        if peer.tier != TIER_EDGE or (self._subtle and self.tier == TIER_ROUTER):
            return None
        first = first_number(peer.incarnation) + self._draws.choice((0, 0, self._draws.randrange(3_000)))
        partition = self._draws.randrange(len(cluster_map.partitions))
        return int(FrameKind.PUBLISH_ACK), b"".join(
            encode_publish_ack(tag, partition, 0) for tag in range(first, first + TAGS)
        )

    def _repeated(self, peer: PeerKey, _: ClusterMap) -> Said | None:
        """Say again what it said in this life or an earlier one, or was told."""
        if not self._remembered:
            return None
        kind, payload = self._draws.choice(self._remembered)
        try:
            return (kind, payload) if self._passes(peer, kind, payload) else None
        except ValueError:
            return None if self._subtle else (kind, payload)

    def _unreadable(self, _: PeerKey, cluster_map: ClusterMap) -> Said | None:
        rng = self._draws
        kind, _name, payload = rng.choice(list(forged_frames(self._victim(cluster_map))))
        damaged = rng.choice((nested(rng.choice((10, 1_000))), rng.randbytes(rng.randrange(40)), payload[:-1], b"\xc1"))
        if kind == FrameKind.PUBLISH and self.tier == TIER_EDGE:
            return None  # whatever it decodes to, an edge may publish
        return int(kind), damaged

    def _raft(self, peer: PeerKey, _: ClusterMap) -> Said | None:
        """Raft in the name of another router."""
        routers = [node for node in self._cluster.nodes.values() if isinstance(node, RouterProcess)]
        other, to = self._draws.choice(routers), self._draws.choice(routers)
        if peer.tier != TIER_ROUTER or not other.up:
            return None
        term = to.raft.term + self._draws.choice((0, 1, 1_000))
        header = (other.node, peer.node, term, other.incarnation, other.disk.storage_id, to.disk.storage_id)
        vote = RequestVote(*header, last_log_index=1 << 40, last_log_term=term, transfer=True)
        return int(FrameKind.RAFT), encode_message(self._draws.choice((vote, TimeoutNow(*header))))

    def _registration(self, peer: PeerKey, _: ClusterMap) -> Said | None:
        """Become a member, for as long as a lease lasts; only an edge, which nobody needs."""
        if self.tier != TIER_EDGE or peer.tier != TIER_ROUTER:
            return None
        self._registered = True
        entry = NodeEntry(self.node, self.tier, self.incarnation, self.address)
        return int(FrameKind.CONTROL), encode_control(Register(1, entry, ended_incarnation=self.incarnation - 1))

    def _victim(self, cluster_map: ClusterMap) -> Victim:
        """Draw whom to speak of: a session that exists, where there is one."""
        rng = self._draws
        edge = rng.choice([entry for entry in cluster_map.live(TIER_EDGE) if entry.node != self.node] or [None])
        partition = rng.randrange(len(cluster_map.partitions))
        sessions = self._sessions(cluster_map.partitions[partition].primary, partition)
        name = edge.node if edge is not None else next(iter(cluster_map.live(TIER_EDGE))).node
        common = (cluster_map, name, partition)
        rest = (first_number(cluster_map.nodes[name].incarnation) + rng.randrange(1_000), rng.randrange(1_000))
        topic = rng.choice(TOPICS)
        if not sessions:
            return Victim(*common, "nobody", partition << 48 | 1, 1 << 32 | 1, 1, 1, *rest, topic)
        session: Any = rng.choice(sessions)
        seq = next(iter(session.inflight), 1)
        own = (session.client_id, session.number, session.owner_epoch, session.connection, seq)
        return Victim(*common, *own, *rest, topic)

    def _sessions(self, primary: str, partition: int) -> list[Any]:
        node = self._cluster.nodes.get(primary)
        if not isinstance(node, StorageProcess) or not node.up or partition not in node.core.partitions:
            return []
        return list(node.core.partitions[partition].partition.sessions.values())

    def deceived(self) -> list[str]:
        """Return the clients that were given a forged message."""
        return [name for name, client in self._cluster.clients.items() if FORGED in client.received]
