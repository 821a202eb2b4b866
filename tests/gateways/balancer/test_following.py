"""The balancer's copy of the map: from several routers, with lost, late and stale pages and steps."""

from gateways.balancer.following import BalancerMapFollower
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState
from wire.messages.control import Control
from wire.messages.hello import PeerKey
from wire.messages.map_pages import map_pages
from wire.messages.nodes import FollowMap, MapStep, Moved

OURS, THEIRS = "0" * 31 + "1", "0" * 31 + "2"


def entry(node: str) -> NodeEntry:
    return NodeEntry(node, "router" if node[0] == "r" else "edge", 1, "h:1", state=NodeState.ACTIVE)


def map_of(*nodes: str, epoch: int, cluster_id: str = "") -> ClusterMap:
    """Return a map; a node whose name begins with r is a router."""
    return ClusterMap("c", epoch, nodes={node: entry(node) for node in nodes}, cluster_id=cluster_id)


class Following:
    def __init__(self) -> None:
        self.sent: list[tuple[str, FollowMap]] = []
        self.seen: list[int] = []
        self.refused: list[tuple[str, str]] = []
        self.follower = BalancerMapFollower(
            self._send, lambda cluster_map: self.seen.append(cluster_map.epoch), refuse=self._refuse
        )

    def up(self, now: float, router: str, incarnation: int = 1) -> None:
        self.follower.router_up(now, PeerKey(router, "router", incarnation))

    def _refuse(self, now: float, peer: PeerKey, what: str) -> None:
        del now
        self.refused.append((peer.node, what))

    def _send(self, router: str, message: Control) -> bool:
        assert isinstance(message, FollowMap)
        self.sent.append((router, message))
        return True

    def send_map(self, now: float, router: str, cluster_map: ClusterMap) -> None:
        for page in map_pages(cluster_map):
            assert self.follower.handle(now, router, page)

    def step(self, now: float, router: str, epoch: int, node: str) -> None:
        self.follower.handle(now, router, MapStep(MapDelta(epoch, (entry(node),), before=self.follower.map.digest)))


def test_follower_first_router_step_applies() -> None:
    """The same step of other routers, and a stale map, have no effect; every linked router is queried."""
    f = Following()
    assert f.follower.age_s(5.0) == float("inf")
    for router in ("r1", "r2"):
        f.up(1.0, router)
    assert [(router, request.epoch) for router, request in f.sent] == [("r1", 0), ("r2", 0)]
    f.send_map(1.0, "r1", map_of("e1", epoch=4))
    f.send_map(1.0, "r2", map_of(epoch=3))
    assert f.seen == [4] and set(f.follower.map.nodes) == {"e1"}
    f.step(1.1, "r2", 4, "e1")
    f.step(1.2, "r2", 5, "e2")
    f.step(1.2, "r1", 5, "e2")
    assert f.seen == [4, 5] and set(f.follower.map.nodes) == {"e1", "e2"}
    assert len(f.sent) == 2 and f.follower.age_s(9.0) == 0.0


def test_follower_missing_step_or_page_is_requested_again() -> None:
    f = Following()
    f.up(1.0, "r1")
    f.follower.tick(2.9)
    assert len(f.sent) == 1
    f.follower.tick(3.0)
    assert len(f.sent) == 2
    f.send_map(3.1, "r1", map_of("e1", epoch=4))
    f.step(3.2, "r1", 7, "e2")
    assert len(f.sent) == 3 and f.seen == [4]
    f.send_map(3.3, "r1", map_of("e1", "e2", epoch=7))
    assert f.seen == [4, 7]
    assert not f.follower.handle(3.4, "r1", Moved(1, "shard", 0, 1))


