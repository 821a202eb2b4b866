"""LinkHub over loopback: dialling, reconnects, refusals."""

import datetime
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from conf.errors import ExitCode, UserError
from tests.patience import PATIENCE_S
from tests.wire.test_hello import hello_of_version
from wire.links.admission import check_hello
from wire.links.authority import DevelopmentAuthority
from wire.links.connection import open_stream, read_hello
from wire.links.hub import LinkHub
from wire.links.link import RESEND_BYTES_MAX
from wire.links.request import request
from wire.links.tls import LinkContexts, link_contexts
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import LinkError, NodeIdentity, PeerKey, encode_hello
from wire.messages.operators import Admin, AdminReply

CONTROL = FrameKind.CONTROL


class Node:
    """A hub that records its callbacks."""

    def __init__(
        self, tier: str, name: str, incarnation: int = 1, contexts: LinkContexts | None = None, cluster: str = "test"
    ) -> None:
        self.log: list[tuple[str, str, object]] = []
        self.frames: list[bytes] = []
        self.changed = trio.Event()
        self.on_frame: Callable[[PeerKey, bytes], None] | None = None
        self._identity, self._contexts = NodeIdentity(cluster, name, tier, incarnation), contexts
        self.hub = self.make_hub()

    def make_hub(self, early: Callable[[float, float], None] | None = None) -> LinkHub:
        return LinkHub(
            self._identity,
            self._contexts,
            on_frame=self._frame,
            on_up=lambda peer: self._note("up", peer),
            on_down=lambda peer: self._note("down", peer),
            on_reset=lambda peer: self._note("reset", peer),
            rng=random.Random(1),
            early=early,
        )

    def _frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        assert kind in (CONTROL, FrameKind.RAFT)
        self.frames.append(payload)
        if self.on_frame is not None:
            self.on_frame(peer, payload)
        self._wake()

    def _note(self, what: str, peer: PeerKey) -> None:
        self.log.append((what, peer.node, peer.incarnation))
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self.changed.wait()


async def start(nursery: trio.Nursery, node: Node, listen: str = "127.0.0.1:0") -> str:
    return str(await nursery.start(node.hub.run, listen))


@asynccontextmanager
async def linked(listening: Node, dialling: Node, *, up: bool = True) -> AsyncIterator[None]:
    """Run two nodes, one of which dials the other as a seed, inside the block; ``up``: wait for their link."""
    async with trio.open_nursery() as nursery:
        address = await start(nursery, listening)
        await start(nursery, dialling)
        dialling.hub.set_seeds([address])
        if up:
            await dialling.until(lambda: len(dialling.log) == 1)
        yield
        nursery.cancel_scope.cancel()


def certificates(folder: Path, tier: str, name: str, cluster: str = "test") -> LinkContexts:
    authority = DevelopmentAuthority(folder, cluster, datetime.datetime.now(datetime.UTC))
    return link_contexts(authority.operator(name) if tier == "operator" else authority.node(tier, name))


async def test_hub_lower_rank_dials_and_both_ends_send(tmp_path: Path) -> None:
    """A storage node dials a router; frames go both ways over mutual TLS."""
    router = Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0"))
    storage = Node("storage", "storage-0", contexts=certificates(tmp_path, "storage", "storage-0"))
    async with trio.open_nursery() as nursery:
        address = await start(nursery, router)
        storage_address = await start(nursery, storage)
        router.hub.set_peers({"storage-0": ("storage", storage_address, 0)})  # not its duty to dial
        storage.hub.set_peers({"router-0": ("router", address, 0)})
        await storage.until(lambda: ("up", "router-0", 1) in storage.log)
        assert storage.hub.send("router-0", CONTROL, b"ping")
        await router.until(lambda: router.frames == [b"ping"])
        assert router.hub.send("storage-0", CONTROL, b"pong")
        await storage.until(lambda: storage.frames == [b"pong"])
        assert router.hub.connected() == [PeerKey("storage-0", "storage", 1)]
        assert router.log == [("up", "storage-0", 1)]
        assert not router.hub.send("storage-9", CONTROL, b"")
        nursery.cancel_scope.cancel()


