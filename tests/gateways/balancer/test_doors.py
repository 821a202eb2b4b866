"""Doors that open and shut: a shut one refuses at once, and keeps its address."""

import os
import socket

import pytest
import trio
import trio.testing

from conf.balance_settings import BalanceListener
from conf.errors import UserError
from gateways.balancer.balancer_listener import BalancerListener, activated_sockets
from tests.patience import PATIENCE_S


def port_of(door: BalancerListener) -> int:
    return int(door.address.rpartition(":")[2])


async def came(events: list[str], count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while len(events) < count:
            await trio.sleep(0.001)


@pytest.mark.parametrize("chosen", [True, False])
async def test_a_shut_door_refuses_and_opens_again(chosen: bool) -> None:
    """Whether the settings name the port, or the system chose it."""
    events: list[str] = []

    def arrived(_: BalancerListener, client: socket.socket, address: str) -> None:
        events.append(address)
        client.close()

    port = 0
    if not chosen:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    door = BalancerListener(BalanceListener(name="tls", port=port), None, lambda _: None)
    number = port_of(door)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run, arrived)
        for turn in range(1, 4):
            with pytest.raises(OSError, match=r"failed|refused"):
                await trio.open_tcp_stream("127.0.0.1", number)
            door.open()
            door.open()
            stream = await trio.open_tcp_stream("127.0.0.1", number)
            await came(events, turn)
            await stream.aclose()
            door.shut()
            door.shut()
            await trio.testing.wait_all_tasks_blocked()
        door.close()
        with trio.fail_after(PATIENCE_S):
            nursery.cancel_scope.cancel()
    assert port_of(door) == number and events == ["127.0.0.1"] * 3


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = BalanceListener(name="tls", port=taken.getsockname()[1])
        with pytest.raises(UserError, match=r"listener tls: cannot listen on 127\.0\.0\.1:"):
            BalancerListener(settings, None, lambda _: None)


def test_sockets_of_systemd_go_by_name() -> None:
    """And only to the process that they are meant for."""
    names = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0", "LISTEN_FDNAMES": "tls"}
    assert activated_sockets(names | {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, os.getpid()) == {}
    assert activated_sockets({}, os.getpid()) == {} and activated_sockets(names, os.getpid()) == {}
