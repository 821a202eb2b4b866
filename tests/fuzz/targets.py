"""The fuzz targets: each has a corpus of valid input, and a check that raises when bytes break a rule.

A check accepts only the errors that its reader documents. If there is an encoder, a decoded value must be equal
after encoding and decoding.
"""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from struct import pack

from membership.envelope import DROP_REASONS
from membership.metadata import NodeMetadata
from membership.packets import (
    Ack,
    Alive,
    MalformedGossip,
    Message,
    Ping,
    Suspect,
    decode_messages,
    decode_records,
    encode_message,
    join_messages,
)
from tests.fuzz import core_targets as cores
from tests.fuzz import datagram_target as datagram
from tests.fuzz import federation_target as federation
from tests.fuzz import file_targets as files
from tests.fuzz import identity_target as identity
from tests.fuzz import log_target as log
from tests.fuzz import policy_target as policy
from tests.fuzz.client_target import CLIENT_STREAMS, client_stream
from tests.fuzz.command_target import COMMANDS, committed
from tests.fuzz.filter_target import FILTERS, filters
from tests.fuzz.fuzz_decoder import CORPUS as PACKETS
from tests.fuzz.fuzz_decoder import check as check_decoder
from tests.fuzz.good_messages import CONNECT_ANSWERS, CONNECTS, CONTROLS
from tests.fuzz.hot_session import CLIENT_CORPUS, LINK_CORPUS, check_both, check_client, check_link
from tests.fuzz.map_target import MAP_TALKS, map_talk
from tests.fuzz.nested import mutate_tree
from tests.fuzz.proxy_target import PROXY_HEADERS, proxy_headers
from tests.fuzz.raft_target import RAFT, SNAPSHOTS, mutate_raft, raft_messages, snapshots
from tests.fuzz.rules_target import ACLS, RULES, acls, rules
from tests.fuzz.websocket_target import WEBSOCKET_STREAMS, websocket
from tests.membership.test_envelope import node as gossip_node
from wire.decoding import Unreadable
from wire.links.admission import check_hello
from wire.links.link import LinkCore, LinkError
from wire.messages import batches
from wire.messages.connects import decode_answers, decode_connects, encode_record
from wire.messages.control import decode_control, encode_control, join_controls
from wire.messages.frames import HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import NodeIdentity, decode_hello, encode_hello
from wire.messages.nodes import Heartbeat, HeartbeatReply, Relay
from wire.messages.operators import Admin
from wire.messages.replication import decode_replica_message, encode_replica_message
from wire.messages.routes import AddRoutes, Destinations, Invalidate, Resolve, Resolved, RouteEntry
from wire.messages.sessions import KickSession

__all__ = ["TARGETS", "Target", "mutate"]

Check = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """One reader of bytes.

    Attributes:
        weight: Share of the time.
        guides: Packages whose coverage guides atheris; of ``edge.loop`` the uncompiled form. None: only mutated.
        compiled: Runs in the tree with bounds checks and address sanitizer.
        corpus_of: Another target whose found inputs are seeds of this one.
        mutator: Makes an input of good ones.
    """

    name: str
    corpus: tuple[bytes, ...]
    check: Check
    weight: float = 1.0
    guides: tuple[str, ...] = ()
    compiled: bool = False
    corpus_of: str = ""
    mutator: Callable[[tuple[bytes, ...], random.Random], bytes] = lambda corpus, rng: mutate(corpus, rng)


