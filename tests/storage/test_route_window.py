"""A node sends an owner of shards a bounded number of its partitions' routes at a time.

The tests hold back and send the owner's acknowledgements.
"""

from collections.abc import Callable

import pytest

from edge.subscriptions.session_filters import FILTERS_PER_PIECE
from router.map.commands import PlaceShards
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import ROUTER, Cluster
from wire.messages.control import decode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.routes import AddRoutes, RemoveRoutes
from wire.messages.sessions import SessionSubscribed
from wire.node.route_registrar import REMOVED_PER_TICK, ROUTES_ASKED_MAX, ROUTES_PER_REQUEST

SHARDS = 64


class Owner:
    """A cluster of one node, whose router answers AddRoutes on request."""

    def __init__(self, partitions: int = 1) -> None:
        self.cluster = Cluster(partitions=partitions, shards=SHARDS)
        self.cluster.router.routes_answered = False
        self.edge: Edge = self.cluster.edges["e1"]
        self.removed: list[str] = []  # once for each shard
        self.cluster.filter = self._note
        self._names = 0

    def _note(self, _source: PeerKey, destination: str, kind: int, payload: bytes) -> bool:
        message = decode_control(payload) if destination == ROUTER and kind == FrameKind.CONTROL else None
        if isinstance(message, RemoveRoutes):
            self.removed += [route.topic_filter for route in message.routes]
        return True

    def client(self, partition: int) -> Connection:
        """Open a session of a partition."""
        while True:
            self._names += 1
            if self.cluster.map.partition_for(f"c{self._names}") == partition:
                return self.edge.open(f"c{self._names}")

    def subscribe(self, client: Connection, names: list[str]) -> int:
        """Subscribe to filters in one piece; return the request."""
        return self.edge.subscribe(client, *names, qos=1, settle=False)

    def asked(self) -> list[AddRoutes]:
        """Run a few iterations; return the new requests, and clear them."""
        for _ in range(5):
            self.cluster.step()
        taken, self.cluster.router.added = self.cluster.router.added, []
        return taken

    def answer(self, message: AddRoutes) -> None:
        self.cluster.router.answer("s1", message)

    def is_answered(self, request: int) -> bool:
        return any(one.request == request for one in self.edge.answers(SessionSubscribed))

    def serve(self) -> int:
        """Answer all requests until none arrives; return the maximum of routes in one batch."""
        most = 0
        while messages := self.asked():
            most = max(most, routes(messages))
            for message in messages:
                self.answer(message)
        return most

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1_000):
            if holds():
                return
            self.cluster.step()
        raise AssertionError("it never holds")


def routes(messages: list[AddRoutes]) -> int:
    return sum(len(message.routes) for message in messages)


def broad(of: str, count: int = FILTERS_PER_PIECE) -> list[str]:
    return [f"+/{of}{number}/#" for number in range(count)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_new_routes_wait_for_the_owners_acknowledgements(partitions: int) -> None:
    owner = Owner(partitions)
    clients = [owner.client(number) for number in range(partitions)]
    requests = [owner.subscribe(client, broad(client.client_id)) for client in clients]
    messages = owner.asked()
    assert 0 < routes(messages) < ROUTES_ASKED_MAX + ROUTES_PER_REQUEST * partitions
    assert {message.partition for message in messages} == set(range(partitions))
    for message in messages[:-1]:
        owner.answer(message)
    assert not any(map(owner.is_answered, requests))
    owner.answer(messages[-1])
    assert 0 < owner.serve() < ROUTES_ASKED_MAX + ROUTES_PER_REQUEST * partitions
    assert all(map(owner.is_answered, requests))
    for number, client in enumerate(clients):
        names = set(broad(client.client_id))
        assert all(owner.cluster.router.routes[number, shard] == names for shard in range(SHARDS))


def test_routes_of_another_partition_are_not_blocked() -> None:
    owner = Owner(2)
    full = owner.subscribe(owner.client(0), broad("x"))
    honest = owner.client(1)
    waiting = owner.asked()
    request = owner.subscribe(honest, ["honest/1"])
    (message,) = owner.asked()
    owner.answer(message)
    owner.until(lambda: owner.is_answered(request))
    for message in waiting:
        owner.answer(message)
    owner.serve()
    assert owner.is_answered(full)


def test_new_owner_gets_pending_routes() -> None:
    """Sent and unsent routes: both go to it."""
    owner = Owner()
    request = owner.subscribe(owner.client(0), broad("x"))
    owner.asked()
    owner.cluster.apply(PlaceShards(dict.fromkeys(range(SHARDS), "")))
    owner.cluster.apply(PlaceShards(dict.fromkeys(range(SHARDS), ROUTER)))
    assert 0 < owner.serve() < ROUTES_ASKED_MAX + ROUTES_PER_REQUEST
    assert owner.is_answered(request)
    assert all(owner.cluster.router.routes[0, shard] == set(broad("x")) for shard in range(SHARDS))


def test_partition_that_moves_away_frees_the_window() -> None:
    owner = Owner(2)
    owner.subscribe(owner.client(0), broad("x"))
    other = owner.subscribe(owner.client(1), broad("y"))
    mine = [message for message in owner.asked() if message.partition == 1]
    placements = owner.cluster.primary(0).core.placements
    placements.demote(0)
    for message in mine:
        owner.answer(message)
    assert owner.serve() > ROUTES_ASKED_MAX // 2
    assert owner.is_answered(other)


def test_route_removals_are_bounded_per_tick() -> None:
    owner = Owner()
    client = owner.client(0)
    names = broad("x")
    owner.subscribe(client, names)
    owner.serve()
    owner.edge.unsubscribe(client, *names)
    most = before = 0
    for _ in range(200):
        owner.cluster.step()
        most, before = max(most, len(owner.removed) - before), len(owner.removed)
    assert most <= 2 * REMOVED_PER_TICK  # removals that waited for one commit leave together
    assert sorted(owner.removed) == sorted(names * SHARDS)


def test_unsubscribed_filter_with_unsent_routes_is_not_added() -> None:
    """Some shards never had it; the others remove it."""
    owner = Owner()
    client = owner.client(0)
    names = broad("x")
    owner.subscribe(client, names)
    waiting = owner.asked()
    owner.edge.unsubscribe(client, *names[-1:])
    asked = owner.asked()
    assert not asked
    for message in waiting:
        owner.answer(message)
    while messages := owner.asked():
        asked += messages
        for message in messages:
            owner.answer(message)
    assert {route.topic_filter for message in asked for route in message.routes} == set(names[:-1])
    assert owner.removed == names[-1:] * SHARDS


def test_resubscribed_filter_with_unsent_routes_is_registered() -> None:
    owner = Owner()
    client = owner.client(0)
    names = broad("x")
    owner.subscribe(client, names)
    waiting = owner.asked()
    owner.edge.unsubscribe(client, *names)
    request = owner.subscribe(client, names[-1:])
    for message in waiting:
        owner.answer(message)
    owner.serve()
    assert owner.is_answered(request)
    owner.cluster.run(1.0)
    assert set(owner.removed) == set(names[:-1])
