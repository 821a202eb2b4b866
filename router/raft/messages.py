"""Messages between Raft peers, and the entries of the log.

Names are the paper's ("In Search of an Understandable Consensus Algorithm", Ongaro and Ousterhout 2014, figures 2 and
13; TimeoutNow and learners from Ongaro's thesis, sections 3.10 and 4.2.1). PreVote is section 9.6 of the thesis,
ReadIndex section 6.4. This file defines the encoding only.

The header of every message: sender, receiver, the sender's *real* term (a pre-vote has its proposed term in a separate
field), the sender's incarnation (one run of its process), its storage id (one life of its disk), and the storage id
that the sender expects at the receiver, 0 if unknown.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from wire.decoding import Payload, Unreadable, strictly
from wire.messages.hello import LinkError, PeerKey
from wire.messages.ranges import U64, Counted, NodeName, OpIndex

__all__ = [
    "CONFIG",
    "NOOP",
    "NORMAL",
    "AppendEntries",
    "AppendEntriesReply",
    "Configuration",
    "EntryKind",
    "InstallSnapshot",
    "InstallSnapshotReply",
    "LogEntry",
    "PreVote",
    "PreVoteReply",
    "RaftMessage",
    "ReadIndex",
    "ReadIndexReply",
    "RequestVote",
    "RequestVoteReply",
    "TimeoutNow",
    "check_sender",
    "decode_configuration",
    "decode_message",
    "encode_configuration",
    "encode_message",
]

EntryKind: TypeAlias = Literal["normal", "config", "noop"]
NORMAL: EntryKind = "normal"
CONFIG: EntryKind = "config"
NOOP: EntryKind = "noop"

ENTRIES_MAX = 100_000  # in one AppendEntries; a leader stops at RaftConfig.max_entries_per_append
PEERS_MAX = 64  # voters, or learners
Peers: TypeAlias = Annotated[dict[NodeName, U64], Meta(max_length=PEERS_MAX)]
Context: TypeAlias = U64 | Annotated[bytes, Meta(max_length=256)]


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the replicated log; index counts from 1."""

    index: OpIndex
    term: OpIndex
    kind: EntryKind
    data: bytes


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Voters and learners, with the storage id of each (0: not bound to a disk yet)."""

    voters: Peers = {}
    learners: Peers = {}

    @property
    def quorum(self) -> int:
        """Number of votes of a majority."""
        return len(self.voters) // 2 + 1

    def storage_id(self, peer: str) -> int:
        """Return the storage id bound to the peer; 0 if the peer or its disk is unknown."""
        return self.voters.get(peer) or self.learners.get(peer) or 0

    def peers(self) -> list[str]:
        """Return voters, then learners, each in insertion order."""
        return [*self.voters, *self.learners]


class RaftMessage(msgspec.Struct, frozen=True, array_like=True):
    """Header of every message."""

    sender: NodeName
    to: NodeName
    term: OpIndex
    incarnation: U64
    storage_id: U64
    expected_storage_id: U64


class PreVote(RaftMessage, frozen=True, tag="PreVote"):
    """Request for a pre-vote in ``proposed_term``. The receiver's state stays unchanged."""

    proposed_term: OpIndex
    last_log_index: OpIndex
    last_log_term: OpIndex


class PreVoteReply(RaftMessage, frozen=True, tag="PreVoteReply"):
    """The candidate adopts a refusal's ``term``; otherwise two nodes can block each other indefinitely.

    ``peers``: the members of the sender's configuration, which may be newer than the candidate's.
    """

    proposed_term: OpIndex
    granted: bool
    peers: Annotated[tuple[NodeName, ...], Meta(max_length=2 * PEERS_MAX)] = ()


class RequestVote(RaftMessage, frozen=True, tag="RequestVote"):
    """``transfer``: the leader requested this election, so stickiness does not apply."""

    last_log_index: OpIndex
    last_log_term: OpIndex
    transfer: bool = False


class RequestVoteReply(RaftMessage, frozen=True, tag="RequestVoteReply"):
    """A vote of this term, given or refused (figure 2)."""

    granted: bool


