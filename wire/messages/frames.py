"""Frames: the units that one node writes to another on a link.

A link is an ordered stream of frames, each with a fixed 16-byte header (big endian):

    u32 payload length | u8 kind | u8 flags | u16 protocol version | u64 frame number

Frame numbers count from 1 per direction and pair of incarnations; HELLO and TAKEN are outside the count (number 0).
``wire/links/link.py`` explains the numbering. The payloads are in ``wire/messages/control.py`` (CONTROL),
``wire/messages/replication.py`` and ``wire/messages/batches.py``. Decision: docs/adr/0005-wire-format.md.
"""

import struct

__all__ = ["FRAME_BYTES_MAX", "HEADER", "HEADER_BYTES", "PROTOCOL_VERSION", "FrameKind"]

PROTOCOL_VERSION = 8  # of frames and their payloads; a peer with another major version is refused at HELLO
HEADER = struct.Struct(">IBBHQ")
HEADER_BYTES = HEADER.size
FRAME_BYTES_MAX = 8 * 1024 * 1024  # a longer declared length closes the link before any of it is buffered


class FrameKind:
    """Kinds of frame; every kind but HELLO and TAKEN is numbered and delivered once, in order.

    Plain numbers: each frame is compared with several of them, and a member of an Enum costs more than the comparison.
    """

    HELLO = 0  # msgpack Hello: identity, incarnation, and the number of frames taken from the peer
    TAKEN = 1  # payload: u64, highest frame number taken; sent alone or before other frames
    CONTROL = 2  # msgpack, one tagged struct of the union in wire/messages/control.py
    RAFT = 3  # msgpack, one struct of router/raft/messages.py; routers only
    PUBLISH = 4  # wire/messages/batches.py: messages on their way to an edge or to partitions
    PUBLISH_ACK = 5  # wire/messages/batches.py: (tag, partition, code) of messages finished by a storage node
    PUSH = 6  # wire/messages/batches.py: entries of durable sessions, storage to edge
    PUSH_ACK = 7  # wire/messages/batches.py: acknowledgements of the client, edge to storage
    REPLICATE = 8  # wire/messages/replication.py: op log records, primary to backup
    REPLICATE_ACK = 9  # wire/messages/replication.py: synced up to, backup to primary
    CONTROLS = 10  # msgpack, an array of CONTROL payloads: requests of one iteration, and replies
    CONNECTS = 11  # wire/messages/connects.py: connections that open and end, edge to storage
    CONNECT_ANSWERS = 12  # wire/messages/connects.py: the replies of a storage node
