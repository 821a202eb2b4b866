"""Messages between the replicas of a partition: REPLICATE frames from its primary, REPLICATE_ACK frames back.

One msgpack array each. Every message carries its sender's partition_epoch. A replica ignores those below the highest it
has seen, and answers with that. Rules: docs/protocol.md section 9.
"""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from wire.decoding import Payload, strictly
from wire.messages.ranges import Counted, Epoch, OpIndex, PartitionNumber

__all__ = [
    "STALE",
    "Append",
    "AppendAck",
    "ReplicaMessage",
    "TransferSlice",
    "decode_replica_message",
    "encode_replica_message",
]


ROWS_MAX = 1_000_000  # in one message; senders stop at a few MiB
RowKey: TypeAlias = Annotated[bytes, Meta(max_length=256 * 1024)]
STALE = -1  # as index of a reply: the request had a lower partition_epoch and was ignored


class _Message(msgspec.Struct, array_like=True):
    """Root of the replication messages."""


class Append(_Message, tag="Append"):
    """Operations after (previous_index, previous_epoch); without rows it queries whether that is shared."""

    partition: PartitionNumber
    partition_epoch: Epoch
    previous_index: OpIndex
    previous_epoch: Epoch
    commit_index: OpIndex
    epoch_start: OpIndex  # the primary's log end when this epoch began: older rows after it are not shared
    log_needed: OpIndex  # all replicas have the log up to here
    rows: Annotated[list[bytes], Meta(max_length=ROWS_MAX)]  # packed LogRows, ascending by one


class TransferSlice(_Message, tag="TransferSlice"):
    """One slice of a range transfer: the receiver's rows of [start, stop) become these."""

    partition: PartitionNumber
    partition_epoch: Epoch
    transfer: Counted  # number of the transfer at this primary
    number: Counted  # slices count from 0
    start: RowKey
    stop: RowKey
    rows: Annotated[list[tuple[RowKey, bytes]], Meta(max_length=ROWS_MAX)]
    last: bool = False
    digest: bytes = b""  # of all rows, in the last slice
    floor: OpIndex = 0  # in the last slice: no row shows more than this op_index
    floor_epoch: Epoch = 0  # and it was ordered under this partition_epoch


class AppendAck(_Message, tag="AppendAck"):
    """A replica's reply, once all operations before it are synced."""

    partition: PartitionNumber
    partition_epoch: Epoch  # highest seen by the replica
    matched: bool  # index is shared with the primary and synced; False: continue from (index, index_epoch)
    index: Annotated[int, Meta(ge=STALE, lt=1 << 62)]
    index_epoch: Epoch = 0
    transfer_needed: bool = False  # the applied state is not shared, or the log is too short
    transfer: Counted = 0  # transfer and next slice to send
    slices: Counted = 0
    whole: bool = True  # False: the log has not reached the floor of a range transfer


ReplicaMessage = Append | TransferSlice | AppendAck

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ReplicaMessage] = msgspec.msgpack.Decoder(ReplicaMessage)
_read: Callable[[Payload], ReplicaMessage] = strictly(_decoder.decode, "replica message")


def encode_replica_message(message: ReplicaMessage) -> bytes:
    """Return the payload of a REPLICATE or REPLICATE_ACK frame."""
    return _encoder.encode(message)


def decode_replica_message(payload: Payload) -> ReplicaMessage:
    """Return the message of a REPLICATE or REPLICATE_ACK frame.

    Raises:
        Unreadable: The payload is malformed, or a value is out of its range.
    """
    return _read(payload)