async def test_hub_frames_survive_a_broken_connection() -> None:
    """Frames sent while disconnected arrive after the reconnect, once and in order."""
    router, edge = Node("router", "router-0"), Node("edge", "edge-0")
    async with linked(router, edge):
        for number in range(200):
            assert edge.hub.send("router-0", CONTROL, b"%d" % number)
            if number % 20 == 10:
                peer = router.hub.table.get("edge-0")
                if peer is not None and peer.connection is not None:
                    router.hub.table.ended(peer, peer.connection)
                await trio.sleep(0)
        await router.until(lambda: len(router.frames) == 200)
        assert router.frames == [b"%d" % number for number in range(200)]
        assert ("reset", "edge-0", 1) not in router.log


async def test_hub_new_incarnation_resets_the_link_and_an_older_one_is_refused() -> None:
    """A new incarnation voids all state of the old one, which is not accepted again."""
    router = Node("router", "router-0")
    async with trio.open_nursery() as nursery:
        address = await start(nursery, router)
        for incarnation in (5, 6):
            edge = Node("edge", "edge-0", incarnation)
            async with trio.open_nursery() as process:
                await start(process, edge)
                edge.hub.set_seeds([address])
                await edge.until(lambda edge=edge: len(edge.log) == 1)  # type: ignore[misc]
                process.cancel_scope.cancel()
        await router.until(lambda: len(router.log) == 5)
        assert router.log == [
            ("up", "edge-0", 5),
            ("down", "edge-0", 5),
            ("reset", "edge-0", 5),
            ("up", "edge-0", 6),
            ("down", "edge-0", 6),
        ]
        stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        older = NodeIdentity("test", "edge-0", "edge", 4)
        await stream.send_all(encode_hello(older))
        hello, rest = await read_hello(stream)
        with pytest.raises(LinkError, match="router-0 knows incarnation 6 of edge-0, this one is 4"):
            check_hello(older, hello, None)
        assert (rest, await stream.receive_some()) == (b"", b"")
        assert router.hub.connections_refused == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("tier", "name", "cluster"),
    [("router", "router-1", "test"), ("storage", "storage-7", "test"), ("storage", "storage-0", "other")],
)
async def test_hub_refuses_a_certificate_of_another_node_tier_or_cluster(
    tmp_path: Path, tier: str, name: str, cluster: str
) -> None:
    """HELLO must match the certificate."""
    router = Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0"))
    liar = Node(tier, name, contexts=certificates(tmp_path, "storage", "storage-0"), cluster=cluster)
    async with linked(router, liar, up=False):
        with trio.fail_after(PATIENCE_S):
            while router.hub.connections_refused == 0:
                await trio.sleep(0.01)
        assert router.log == []


async def test_hub_refuses_plaintext_and_foreign_certificates(tmp_path: Path) -> None:
    router = Node("router", "router-0", contexts=certificates(tmp_path / "a", "router", "router-0"))
    stranger = Node("storage", "storage-0", contexts=certificates(tmp_path / "b", "storage", "storage-0"))
    async with trio.open_nursery() as nursery:
        address = await start(nursery, router)
        await start(nursery, stranger)
        stranger.hub.set_peers({"router-0": ("router", address, 0)})
        stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        await stream.send_all(encode_hello(NodeIdentity("test", "storage-0", "storage", 1)))
        with trio.fail_after(PATIENCE_S):
            while router.hub.connections_refused < 2:
                await trio.sleep(0.01)
        assert router.log == []
        nursery.cancel_scope.cancel()


async def test_hub_fences_an_incarnation_that_sends_a_forbidden_kind() -> None:
    """An edge cannot send Raft: its link is closed and stays closed for this incarnation."""
    router, edge = Node("router", "router-0"), Node("edge", "edge-0")
    async with linked(router, edge):
        edge.hub.send("router-0", FrameKind.RAFT, b"vote for me")
        await router.until(lambda: ("down", "edge-0", 1) in router.log)
        with trio.fail_after(PATIENCE_S):
            while router.hub.connections_refused == 0:
                await trio.sleep(0.01)
        assert router.frames == []


async def test_connection_silent_is_closed_and_idle_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """A half-open connection is detected in less than 5 s; an idle live peer is kept."""
    del autojump_clock
    from wire.links.connection import LinkConnection, watch
    from wire.links.link import LinkCore

    def connection() -> tuple[LinkConnection, trio.testing.MemorySendStream]:
        ours, theirs = trio.testing.memory_stream_pair()
        core = LinkCore()
        core.connected(0)
        return LinkConnection(ours, core, lambda _kind, _payload: None), theirs  # type: ignore[arg-type, return-value]

    silent, _theirs = connection()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, [silent], 0.0)
        await silent.run(b"")
        nursery.cancel_scope.cancel()
    assert "nothing heard" in silent.why
    assert 3.0 < trio.current_time() - began < 5.0

    left, right = trio.testing.memory_stream_pair()
    cores = [LinkCore(), LinkCore()]
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            connections: list[LinkConnection] = []
            nursery.start_soon(watch, connections, 0.0)
            for stream, core in zip((left, right), cores, strict=True):
                core.connected(0)
                idle = LinkConnection(stream, core, lambda _kind, _payload: None)  # type: ignore[arg-type]
                connections.append(idle)
                nursery.start_soon(idle.run, b"")
    assert trio.current_time() - began > 60


