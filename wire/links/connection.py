"""One connection of a link: TLS, HELLO, a task that reads, a task that writes, and a watch for silence.

With the reactor hook it is read without a task, in the iteration in which bytes arrive (``early_reads``).

Frames are in ``wire/links/link.py``, admission is in ``wire/links/hub.py``.
"""

import ssl
from collections.abc import Callable, Iterable
from functools import partial

import trio

from conf.errors import ExitCode, UserError
from wire.clock import boot_time, next_moment
from wire.decoding import plain_text
from wire.links.link import LinkCore
from wire.links.reactor_hook import ReactorHook
from wire.links.silence import SILENCE_S, SPEAK_S, Silence, SilenceCheck
from wire.links.tls import peer_identity
from wire.links.tls_stream import TlsStream
from wire.messages.hello import HelloReader, LinkError, LinkHello

__all__ = [
    "HELLO_TIMEOUT_S",
    "LinkConnection",
    "PeerGone",
    "Stream",
    "address_of",
    "certificate_of",
    "certified_identity",
    "close_quietly",
    "failure_text",
    "open_stream",
    "read_hello",
    "split_address",
    "watch",
    "wrap_tls",
]

HELLO_TIMEOUT_S = 4.0  # TCP, TLS and HELLO together
WATCH_S = 0.5  # tick of the watch
READ_BYTES_MAX = 256 * 1024
UNACKED_BYTES_MAX = 64 * 1024  # read since the last write; below it a TAKEN is sent with frames or by the watch

Stream = trio.SocketStream | TlsStream


class PeerGone(LinkError):
    """The peer closed the connection during the handshake without a refusal; it may have stopped."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; IPv6 hosts have brackets.

    Raises:
        UserError: Another form.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"not an address: {address!r}, expected host:port", ExitCode.USAGE)
    return host.strip("[]"), int(port)


async def open_stream(address: str) -> trio.SocketStream:
    """Connect to ``host:port``; the caller bounds the wait.

    Raises:
        OSError: The address does not answer.
        UserError: The address is malformed; nodes choose their own addresses in the map.
    """
    host, port = split_address(address)
    try:
        return await trio.open_tcp_stream(host, port)
    except ValueError as error:  # of the encoding of names
        raise UserError(f"not an address: {address!r}, no host can have this name ({error})", ExitCode.USAGE) from None


async def wrap_tls(stream: trio.SocketStream, context: ssl.SSLContext, *, server_side: bool) -> TlsStream:
    """Do the TLS handshake; the caller bounds the wait.

    Raises:
        PeerGone: The peer closed the connection: it may have stopped.
        LinkError: The handshake failed, with the text of the TLS library; the stream is closed.
    """
    secured = TlsStream(stream, context, server_side=server_side)
    try:
        await secured.do_handshake()
    except trio.Cancelled:
        await close_quietly(secured)
        raise
    except trio.BrokenResourceError as error:
        await close_quietly(secured)
        why = f"TLS handshake failed: {failure_text(error, 'TLS handshake')}"
        raise (LinkError if isinstance(error.__cause__, ssl.SSLError) else PeerGone)(why) from None
    return secured


def failure_text(error: BaseException, step: str) -> str:
    """Return why a connection failed, as printable text that is never empty.

    Args:
        error: Raised while the connection was opened, or accepted.
        step: Name of the current step, such as "TLS handshake".
    """
    if isinstance(error, trio.TooSlowError):
        return f"no {step} within {HELLO_TIMEOUT_S:g} s"
    text = next((str(each) for each in (error, error.__cause__) if each is not None and str(each)), "")
    return plain_text(text) or f"the peer closed the connection during the {step}"


def certified_identity(stream: Stream) -> tuple[str, str, str] | None:
    """Return (cluster, tier, node) of the peer's certificate; None on a plaintext stream.

    Raises:
        LinkError: The certificate names no node.
    """
    if isinstance(stream, trio.SocketStream):
        return None
    try:
        return peer_identity(stream)
    except ValueError as error:
        raise LinkError(str(error)) from None


def certificate_of(stream: Stream) -> bytes | None:
    """Return the peer's verified certificate in DER; None on a plaintext stream."""
    found: bytes | None = None if isinstance(stream, trio.SocketStream) else stream.getpeercert(binary_form=True)
    return found


