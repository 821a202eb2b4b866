"""All formats that leave a process: encoding of an example's plain value, and decoding of the bytes.

A kind is named by its tag in the bytes, or by a name of the format chosen here. Names of classes and modules are in
this file alone, so that they may change while the golden files stay.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from access.policy.commands import PolicyCommand, decode_policy_command, encode_policy_command
from access.policy.machine import PolicyMachine
from access.policy.records import User
from access.policy.step import PolicyStep, decode_step, encode_step
from access.policy.view import encode_view
from membership import exchange, key_requests, packets
from router.map.commands import Command, decode_command, encode_command
from router.map.snapshot import MapState, RouterState, decode_snapshot, encode_snapshot
from router.raft import messages as raft
from router.raft.files import SyncedMarker, read_checked, read_marker, replace_file, write_marker
from router.raft.log_recovery import StoredHardState, StoredSnapshot
from router.raft.segment import SegmentHeader, decode_header, encode_header, encode_record, read_records
from storage.state import keys, rows
from storage.store import record
from storage.store.acked_marker import AckedMarker
from wire.messages import batches, connects
from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.control import Control, decode_control, encode_control, join_controls
from wire.messages.frames import HEADER
from wire.messages.hello import HelloReader, LinkHello, NodeIdentity, encode_hello
from wire.messages.map_pages import MapReader, map_pages
from wire.messages.nodes import MapStep
from wire.messages.redispatch import SharePick
from wire.messages.replication import ReplicaMessage, decode_replica_message, encode_replica_message
from wire.messages.routes import Destinations
from wire.messages.sessions import CloseSession, OpenSession, SessionClosed, SessionOpened
from wire.messages.socket_handoff import SocketHandoffRequest, decode_hand_over, encode_hand_over
from wire.sstable.manifest import Manifest, decode_manifest, encode_manifest
from wire.sstable.schema import digest_of, make_row, pack_owner_epoch

__all__ = ["FORMATS", "Codec", "Format", "tags_of"]


@dataclass(frozen=True)
class Codec:
    """One kind: ``build`` an object from a plain value, ``encode`` it, ``decode`` its bytes to an equal value."""

    build: Callable[[Any], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any] | None = None  # None: there is no decoder
    kind: Any = None  # type for generated examples


@dataclass(frozen=True)
class Format:
    """One golden file; ``codecs`` by kind."""

    title: str
    codecs: dict[str, Codec]


def tags_of(union: Any) -> dict[str, type]:
    """Return the classes of a union by tag; a shared tag appears once."""
    return {str(kind.__struct_config__.tag): kind for kind in get_args(union)}


def _structs(
    kinds: dict[str, Any], encode: Callable[[Any], bytes], decode: Callable[[Any, bytes], Any]
) -> dict[str, Codec]:
    def codec(kind: Any) -> Codec:
        return Codec(lambda value: msgspec.convert(value, kind), encode, lambda data: decode(kind, data), kind)

    return {name: codec(kind) for name, kind in kinds.items()}


def _union(union: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> dict[str, Codec]:
    return _structs(tags_of(union), encode, lambda _kind, data: decode(data))


def _msgpack(kind: Any, data: bytes) -> Any:
    return msgspec.msgpack.decode(data, type=kind)


def _positional(kind: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Iterable[Any]]) -> Codec:
    return Codec(lambda value: kind(*value), encode, lambda data: next(iter(decode(data))), None)


def _plain(function: Callable[..., bytes]) -> Codec:
    return Codec(lambda value: value, lambda value: function(*value))


# --- the map


def _pages_of(cluster_map: ClusterMap) -> bytes:
    return b"".join(page.data for page in map_pages(cluster_map))


def _map_of(data: bytes) -> ClusterMap | None:
    pages = map_pages(msgspec.msgpack.decode(data, type=ClusterMap))
    reader = MapReader()
    return [reader.take(page) for page in pages][-1]


def _router_state(state: RouterState) -> bytes:
    """Return the snapshot as routers write it: without a policy in the former format."""
    return (
        msgspec.msgpack.encode(state) if state.policy else encode_snapshot(MapState(state.map, state.job, state.orders))
    )


# --- the policy


def _view_of(policy: PolicyMachine) -> bytes:
    return encode_view(policy.epoch, policy.tables, policy.digest)


def _policy(commands: list[Any]) -> PolicyMachine:
    """Return the policy after some commands."""
    machine = PolicyMachine()
    for command in commands:
        assert not machine.apply(msgspec.convert(command, PolicyCommand)).refusal
    return machine


# --- HELLO


def _hello(value: tuple[list[Any], int, int]) -> bytes:
    return encode_hello(NodeIdentity(*value[0]), value[1], value[2])


def _read_hello(data: bytes) -> tuple[list[Any], int, int]:
    hello = HelloReader().receive(data)
    assert isinstance(hello, LinkHello)
    identity = [hello.cluster, hello.node, hello.tier, hello.incarnation, hello.address, hello.cluster_id]
    return identity, hello.peer_incarnation, hello.taken


# --- files


def _file(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _checked(stored: Any) -> bytes:
    return _file(lambda path: replace_file(path, msgspec.msgpack.encode(stored)))


def _read_file(data: bytes, kind: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        return read_checked(path, kind)


def _synced(marker: SyncedMarker) -> bytes:
    def write(path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        write_marker(descriptor, marker)
        os.close(descriptor)

    return _file(write)


def _read_synced(data: bytes) -> SyncedMarker | None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return read_marker(file.fileno())


def _acked(value: tuple[bytes, int]) -> bytes:
    """Three slots, each in a separate page; the zeros between them are left out."""

    def write(path: Path) -> None:
        marker = AckedMarker.create(path, value[0])
        marker.write(value[1])
        marker.sync()
        marker.write(value[1] + 1)
        marker.close()

    data = _file(write)
    assert len(data) == 12288 and data.count(0) > 12000
    return b"".join(data[at : at + 36] for at in (0, 4096, 8192))


def _read_acked(data: bytes) -> tuple[bytes, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(b"".join(data[at : at + 36].ljust(4096, b"\0") for at in (0, 36, 72)))
        marker = AckedMarker.open(path)
        marker.close()
        return marker.store_id, marker.acked_up_to - 1


def _raft_record(value: tuple[list[Any], int]) -> bytes:
    return encode_record(raft.LogEntry(*value[0]), value[1])[0]


def _read_raft_record(data: bytes, chain: int = 77) -> tuple[list[Any], int]:
    behind_header = bytes(len(encode_header(SegmentHeader(1, 1, 0, 0, False, 0)))) + data
    entry, _, _ = next(read_records(behind_header, chain))
    return list(msgspec.structs.astuple(entry)), chain


def _manifest(plain: Any) -> Manifest:
    manifest = msgspec.convert(plain, Manifest)
    encode_manifest(manifest)  # fills the totals
    return manifest


ROWS: dict[str, Any] = {
    "META": rows.MetaRow,
    "LOCAL": rows.LocalRow,
    "SESSION": rows.SessionRow,
    "SUBSCRIPTION": rows.SubscriptionRow,
    "FILTER": rows.FilterRow,
    "INFLIGHT": rows.InflightRow,
    "OPENED": rows.OpenedRow,
    "WILL": rows.WillRow,
    "HANDED": rows.SharedMessageRow,
    "RETAINED": rows.RetainedRow,
    "LOG": rows.LogRow,
    "HANDED pick": SharePick,
}
KEYS: dict[str, Callable[..., bytes]] = {
    "META": keys.meta_key,
    "LOCAL": keys.local_key,
    "SESSION": keys.session_key,
    "SUBSCRIPTION": keys.subscription_key,
    "QUEUE": keys.queue_key,
    "INFLIGHT": keys.inflight_key,
    "INBOUND": keys.inbound_key,
    "FILTER": keys.filter_key,
    "HANDED": keys.handed_key,
    "HANDED pick": keys.handed_pick_key,
    "RETAINED": keys.retained_key,
    "OPENED": keys.opened_key,
    "ORIGIN": keys.origin_key,
    "WILL": keys.will_key,
    "LOG": keys.log_key,
    "BODY": keys.body_key,
}
GOSSIP: dict[str, Any] = {
    "member of a full exchange": packets.MemberRecord,
    "HELLO of a full exchange": exchange.ExchangeHello,
    "question about keys": key_requests.KeyRequest,
    "answer about keys": key_requests.KeyResponse,
}

FORMATS: dict[str, Format] = {
    "control": Format("CONTROL frames: a msgpack map with its tag", _union(Control, encode_control, decode_control)),
    "connects": Format(
        "Records of CONNECTS and CONNECT_ANSWERS frames: a msgpack array, its tag first",
        {
            **_structs(
                {"OpenSession": OpenSession, "CloseSession": CloseSession},
                connects.encode_record,
                lambda _kind, data: connects.decode_connects(join_controls([data]))[0],
            ),
            **_structs(
                {"SessionOpened": SessionOpened, "SessionClosed": SessionClosed},
                connects.encode_record,
                lambda _kind, data: connects.decode_answers(join_controls([data]))[0],
            ),
        },
    ),
    "replication": Format(
        "REPLICATE and REPLICATE_ACK frames: a msgpack array, its tag first",
        _union(ReplicaMessage, encode_replica_message, decode_replica_message),
    ),
    "raft": Format(
        "RAFT frames: a msgpack array, its tag first; and the data of a configuration entry",
        {
            **_union(raft.AnyMessage, raft.encode_message, raft.decode_message),
            **_structs(
                {"configuration": raft.Configuration},
                raft.encode_configuration,
                lambda _kind, data: raft.decode_configuration(data),
            ),
        },
    ),
    "hello": Format(
        "HELLO frames with their header, and the header of a frame",
        {
            "HELLO": Codec(lambda value: value, _hello, _read_hello),
            "header": Codec(lambda value: value, lambda value: HEADER.pack(*value), lambda data: HEADER.unpack(data)),
        },
    ),
    "hand_over": Format(
        "Messages beside a descriptor between processes of one host",
        _structs(
            {"hand-over": SocketHandoffRequest},
            lambda each: encode_hand_over(each.listener, each.accepted_ms, each.sent_ms),
            lambda _kind, data: decode_hand_over(data),
        ),
    ),
    "batches": Format(
        "Records of PUBLISH, PUBLISH_ACK, PUSH and PUSH_ACK frames",
        {
            "RUN": _positional(batches.PublishRun, batches.encode_run, batches.decode_publish),
            "MSG": _positional(batches.PublishMessage, batches.encode_message, batches.decode_publish),
            "PUBLISH_ACK": Codec(
                lambda value: batches.PublishAck(*value),
                lambda ack: batches.encode_publish_ack(ack.tag, ack.partition, ack.reason_code),
                lambda data: batches.decode_publish_acks(data)[0],
            ),
            "PUSH": _positional(batches.Push, batches.encode_push, batches.decode_pushes),
            "PUSH_ACK": _positional(batches.PushAck, batches.encode_push_ack, batches.decode_push_acks),
        },
    ),
    "gossip": Format(
        "Gossip before it is sealed: a msgpack array, its number first; and what streams of members carry",
        {
            **_structs(
                tags_of(packets.Message),
                packets.encode_message,
                lambda _kind, data: packets.decode_messages(packets.join_messages([data]))[0],
            ),
            **_structs(GOSSIP, msgspec.msgpack.encode, _msgpack),
        },
    ),
    "commands": Format(
        "Commands in the Raft log: a msgpack map with its tag", _union(Command, encode_command, decode_command)
    ),
    "policy": Format(
        "The policy: commands in the Raft log, steps and users as nodes get them; the view and the snapshot of them",
        {
            **_union(PolicyCommand, encode_policy_command, decode_policy_command),
            **_structs({"step": PolicyStep}, encode_step, lambda _kind, data: decode_step(data)),
            **_structs({"user": User}, msgspec.msgpack.encode, _msgpack),
            "view": Codec(_policy, _view_of),
            "snapshot": Codec(_policy, lambda policy: policy.snapshot()),
        },
    ),
    "map": Format(
        "The map: whole as its pages carry it, one step, the routers' snapshot; and an answer about routes",
        {
            "map": _structs({"map": ClusterMap}, _pages_of, lambda _kind, data: _map_of(data))["map"],
            **_structs({"step": MapDelta, "answer": Destinations}, msgspec.msgpack.encode, _msgpack),
            **_structs({"map step": MapStep}, encode_control, lambda _kind, data: decode_control(data)),
            **_structs({"snapshot": RouterState}, _router_state, lambda _kind, data: decode_snapshot(data)),
        },
    ),
    "rows": Format(
        "Values of the rows of a store: msgpack arrays, and the queue row",
        {
            **_structs(ROWS, rows.pack, lambda kind, data: rows.unpack(kind, data)),
            "QUEUE": Codec(
                lambda value: rows.QueueEntry(*value), rows.encode_entry, lambda data: rows.decode_entry(1001, data)
            ),
        },
    ),
    "keys": Format("Keys of the rows of a store", {name: _plain(function) for name, function in KEYS.items()}),
    "records": Format(
        "A record of a store, its marker, and the files of a Raft log",
        {
            "record": Codec(
                lambda value: value,
                lambda value: record.encode_record(*value),
                lambda data: (b"key", record.decode_record(b"key", data)),
            ),
            "acknowledged up to": Codec(lambda value: value, _acked, _read_acked),
            "segment header": Codec(lambda value: SegmentHeader(*value), encode_header, decode_header),
            "segment record": Codec(lambda value: value, _raft_record, _read_raft_record),
            **_structs(
                {"hard state": StoredHardState, "snapshot": StoredSnapshot},
                _checked,
                lambda kind, data: _read_file(data, kind),
            ),
            "synced": Codec(lambda value: SyncedMarker(*value), _synced, _read_synced),
        },
    ),
    "exports": Format(
        "The manifest of an export, and what is computed for its rows",
        {
            "manifest": Codec(_manifest, encode_manifest, decode_manifest, Manifest),
            "row_crc": _plain(lambda *value: int(make_row(*value)[9]).to_bytes(8, "big")),
            "digest": _plain(lambda *value: digest_of(*value).encode()),
            "owner_epoch": _plain(lambda *value: pack_owner_epoch(*value).to_bytes(8, "big")),
        },
    ),
}
