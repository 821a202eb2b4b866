"""Peeked first bytes: they stay in the socket, however slowly they arrive."""

import socket
from collections.abc import Iterator

import pytest
import trio

from gateways.balancer import reading
from gateways.balancer.first_bytes import WrongFirstBytes, read_connect
from gateways.balancer.reading import peek_connect
from mqtt.codec import encode_packet
from mqtt.packets import Connect, Pingreq
from tests.patience import PATIENCE_S

WHOLE = encode_packet(Connect("slow", username="u" * 40), 5)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        accepted.setblocking(False)
        with accepted:
            yield client, accepted


async def test_peek_connect_byte_by_byte_consumes_nothing(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few peeks suffice; no byte is consumed, and later bytes wake the next reader as usual."""
    client, accepted = ends
    found: list[Connect | None] = []
    peeks: list[int] = []

    def counting_read(data: bytes, bytes_max: int) -> Connect | None:
        peeks.append(len(data))
        return read_connect(data, bytes_max)

    monkeypatch.setattr(reading, "read_connect", counting_read)

    async def peek() -> None:
        found.append(await peek_connect(accepted, 65_536))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peek)
            for byte in WHOLE:
                client.send(bytes((byte,)))
                await trio.sleep(0.001)
        [connect] = found
        assert len(peeks) <= 4, peeks  # first byte, length, whole packet
        assert connect is not None and connect.client_id == "slow"
        client.send(encode_packet(Pingreq(), 5))
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        data = b""
        while len(data) < len(WHOLE) + 2:
            await trio.lowlevel.wait_readable(accepted)
            data += accepted.recv(1000)
        assert data == WHOLE + encode_packet(Pingreq(), 5)


@pytest.mark.parametrize("sent", [b"", WHOLE[:10]])
async def test_peek_connect_closed_client_returns_none(ends: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    client, accepted = ends
    client.send(sent)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, client.close)
            assert await peek_connect(accepted, 65_536) is None


async def test_peek_connect_cancelled_restores_low_water_mark(ends: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = ends
    client.send(WHOLE[:10])
    with trio.move_on_after(0.05) as waited:
        await peek_connect(accepted, 65_536)
    assert waited.cancelled_caught and accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


async def test_peek_connect_oversized_is_refused_by_length(ends: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = ends
    client.send(b"\x10\xff\xff\x7f")
    with trio.fail_after(PATIENCE_S), pytest.raises(WrongFirstBytes, match="too_large"):
        await peek_connect(accepted, 65_536)
