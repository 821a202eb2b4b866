"""Sends every message with every kind of certificate to each tier's core: ``python -m tests.wire.allowed_matrix``.

The scene is a small simulated cluster with a stored session, unacknowledged messages to its client, and one message
that storage has not acknowledged. Live nodes then send every message, under their own names, to a core of each tier.
The edge's loop is the uncompiled one, whose whole state is visible; tests/edge/loop compares it with the compiled one.
The output has a line for each message that made a forbidden change, and the number of messages.

``--without RULE`` removes one rule first, to show that the matrix detects it (tests/mutants/test_allowed_rules.py).
``--tier-checks`` sends each control message with the certificate of each tier that has no cell for it, normally and
with the check of that message's sender disabled. It prints the messages whose missing check has no visible effect.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.edge.loop.conftest import SourceOnly

sys.meta_path.insert(0, SourceOnly())

from edge.node.node import EdgeCounters  # noqa: E402
from tests.simulation.scene import Scene  # noqa: E402
from tests.simulation.sim_client import ClientOptions  # noqa: E402
from tests.whole_state import whole_state  # noqa: E402
from tests.wire.forged_messages import Victim, forged_frames, is_inside_its_cell  # noqa: E402
from wire.links import allowed  # noqa: E402
from wire.links.allowed import may_send  # noqa: E402
from wire.links.link import Frame, LinkCore  # noqa: E402
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState  # noqa: E402
from wire.messages.control import encode_control  # noqa: E402
from wire.messages.frames import FrameKind  # noqa: E402
from wire.messages.hello import PeerKey  # noqa: E402
from wire.messages.nodes import Heartbeat  # noqa: E402
from wire.node.events import FrameArrived, NodeTick  # noqa: E402

TIERS = ("edge", "storage", "router", "operator", "gateway", "client")
REFUSALS = ("refused_", "acks_of_others", "requests_of_others", "answers_unknown", "relays_refused", "messages_unknown")

HIDDEN = frozenset(
    (
        *("counts", "_refusals", "_fenced", "acks_unknown"),  # refusals
        *("brought", "untold", "room", "dirty", "dirty_first", "dirty_last", "next_dirty"),  # local end of the link
        *("packet", "turn_end_ns", "of_partitions", "now"),  # of an iteration
        "_peer",  # sender of the current frame, set before each check
        *("building", "released", "_claims_after"),  # of replies: another edge's request is rejected as ended
        "_new_client_id",  # the callback into the simulation
    )
)


class Matrix:
    """One cluster, and the messages sent to it."""

    def __init__(self) -> None:
        self.scene = scene = Scene(
            5, routers=3, storages=3, edges=2, replicas=2, min_in_sync=1, partitions=2, shards=2, clock_offsets=False
        )
        scene.run(3.0)
        self.map = scene.map
        placement = self.map.partitions[0]
        self.primary = placement.primary
        name = scene.name_on(self.primary, "c")
        options = ClientOptions(clean_start=False, session_expiry_interval_s=3600)
        scene.client("subscriber", "e1", options, "a/#", client_id=name, qos=1)
        publisher = scene.client("publisher", "e1", ClientOptions(clean_start=True, session_expiry_interval_s=0))
        scene.publish(publisher, "a/b", "first")
        scene.run(0.3)
        beside = next(f"a{n}" for n in range(100) if self.map.partition_for(f"a{n}") == self.map.partition_for(name))
        asker = scene.client("asker", "e1", options, client_id=beside)
        scene.network.jam("subscriber", "e1")  # no acknowledgement
        scene.publish(publisher, "a/b", "unacknowledged")
        scene.run(0.5)
        self.partition = self.map.partition_for(name)
        self.client_id = name
        nodes: dict[str, Any] = dict(scene.cluster.nodes)
        self.edge = nodes["e1"].core
        self.storage = nodes[self.primary].core
        self.router = nodes[scene.leader()].core
        sessions: dict[int, Any] = self.storage.partitions[self.partition].partition.sessions
        self.session = next(session for session in sessions.values() if session.client_id == name)
        for storage in ("s1", "s2", "s3"):
            scene.cut("e1", storage)
        assert publisher.publish("a/b", "open", 1)  # storage never receives it
        assert asker.subscribe("asked/#", 1)  # nor of this
        scene.run(0.3)
        assert len(self.edge.requests) == 1
        self.request = self.edge.requests.next_number() - 1
        self.tag = int(next(iter(self.edge.hot.outboxes[self.partition].messages)))
        self.now = scene.cluster.scheduler.now
        self.tried = 0
        self.wrong: list[str] = []
        self.edge.peers.condemn = self.edge.hot.close = _nothing  # closing of links is tested separately
        entries = {
            key.node: NodeEntry(key.node, tier, key.incarnation, "h:1", state=NodeState.ACTIVE)
            for tier in TIERS
            for key in self.keys(tier)
        }
        self.edge.peers.know(ClusterMap("sim", nodes=entries))
        hot = self.edge.hot
        self.conn = hot.attach(-1, 1, sys.modules["edge.loop.options"].ConnOptions(), hot.now_ns)
        self.last: dict[int, list[object]] = {id(self.edge): self._state(self.edge)}
        self._sayers: dict[str, Any] = {"router": self._to_router, "storage": self._to_storage, "edge": self._to_edge}

    # -- senders

    def keys(self, tier: str) -> list[PeerKey]:
        """Return live nodes of a tier, except the receiver and the subjects of the messages."""
        taken = {"edge": "e1", "storage": self.primary, "router": self.router.node}
        copies = self.map.partitions[self.partition].in_sync
        known = [entry for entry in self.map.live(tier) if entry.node not in (taken.get(tier), *copies)]
        if known:
            return [PeerKey(entry.node, tier, entry.incarnation) for entry in known[:1]]
        return [PeerKey(f"{tier}-9", tier, 77)]

    # -- messages

    def victim(self) -> Victim:
        """Return the session, its edge and its partition."""
        return Victim(
            self.map,
            "e1",
            self.partition,
            self.client_id,
            self.session.number,
            self.session.owner_epoch,
            self.session.connection,
            next(iter(self.session.inflight), 1),
            self.tag,
            self.request,
        )

    def frames(self) -> Iterator[tuple[int, str, bytes]]:
        """Return (kind, name, payload) of all messages."""
        return forged_frames(self.victim())

    # -- the cells

    def run(self, only: frozenset[str] = frozenset()) -> None:
        """Send all messages, or those of these names, to all receivers."""
        for receiver in ("router", "storage", "edge"):
            for tier in TIERS:
                for key in self.keys(tier):
                    for kind, name, payload in self.frames():
                        if (not only or name in only) and not self._is_allowed(key, receiver, kind, name, payload):
                            self._say(receiver, key, kind, name, payload)

    def run_allowed(self) -> None:
        """Send permitted messages: a matrix in which no message changes state would prove nothing."""
        primary = PeerKey(self.primary, "storage", self.map.nodes[self.primary].incarnation)
        edge = PeerKey("e1", "edge", self.map.nodes["e1"].incarnation)
        said = {name: (kind, payload) for kind, name, payload in self.frames()}
        said["Heartbeat"] = (
            FrameKind.CONTROL, encode_control(Heartbeat(edge.node, edge.incarnation, 1.0, self.map.epoch)),
        )  # fmt: skip
        cells = [("router", edge, "Heartbeat"), ("storage", edge, "SubscribeSession"), ("storage", edge, "PUSH_ACK")]
        cells += [("edge", primary, "PUSH"), ("edge", primary, "PUBLISH_ACK"), ("edge", primary, "KickSession")]
        for receiver, key, name in cells:
            before, after = self._sayers[receiver](key, *said[name])
            if before == after:
                self.wrong.append(f"{name} of {key.tier} {key.node} changed nothing at a {receiver}")

    def _is_allowed(self, key: PeerKey, receiver: str, kind: int, name: str, payload: bytes) -> bool:
        """Return whether this sender may send this message and thus change state."""
        if kind == FrameKind.REPLICATE and name != "REPLICATE" and may_send(key.tier, receiver, kind):
            return True  # waits, bounded, for the map
        return is_inside_its_cell(key, receiver, kind, payload)

    def _say(self, receiver: str, key: PeerKey, kind: int, name: str, payload: bytes) -> None:
        self.tried += 1
        before, after = self._sayers[receiver](key, kind, payload)
        if before != after:
            at = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), -1)
            what = f"{before[at - 1]!r} {before[at]!r} -> {after[at]!r}"
            self.wrong.append(f"{name} of a {key.tier} changed a {receiver}: {what}")

    def _to_router(self, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        return self._to_core(self.router, key, kind, payload)

    def _to_storage(self, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        return self._to_core(self.storage, key, kind, payload)

    def _to_core(self, core: Any, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        now = self.now
        if id(core) not in self.last:
            core.handle(now, [NodeTick()])
            if core is self.storage:
                for number in core.partitions:
                    core.served_ms(number)  # an idle one gets the time only with an event
            self.last[id(core)] = self._state(core)
        self.deliver(core, key, kind, payload)
        return self._changed(core)

    def deliver(self, core: Any, key: PeerKey, kind: int, payload: bytes) -> None:
        """Pass a frame of a node to a core."""
        if core is not self.edge:
            core.handle(self.now, [FrameArrived(key, kind, payload)])
            return
        peer = core.peers.get(key.node)
        link, peer.link, self.conn.peer = peer.link, _OneFrame(kind, payload), peer
        sys.modules["edge.loop.forwarded"].receive_link(core.hot, self.conn, b"")
        peer.link, self.conn.peer = link, None

    def unnoticed(self, message: str, payload: bytes, frame: int = FrameKind.CONTROL) -> list[str]:
        """Return the (sender, receiver) pairs without a cell whose message is not counted as refused by tier."""
        kind = next(each for each in allowed.CELLS if each.__name__ == message)
        found = []
        for receiver, core in (("router", self.router), ("storage", self.storage), ("edge", self.edge)):
            for tier in TIERS:
                if (tier, receiver) not in allowed.CELLS[kind].tiers:
                    before = core.counts.get("refused_tier", 0)
                    with contextlib.suppress(Exception):  # an unexpected message may fail in any way
                        self.deliver(core, self.keys(tier)[0], frame, payload)
                    if core.counts.get("refused_tier", 0) == before:
                        found.append(f"{message} of a {tier} at a {receiver}")
        return found

    def _changed(self, core: Any) -> tuple[list[object], list[object]]:
        before = self.last[id(core)]
        after = self.last[id(core)] = self._state(core)
        return before, after

    def _to_edge(self, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        self.deliver(self.edge, key, kind, payload)
        return self._changed(self.edge)

    def _state(self, core: Any) -> list[object]:
        counts = {name: count for name, count in core.counts.items() if not name.startswith(REFUSALS)}
        return [counts, *whole_state(core, HIDDEN, (EdgeCounters,))]


class _OneFrame(LinkCore):
    """A link that delivers one frame."""

    def __init__(self, kind: int, payload: bytes) -> None:
        super().__init__()
        self.brought = [Frame(kind, 1, payload, 0)]

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frame once."""
        del data
        frames, self.brought = self.brought, []
        return frames


