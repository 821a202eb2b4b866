"""Reports in pieces while filters change: in the end a new owner has exactly its sender's filters."""

import random
from collections import deque

import pytest

from router.routes.shard import RouteShard
from wire.messages.cluster_map import ClusterMap, Delegation, ShardEntry
from wire.messages.control import Control
from wire.messages.routes import AddRoutes, RemoveRoutes, ReportRoutes, Resolve, RoutesAdded
from wire.node.route_registrar import REPORT_ROUTES_MAX, RouteRegistrar, sender_report

SHARDS = 4
NAMES = [f"{head}/{number}/+" for head in "abcdefgh" for number in range(100)] + [f"+/{number}" for number in range(40)]
SHARED = [f"$share/g{number}/a/{number}" for number in range(40)]


def a_map(epoch: int, delegations: tuple[Delegation, ...] = ()) -> ClusterMap:
    shards = [ShardEntry(epoch, "r") for _ in range(SHARDS)]
    return ClusterMap("c", epoch, shards=shards, base_shards=SHARDS, delegations=delegations)


class Sender:
    """A registrar, the shards of one router, and a link between them with manual delivery."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.map = a_map(1)
        self.link: deque[Control] = deque()
        self.answers: deque[RoutesAdded] = deque()
        self.standing: set[str] = set()
        self.held: dict[str, int] = {}
        self.registrar = RouteRegistrar(
            -1, 7, lambda _, message: self.link.append(message), lambda: self.map, self.standing.update
        )
        self.shards: dict[int, RouteShard] = {}
        self.own(set())

    def own(self, edges: set[str]) -> None:
        """Start the router's shards at the map's epoch."""
        for number, entry in enumerate(self.map.shards):
            self.shards[number] = RouteShard(number, entry.epoch, edges, [], 1_000)

    def change(self) -> None:
        """Add or remove some filters."""
        if self.rng.random() < 0.5 or not self.held:
            names = self.rng.sample(NAMES + SHARED, 30)
            self.registrar.hold(names, self.now)
            for name in names:
                self.held[name] = self.held.get(name, 0) + 1
            return
        gone = self.rng.sample(sorted(self.held), min(len(self.held), 30))
        self.registrar.release(gone)
        for name in gone:
            self.held[name] -= 1
            if not self.held[name]:
                del self.held[name]
        self.standing -= {name for name in gone if name not in self.held}

    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.link))):
            message = self.link.popleft()
            assert isinstance(message, AddRoutes | RemoveRoutes | ReportRoutes)
            shard = self.shards[message.shard]
            if shard.epoch != message.shard_epoch:
                continue
            if isinstance(message, AddRoutes):
                shard.add("e", message)
            elif isinstance(message, RemoveRoutes):
                shard.remove("e", message)
            else:
                shard.report("e", message)
        for shard in self.shards.values():
            while shard.has_slices:
                shard.run_slice(100)
            self.answers += [one for _, one in shard.take_sends() if isinstance(one, RoutesAdded)]
        while self.answers and self.rng.random() < 0.9:
            self.registrar.added("r", self.answers.popleft())

    def settle(self) -> None:
        """Deliver all messages."""
        for _ in range(2_000):
            self.now += 0.1
            self.registrar.tick(self.now)
            self.deliver(1_000)
            if not (self.link or self.answers or self.registrar.waits):
                return
        raise AssertionError("never at rest")

    def check(self) -> None:
        """Check that each shard has exactly its routes, and that all filters are confirmed."""
        assert self.standing == set(self.held)
        for number, shard in self.shards.items():
            assert not shard.collecting
            found = {name for filters in shard.sender_routes.filters.values() for name in filters}
            wanted = set()
            for name in self.held:
                topic_filter = name.split("/", 2)[2] if name.startswith("$share/") else name
                if number in self.map.shards_for_filter(topic_filter):
                    wanted.add(name)
            assert found == wanted, number


def report(sender: Sender) -> None:
    """Report to all shards, with changes and deliveries between the pieces."""
    due = set(sender.shards)
    for step in sender.registrar.report(due):
        if step is not None:
            number, piece = step
            sender.link.append(ReportRoutes(number, sender.map.shards[number].epoch, [piece]))
        for _ in range(sender.rng.randrange(3)):
            sender.change()
        sender.now += 0.02
        sender.registrar.tick(sender.now)
        sender.deliver(sender.rng.randrange(4))


@pytest.mark.parametrize("seed", range(12))
def test_sender_report_with_concurrent_changes_converges(seed: int) -> None:
    """To the same router under another epoch, which answers only after the last piece."""
    sender = Sender(seed)
    for _ in range(60):
        sender.change()
    sender.settle()
    sender.check()
    sender.map = a_map(2)
    sender.own({"e"})
    for number, shard in sender.shards.items():
        shard.resolve("f", Resolve(number, number, 2, ["a/1/x"]))
        assert not shard.take_sends()
    sender.registrar.placement_changed(set(sender.shards), sender.now)
    report(sender)
    for number, shard in sender.shards.items():
        shard.resolve("e", Resolve(number, number, 2, [], True))
        shard.unregistered.clear()
    sender.settle()
    sender.check()


@pytest.mark.parametrize("seed", range(12))
def test_route_registrar_jurisdiction_change_with_concurrent_changes_converges(seed: int) -> None:
    sender = Sender(seed)
    for _ in range(60):
        sender.change()
    for _ in range(2):  # the second one starts during the first one
        sender.map = a_map(sender.map.epoch + 1, (Delegation("a", 2), Delegation("b", sender.map.epoch + 1)))
        sender.own(set())
        sender.standing.clear()
        for count, _ in enumerate(sender.registrar.jurisdiction_changed()):
            sender.change()
            sender.deliver(sender.rng.randrange(4))
            if sender.map.epoch == 2 and count == 1:
                break
        sender.registrar.tick(sender.now)
    report(sender)
    sender.settle()
    sender.check()


def test_sender_report_yields_steps_and_pieces() -> None:
    """A shard that is removed from the set gets no further pieces."""
    holders = dict.fromkeys((f"a/{number}" for number in range(2_000)), 1)
    due = set(range(SHARDS))
    pieces = []
    idle = 0
    for step in sender_report(a_map(1), 3, 5, 9, holders, due):
        if step is None:
            idle += 1
            continue
        _, piece = step
        pieces.append(step)
        assert (piece.partition, piece.sender_epoch, piece.route_version) == (3, 5, 9)
        assert len(piece.routes) <= REPORT_ROUTES_MAX
        if len(pieces) == 1:
            due.discard(SHARDS - 1)
        if piece.routes and holders:
            holders.clear()
    assert idle == 1 + 2_000 // 250
    assert {number for number, _ in pieces} == set(range(SHARDS - 1))
    (shard,) = a_map(1).shards_for_filter("a/1")
    told = [piece for number, piece in pieces if number == shard]
    if shard in due:
        assert [len(piece.routes) for piece in told] == [REPORT_ROUTES_MAX] + [0] * 7
        assert [piece.first for piece in told] == [True] + [False] * 7
        assert [piece.last for piece in told] == [False] * 7 + [True]
    assert all(piece.first and piece.last for number, piece in pieces if number != shard)


def test_route_registrar_answer_with_an_unknown_shard_is_ignored() -> None:
    """A router named a shard that the map does not have: the lookup of its epoch ended the node."""
    sender = Sender(1)
    sender.registrar.hold(["a/1"], 0.0)
    order = next(message for message in sender.link if isinstance(message, AddRoutes))
    for shard in ((order.shard + 1) % SHARDS, 60_000):
        sender.registrar.added("r", RoutesAdded(order.request, shard, 1, 7))
    assert not sender.standing
    sender.registrar.added("r", RoutesAdded(order.request, order.shard, 1, 7))
    assert sender.standing == {"a/1"}
