"""Origins in PUBACK and PUBREC, as user properties, for publishers that requested them in CONNECT.

``LoopConnection.origins`` is None for all others. An origin is stored when its message is finished, and its
acknowledgement carries it. For QoS 2 it stays until PUBREL, for the answer to a repeat. Source: MQTT 5.0 sections
3.4.2.2.3, 3.5.2.2.3; decision: docs/adr/0173-origins-in-acknowledgements.md.
"""

import cython

from edge.loop.buffers import Buffer
from edge.loop.state import LoopConnection, LoopState, PendingAck

if not cython.compiled:
    from edge.loop.buffers import copy_bytes, put16, reserve
    from edge.loop.encode import put_varint, varint_bytes
    from edge.loop.layout import FAILURE
    from edge.loop.output import output_of, write_short

__all__: list[str] = []

NAME = b"stratamq-origin"
COUNTER = (1 << 48) - 1  # of a session number, below its partition


def note_origin(hot: LoopState, conn: LoopConnection, message: PendingAck) -> None:
    """Store the text of a finished message's origin for its acknowledgement."""
    text: bytes
    if message.origin_kind == 0:  # this edge's number
        text = hot.origin_prefix + b"%d" % (message.origin_b or message.tag)
    else:  # a client's origin is a durable session's
        session = message.origin_a
        text = b"session/%d-%d/%d" % (session >> 48, session & COUNTER, message.origin_b)
    conn.origins[message.packet_identifier] = text  # type: ignore[index]  # the caller checked


def forget_origin(conn: LoopConnection, packet_identifier: cython.int) -> None:
    """Delete the origin of a completed exchange: its PUBREC is not repeated."""
    conn.origins.pop(packet_identifier, None)  # type: ignore[union-attr]  # the caller checked


def write_ack_with_origin(
    hot: LoopState, conn: LoopConnection, first: cython.int, packet_identifier: cython.int, reason_code: cython.int
) -> cython.int:
    """Append PUBACK or PUBREC with the stored origin, or without it if the packet is too large for the client."""
    text: bytes | None = conn.origins.get(packet_identifier)  # type: ignore[union-attr]  # the caller checked
    if first == 0x40 or reason_code >= FAILURE:
        forget_origin(conn, packet_identifier)
    if text is None:
        return write_short(hot, conn, first, packet_identifier, reason_code)
    block: cython.Py_ssize_t = 5 + len(NAME) + len(text)
    body: cython.Py_ssize_t = 3 + varint_bytes(block) + block
    if 1 + varint_bytes(body) + body > conn.client_packet_max:
        return write_short(hot, conn, first, packet_identifier, reason_code)
    out: Buffer = output_of(hot, conn)
    at: cython.Py_ssize_t = reserve(out, 5 + body)
    out.data[at] = first
    at = put_varint(out.data, at + 1, body)
    put16(out, at, packet_identifier)
    out.data[at + 2] = reason_code & 0xFF
    at = put_varint(out.data, at + 3, block)
    out.data[at] = 0x26
    put16(out, at + 1, len(NAME))
    copy_bytes(out, at + 3, NAME)
    at += 3 + len(NAME)
    put16(out, at, len(text))
    copy_bytes(out, at + 2, text)
    out.end = at + 2 + len(text)
    return 0