def _nothing(*_: object, **__: object) -> None:
    """Ignore the call."""


def anybody_acknowledges() -> None:
    """Accept PUBLISH_ACK from every tier, of every message."""
    allowed.FRAMES[FrameKind.PUBLISH_ACK] = frozenset((tier, "edge") for tier in TIERS)
    sys.modules["edge.loop.forwarded"]._asked_before = lambda _hot, _peer, outbox, _tag, _code: outbox  # type: ignore[attr-defined]


def anybody_registers() -> None:
    """Accept Register and Heartbeat in the name of another node or incarnation."""
    for checks in vars(allowed)["_CHECKS"].values():
        checks.update(
            {message: None for message in checks if allowed.CELLS[message].rule is allowed.SenderRule.OWN_INCARNATION}
        )


def anybody_is_the_primary() -> None:
    """Accept orders to edges from every storage node of the map."""
    sys.modules["edge.node_messages"].standing = lambda *_: allowed.PrimaryStatus.PRIMARY  # type: ignore[attr-defined]


RULES: dict[str, tuple[Callable[[], None], frozenset[str]]] = {  # and the receivers
    "PUBLISH_ACK": (anybody_acknowledges, frozenset({"PUBLISH_ACK"})),
    "primary": (anybody_is_the_primary, frozenset({"FireWill", "KickSession"})),
    "own incarnation": (anybody_registers, frozenset({"Register", "Heartbeat"})),
}


