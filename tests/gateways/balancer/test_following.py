"""The map of a balancer: from several routers at once, with pages and steps that are lost, late, or behind."""

from gateways.balancer.following import MapFollower
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState
from wire.messages.control import Control
from wire.messages.map_pages import map_pages
from wire.messages.nodes import FollowMap, MapStep, Moved


def entry(node: str) -> NodeEntry:
    return NodeEntry(node, "edge", 1, "h:1", state=NodeState.ACTIVE)


def of(*nodes: str, epoch: int) -> ClusterMap:
    return ClusterMap("c", epoch, nodes={node: entry(node) for node in nodes})


class Following:
    def __init__(self) -> None:
        self.sent: list[tuple[str, FollowMap]] = []
        self.seen: list[int] = []
        self.follower = MapFollower(self._send, lambda cluster_map: self.seen.append(cluster_map.epoch))

    def _send(self, router: str, message: Control) -> bool:
        assert isinstance(message, FollowMap)
        self.sent.append((router, message))
        return True

    def tell(self, now: float, router: str, cluster_map: ClusterMap) -> None:
        for page in map_pages(cluster_map):
            assert self.follower.handle(now, router, page)

    def step(self, now: float, router: str, epoch: int, node: str) -> None:
        self.follower.handle(now, router, MapStep(MapDelta(epoch, (entry(node),), before=self.follower.map.digest)))


def test_the_first_router_that_tells_a_step_makes_it() -> None:
    """The others' are passed by, one that is behind takes nothing back, and each that is linked is asked."""
    f = Following()
    assert f.follower.age_s(5.0) == float("inf")
    for router in ("r1", "r2"):
        f.follower.router_up(1.0, router)
    assert [(router, asked.epoch) for router, asked in f.sent] == [("r1", 0), ("r2", 0)]
    f.tell(1.0, "r1", of("e1", epoch=4))
    f.tell(1.0, "r2", of(epoch=3))
    assert f.seen == [4] and set(f.follower.map.nodes) == {"e1"}
    f.step(1.1, "r2", 4, "e1")
    f.step(1.2, "r2", 5, "e2")
    f.step(1.2, "r1", 5, "e2")
    assert f.seen == [4, 5] and set(f.follower.map.nodes) == {"e1", "e2"}
    assert len(f.sent) == 2 and f.follower.age_s(9.0) == 0.0


def test_a_missing_step_and_a_lost_page_are_asked_for_again() -> None:
    f = Following()
    f.follower.router_up(1.0, "r1")
    f.follower.tick(2.9)
    assert len(f.sent) == 1
    f.follower.tick(3.0)
    assert len(f.sent) == 2
    f.tell(3.1, "r1", of("e1", epoch=4))
    f.step(3.2, "r1", 7, "e2")
    assert len(f.sent) == 3 and f.seen == [4]
    f.tell(3.3, "r1", of("e1", "e2", epoch=7))
    assert f.seen == [4, 7]
    assert not f.follower.handle(3.4, "r1", Moved(1, "shard", 0, 1))


def test_without_routers_the_last_map_stays_and_gets_old() -> None:
    f = Following()
    f.follower.router_up(1.0, "r1")
    f.tell(1.0, "r1", of("e1", epoch=4))
    f.follower.router_down(10.0, "r1")
    f.step(11.0, "r1", 5, "e2")  # a frame of before
    assert f.follower.age_s(15.0) == 5.0 and set(f.follower.map.nodes) == {"e1"}
    f.follower.router_up(20.0, "r2")
    f.tell(20.0, "r2", of("e1", epoch=4))
    assert f.follower.age_s(20.0) == 0.0 and f.seen == [4]
