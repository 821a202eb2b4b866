"""The map stream from a router's core to a follower: pages, concurrent steps, losses, change of the router."""

from zlib import crc32

import msgspec
import pytest

from router.core import RouterCore
from router.events import Applied
from router.map.commands import Bootstrap, Command, DeclareDead, RegisterNode, encode_command
from router.settings import RouterLimits
from wire.messages.cluster_map import ClusterMap, Delegation, MapDelta, NodeEntry, ShardEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.hello import PeerKey
from wire.messages.map_pages import ENCODED_MAX, STEPS_MAX, MapReader, map_pages
from wire.messages.nodes import FollowMap, MapPage, MapStep
from wire.messages.ranges import MAP_PAGE_BYTES, PARTITIONS_MAX
from wire.node.events import FrameArrived
from wire.node.lease_holder import PAGE_WAIT_S, LeaseHolder

LONG = 64  # characters of a name


def storage(number: int, incarnation: int = 1) -> RegisterNode:
    return RegisterNode(NodeEntry(f"storage-{number}-".ljust(LONG, "x"), "storage", incarnation, "host:1"))


class Stream:
    """Routers with the same log, and an edge that follows one of them."""

    def __init__(self, partitions: int, routers: int = 2) -> None:
        self.now = 0.0
        self.names = [f"r{number}" for number in range(1, routers + 1)]
        self.cores = {
            name: RouterCore(NodeEntry(name, "router", 1, "h:1"), RouterLimits(partitions=partitions))
            for name in self.names
        }
        self.edge = PeerKey("e1", "edge", 1)
        self.asked: list[tuple[str, FollowMap]] = []
        self.to_edge: dict[str, list[bytes]] = {name: [] for name in self.names}
        self.seen: list[int] = []
        self.holder = LeaseHolder(NodeEntry("e1", "edge", 1, "h:1"), self._send, self._on_map)
        self.apply(Bootstrap("c", partitions, 4, 3, 2, 2.0))

    def _send(self, router: str, message: Control) -> bool:
        if isinstance(message, FollowMap):
            self.asked.append((router, message))
        return True

    def _on_map(self, cluster_map: ClusterMap) -> None:
        self.seen.append(cluster_map.epoch)

    def apply(self, *commands: Command) -> None:
        """All routers apply the committed commands."""
        for command in commands:
            for name, core in self.cores.items():
                self._sent(name, core.handle(self.now, [Applied(encode_command(command))]).sends)

    def _sent(self, router: str, sends: list[tuple[str, int, bytes]]) -> None:
        for node, _, data in sends:
            assert len(data) < FRAME_BYTES_MAX
            if node == "e1":
                self.to_edge[router].append(data)

    def send_requests(self) -> None:
        """The edge sends its due requests, and routers answer."""
        self.holder.beat(self.now)
        asked, self.asked = self.asked, []
        for router, message in asked:
            event = FrameArrived(self.edge, FrameKind.CONTROL, encode_control(message))
            self._sent(router, self.cores[router].handle(self.now, [event]).sends)

    def deliver(self, router: str, count: int = 1) -> None:
        """The edge receives messages of a router."""
        for _ in range(count):
            self.holder.handle(self.now, router, decode_control(self.to_edge[router].pop(0)))

    def follow(self, turns: int = 1000) -> int:
        """Deliver until no message is left; return the number of messages."""
        count = 0
        for _ in range(turns):
            self.send_requests()
            waiting = [router for router in self.names if self.to_edge[router]]
            if not waiting and not self.asked:
                return count
            for router in waiting:
                self.deliver(router)
                count += 1
        raise AssertionError("it does not end")

    @property
    def map(self) -> ClusterMap:
        return self.cores[self.names[0]].machine.map


def placed(partitions: int, routers: int = 2) -> Stream:
    """Return a cluster with placed partitions, before the edge follows."""
    stream = Stream(partitions, routers)
    stream.apply(*(storage(number) for number in range(3)))
    return stream


@pytest.mark.parametrize("partitions", [4_096, pytest.param(PARTITIONS_MAX, marks=pytest.mark.slow)])
def test_large_map_and_large_step_arrive(partitions: int) -> None:
    """Three copies, names of 64 characters: pages of 256 KiB, requested one after the other."""
    stream = placed(partitions)
    stream.holder.router_up("r1", 0.0)
    pages = stream.follow()
    assert stream.holder.map == stream.map and pages == len(map_pages(stream.map)) > 3
    stream.apply(DeclareDead("storage-0-".ljust(LONG, "x"), 1))
    assert len(stream.to_edge["r1"]) == 1 and isinstance(decode_control(stream.to_edge["r1"][0]), MapPage)
    stream.follow()
    assert stream.holder.map == stream.map and stream.seen == [stream.map.epoch - 1, stream.map.epoch]


def test_small_step_is_sent_as_step() -> None:
    """256 partitions: the changes of a death fit one message."""
    stream = placed(256)
    stream.holder.router_up("r1", 0.0)
    stream.follow()
    stream.apply(DeclareDead("storage-0-".ljust(LONG, "x"), 1))
    assert isinstance(decode_control(stream.to_edge["r1"][0]), MapStep)
    stream.follow()
    assert stream.holder.map == stream.map


def test_steps_between_pages_apply_after_the_last_page() -> None:
    """A follower reaches the newest epoch even if the map changes faster than it reads."""
    stream = placed(4_096)
    stream.holder.router_up("r1", 0.0)
    for number in range(3, 9):
        stream.send_requests()
        stream.deliver("r1")
        stream.apply(RegisterNode(NodeEntry(f"e{number}", "edge", 1, "h:1")))
    assert not stream.seen
    stream.follow()
    assert stream.holder.map == stream.map and stream.seen == [stream.map.epoch]


