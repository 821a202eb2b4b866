"""All formats refuse nested, cut, empty, non-UTF-8 or out-of-range input, and only with their own error."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from membership import exchange, key_requests, packets
from router.raft import messages as raft
from tests.fuzz.nested import NESTINGS, damaged_forms, nested
from wire.decoding import Unreadable, plain_text
from wire.messages import batches, hello, replication
from wire.messages.cluster_map import NodeEntry
from wire.messages.connects import decode_answers, decode_connects, encode_record
from wire.messages.control import (
    CONTROLS_MAX,
    count_of_controls,
    decode_control,
    decode_controls,
    encode_control,
    join_controls,
)
from wire.messages.frames import HEADER_BYTES
from wire.messages.hello import NodeIdentity, encode_hello
from wire.messages.nodes import Heartbeat, RegisterRequest
from wire.messages.ranges import PARTITIONS_MAX
from wire.messages.retained import RetainedNone
from wire.messages.routes import AddRoutes, Destinations, GroupDestinations, Resolved, RouteEntry
from wire.messages.sessions import Claim, Claims, CloseSession, OpenSession, PollClaims, SessionClosed, SessionOpened
from wire.sstable.manifest import Manifest, ManifestDamaged, decode_manifest, encode_manifest

HELLO = encode_hello(NodeIdentity("c", "edge-0", "edge", 5, "127.0.0.1:1"))[HEADER_BYTES:]
OPENING, ENDING = OpenSession(1, 2, 3, "c", 4, True, 0), CloseSession(5, 2, 3, "c", 6, True)
ANSWERS = SessionOpened(1, 2, 3, 0, 4), SessionClosed(5, True)
CONTROL = encode_control(RegisterRequest(1, NodeEntry("edge-0", "edge", 5, "127.0.0.1:1", zone="z")))
RAFT = raft.encode_message(raft.AppendEntries("a", "b", 1, 2, 3, 4, 0, 0, 0, 1, (raft.LogEntry(1, 1, "normal", b"x"),)))
REPLICA = replication.encode_replica_message(replication.Append(1, 2, 3, 2, 3, 0, 1, [b"row"]))
GOSSIP = packets.join_messages([packets.encode_message(packets.Suspect("two", 2, "three"))])
MANIFEST = encode_manifest(Manifest(manifest_no=1))
PUBLISH = batches.encode_message(batches.PublishMessage(7, b"a/b", b"payload", 1, partitions=(1, 2), share=b"g/a"))
PUSH = batches.encode_push(batches.Push(1 << 48, 6, 1, 3, 9, 2, b"a/b", b"payload"))

FORMATS: list[tuple[str, Callable[[Any], object], bytes, type[Exception]]] = [
    ("hello", hello.decode_hello, HELLO, Unreadable),
    ("control", decode_control, CONTROL, Unreadable),
    ("controls", decode_controls, join_controls([CONTROL, CONTROL]), Unreadable),
    ("connects", decode_connects, join_controls([encode_record(OPENING), encode_record(ENDING)]), Unreadable),
    ("answers", decode_answers, join_controls([encode_record(one) for one in ANSWERS]), Unreadable),
    ("raft", raft.decode_message, RAFT, Unreadable),
    ("replica", replication.decode_replica_message, REPLICA, Unreadable),
    ("publish", batches.decode_publish, PUBLISH, Unreadable),
    ("publish-ack", batches.decode_publish_acks, batches.encode_publish_ack(1, 2, 0), Unreadable),
    ("push", batches.decode_pushes, PUSH, Unreadable),
    ("push-ack", batches.decode_push_acks, batches.encode_push_ack(batches.PushAck(1, 2, 3, 4, 4, 0)), Unreadable),
    ("gossip", packets.decode_messages, GOSSIP, packets.MalformedGossip),
    ("records", lambda body: list(packets.decode_records(body)), b"\x90", packets.MalformedGossip),
    ("key request", key_requests.decode_request, b"\x93", exchange.BadExchange),
    ("manifest", decode_manifest, MANIFEST, ManifestDamaged),
]


@pytest.mark.parametrize(("decode", "good", "error"), [form[1:] for form in FORMATS], ids=[form[0] for form in FORMATS])
def test_decoder_raises_only_its_own_error(
    decode: Callable[[bytes], object], good: bytes, error: type[Exception]
) -> None:
    """Nesting of ten to ten thousand levels, cuts at every byte, invalid text, the extreme integers."""
    refused = 0
    for payload in (*damaged_forms(good), *(nested(depth, json=error is ManifestDamaged) for depth in NESTINGS)):
        try:
            decode(payload)
        except error:
            refused += 1
    assert refused >= len(NESTINGS)


@pytest.mark.parametrize(
    "message",
    [
        RegisterRequest(1, NodeEntry("e", "router", 1, "a:1", weight=-3)),
        RegisterRequest(1, NodeEntry("e", "router", 1, "a:1", weight=10**9)),
        RegisterRequest(1, NodeEntry("e", "router", 1, "a:1", zone="z" * 5_000_000)),
        RegisterRequest(1, NodeEntry("e" * 65, "router", 1, "a:1")),
        RegisterRequest(1, NodeEntry("e", "router", 1, "a" * 256)),
        PollClaims(1, -(10**9), 1),
        PollClaims(1, 0xFFFF, 1),
        PollClaims(-1, 1, 1),
        RouteEntry,  # not a message of its own
        Heartbeat("e", 1, float("nan"), 1),
        Heartbeat("e", 1, float("inf"), 1),
        Heartbeat("e", 1 << 44, 1.0, 1),
        Resolved(1, 1, [Destinations([], [-1], [])], [0]),
        Resolved(1, 1, [Destinations([], [], [GroupDestinations("g/t", [("e", -1)])])], [0]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_decode_control_refuses_values_out_of_range(message: Any) -> None:
    payload = b"\xc0" if isinstance(message, type) else encode_control(message)
    with pytest.raises(Unreadable):
        decode_control(payload)


def test_decode_control_accepts_the_largest_configured_values() -> None:
    """Types with bounds must accept the largest values that real nodes send."""
    names = [f"{number:064d}" for number in range(4096)]
    for message in (
        Heartbeat("n" * 64, (1 << 44) - 1, 1e9, 5, names, dict.fromkeys(range(PARTITIONS_MAX), (1 << 40, 1))),
        RegisterRequest(1, NodeEntry("n" * 64, "storage", 1, "h" * 255, {"l" * 32: "h" * 255}, "z" * 64, 100)),
        Claims(1, PARTITIONS_MAX - 1, 1, [Claim("c", 1, 1, (1 << 64) - 1)]),
        RetainedNone(1, list(range(PARTITIONS_MAX))),
        Resolved(1, 1, [Destinations(names, list(range(PARTITIONS_MAX)), [])], [0]),
        AddRoutes(1, 65_535, 1, -1, (1 << 44) - 1, 9, [RouteEntry("f" * 65_535, "s", 10_000_000)]),
    ):
        assert decode_control(encode_control(message)) == message
    opening = OpenSession((1 << 64) - 1, PARTITIONS_MAX - 1, 1, "c" * 65_535, (1 << 64) - 1, False, 0xFFFFFFFF)
    ending = CloseSession(1, 0, 1, "c" * 65_535, (1 << 64) - 1, True, 0xFFFFFFFF)
    assert decode_connects(join_controls([encode_record(opening), encode_record(ending)])) == [opening, ending]


def test_decoding_fault_describes_the_input() -> None:
    """The interpreter's text about its stack does not describe the peer's frame."""
    for payload in (nested(10_000), nested(100_000)):
        with pytest.raises(Unreadable, match=r"^unreadable HELLO: nested too deep$"):
            hello.decode_hello(payload)
    with pytest.raises(Unreadable, match=r": text that is not UTF-8$"):
        decode_control(msgspec.msgpack.encode({"type": "x"}).replace(b"x", b"\xff"))


def test_decoding_fault_fits_one_line() -> None:
    """It may quote the peer's text."""
    with pytest.raises(Unreadable) as caught:
        decode_control(msgspec.msgpack.encode({"type": "x\nlevel=info forged" + "y" * 100_000}))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert plain_text("a\x1b[2Jb\r\n") == "a?[2Jb??"


