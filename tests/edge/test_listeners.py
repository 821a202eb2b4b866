"""Sockets of an edge before and after it is ready."""

import socket

import pytest

from conf.errors import UserError
from conf.settings import ListenerSettings
from edge.listeners.listeners import EdgeListener, address_of


def plain(port: int = 0) -> EdgeListener:
    return EdgeListener(ListenerSettings(name="plain", port=port, tls=False))


def test_early_client_is_refused() -> None:
    """In the backlog it would wait until the edge is ready; refused, it can try another one."""
    listener = plain()
    with listener.socket:
        address = listener.socket.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        listener.open()
        socket.create_connection(address).close()


def test_used_address_is_reported_at_start_and_at_open() -> None:
    """Bound sockets that do not listen yet may share an address; the second listen fails."""
    first, second = plain(), None
    with first.socket:
        port = first.socket.getsockname()[1]
        second = plain(port)
        with second.socket:
            first.open()
            with pytest.raises(UserError, match=f"listener plain: cannot listen on {address_of(second.socket)}"):
                second.open()
        with pytest.raises(UserError, match="Address already in use"):
            plain(port)


def test_shut_listener_opens_at_the_same_port() -> None:
    """The map has its address, although the system chose the port."""
    listener = plain()
    with listener.socket:
        address = listener.socket.getsockname()
        listener.open()
        listener.socket.setblocking(False)  # as in the loop
        listener.shut(lambda *_: None)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        listener.open()
        assert listener.socket.getsockname() == address
        socket.create_connection(address).close()
