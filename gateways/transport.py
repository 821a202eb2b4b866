"""Transports of an MQTT client: TCP, TLS, and WebSocket on either, as one kind of stream.

Opens streams and requires that a broker's certificate names its host. Packets are the caller's concern.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import trio

from conf.errors import UserError
from gateways.addresses import Address
from gateways.websocket_client import WebSocketClient

__all__ = ["Transport", "client_context", "open_transport"]

READ_BYTES = 65_536


def client_context(authority: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return the TLS context that verifies a broker and authenticates the client: TLS 1.2 or newer.

    Args:
      authority: PEM of the CA of the broker; None for the system's authorities.
      certificate: PEM chain of the client; None for none.
      key: Its private key.

    Raises:
      UserError: A file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"authority {authority} cannot be read: {_error_text(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"certificate {certificate} and key {key} cannot be used: {_error_text(error)}") from None
    return context


class Transport:
    """One open connection; one task receives, one sends.

    Attributes:
      peer_ip: IP address of the broker.
    """

    def __init__(self, stream: trio.abc.Stream, websocket: WebSocketClient | None, peer_ip: str) -> None:
        self.peer_ip = peer_ip
        self._stream, self._websocket = stream, websocket
        self._sending = trio.Lock()
        self._early = b""  # received together with the handshake's answer

    async def receive(self) -> bytes:
        """Return the next bytes, empty at end of stream.

        Raises:
          OSError: The connection broke; the message is readable.
        """
        if self._early:
            early, self._early = self._early, b""
            return early
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionResetError(_error_text(error.__cause__ or error)) from None
            if self._websocket is None or not data:
                return bytes(data)
            received = self._websocket.receive(bytes(data))
            if answer := self._websocket.take_output():
                await self._send(answer)
            if received:
                return received
            if self._websocket.failure:
                raise ConnectionResetError(self._websocket.failure)

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: The connection broke.
        """
        await self._send(data if self._websocket is None else self._websocket.wrap(data))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionResetError(_error_text(error.__cause__ or error)) from None

    async def open_websocket(self) -> None:
        """Do the WebSocket handshake, if this transport has one.

        Raises:
          OSError: The server refuses.
        """
        websocket = self._websocket
        if websocket is None:
            return
        await self._send(websocket.take_output())
        while not websocket.is_open:
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed during the WebSocket handshake")
            self._early += websocket.receive(bytes(data))
            if websocket.failure:
                raise ConnectionResetError(websocket.failure)

    async def close(self) -> None:
        """Close at once."""
        await trio.aclose_forcefully(self._stream)


async def open_transport(
    address: Address, context: ssl.SSLContext | None, check_reach: Callable[[list[str]], None] | None = None
) -> Transport:
    """Open a connection to a broker; the caller bounds the time.

    Args:
      address: The broker's address; its certificate must name this host.
      context: TLS context.
      check_reach: Called with the IP addresses of the host before dialling; may raise.

    Raises:
      OSError: The connection cannot be opened; the message is readable.
    """
    host = address.host
    if check_reach is not None:
        found = await trio.socket.getaddrinfo(host, address.port, type=trio.socket.SOCK_STREAM)
        check_reach([str(each[4][0]) for each in found])
        host = str(found[0][4][0])  # the checked address: the name may resolve differently next time
    opened = await trio.open_tcp_stream(host, address.port)
    stream: trio.abc.Stream = opened
    try:
        peer_ip = str(opened.socket.getpeername()[0])
        if address.secure:
            secured = trio.SSLStream(
                stream,
                context or client_context(None, None, None),
                server_hostname=address.host,
                https_compatible=True,
            )
            stream = secured
            await secured.do_handshake()
        port = "" if address.port in (80, 443) else f":{address.port}"
        websocket = WebSocketClient(f"{address.host}{port}", address.path) if address.websocket else None
        transport = Transport(stream, websocket, peer_ip)
        await transport.open_websocket()
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        await trio.aclose_forcefully(stream)
        raise ConnectionRefusedError(f"no TLS: {_error_text(error.__cause__ or error)}") from None
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return transport


def _error_text(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