def test_decode_controls_bounds_the_number_of_messages() -> None:
    """At most CONTROLS_MAX messages per frame, whatever length it claims, bounds the time in the loop."""
    joined = join_controls([CONTROL] * CONTROLS_MAX)
    assert decode_controls(joined) == [decode_control(CONTROL)] * CONTROLS_MAX
    assert count_of_controls(joined) == CONTROLS_MAX and count_of_controls(join_controls([CONTROL])) == 1
    more = b"\xdc" + (CONTROLS_MAX + 1).to_bytes(2, "big") + CONTROL * (CONTROLS_MAX + 1)
    for unreadable in (more, b"\x90", b"\xdc\x00\x00", joined + b"x", joined[:-1]):
        with pytest.raises(Unreadable):
            decode_controls(unreadable)
    for odd in (more, b"", b"\x92" + CONTROL * 2, b"\xdd\x00\x00\x00\x01"):
        assert count_of_controls(odd) == CONTROLS_MAX


@pytest.mark.parametrize(("decode", "record"), [(decode_connects, OPENING), (decode_answers, ANSWERS[0])])
def test_decode_connects_bounds_the_number_of_records(decode: Callable[[bytes], list[Any]], record: Any) -> None:
    """Only its own record types are accepted, so a reply cannot claim a session."""
    one = encode_record(record)
    assert decode(join_controls([one] * CONTROLS_MAX)) == [record] * CONTROLS_MAX
    more = b"\xdc" + (CONTROLS_MAX + 1).to_bytes(2, "big") + one * (CONTROLS_MAX + 1)
    others = [encode_record(other) for other in ((OPENING, ENDING) if decode is decode_answers else ANSWERS)]
    for unreadable in (more, b"\xdc\x00\x00", CONTROL, one, *(join_controls([other]) for other in others)):
        with pytest.raises(Unreadable):
            decode(unreadable)