def address_of(stream: Stream) -> str:
    """Return the peer's IP address, "" for a broken connection or one without."""
    named = stream.socket if isinstance(stream, trio.SocketStream) else stream
    try:
        return str(named.getpeername()[0])
    except (OSError, IndexError):  # broken, or without a name
        return ""


async def read_hello(stream: Stream) -> tuple[LinkHello, bytes]:
    """Read the peer's HELLO and the bytes that followed it; the caller bounds the wait."""
    reader = HelloReader()
    while True:
        data = await stream.receive_some(READ_BYTES_MAX)
        if not data:
            raise LinkError("closed before HELLO (refused by the peer: its log says why)")
        hello = reader.receive(bytes(data))
        if hello is not None:
            return hello, reader.rest


async def close_quietly(stream: Stream) -> None:
    """Close without waiting."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


class LinkConnection:
    """Moves bytes between a stream and a connected ``LinkCore`` until either end fails or ``close`` is called."""

    __slots__ = (
        "_closed",
        "_core",
        "_on_frame",
        "_on_read",
        "_paused",
        "_prompt",
        "_reads",
        "_scope",
        "_sending",
        "_silence",
        "_stream",
        "_unacked_bytes",
        "_wakeup",
        "why",
    )

    def __init__(
        self,
        stream: Stream,
        core: LinkCore,
        on_frame: Callable[[int, bytes], None],
        on_read: Callable[[], None] = lambda: None,
        reads: ReactorHook | None = None,
        speak_s: float = SPEAK_S,
    ) -> None:
        self._stream = stream
        self._reads = reads
        self._prompt = stream if isinstance(stream, TlsStream) else None
        self._sending = False  # a task waits for the socket
        self._paused: trio.Event | None = None  # set on resume; None while reading
        self._core = core
        self._on_frame = on_frame
        self._on_read = on_read
        self._scope = trio.CancelScope()
        self._closed = False  # from here on the core belongs to another connection
        self._wakeup = trio.Event()
        self._silence = Silence(WATCH_S, speak_s=speak_s)
        self._unacked_bytes = 0  # bytes read since the last write
        self.why = "closed here"

    def wake(self) -> None:
        """Wake the writer: there are bytes to write."""
        self._wakeup.set()

    def flush(self) -> None:
        """Write pending bytes in this loop iteration, as many as the socket takes."""
        if self._prompt is None or self._sending or self._closed:
            self._wakeup.set()
            return
        data = self._core.take_output()
        if not data:
            return
        self._unacked_bytes = 0
        self._silence.spoke()
        try:
            self._sending = not self._prompt.send_now(data)
        except trio.BrokenResourceError as error:
            self._end(f"broken: {error.__cause__ or error}")
        if self._sending or self._core.has_frames:
            self._wakeup.set()

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate in DER; None on a plaintext stream."""
        return certificate_of(self._stream)

    @property
    def whence(self) -> tuple[str, str]:
        """(address, serial number of the certificate in hexadecimal) of the peer; "" where unknown."""
        stream = self._stream
        found = {} if isinstance(stream, trio.SocketStream) else stream.getpeercert() or {}
        return address_of(stream), str(found.get("serialNumber", ""))

    def pause(self) -> None:
        """Stop reading until ``go_on``; writing continues.

        The owner bounds the time: the end of the stream and a silent peer are not noticed meanwhile.
        """
        if self._paused is None:
            self._paused = trio.Event()
            if self._prompt is not None and self._reads is not None:
                self._reads.pause(self._prompt.fileno())

    def go_on(self) -> None:
        """Resume reading."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None
            if self._prompt is not None and self._reads is not None:
                self._reads.go_on(self._prompt.fileno())

    def cut(self, why: str) -> None:
        """End the connection as if it had broken; a reconnect goes through a handshake."""
        self._end(why)

    def close(self) -> None:
        """End the connection; the core is not used after this call."""
        self._closed = True
        self._scope.cancel()

    async def run(self, rest: bytes) -> None:
        """Serve until the connection ends; ``why`` has the reason. Raises errors of ``on_frame`` except LinkError."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, rest)
                    nursery.start_soon(self._write)
        finally:
            await close_quietly(self._stream)

    def _end(self, why: str) -> None:
        if not self._closed:
            self.why = why
        self._scope.cancel()

    async def _read(self, rest: bytes) -> None:
        data: bytes | bytearray = rest
        try:
            while True:
                if data:
                    self._take(bytes(data))
                    self._on_read()
                await self._unpaused()
                if self._prompt is not None and self._reads is not None:
                    self._read_now(self._prompt)  # bytes left by the handshake
                    await self._unpaused()
                    return await self._reads.reading(self._prompt.fileno(), partial(self._read_now, self._prompt))
                data = await self._stream.receive_some(READ_BYTES_MAX)
                if not data:
                    return self._end("closed by the peer")
                self._silence.heard()
        except LinkError as error:
            self._end(str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(f"broken: {error.__cause__ or error}")

    async def _unpaused(self) -> None:
        while self._paused is not None:
            await self._paused.wait()  # unbounded: the owner resumes when its backlog is processed

    def _read_now(self, stream: TlsStream) -> None:
        """Process the bytes that the socket has."""
        data = stream.receive_now()
        if data is None or self._scope.cancel_called:
            return
        if data:
            self._silence.heard()
            if self._reads is not None:
                self._reads.give_way()
            self._take(data)
            self._on_read()
        else:
            self._end("closed by the peer")

    def _take(self, data: bytes) -> None:
        if self._closed:
            return
        for frame in self._core.receive(data):
            if self._closed:  # a callback ended this link: later frames are void
                return
            self._on_frame(frame.kind, frame.payload)
        self._unacked_bytes += len(data)
        if self._core.has_frames or (self._unacked_bytes >= UNACKED_BYTES_MAX and self._core.wants_flush):
            self._wakeup.set()

    async def _write(self) -> None:
        try:
            while not self._closed:
                data = b"" if self._sending else self._core.take_output()
                if data or self._sending:
                    self._unacked_bytes, self._sending = 0, True
                    await self._stream.send_all(data)  # unbounded: ``look`` ends it if the peer is silent
                    self._silence.spoke()
                    self._sending = False
                else:
                    self._wakeup = trio.Event()
                    await self._wakeup.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(f"broken: {error.__cause__ or error}")

    def look(self) -> None:
        """Close a half-open connection or send a keepalive; called every ``WATCH_S``."""
        if self._paused is not None:
            self._silence.heard()  # a paused peer is not silent
        verdict = self._silence.look()
        if verdict is SilenceCheck.GIVE_UP:
            self._end(f"nothing heard for {SILENCE_S} s")
        elif verdict is SilenceCheck.SPEAK and not self._closed:
            self._core.keepalive()
            self.flush()  # without the writer task


async def watch(connections: Iterable[LinkConnection], phase: float) -> None:
    """Check all connections at the time of heartbeats, so that an idle process wakes up once for all of them.

    Args:
        connections: Running connections; changes during the watch.
        phase: Of the tier, ``wire.clock.tier_phase``.
    """
    ahead_s = boot_time() - trio.current_time()
    while True:
        await trio.sleep_until(next_moment(trio.current_time() + ahead_s, WATCH_S, phase) - ahead_s)
        for connection in list(connections):
            connection.look()