class AppendEntries(RaftMessage, frozen=True, tag="AppendEntries"):
    """Replication and heartbeat in one; ``round`` numbers the leader's heartbeat rounds for ReadIndex."""

    prev_log_index: OpIndex
    prev_log_term: OpIndex
    leader_commit: OpIndex
    round: OpIndex
    entries: Annotated[tuple[LogEntry, ...], Meta(max_length=ENTRIES_MAX)] = ()


class AppendEntriesReply(RaftMessage, frozen=True, tag="AppendEntriesReply"):
    """Success: the log equals the leader's up to ``match_index`` and is on disk that far.

    Refusal: ``prev_log_index`` did not match; ``hint_index`` and ``hint_term`` name the follower's last entry that can
    match, so that one refusal skips a whole diverged term.
    """

    success: bool
    round: OpIndex
    match_index: OpIndex = 0
    prev_log_index: OpIndex = 0
    hint_index: OpIndex = 0
    hint_term: OpIndex = 0


class InstallSnapshot(RaftMessage, frozen=True, tag="InstallSnapshot"):
    """One chunk of a snapshot, starting at byte ``offset``."""

    snapshot_index: OpIndex
    snapshot_term: OpIndex
    configuration: Configuration
    offset: Counted
    data: bytes
    done: bool
    round: OpIndex


class InstallSnapshotReply(RaftMessage, frozen=True, tag="InstallSnapshotReply"):
    """``offset``: the next expected byte; ``match_index``: set once the snapshot is on disk."""

    snapshot_index: OpIndex
    offset: Counted
    match_index: OpIndex
    round: OpIndex


class TimeoutNow(RaftMessage, frozen=True, tag="TimeoutNow"):
    """Campaign at once: the leader transfers leadership."""


class ReadIndex(RaftMessage, frozen=True, tag="ReadIndex"):
    """A follower's read request; answered after leadership was confirmed for it."""

    context: Context


class ReadIndexReply(RaftMessage, frozen=True, tag="ReadIndexReply"):
    """``asker_incarnation`` prevents a reply to a former incarnation from answering a later read.

    ``read_index`` is -1 if the receiver of the request does not lead.
    """

    context: Context
    read_index: Annotated[int, Meta(ge=-1, lt=1 << 62)]
    asker_incarnation: U64


AnyMessage: TypeAlias = (
    PreVote
    | PreVoteReply
    | RequestVote
    | RequestVoteReply
    | AppendEntries
    | AppendEntriesReply
    | InstallSnapshot
    | InstallSnapshotReply
    | TimeoutNow
    | ReadIndex
    | ReadIndexReply
)

_encoder = msgspec.msgpack.Encoder()
_message_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_configuration_decoder = msgspec.msgpack.Decoder(Configuration)
_read_message: Callable[[Payload], AnyMessage] = strictly(
    lambda payload: _whole(_message_decoder.decode(payload)), "RAFT"
)
_read_configuration: Callable[[Payload], Configuration] = strictly(
    _configuration_decoder.decode, "configuration of the Raft group"
)


def _whole(message: AnyMessage) -> AnyMessage:
    """Refuse invalid entries: indexes with gaps, or an undecodable configuration."""
    if isinstance(message, AppendEntries) and message.entries:
        after = message.prev_log_index + 1
        if [entry.index for entry in message.entries] != list(range(after, after + len(message.entries))):
            raise Unreadable("entries with gaps")
        for entry in message.entries:
            if entry.kind == CONFIG:
                decode_configuration(entry.data)
    return message


def encode_message(message: RaftMessage) -> bytes:
    """Return the message as msgpack."""
    return _encoder.encode(message)


def decode_message(payload: Payload) -> AnyMessage:
    """Return the message in the payload.

    Raises:
        Unreadable: The payload is not a Raft message, or a value is out of range.
    """
    return _read_message(payload)


def check_sender(peer: PeerKey, message: RaftMessage) -> None:
    """Check that a message names the router and incarnation of its link as sender.

    Raises:
        LinkError: It names another one.
    """
    if (message.sender, message.incarnation) != (peer.node, peer.incarnation):
        raise LinkError(f"a Raft message in the name of {message.sender!a} came from {peer.node!a}")


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the data of a config entry."""
    return _encoder.encode(configuration)


def decode_configuration(data: bytes) -> Configuration:
    """Return the configuration in a config entry's data.

    Raises:
        Unreadable: The data is not a configuration.
    """
    return _read_configuration(data)
