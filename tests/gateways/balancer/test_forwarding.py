"""Forwarding: missing local resources are not an edge's fault, and waiting clients are bounded."""

import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
import trio
import trio.testing

from conf.balance_settings import BalanceListener, BalanceSettings
from gateways.balancer.arrival import Arrival
from gateways.balancer.directory import Directory, DirectoryRules, PlacementRequest
from gateways.balancer.forwarding import Forwarding
from gateways.balancer.server_busy import is_resource_exhausted
from tests.patience import PATIENCE_S
from wire.clock import boot_time
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState

PLAIN = BalanceListener(name="plain", port=0, opaque=False, redirect=True)


@pytest.fixture
def edge() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def arrival(version: int = 4) -> tuple[socket.socket, Arrival]:
    """Return a client and its arrival."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    now = boot_time()
    return client, Arrival(accepted, PLAIN, now, now + 3.0, PlacementRequest("plain"), version)


@asynccontextmanager
async def forwarded(edge: socket.socket, **settings: object) -> AsyncIterator[tuple[Forwarding, Directory]]:
    """Run a forwarding with one edge."""
    directory = Directory(DirectoryRules(("plain",)), lambda _: "", Random(1))
    address = f"127.0.0.1:{edge.getsockname()[1]}"
    entry = NodeEntry("edge-0", "edge", 1, "127.0.0.1:1", {"plain": address}, state=NodeState.ACTIVE)
    directory.map_moved(boot_time(), ClusterMap(cluster="c", nodes={"edge-0": entry}))
    async with trio.open_nursery() as nursery:
        chosen = BalanceSettings(listeners=(PLAIN,), **settings)  # type: ignore[arg-type]
        made = Forwarding(chosen, directory, nursery.start_soon)
        nursery.start_soon(made.run)
        with trio.fail_after(PATIENCE_S):
            yield made, directory
        nursery.cancel_scope.cancel()


async def test_forwarding_without_descriptor_queues_client_without_edge_failure(
    edge: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the edge would be skipped for a second or more by all clients."""
    dial, lacks = trio.open_tcp_stream, 2

    async def lacking(host: str, port: int) -> trio.SocketStream:
        nonlocal lacks
        if lacks:
            lacks -= 1
            raise OSError("all attempts failed") from OSError(errno.EMFILE, "Too many open files")
        return await dial(host, port)

    monkeypatch.setattr(trio, "open_tcp_stream", lacking)
    client, arrived = arrival()
    async with forwarded(edge, forward="relay") as (made, directory):
        with client:
            made.forward(arrived)
            await trio.lowlevel.wait_readable(edge)
            while not made.relayed:
                await trio.sleep(0.01)
            assert made.refused == {"no_descriptors": 2} and made.waiting == 0 == lacks
            [found] = directory.candidates("plain")
            assert found.skip_until < boot_time() and found.clients == 1


async def test_forwarding_redirected_clients_are_counted_and_bounded(edge: socket.socket) -> None:
    """A client that does not disconnect holds a descriptor until its timeout."""
    stays, first = arrival(5)
    late, second = arrival(5)
    async with forwarded(edge, connections_max=1, choose_s=0.3) as (made, _):
        with stays, late:
            made.forward(first)
            made.forward(second)
            assert made.held == 1 and made.refused == {"full": 1}
            late.settimeout(PATIENCE_S)
            assert await trio.to_thread.run_sync(late.recv, 100) == b""
            assert (await trio.to_thread.run_sync(stays.recv, 100))[3] == 0x9C
            while made.held:
                await trio.sleep(0.01)


async def test_forwarding_peeked_client_receives_redirect(edge: socket.socket) -> None:
    """Its CONNECT is unread in the socket: closing would send a reset, which may discard the answer."""
    client, arrived = arrival(5)
    client.sendall(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00")
    async with forwarded(edge, choose_s=5.0) as (made, _):
        with client:
            await trio.lowlevel.wait_readable(arrived.client)
            made.forward(arrived)
            client.settimeout(5)
            assert (await trio.to_thread.run_sync(client.recv, 100))[3] == 0x9C
            assert await trio.to_thread.run_sync(client.recv, 100) == b""
            await trio.testing.wait_all_tasks_blocked()
            assert made.held == 1 and arrived.client.fileno() >= 0
        while made.held:
            await trio.sleep(0.01)


async def test_forwarding_retries_waiting_clients_together(
    edge: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no edge for one client there is none for equal ones: thousands cost one choice."""
    choices = 0

    def choose(*_: object) -> None:
        nonlocal choices
        choices += 1

    pairs = [arrival() for _ in range(20)]
    async with forwarded(edge) as (made, directory):
        monkeypatch.setattr(directory, "choose", choose)
        for _, arrived in pairs:
            made.forward(replace(arrived, until=boot_time() + 0.3))
        assert made.waiting == choices == 20
        while made.waiting:
            await trio.sleep(0.01)
        assert choices < 40 and made.refused == {"no_edge": 20}
        for client, _ in pairs:
            client.close()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((errno.EMFILE, errno.EMFILE), True),
        ((errno.EADDRNOTAVAIL, errno.ECONNREFUSED), False),
        ((errno.ECONNREFUSED,), False),
    ],
)
def test_resource_exhausted_refused_address_is_edge_failure(numbers: tuple[int, ...], expected: bool) -> None:
    """A host without IPv6 reports for ::1 the same error as without a free port."""
    error = OSError("all attempts to connect failed")
    error.__cause__ = ExceptionGroup("several", [OSError(number, "why") for number in numbers])
    assert is_resource_exhausted(error) is expected