def test_follower_without_routers_keeps_map_and_ages() -> None:
    f = Following()
    f.up(1.0, "r1")
    f.send_map(1.0, "r1", map_of("e1", epoch=4))
    f.follower.router_down(10.0, "r1")
    f.step(11.0, "r1", 5, "e2")  # a delayed frame
    assert f.follower.age_s(15.0) == 5.0 and set(f.follower.map.nodes) == {"e1"}
    f.up(20.0, "r2")
    f.send_map(20.0, "r2", map_of("e1", epoch=4))
    assert f.follower.age_s(20.0) == 0.0 and f.seen == [4]


def test_follower_router_outside_map_is_refused() -> None:
    """A router certificate at a seed's address does not suffice: its pages and steps are refused."""
    f = Following()
    for router in ("r1", "r9"):
        f.up(1.0, router)
    f.send_map(1.0, "r1", map_of("r1", "e1", epoch=4))
    f.send_map(1.1, "r9", map_of("r9", "e9", epoch=9))
    f.step(1.2, "r9", 5, "e9")
    assert f.seen == [4] and set(f.follower.map.nodes) == {"r1", "e1"}
    assert f.refused == [("r9", "MapPage"), ("r9", "MapStep")]
    f.step(1.3, "r1", 5, "r9")
    assert f.follower.map.epoch == 5
    f.step(1.4, "r9", 6, "e2")
    assert f.seen == [4, 5, 6], "the map has it now"


def test_follower_former_incarnation_is_refused() -> None:
    f = Following()
    f.up(1.0, "r1")
    f.send_map(1.0, "r1", map_of("r1", epoch=4))
    f.up(2.0, "r1", incarnation=0)
    f.send_map(2.0, "r1", map_of("r1", "e9", epoch=5))
    assert f.seen == [4] and f.refused == [("r1", "MapPage")]
    f.up(3.0, "r1", incarnation=2)  # it has restarted
    f.send_map(3.0, "r1", map_of("r1", "e1", epoch=5))
    assert f.seen == [4, 5]


def test_follower_invalid_step_trusts_no_other_router() -> None:
    """The map is read again from its routers; meanwhile its list of routers stays valid."""
    f = Following()
    for router in ("r1", "r9"):
        f.up(1.0, router)
    f.send_map(1.0, "r1", map_of("r1", "e1", epoch=4))
    f.follower.handle(1.1, "r1", MapStep(MapDelta(5, (entry("e2"),), before=b"another state")))
    assert f.sent[-1] == ("r1", FollowMap(4))
    f.send_map(1.2, "r9", map_of("r9", epoch=9))
    f.send_map(1.3, "r1", map_of("r1", "e1", "e3", epoch=4))
    assert f.seen == [4, 4] and "e3" in f.follower.map.nodes


def test_follower_stranded_accepts_later_map_of_same_cluster() -> None:
    """After 10 s without a router of the map; not an older map, one of another cluster, or a step."""
    f = Following()
    f.up(1.0, "r1")
    f.send_map(1.0, "r1", map_of("r1", "e1", epoch=4, cluster_id=OURS))
    f.follower.router_down(10.0, "r1")
    f.up(11.0, "r9")
    f.send_map(19.9, "r9", map_of("r9", "e9", epoch=9, cluster_id=OURS))
    assert f.seen == [4] and f.refused == [("r9", "MapPage")]
    f.follower.tick(20.0)
    assert f.sent[-1] == ("r9", FollowMap(4))
    f.send_map(20.1, "r9", map_of("r9", "e9", epoch=4, cluster_id=OURS))
    f.step(20.2, "r9", 5, "e9")
    f.follower.tick(22.2)
    f.send_map(22.3, "r9", map_of("r9", "e9", epoch=9, cluster_id=THEIRS))
    assert f.seen == [4] and f.follower.age_s(23.0) == 13.0
    f.follower.tick(24.4)
    f.send_map(24.5, "r9", map_of("r9", "e9", epoch=9, cluster_id=OURS))
    assert f.seen == [4, 9] and f.follower.age_s(24.5) == 0.0
    f.step(24.6, "r9", 10, "e8")
    assert f.seen == [4, 9, 10]
