"""Balancer listeners that open and shut: a shut one refuses at once and keeps its address."""

import os
import socket

import pytest
import trio
import trio.testing

from conf.balance_settings import BalanceListener
from conf.errors import UserError
from gateways.balancer.balancer_listener import BalancerListener, activated_sockets
from tests.patience import PATIENCE_S


def port_of(listener: BalancerListener) -> int:
    return int(listener.address.rpartition(":")[2])


async def wait_for_events(events: list[str], count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while len(events) < count:
            await trio.sleep(0.001)


@pytest.mark.parametrize("chosen", [True, False])
async def test_listener_shut_refuses_and_reopens(chosen: bool) -> None:
    """For a configured and a system-chosen port."""
    events: list[str] = []

    def arrived(_: BalancerListener, client: socket.socket, address: str) -> None:
        events.append(address)
        client.close()

    port = 0
    if not chosen:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    listener = BalancerListener(BalanceListener(name="tls", port=port), None, lambda _: None)
    number = port_of(listener)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run, arrived)
        for count in range(1, 4):
            with pytest.raises(OSError, match=r"failed|refused"):
                await trio.open_tcp_stream("127.0.0.1", number)
            listener.open()
            listener.open()
            stream = await trio.open_tcp_stream("127.0.0.1", number)
            await wait_for_events(events, count)
            await stream.aclose()
            listener.shut()
            listener.shut()
            await trio.testing.wait_all_tasks_blocked()
        listener.close()
        with trio.fail_after(PATIENCE_S):
            nursery.cancel_scope.cancel()
    assert port_of(listener) == number and events == ["127.0.0.1"] * 3


def test_listener_bound_address_fails_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = BalanceListener(name="tls", port=taken.getsockname()[1])
        with pytest.raises(UserError, match=r"listener tls: cannot listen on 127\.0\.0\.1:"):
            BalancerListener(settings, None, lambda _: None)


def test_activated_sockets_are_mapped_by_name() -> None:
    """Only the process in LISTEN_PID uses them."""
    names = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0", "LISTEN_FDNAMES": "tls"}
    assert activated_sockets(names | {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, os.getpid()) == {}
    assert activated_sockets({}, os.getpid()) == {} and activated_sockets(names, os.getpid()) == {}