async def test_request_gets_the_reply_of_its_number(tmp_path: Path) -> None:
    """An unreachable node gives a clear error."""
    router = Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0"))

    def answer(peer: PeerKey, payload: bytes) -> None:
        message = decode_control(payload)
        assert isinstance(message, Admin) and peer.tier == "operator" and peer.node.startswith("operator:operator/cli-")
        for number in (message.request + 1, message.request):
            reply = AdminReply(request=number, ok=True, result={"verb": message.verb, "request": number})
            assert router.hub.send(peer.node, CONTROL, encode_control(reply))

    router.on_frame = answer
    operator = certificates(tmp_path, "operator", "operator")
    async with trio.open_nursery() as nursery:
        address = await start(nursery, router)
        reply = await request(address, operator, Admin(request=3, verb="ring show"), cluster="test", tier="router")
        assert reply.result == {"verb": "ring show", "request": 3}
        await router.until(lambda: router.log[-1][0] == "reset")  # an operator's link is dropped
        with pytest.raises(UserError, match="belongs to cluster 'test', this node to 'other'"):
            await request(address, operator, Admin(request=3, verb="ring show"), cluster="other", tier="router")
        router.on_frame = None
        with pytest.raises(UserError, match="did not answer") as caught:
            await request(address, operator, Admin(request=4, verb="x"), cluster="test", tier="router", timeout_s=0.2)
        assert caught.value.exit_code == ExitCode.NOT_READY
        nursery.cancel_scope.cancel()
    with pytest.raises(UserError, match="cannot reach router"):
        await request(address, operator, Admin(request=4, verb="x"), cluster="test", tier="router")


