"""Messages that a router's core sends in an iteration, in order; those to this node itself stay in the core.

A frame has a bounded size. Only an operator's query of a very large map can exceed it: the operator gets a refusal. Any
other oversized message is dropped and counted.
"""

from collections.abc import Callable

from wire.messages.control import Control, encode_control
from wire.messages.frames import FRAME_BYTES_MAX, FrameKind
from wire.messages.operators import AdminReply

__all__ = ["RouterOutbox"]

TOO_LARGE = 1  # exit code of a query whose answer exceeds a frame


class RouterOutbox:
    """Outgoing messages of one node: to itself, and to others as frames."""

    def __init__(self, node: str, count: Callable[[str], None]) -> None:
        self._node = node
        self._count = count
        self._own: list[Control] = []
        self._sends: list[tuple[str, int, bytes]] = []

    def send_message(self, node: str, message: Control) -> None:
        """Send a control message to a node, this one included; a message to "" is dropped."""
        if node == self._node:
            self._own.append(message)
        elif node:
            data = encode_control(message)
            if len(data) > FRAME_BYTES_MAX:
                self._count("answers_too_large")
                if not isinstance(message, AdminReply):
                    return
                text = f"the answer is {len(data)} bytes, more than one message holds: ask about less"
                data = encode_control(AdminReply(message.request, False, None, text, TOO_LARGE))
            self.send(node, data)

    def send(self, node: str, data: bytes) -> None:
        """Send an encoded control message."""
        assert len(data) <= FRAME_BYTES_MAX
        self._sends.append((node, FrameKind.CONTROL, data))

    def take_own(self) -> Control | None:
        """Remove and return the next message of this node to itself, None if there is none."""
        return self._own.pop(0) if self._own else None

    def take_sends(self) -> list[tuple[str, int, bytes]]:
        """Return (node, frame kind, payload) to send, in order."""
        sends, self._sends = self._sends, []
        return sends