def test_follower_restarts_at_the_next_router() -> None:
    """It requests the first page there; a late page of the former router changes nothing."""
    stream = placed(4_096)
    stream.holder.router_up("r1", 0.0)
    stream.send_requests()
    stream.deliver("r1")
    stream.send_requests()
    late = stream.to_edge["r1"].pop()
    stream.holder.router_down("r1")
    stream.holder.router_up("r2", 0.0)
    stream.send_requests()
    stream.holder.handle(0.0, "r1", decode_control(late))
    assert not stream.seen
    stream.follow()
    assert stream.holder.map == stream.map


def test_lost_page_restarts_the_map_from_its_first_page() -> None:
    """After a timeout, without any other message."""
    stream = placed(4_096)
    stream.holder.router_up("r1", 0.0)
    stream.send_requests()
    stream.deliver("r1")
    stream.send_requests()
    stream.to_edge["r1"].clear()
    stream.now = PAGE_WAIT_S / 2
    stream.send_requests()
    assert not stream.to_edge["r1"]
    assert stream.holder.next_deadline() <= PAGE_WAIT_S
    stream.now = PAGE_WAIT_S
    stream.send_requests()
    assert len(stream.to_edge["r1"]) == 1
    stream.follow()
    assert stream.holder.map == stream.map


def test_map_that_no_router_stores_restarts_at_a_newer_epoch() -> None:
    """Later followers have displaced its pages."""
    stream = placed(4_096)
    stream.holder.router_up("r1", 0.0)
    stream.send_requests()
    stream.deliver("r1")
    for number in range(ENCODED_MAX):
        stream.apply(RegisterNode(NodeEntry(f"e{number + 5}", "edge", 1, "h:1")))
        other = FrameArrived(PeerKey("e2", "edge", 1), FrameKind.CONTROL, encode_control(FollowMap(0)))
        stream.cores["r1"].handle(0.0, [other])
    stream.follow()
    assert stream.holder.map == stream.map


def test_routers_make_equal_pages() -> None:
    """One applied every command, one started from a snapshot of the others, with another order of names."""
    stream = placed(4_096)
    one, two = stream.cores.values()
    nodes = dict(reversed(two.machine.map.nodes.items()))
    two.machine.map = msgspec.structs.replace(two.machine.map, nodes=nodes)
    assert map_pages(one.machine.map) == map_pages(two.machine.map)


def test_invalid_page_is_rejected() -> None:
    """Missing ones, empty ones, too many bytes, a wrong checksum, no map: all are discarded."""
    cluster_map = placed(4_096).map
    pages = map_pages(cluster_map)
    reader = MapReader()
    assert reader.take(pages[1]) is None and not reader.reading  # of an abandoned map
    reader.take(pages[0])
    assert reader.wanted == (cluster_map.epoch, MAP_PAGE_BYTES)
    assert reader.take(pages[0]) is None and reader.wanted == (cluster_map.epoch, MAP_PAGE_BYTES)  # restarted
    with pytest.raises(ValueError, match="missing"):
        reader.take(pages[2])
    assert not reader.reading
    reader.take(pages[0])
    with pytest.raises(ValueError, match="missing"):
        reader.take(msgspec.structs.replace(pages[1], data=b""))
    with pytest.raises(ValueError, match="is none"):
        reader.take(msgspec.structs.replace(pages[0], size=5))
    with pytest.raises(ValueError, match="bytes"):
        reader.take(msgspec.structs.replace(pages[0], size=1 << 40))
    with pytest.raises(ValueError, match="not of one map"):
        reader.take(MapPage(1, 0, 4, 0, b"abcd"))
    junk = b"\x91" * 5_000
    with pytest.raises(ValueError, match="unreadable map"):
        reader.take(MapPage(1, 0, len(junk), crc32(junk), junk))
    assert not reader.reading


def test_too_many_steps_restart_the_map() -> None:
    """The number of steps is bounded; the next first page includes them."""
    stream = placed(4_096, routers=1)
    stream.holder.router_up("r1", 0.0)
    stream.send_requests()
    stream.deliver("r1")
    stream.send_requests()
    stream.to_edge["r1"].clear()
    for incarnation in range(STEPS_MAX + 2):
        stream.apply(RegisterNode(NodeEntry("e5", "edge", incarnation + 1, "h:1")))
    stream.deliver("r1", STEPS_MAX + 1)
    stream.send_requests()
    stream.follow()
    assert stream.holder.map == stream.map


def test_delegation_to_a_missing_shard_is_not_a_map() -> None:
    """Otherwise an edge would fail at the owner's lookup."""
    two = [ShardEntry(1, "r1"), ShardEntry(1, "r2")]
    sound, beyond = (Delegation("a", 2, "r1", shard) for shard in (2, 3))
    cluster_map = ClusterMap("c", 1, shards=list(two), base_shards=2)
    with pytest.raises(ValueError, match="delegates to a shard"):
        cluster_map.apply(MapDelta(2, shards={2: ShardEntry(1, "r1")}, delegations=(sound, beyond)))
    assert cluster_map.epoch == 1 and len(cluster_map.shards) == 2
    cluster_map.apply(MapDelta(2, shards={2: ShardEntry(1, "r1")}, delegations=(sound,)))
    for wrong in (
        ClusterMap("c", 3, shards=two, base_shards=3),
        ClusterMap("c", 3, shards=two, base_shards=2, delegations=(sound,)),
    ):
        with pytest.raises(ValueError, match="counts on more"):
            MapReader().take(map_pages(wrong)[0])