@pytest.mark.parametrize(
    "address", ["x", "host:99999", "x" * 70 + ":1", "a..b:1", "\ud800:1", ":1", "[::1:1", "a\0b:1"]
)
async def test_hub_survives_an_undialable_address(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """A node chooses its address in the map; a dialling node continues for any value, and its log stays printable."""
    caplog.set_level("INFO")
    with pytest.raises((UserError, OSError)):
        await open_stream(address)
    router, storage = Node("router", "r1"), Node("storage", "s1")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            dialled = await start(nursery, router)
            await start(nursery, storage)
            storage.hub.set_peers({"s2": ("storage", address, 1), "r1": ("router", dialled, 0)})
            await storage.until(lambda: ("up", "r1", 1) in storage.log)
            nursery.cancel_scope.cancel()
    assert all(record.getMessage().isprintable() for record in caplog.records)


async def test_hub_port_in_use_is_one_line() -> None:
    """No traceback for a fault that an operator can fix."""
    first, second = Node("router", "router-0"), Node("router", "router-1")
    async with trio.open_nursery() as nursery:
        address = await start(nursery, first)
        with pytest.raises(UserError, match=f"cannot listen for nodes on {address}: Address already in use"):
            await second.hub.run(address)
        nursery.cancel_scope.cancel()


async def test_hub_full_buffer_is_reported_and_counted() -> None:
    """A disconnected peer cannot grow the buffer without bound."""
    router, edge = Node("router", "router-0"), Node("edge", "edge-0")
    async with linked(router, edge):
        frame = bytes(RESEND_BYTES_MAX // 4 - 100)
        assert [edge.hub.send("router-0", CONTROL, frame) for _ in range(5)] == [True] * 4 + [False]
        assert edge.hub.frames_refused == {"no_peer": 0, "no_room": 1, "too_long": 0}


async def test_hub_link_forgotten_by_one_side_is_reset() -> None:
    """Both sides discard the state of the link and continue."""
    router, edge = Node("router", "router-0"), Node("edge", "edge-0")
    async with linked(router, edge):
        edge.hub.send("router-0", CONTROL, b"before")
        await router.until(lambda: router.frames == [b"before"])
        router.hub.send("edge-0", CONTROL, b"answer")
        await edge.until(lambda: edge.frames == [b"answer"])
        router.hub.forget("edge-0")
        assert router.log[-1] == ("reset", "edge-0", 1)
        await edge.until(lambda: edge.log[-2:] == [("reset", "router-0", 1), ("up", "router-0", 1)])
        assert edge.hub.send("router-0", CONTROL, b"after")
        await router.until(lambda: router.frames == [b"before", b"after"])


async def test_hub_frames_to_an_incarnation_of_the_map_wait_for_its_link() -> None:
    """The map names a new incarnation before it connects: frames are queued for it, and the old one is reset."""
    router = Node("router", "router-0")
    async with trio.open_nursery() as nursery:
        storage = Node("storage", "storage-0")
        await start(nursery, storage)
        async with trio.open_nursery() as process:
            first = await start(process, router)
            storage.hub.set_peers({"router-0": ("router", first, 1)})
            assert storage.hub.send("router-0", CONTROL, b"one")
            await router.until(lambda: router.frames == [b"one"])
            process.cancel_scope.cancel()
        await storage.until(lambda: storage.log == [("up", "router-0", 1), ("down", "router-0", 1)])
        storage.hub.send("router-0", CONTROL, b"void with its incarnation")
        again = Node("router", "router-0", incarnation=2)
        second = await start(nursery, again)
        storage.hub.set_peers({"router-0": ("router", second, 2)})
        assert storage.log[-1] == ("reset", "router-0", 1)
        assert storage.hub.send("router-0", CONTROL, b"two")
        await again.until(lambda: again.frames == [b"two"])
        nursery.cancel_scope.cancel()


async def test_hub_sends_in_order_when_the_socket_is_full(tmp_path: Path) -> None:
    """Some frames are written at once, the rest by the connection's task, without reordering."""
    router = Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0"))
    storage = Node("storage", "storage-0", contexts=certificates(tmp_path, "storage", "storage-0"))
    async with linked(router, storage):
        sent = [number.to_bytes(2, "big") + bytes(100_000) for number in range(240)]
        for first in range(0, 240, 24):  # more than a socket takes before the other task reads
            storage.hub.send_all([("router-0", CONTROL, payload) for payload in sent[first : first + 20]])
            for payload in sent[first + 20 : first + 24]:
                assert storage.hub.send("router-0", CONTROL, payload)
            if first % 48:
                await trio.lowlevel.checkpoint()
        await router.until(lambda: len(router.frames) == 240)
        assert router.frames == sent


@pytest.mark.parametrize("readable", [True, False])
async def test_hub_another_protocol_version_is_one_line_on_both_sides(
    caplog: pytest.LogCaptureFixture, *, readable: bool
) -> None:
    """Refused, counted, and answered with our HELLO, so that the peer can name both versions too."""
    router = Node("router", "router-0")
    with caplog.at_level(logging.INFO, logger="wire.links.hub"):
        async with trio.open_nursery() as nursery:
            address = await start(nursery, router)
            stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
            await stream.send_all(hello_of_version(2, "edge-0", "edge", readable=readable))
            with trio.fail_after(PATIENCE_S):
                answer = bytes(await stream.receive_some(4096))
                assert await stream.receive_some() == b""
            assert HEADER.unpack_from(answer)[1:4] == (FrameKind.HELLO, 0, PROTOCOL_VERSION)
            assert router.hub.refusals == {"certificate": 0, "hello": 1}
            nursery.cancel_scope.cancel()
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert line == "refused a link: the peer speaks link protocol version 2, this node 8"


async def test_hub_dialling_another_version_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A router that answers with a HELLO of version 2 is disconnected."""
    edge = Node("edge", "edge-0")

    async def old_router(stream: trio.SocketStream) -> None:
        await stream.receive_some(4096)
        await stream.send_all(hello_of_version(2, "router-0", "router"))

    with caplog.at_level(logging.INFO, logger="wire.links.hub"):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, old_router, [listener])
            await start(nursery, edge)
            edge.hub.set_seeds([f"127.0.0.1:{listener.socket.getsockname()[1]}"])
            with trio.fail_after(PATIENCE_S):
                while not any("cannot link" in record.getMessage() for record in caplog.records):
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    (line,) = [record.getMessage() for record in caplog.records if "cannot link" in record.getMessage()]
    assert line.endswith("the peer speaks link protocol version 2, this node 8")
