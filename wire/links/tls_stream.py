"""A TLS connection between two nodes that reads and writes in as few turns of trio's loop as there are.

An idle node pays for wake-ups, and most of a wake-up is what trio does between two turns. ``trio.SSLStream`` takes
three of them for a frame: it asks the socket before it waits, and yields after it wrote. This one waits first, and
writes at once whatever the socket takes. Decides nothing; certificates and contexts are made in ``wire/links/tls.py``.
What it saves: ``python -m bench.tls_stream``, docs/adr/0028.
"""

import socket
import ssl
from typing import Any

import trio

__all__ = ["TlsStream"]

RECEIVE_BYTES = 256 * 1024  # of one receive
RECORD_BYTES = 32 * 1024  # more than a record: what an earlier receive left of one
LONG_WRITE_BYTES = 256 * 1024  # others have their turn after one


class TlsStream:
    """Both ends of one TLS connection over a TCP stream, which it takes the socket from.

    One task may receive and another one send. Whatever fails raises ``trio.BrokenResourceError``.
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
            trio.BrokenResourceError: It failed; the cause says why.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_rest()
                if not await self._receive():
                    raise trio.BrokenResourceError("connection closed") from None
            except ssl.SSLError as error:
                self._push()  # the alert that tells the peer
                raise trio.BrokenResourceError from error
            else:
                return await self._send_rest()

    async def receive_some(self, bytes_max: int) -> bytes:
        """Return what came, decrypted, at most so many bytes; empty when the peer closed the connection."""
        while True:
            data = self._decrypted(bytes_max)
            if data is not None:
                return data
            if not await self._receive():
                return b""

    def _decrypted(self, bytes_max: int) -> bytes | None:
        """Return what is here of whole records, empty at their end, None while nothing is."""
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
        if self._outgoing.pending:  # an answer of TLS itself
            self._push()
        return b"".join(records) if records else None

    async def _receive(self) -> bool:
        """Wait for bytes of the peer and give them to TLS; False when there will be none."""
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
        """Return what is here, decrypted, without waiting; None while nothing is, empty when the peer closed."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return self._decrypted(RECEIVE_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error
        if not data:
            return b""
        self._incoming.write(data)
        return self._decrypted(RECEIVE_BYTES + RECORD_BYTES)  # all of it: nobody would say that there is more

    def send_now(self, data: bytes) -> bool:
        """Send what the socket takes now and keep the rest for ``send_all``; True if there is none.

        Not while a task is in ``send_all``.
        """
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise trio.BrokenResourceError from error
        return self._push()

    async def send_all(self, data: bytes) -> None:
        """Send; returns when the socket has taken everything."""
        if not data or not self.send_now(data):
            await self._send_rest()
        if len(data) >= LONG_WRITE_BYTES:
            await trio.lowlevel.checkpoint()

    async def _send_rest(self) -> None:
        while not self._push():
            await trio.lowlevel.wait_writable(self._socket)

    def _push(self) -> bool:
        """Send what the socket takes now; True if that was all."""
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
        """Close the socket; frames are numbered, so no end of the stream needs to be told."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()
