"""Key order of the LSM stores: partition | kind | number ..., so that a partition is one contiguous range.

Integers are big endian, so bytewise order is numeric order. Keys contain 16-byte BLAKE2 digests instead of client
text. Move, export and drop of a partition are scans of ``partition_range``.

Decision: docs/adr/0009-key-order-and-sstables.md.
"""

import struct
from hashlib import blake2b

__all__ = [
    "BODY",
    "FILTER",
    "HANDED",
    "INBOUND",
    "INFLIGHT",
    "LOCAL",
    "LOG",
    "META",
    "OPENED",
    "ORIGIN",
    "QUEUE",
    "RETAINED",
    "SESSION",
    "SUBSCRIPTION",
    "WILL",
    "body_key",
    "digest",
    "filter_key",
    "handed_key",
    "handed_pick_key",
    "inbound_key",
    "inflight_key",
    "kind_range",
    "local_key",
    "log_key",
    "meta_key",
    "opened_key",
    "origin_key",
    "partition_range",
    "queue_key",
    "retained_key",
    "session_key",
    "session_range",
    "subscription_key",
    "will_key",
]

LOCAL = b"A"  # one row about this copy: highest partition_epoch seen, start of its log; not replicated state
META = b"a"  # one row: op_index, partition_epoch, served clock, counters
BODY = b"b"  # body id u64 | piece u16: payload bytes shared by queue rows
FILTER = b"f"  # digest of a filter whose route is registered at its shards
HANDED = b"h"  # number u64: a message for another member of its group; with "p": its pick
INBOUND = b"i"  # session u64 | packet identifier u16: QoS 2 received, not released
LOG = b"l"  # op_index u64: one operation, its writes packed
OPENED = b"n"  # digest of an edge's incarnation u64 | request u64: a CONNECT whose response the edge may lack
ORIGIN = b"o"  # origin kind u8 | sender u64: highest accepted counter
QUEUE = b"q"  # session u64 | session_seq u64: one message of a session
RETAINED = b"r"  # digest of the topic
SESSION = b"s"  # session u64
SUBSCRIPTION = b"u"  # session u64 | digest of the filter
WILL = b"w"  # digest of the client ID
INFLIGHT = b"x"  # session u64 | session_seq u64: identifier and state of an outbound message, if not in its queue row

_HEAD = struct.Struct(">Hc")
_ONE = struct.Struct(">HcQ")
_TWO = struct.Struct(">HcQQ")
_SHORT = struct.Struct(">HcQH")
_ORIGIN = struct.Struct(">HcBQ")


def digest(text: str) -> bytes:
    """Return the 16-byte digest of client text for a key."""
    return blake2b(text.encode(), digest_size=16).digest()


def partition_range(partition: int) -> tuple[bytes, bytes]:
    """Return [start, stop) of all rows of a partition. 0xFFFF is not a partition number, so stop never wraps."""
    return struct.pack(">H", partition), struct.pack(">H", partition + 1)


def kind_range(partition: int, kind: bytes) -> tuple[bytes, bytes]:
    """Return [start, stop) of one kind of row of a partition."""
    return _HEAD.pack(partition, kind), _HEAD.pack(partition, bytes([kind[0] + 1]))


def session_range(partition: int, kind: bytes, session: int) -> tuple[bytes, bytes]:
    """Return [start, stop) of one session's rows of a kind."""
    return _ONE.pack(partition, kind, session), _ONE.pack(partition, kind, session + 1)


def meta_key(partition: int) -> bytes:
    """Return the key of the partition's own row."""
    return _HEAD.pack(partition, META)


def local_key(partition: int) -> bytes:
    """Return the key of a replica's row about its own copy."""
    return _HEAD.pack(partition, LOCAL)


def session_key(partition: int, session: int) -> bytes:
    """Return the key of a session row."""
    return _ONE.pack(partition, SESSION, session)


def subscription_key(partition: int, session: int, topic_filter: str) -> bytes:
    """Return the key of one subscription of a session."""
    return _ONE.pack(partition, SUBSCRIPTION, session) + digest(topic_filter)


def queue_key(partition: int, session: int, session_seq: int) -> bytes:
    """Return the key of one queued message."""
    return _TWO.pack(partition, QUEUE, session, session_seq)


def inflight_key(partition: int, session: int, session_seq: int) -> bytes:
    """Return the key of an outbound message's identifier and state."""
    return _TWO.pack(partition, INFLIGHT, session, session_seq)


def inbound_key(partition: int, session: int, packet_identifier: int) -> bytes:
    """Return the key of a QoS 2 packet identifier that the client has not released."""
    return _SHORT.pack(partition, INBOUND, session, packet_identifier)


def filter_key(partition: int, route: str) -> bytes:
    """Return the key of the mark that a filter's route is registered."""
    return _HEAD.pack(partition, FILTER) + digest(route)


def handed_key(partition: int, number: int) -> bytes:
    """Return the key of a message that goes to another member of its group."""
    return _ONE.pack(partition, HANDED, number)


def handed_pick_key(partition: int, number: int) -> bytes:
    """Return the key of the pick of such a message."""
    return _ONE.pack(partition, HANDED, number) + b"p"


def retained_key(partition: int, topic: str) -> bytes:
    """Return the key of a topic's retained message."""
    return _HEAD.pack(partition, RETAINED) + digest(topic)


def opened_key(partition: int, edge: str, incarnation: int, request: int) -> bytes:
    """Return the key of the mark that a CONNECT was processed."""
    return _HEAD.pack(partition, OPENED) + digest(f"{incarnation} {edge}")[:8] + request.to_bytes(8, "big")


def origin_key(partition: int, kind: int, sender: int) -> bytes:
    """Return the key of the highest counter accepted from a sender."""
    return _ORIGIN.pack(partition, ORIGIN, kind, sender)


def will_key(partition: int, client_id: str) -> bytes:
    """Return the key of the will of a client ID's current connection."""
    return _HEAD.pack(partition, WILL) + digest(client_id)


def log_key(partition: int, op_index: int) -> bytes:
    """Return the key of one operation of the op log."""
    return _ONE.pack(partition, LOG, op_index)


def body_key(partition: int, body_id: int, piece: int) -> bytes:
    """Return the key of one piece of a shared body."""
    return _SHORT.pack(partition, BODY, body_id, piece)