def check_tiers() -> int:
    """Send each message on pairs without a cell, then again with the check of this message disabled.

    Session requests have their own frames, which are checked by kind before they are decoded.
    """
    matrix = Matrix()
    messages = [(name, payload) for kind, name, payload in matrix.frames() if kind == FrameKind.CONTROL]
    connects = [one for one in matrix.frames() if one[0] in (FrameKind.CONNECTS, FrameKind.CONNECT_ANSWERS)]
    said = {name for name, _ in messages} | {name for _, name, _ in connects}
    assert said == {message.__name__ for message in allowed.CELLS}
    wrong = [one for name, payload in messages for one in matrix.unnoticed(name, payload)]
    wrong += [one for kind, name, payload in connects for one in matrix.unnoticed(name, payload, kind)]
    checks = vars(allowed)["_CHECKS"]
    tried = 0
    for name, payload in messages:
        message = next(each for each in allowed.CELLS if each.__name__ == name)
        widened = [told for told in checks.values() if message not in told]
        for told in widened:
            told[message] = None
        tried += 1
        if not matrix.unnoticed(name, payload):
            wrong.append(f"{name}: nobody notices that the check of its sender is left out")
        for told in widened:
            del told[message]
    print(*wrong, f"{tried} messages", sep="\n")
    return 1 if wrong else 0


def main() -> int:
    """Run the matrix; the exit code is 1 if a forbidden change happened."""
    if sys.argv[1:] == ["--tier-checks"]:
        return check_tiers()
    take_away, about = RULES[sys.argv[2]] if sys.argv[1:2] == ["--without"] else (_nothing, frozenset())
    take_away()
    matrix = Matrix()
    matrix.run(about)
    matrix.run_allowed()
    for line in matrix.wrong:
        print(line[:400])
    print(f"{matrix.tried} refused")
    return 1 if matrix.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
