"""A TLS connection between two nodes that needs few iterations of Trio's loop per read and write.

Wake-ups dominate the cost of an idle node, and most of one is Trio's work between two iterations. ``trio.SSLStream``
needs three iterations per frame: it reads the socket before it waits, and yields after a write. This class waits first,
and writes immediately as much as the socket takes. It has no policy; ``wire/links/tls.py`` makes certificates and
contexts. Measurement: ``python -m bench.tls_stream``, docs/adr/0028.
"""

import socket
import ssl
from typing import Any

import trio

__all__ = ["TlsStream"]

RECEIVE_BYTES = 256 * 1024  # of one receive
RECORD_BYTES = 32 * 1024  # above the largest record, for the rest of an earlier receive
LONG_WRITE_BYTES = 256 * 1024  # a write this long yields to other tasks


class TlsStream:
    """Both ends of one TLS connection over a TCP stream, whose socket it takes over.

    One task may receive and another one send. Failures raise ``trio.BrokenResourceError``.
    """

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)
        self._unsent = b""

    def getpeername(self) -> Any:
        """Return the peer's address, as ``socket.socket`` does."""
        return self._socket.getpeername()

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return the peer's verified certificate, as ``ssl.SSLObject`` does."""
        return self._tls.getpeercert(binary_form)

    async def do_handshake(self) -> None:
        """Exchange keys; the caller bounds the wait.

        Raises:
            trio.BrokenResourceError: It failed; the cause has the reason.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_rest()
                if not await self._receive():
                    raise trio.BrokenResourceError("connection closed") from None
            except ssl.SSLError as error:
                self._push()  # sends the TLS alert
                raise trio.BrokenResourceError from error
            else:
                return await self._send_rest()

    async def receive_some(self, bytes_max: int) -> bytes:
        """Return received bytes, decrypted, at most ``bytes_max``; empty when the peer closed the connection."""
        while True:
            data = self._decrypted(bytes_max)
            if data is not None:
                return data
            if not await self._receive():
                return b""

    def _decrypted(self, bytes_max: int) -> bytes | None:
        """Return the complete records received so far, empty after a close, None if there is none."""
        records: list[bytes] = []
        room = bytes_max
        try:
            while room > 0 and (self._incoming.pending or self._tls.pending()):
                record = self._tls.read(room)
                if not record:
                    return b"".join(records)
                records.append(record)
                room -= len(record)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise trio.BrokenResourceError from error
        if self._outgoing.pending:  # a reply of the TLS protocol
            self._push()
        return b"".join(records) if records else None

    async def _receive(self) -> bool:
        """Wait for bytes of the peer and pass them to TLS; False at the end of the stream."""
        await trio.lowlevel.wait_readable(self._socket)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            raise trio.BrokenResourceError from error
        self._incoming.write(data)
        return bool(data)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def receive_now(self) -> bytes | None:
        """Return the received bytes, decrypted, without waiting; None if there are none, empty when the peer closed."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return self._decrypted(RECEIVE_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error
        if not data:
            return b""
        self._incoming.write(data)
        return self._decrypted(RECEIVE_BYTES + RECORD_BYTES)  # all of it: the socket would not become readable again

    def send_now(self, data: bytes) -> bool:
        """Send as much as the socket takes and keep the rest for ``send_all``; True if there is no rest.

        Must not run while a task is in ``send_all``.
        """
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise trio.BrokenResourceError from error
        return self._push()

    async def send_all(self, data: bytes) -> None:
        """Send; returns when the socket has taken all bytes."""
        if not data or not self.send_now(data):
            await self._send_rest()
        if len(data) >= LONG_WRITE_BYTES:
            await trio.lowlevel.checkpoint()

    async def _send_rest(self) -> None:
        while not self._push():
            await trio.lowlevel.wait_writable(self._socket)

    def _push(self) -> bool:
        """Send as much as the socket takes; True if no bytes remain."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        if not self._unsent:
            return True
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise trio.BrokenResourceError from error
        self._unsent = self._unsent[sent:]
        return not self._unsent

    async def aclose(self) -> None:
        """Close the socket; frames are numbered, so TLS needs no closing alert."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()
