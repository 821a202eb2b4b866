"""One link between two incarnations: numbered frames that arrive once and in order across reconnects.

Decides numbering, dropping of duplicates, resending, and when to send TAKEN. Its shell (``wire/links/hub.py``, the
edge's loop) owns sockets, TLS and HELLO. A frame is *taken* when ``receive`` returned it. The peer receives the new
number with the next ``take_output``, so a shell that replies in the same flush acts before it acknowledges. Another
incarnation of either side is another ``LinkCore``. Source: docs/protocol.md rule 1.5; docs/adr/0005-wire-format.md.
"""

from collections import deque

import msgspec

from wire.messages.frames import FRAME_BYTES_MAX, HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import LinkError

__all__ = ["OPERATOR_BYTES_MAX", "OUTPUT_BYTES_MAX", "RESEND_BYTES_MAX", "Frame", "LinkCore", "LinkError", "LinkFull"]

RESEND_BYTES_MAX = 32 * 1024 * 1024  # frames kept until taken; a higher bound costs memory per peer
OPERATOR_BYTES_MAX = 4 * 1024 * 1024  # likewise for an operator: an operator that does not read loses its link
OUTPUT_BYTES_MAX = 1024 * 1024  # one take_output; one frame is never cut, so at most this plus FRAME_BYTES_MAX

_TAKEN_BYTES = 8
_NO_OUTPUT = b""


class LinkFull(Exception):
    """The resend buffer is full: the peer has not taken the frames. Keep the message, or drop and count it."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame taken from the peer, exactly once."""

    kind: int
    number: int
    payload: bytes
    flags: int


