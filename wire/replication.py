"""Messages between the replicas of a partition: REPLICATE frames from its primary, REPLICATE_ACK frames back.

One msgpack array each. Every message carries the partition_epoch it was made under; a replica takes none below the
highest it has seen, and answers with that. Rules: docs/adr/0007.
"""

import msgspec

__all__ = [
    "STALE",
    "Append",
    "AppendAck",
    "ReplicaMessage",
    "TransferSlice",
    "decode_replica_message",
    "encode_replica_message",
]


STALE = -1  # as index of an answer: the question was of a lower partition_epoch, nothing was looked at


class _Message(msgspec.Struct, array_like=True, tag=True):
    """Root of the replication messages."""


class Append(_Message):
    """Operations that follow (previous_index, previous_epoch); without rows a question whether that is shared."""

    partition: int
    partition_epoch: int
    previous_index: int
    previous_epoch: int
    commit_index: int
    epoch_start: int  # the primary's log end when this epoch began: older rows behind it are not shared
    log_needed: int  # every replica has the log up to here
    rows: list[bytes]  # packed LogRows, ascending by one


class TransferSlice(_Message):
    """One slice of a range transfer: the receiver's rows of [start, stop) become these."""

    partition: int
    partition_epoch: int
    transfer: int  # number of the transfer at this primary
    number: int  # slices count from 0
    start: bytes
    stop: bytes
    rows: list[tuple[bytes, bytes]]
    last: bool = False
    digest: bytes = b""  # of all rows, in the last slice
    floor: int = 0  # in the last slice: no row shows more than this op_index
    floor_epoch: int = 0  # and it was ordered under this partition_epoch


class AppendAck(_Message):
    """A replica's answer, once everything before it is synced."""

    partition: int
    partition_epoch: int  # highest seen by the replica
    matched: bool  # index is shared with the primary and synced; False: go on from (index, index_epoch)
    index: int
    index_epoch: int = 0
    transfer_needed: bool = False  # what was applied is not shared, or the log is too short
    transfer: int = 0  # transfer and next slice wanted
    slices: int = 0
    whole: bool = True  # False: the log has not reached the floor of a range transfer


ReplicaMessage = Append | TransferSlice | AppendAck

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ReplicaMessage] = msgspec.msgpack.Decoder(ReplicaMessage)


def encode_replica_message(message: ReplicaMessage) -> bytes:
    """Return the payload of a REPLICATE or REPLICATE_ACK frame."""
    return _encoder.encode(message)


def decode_replica_message(payload: bytes) -> ReplicaMessage:
    """Return the message of a REPLICATE or REPLICATE_ACK frame.

    Raises:
        msgspec.ValidationError: If the payload is none.
    """
    return _decoder.decode(payload)