def mutate_either(corpus: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return damage without structure, or with it."""
    return mutate_tree(corpus, rng) if rng.randrange(2) else mutate(corpus, rng)


def mutate(corpus: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return one or two good inputs, damaged in up to six places."""
    data = bytearray(b"".join(rng.choice(corpus) for _ in range(rng.choice((1, 1, 1, 2)))))
    for _ in range(rng.randrange(7)):
        at = rng.randrange(len(data) + 1)
        damage = rng.randrange(7)
        if damage == 0:
            data[at : at + 1] = bytes((rng.randrange(256),))
        elif damage == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif damage == 2:
            data[at:at] = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\0\0\0\0\0\0\0\0"))
        elif damage == 3:
            del data[at : at + rng.randint(1, 16)]
        elif damage == 4:
            data[at:at] = data[at : at + rng.randint(1, 32)]
        elif damage == 5:
            width = rng.choice((2, 4, 8))
            data[at : at + width] = rng.choice((0, 1, (1 << 8 * width) - 1, rng.getrandbits(8 * width))).to_bytes(
                width, "big"
            )
        else:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            data[at:] = other[start:]
    return bytes(data)


# --- wire


def _frames(data: bytes) -> None:
    core = LinkCore()
    core.connected(0)
    step = data[0] % 64 + 1 if data else 1
    with contextlib.suppress(LinkError):
        for at in range(1, len(data), step):
            for frame in core.receive(data[at : at + step]):
                assert len(frame.payload) <= len(data)


def _publishes(data: bytes) -> None:
    try:
        read = batches.decode_publish(data)
    except Unreadable:
        return
    written = b"".join(
        batches.encode_run(record) if isinstance(record, batches.PublishRun) else batches.encode_message(record)
        for record in read
    )
    assert list(batches.decode_publish(written)) == read


def _small_batches(data: bytes) -> None:
    with contextlib.suppress(Unreadable):
        batches.decode_publish_acks(data)
    with contextlib.suppress(Unreadable):
        batches.decode_push_acks(data)
    with contextlib.suppress(Unreadable):
        read = list(batches.decode_pushes(data))
        assert list(batches.decode_pushes(b"".join(map(batches.encode_push, read)))) == read


def _control(data: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert decode_control(encode_control(decode_control(data))) is not None
    with contextlib.suppress(Unreadable):
        asked = decode_connects(data)
        assert decode_connects(join_controls([encode_record(one) for one in asked])) == asked
    with contextlib.suppress(Unreadable):
        answers = decode_answers(data)
        assert decode_answers(join_controls([encode_record(one) for one in answers])) == answers


_ME = NodeIdentity("c", "router-0", "router", 5)
_HELLOS = tuple(
    encode_hello(NodeIdentity("c", node, tier, 5, "127.0.0.1:1"))[HEADER_BYTES:]
    for node, tier in (("edge-0", "edge"), ("cli-1", "operator"), ("storage-0", "storage"))
)


def _hello(data: bytes) -> None:
    with contextlib.suppress(LinkError):
        hello = decode_hello(data)
        key = check_hello(_ME, hello, ("c", "edge", "edge-0") if len(data) % 2 else None)
        assert 0 < len(key.node) <= 160


def _replica(data: bytes) -> None:
    with contextlib.suppress(Unreadable):
        read = decode_replica_message(data)
        assert decode_replica_message(encode_replica_message(read)) == read


def _frame(kind: int, payload: bytes, number: int) -> bytes:
    return HEADER.pack(len(payload), kind, 0, PROTOCOL_VERSION, number) + payload


_MESSAGE = batches.PublishMessage(7, b"a/b", b"payload", 1, partitions=(1, 2), properties=b"\x02\0\0\0\x05")
_RUN = batches.PublishRun(5, b"a/b", PACKETS[0])
_PUSH = batches.Push(1 << 48, 6, 1, 3, 9, 2, b"a/b", b"payload")
_CONTROLS = tuple(
    encode_control(message)
    for message in (
        Heartbeat("edge-1", 1, 5.0, 3, ["storage-1"], {1: (2, 3)}),
        HeartbeatReply(1, 5.0, 2.0, 3, "router-1"),
        Resolve(1, 2, 3, ["a/b", "c"]),
        Resolved(1, 3, [Destinations(["edge-1"], [4], [])], [0, 0]),
        AddRoutes(1, 2, 3, 4, 5, 6, [RouteEntry("a/#", "group", 2)]),
        Invalidate(1, 2, 3, ["a/#"]),
        KickSession(1, "client", 2, 3),
        Relay("edge-1", 2, b"message"),
        Admin(request=1, verb="cluster status", arguments={"name": "x"}),
    )
)

# --- gossip

_ALIVE = Alive(1, 2, "127.0.0.1", 1, NodeMetadata("m2", "edge", 1))
_SAID: list[list[Message]] = [[Ping(1, "two")], [Ack(1)], [_ALIVE, Ping(2, "two")], [Suspect("two", 2, "three")]]
_GOSSIP = tuple(join_messages([encode_message(message) for message in some]) for some in _SAID)


def _gossip_body(data: bytes) -> None:
    with contextlib.suppress(MalformedGossip):
        decode_messages(data)
    with contextlib.suppress(MalformedGossip):
        list(decode_records(data))


_SENDER, _RECEIVER = gossip_node(1, 2), gossip_node(2, 1)
_SEALED = (
    *(_SENDER.seal_datagram(2, body) for body in _GOSSIP),
    *(b"\1" + pack(">QQQ", 1, 2, 10**number) + body for number, body in enumerate(_GOSSIP)),
)


def _gossip_packet(data: bytes) -> None:
    """Key holders control the content: the sessions and the packet's number are fuzzed as well."""
    before = sum(_RECEIVER.dropped.values())
    opened = _RECEIVER.open_datagram(_SENDER.seal(data[1:], b"datagram") if data[:1] == b"\1" else data)
    assert opened is not None or sum(_RECEIVER.dropped.values()) == before + 1
    assert set(_RECEIVER.dropped) <= set(DROP_REASONS)


TARGETS = (
    Target("client", CLIENT_CORPUS, check_client, 6.0, compiled=True, corpus_of="both"),
    Target("node", LINK_CORPUS, check_link, 2.0, compiled=True),
    Target(
        "both",
        (*CLIENT_CORPUS, *(bytes((data[0] | 0x10,)) + data[1:] for data in LINK_CORPUS)),
        check_both,
        3.0,
        ("edge.loop",),
        compiled=True,
    ),
    Target("decoder", tuple(b"\x02" + packet for packet in PACKETS), check_decoder, 2.0, ("mqtt",)),
    Target(
        "frames",
        tuple(
            b"\x05" + b"".join(_frame(kind, _CONTROLS[0], number) for number, kind in enumerate(kinds, 1))
            for kinds in ((FrameKind.CONTROL,), (FrameKind.CONTROL, FrameKind.PUBLISH), (FrameKind.TAKEN,))
        ),
        _frames,
        1.0,
        ("wire",),
    ),
    Target("publish", (batches.encode_message(_MESSAGE), batches.encode_run(_RUN)), _publishes, 1.0, ("wire", "mqtt")),
    Target("acks", (batches.encode_push(_PUSH), batches.encode_publish_ack(1, 2, 0)), _small_batches, 1.0, ("wire",)),
    Target("filters", FILTERS, filters, 0.5),
    Target("proxy", PROXY_HEADERS, proxy_headers, 1.0, ("edge.listeners.proxy_protocol",)),
    Target("websocket", WEBSOCKET_STREAMS, websocket, 1.0, ("edge.listeners.websocket",)),
    Target("broker-stream", CLIENT_STREAMS, client_stream, 1.0, ("mqtt",)),
    Target("acls", ACLS, acls, 1.0, ("access.rules",)),
    Target("rules", RULES, rules, 1.0),
    Target(
        "control", (*_CONTROLS, *CONTROLS, *CONNECTS, *CONNECT_ANSWERS), _control, 1.0, ("wire",), mutator=mutate_either
    ),
    Target("map-talks", MAP_TALKS, map_talk, 1.0, ("wire",), mutator=mutate_either),
    Target("hello", _HELLOS, _hello, 0.5, ("wire",), mutator=mutate_either),
    Target("raft", RAFT, raft_messages, 1.0, ("wire",), mutator=mutate_raft),
    Target("snapshot", SNAPSHOTS, snapshots, 1.0, mutator=mutate_either),
    Target("commands", COMMANDS, committed, 1.0, mutator=mutate_either),
    Target("replica", cores.REPLICA, _replica, 0.5, ("wire",), mutator=mutate_either),
    Target("router-core", cores.ROUTER_CORE, cores.check_router, 2.0, mutator=cores.mutate_message),
    Target("storage-core", cores.STORAGE_CORE, cores.check_storage, 2.0, mutator=cores.mutate_message),
    Target("edge-core", cores.EDGE_CORE, cores.check_edge, 2.0, mutator=cores.mutate_message),
    Target(
        "federation",
        federation.FEDERATION_MESSAGES,
        federation.federation_messages,
        1.0,
        ("gateways.federation.messages",),
        mutator=mutate_either,
    ),
    Target("mosquitto-log", log.LINES, log.log_line, 0.5, ("gateways.federation.interest",)),
    Target("federation-agent", federation.FEDERATION_CORE, federation.check_agent, 2.0, mutator=cores.mutate_message),
    Target("datagrams", datagram.DATAGRAMS, datagram.datagrams, 0.5, ("gateways.datagrams.messages",)),
    Target("datagram-node", datagram.DATAGRAM_NODE, datagram.check_node, 1.0, mutator=datagram.mutate_packet),
    Target("datagrams-sealed", datagram.SEALED_DATAGRAMS, datagram.sealed, 0.5, ("gateways.datagrams.sealed",)),
    Target("gossip", _GOSSIP, _gossip_body, 1.0, ("membership",), mutator=mutate_either),
    Target("sealed", _SEALED, _gossip_packet, 1.0, ("membership",)),
    Target("manifest", files.MANIFESTS, files.manifest, 1.0, ("wire",)),
    Target("sstable", (bytes(3), b"\x01\x00\x10", b"\x00\x05\xff"), files.sstable, 0.5, ("wire",)),
    Target("page-sums", (bytes(24), b"SMQ" * 20), files.page_sums, 0.5, ("storage",)),
    Target("marker", (bytes(3), b"\0\x04\x01\x10\x04\x01"), files.marker_file, 0.5, ("storage",)),
    Target("log", (bytes(4), b"\1\0\x04\x01", b"\2\0\x14\x01", b"\x81\0\x10"), files.log_files, 0.5, ("router",)),
    Target("configuration", files.shipped_configurations(), files.configuration, 0.5, ("conf", "stratamq")),
    Target("passwords", identity.PASSWORD_FILES, identity.password_files, 0.5, ("access",)),
    Target("certificates", identity.CERTIFICATES, identity.certificates, 0.5, ("access",)),
    Target("lists", identity.LISTS, identity.lists, 0.5, ("access",)),
    Target("tokens", identity.TOKENS, identity.tokens, 0.5, ("access",)),
    Target("policy-steps", policy.STEPS, policy.steps, 0.5, ("access", "wire"), mutator=mutate_either),
    Target("policy-views", policy.VIEWS, policy.views, 0.5, ("access", "wire"), mutator=mutate_either),
    Target("policy-talks", policy.TALKS, policy.talks, 1.0, ("access", "wire"), mutator=policy.mutate_talk),
    Target("http-answers", identity.HTTP_ANSWERS, identity.http_answers, 0.5, ("access",)),
)