class LinkCore:
    """Both directions of one link between this incarnation and one incarnation of a peer.

    Starts disconnected. The shell calls ``connected`` after the exchange of HELLOs and ``receive`` with the bytes that
    it read. It writes the result of ``take_output``, and calls ``disconnected`` when the connection ended for any
    reason (after a ``LinkError`` too). ``send`` works in either state.
    """

    __slots__ = (
        "_buffer",
        "_buffer_bytes_max",
        "_needed",
        "_output",
        "_output_bytes",
        "_sent",
        "_taken_sent",
        "bytes_unacknowledged",
        "frames_duplicate",
        "frames_resent",
        "is_connected",
        "last_sent",
        "peer_taken",
        "taken",
    )

    def __init__(self, resend_bytes_max: int = RESEND_BYTES_MAX) -> None:
        self._buffer_bytes_max = resend_bytes_max
        self._sent: deque[bytes] = deque()  # header, payload, header, payload ... of frames not taken yet
        self._output: deque[bytes] = deque()  # headers and payloads not handed to the socket yet
        self._output_bytes = 0
        self._buffer = bytearray()  # an incomplete frame
        self._needed = 0  # bytes that the buffer must hold before the next parse
        self._taken_sent = 0
        self.is_connected = False
        self.last_sent = 0  # number of the newest own frame
        self.peer_taken = 0  # highest own frame number the peer took; read after each receive
        self.taken = 0  # highest frame number taken from the peer
        self.bytes_unacknowledged = 0
        self.frames_duplicate = 0
        self.frames_resent = 0

    # -- sending

    def room(self) -> int:
        """Bytes of frames that ``send`` still takes before it raises LinkFull."""
        return max(0, self._buffer_bytes_max - self.bytes_unacknowledged)

    def send(self, kind: int, payload: bytes, flags: int = 0) -> int:
        """Number a frame and buffer it until the peer has taken it.

        Returns:
            The frame number; the peer has taken it when ``peer_taken`` reaches it.
        Raises:
            LinkFull: The buffer is full; the frame was not queued.
            ValueError: The payload is longer than FRAME_BYTES_MAX, or the kind is not a numbered one.
        """
        length = len(payload)
        size = length + HEADER_BYTES
        if length > FRAME_BYTES_MAX or kind <= FrameKind.TAKEN:
            raise ValueError(f"cannot send frame kind {kind} of {length} bytes")
        if self.bytes_unacknowledged + size > self._buffer_bytes_max:
            raise LinkFull(f"{self.bytes_unacknowledged} bytes not taken by the peer")
        number = self.last_sent + 1
        header = HEADER.pack(length, kind, flags, PROTOCOL_VERSION, number)
        self.last_sent = number
        self._sent.append(header)
        self._sent.append(payload)
        self.bytes_unacknowledged += size
        if self.is_connected:
            self._output.append(header)
            self._output.append(payload)
            self._output_bytes += size
        return number

    @property
    def wants_flush(self) -> bool:
        """Whether ``take_output`` would return any bytes."""
        return self.is_connected and (self._output_bytes > 0 or self.taken != self._taken_sent)

    @property
    def has_frames(self) -> bool:
        """Whether ``take_output`` would return more than a TAKEN."""
        return self.is_connected and self._output_bytes > 0

    def take_output(self, bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
        """Return the next bytes to write, in whole frames, with a TAKEN if its number is new; empty if there are none.

        The TAKEN precedes the frames: one per flush however many frames arrived, in the same write as the replies.
        """
        if not self.is_connected or not (self._output_bytes or self.taken != self._taken_sent):
            return _NO_OUTPUT
        output = self._output
        acknowledgement = _NO_OUTPUT
        if self.taken != self._taken_sent:
            acknowledgement = self._taken_frame()
        if self._output_bytes <= bytes_max:
            if acknowledgement:
                output.appendleft(acknowledgement)
            data = b"".join(output)
            output.clear()
            self._output_bytes = 0
            return data
        chunks = [acknowledgement]
        size = 0
        while output and size < bytes_max:
            header = output.popleft()
            payload = output.popleft()
            chunks.append(header)
            chunks.append(payload)
            size += len(header) + len(payload)
        self._output_bytes -= size
        return b"".join(chunks)

    def keepalive(self) -> None:
        """Make the next ``take_output`` repeat the TAKEN: an idle connection shows that this node is alive."""
        self._taken_sent = -1

    def _taken_frame(self) -> bytes:
        self._taken_sent = self.taken
        return HEADER.pack(_TAKEN_BYTES, FrameKind.TAKEN, 0, PROTOCOL_VERSION, 0) + self.taken.to_bytes(8, "big")

    # -- connection

    def connected(self, peer_taken: int) -> None:
        """Start a connection after the exchange of HELLOs; sending resumes at the first frame that the peer has not
        taken.

        Args:
            peer_taken: ``Hello.taken`` of the peer for this incarnation, 0 if it knew none.
        Raises:
            LinkError: The peer claims frames never sent, or fewer than it had taken.
        """
        if not self.peer_taken <= peer_taken <= self.last_sent:
            raise LinkError(
                f"the peer says it took {peer_taken} frames; it had taken {self.peer_taken} of {self.last_sent} sent"
            )
        self._forget_connection()
        self._trim(peer_taken)
        self._output.extend(self._sent)
        self._output_bytes = self.bytes_unacknowledged
        self.frames_resent += len(self._sent) // 2
        self._taken_sent = self.taken  # our HELLO carried it
        self.is_connected = True

    def disconnected(self) -> None:
        """End the connection: incomplete frames of both directions are discarded."""
        self._forget_connection()
        self.is_connected = False

    def _forget_connection(self) -> None:
        self._output.clear()
        self._output_bytes = 0
        self._buffer.clear()
        self._needed = 0

    def _trim(self, peer_taken: int) -> None:
        sent = self._sent
        freed = 0
        for _ in range(peer_taken - self.peer_taken):
            freed += len(sent.popleft()) + len(sent.popleft())
        self.bytes_unacknowledged -= freed
        self.peer_taken = peer_taken

    # -- receiving

    def receive(self, data: bytes) -> list[Frame]:
        """Parse received bytes, split anywhere, and return the frames that they completed.

        Raises:
            LinkError: Wrong version, a frame too long, a gap in the numbers, or an impossible TAKEN. Frames that the
                same call completed before stay untaken, and the peer sends them again.
        """
        if not self._buffer:
            return self._parse(data)
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []
        whole = bytes(self._buffer)
        self._buffer.clear()
        return self._parse(whole)

    def _parse(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        taken = self.taken  # published only when the whole call succeeded
        offset = 0
        end = len(data)
        self._needed = HEADER_BYTES
        while end - offset >= HEADER_BYTES:
            length, kind, flags, version, number = HEADER.unpack_from(data, offset)
            if version != PROTOCOL_VERSION:
                raise LinkError(f"frame of link protocol version {version}, this node speaks {PROTOCOL_VERSION}")
            if length > FRAME_BYTES_MAX:
                raise LinkError(f"frame of {length} bytes, more than {FRAME_BYTES_MAX}")
            start = offset + HEADER_BYTES
            after = start + length
            if after > end:
                self._needed = HEADER_BYTES + length
                break
            offset = after
            if kind <= FrameKind.TAKEN:
                self._take_unnumbered(kind, data[start:after])
            elif number == taken + 1:
                taken = number
                frames.append(Frame(kind, number, data[start:after], flags))
            elif 0 < number <= taken:
                self.frames_duplicate += 1
            else:
                raise LinkError(f"gap: frame {number} came after frame {taken}")
        if offset < end:
            self._buffer += memoryview(data)[offset:]
        self.taken = taken
        return frames

    def _take_unnumbered(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.HELLO:
            raise LinkError("a second HELLO")
        if len(payload) != _TAKEN_BYTES:
            raise LinkError(f"TAKEN of {len(payload)} bytes")
        peer_taken = int.from_bytes(payload, "big")
        if not self.peer_taken <= peer_taken <= self.last_sent:
            raise LinkError(f"TAKEN {peer_taken} of {self.last_sent} frames sent, {self.peer_taken} taken before")
        self._trim(peer_taken)
