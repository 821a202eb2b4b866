"""The timeout of CONNECT begins after the TLS handshake."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.clients.packets import connect
from tests.edge.loop.test_loop import certificates, running, tls_contexts
from tests.patience import PATIENCE_S

__all__ = ["certificates"]

SECOND = 1_000_000_000


@pytest.mark.parametrize("secured", [False, True])
async def test_client_without_connect_is_closed(hot: Any, secured: bool, certificates: Path) -> None:
    """It ends long before the timeout for handshakes and logins; a client with a timely CONNECT stays."""
    context, trusting = tls_contexts(certificates)
    async with running(hot, tls=context if secured else None) as edge:
        times = {"connect_timeout_ns": 3600 * SECOND, "first_packet_ns": SECOND // 2}
        options = hot.options.ConnOptions(tls=context if secured else None, **times)
        edge.handler.attach = lambda _, fd: edge.hot.attach(fd, 0, options, hot.descriptors.boot_ns())
        streams: list[trio.abc.Stream] = []
        for _ in range(2):
            stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", edge.port)
            streams.append(trio.SSLStream(stream, trusting, server_hostname="localhost") if secured else stream)
            if isinstance(streams[-1], trio.SSLStream):
                await streams[-1].do_handshake()
        silent, honest = streams
        await honest.send_all(connect())
        with trio.fail_after(PATIENCE_S):
            assert await honest.receive_some(4) == b"\x20\x02\x00\x00"
            await silent.send_all(connect()[:5])
            with contextlib.suppress(trio.BrokenResourceError):
                assert await silent.receive_some(1) == b""
        await honest.send_all(b"\xc0\x00")
        with trio.fail_after(PATIENCE_S):
            assert await honest.receive_some(2) == b"\xd0\x00"
