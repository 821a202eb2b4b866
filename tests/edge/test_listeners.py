"""Sockets of an edge before and after it is ready."""

import socket

import pytest

from conf.errors import UserError
from conf.settings import ListenerSettings
from edge.listeners.listeners import EdgeListener, address_of


def plain(port: int = 0) -> EdgeListener:
    return EdgeListener(ListenerSettings(name="plain", port=port, tls=False))


def test_a_client_that_comes_too_early_is_refused() -> None:
    """In the backlog it would wait for as long as the edge needs to be ready; refused, it can try another one."""
    listener = plain()
    with listener.socket:
        address = listener.socket.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        listener.open()
        socket.create_connection(address).close()


def test_a_taken_address_is_told_at_start_and_when_it_opens() -> None:
    """Bound sockets that do not listen yet may share an address; the second one to listen hears of it."""
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


def test_a_listener_that_was_shut_opens_where_it_was() -> None:
    """Its address stands in the map, though the system chose the port."""
    listener = plain()
    with listener.socket:
        address = listener.socket.getsockname()
        listener.open()
        listener.socket.setblocking(False)  # as the loop has it
        listener.shut(lambda *_: None)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        listener.open()
        assert listener.socket.getsockname() == address
        socket.create_connection(address).close()
