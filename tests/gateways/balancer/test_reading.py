"""First bytes that are looked at: they stay in the socket, however slowly they come."""

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


async def test_a_connect_byte_by_byte(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at a few times; nothing is taken out, and what comes behind wakes the next reader as usual."""
    client, accepted = ends
    found: list[Connect | None] = []
    looks: list[int] = []

    def looked(data: bytes, bytes_max: int) -> Connect | None:
        looks.append(len(data))
        return read_connect(data, bytes_max)

    monkeypatch.setattr(reading, "read_connect", looked)

    async def look() -> None:
        found.append(await peek_connect(accepted, 65_536))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            for byte in WHOLE:
                client.send(bytes((byte,)))
                await trio.sleep(0.001)
        [connect] = found
        assert len(looks) <= 4, looks  # its first byte, its length, the whole
        assert connect is not None and connect.client_id == "slow"
        client.send(encode_packet(Pingreq(), 5))
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        data = b""
        while len(data) < len(WHOLE) + 2:
            await trio.lowlevel.wait_readable(accepted)
            data += accepted.recv(1000)
        assert data == WHOLE + encode_packet(Pingreq(), 5)


@pytest.mark.parametrize("said", [b"", WHOLE[:10]])
async def test_a_client_that_leaves_before(ends: tuple[socket.socket, socket.socket], said: bytes) -> None:
    client, accepted = ends
    client.send(said)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, client.close)
            assert await peek_connect(accepted, 65_536) is None


async def test_silence_is_bounded_by_who_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = ends
    client.send(WHOLE[:10])
    with trio.move_on_after(0.05) as waited:
        await peek_connect(accepted, 65_536)
    assert waited.cancelled_caught and accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


async def test_what_is_too_long_is_refused_when_its_length_is_known(ends: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = ends
    client.send(b"\x10\xff\xff\x7f")
    with trio.fail_after(PATIENCE_S), pytest.raises(WrongFirstBytes, match="too_large"):
        await peek_connect(accepted, 65_536)
