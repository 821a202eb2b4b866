"""Hostile and damaged packets are dropped and counted by reason, without other effects."""

import os
from random import Random
from struct import pack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membership.envelope import BODY_BYTES_MAX, DROP_REASONS, Envelope
from membership.events import MessagesReceived, SeedsResolved
from membership.keyring import KeyRing
from membership.members import Member, Members
from membership.metadata import NodeMetadata
from membership.packets import (
    DATAGRAM_BYTES_MAX,
    Ack,
    Address,
    Alive,
    MalformedGossip,
    Ping,
    Suspect,
    decode_messages,
    decode_records,
    encode_message,
    join_messages,
)
from tests.membership.network import Simulation

A, B = b"a" * 32, b"b" * 32
BODY = join_messages([encode_message(Ping(1, "two"))])


def node(session: int, peer: int, cluster: str = "c", keys: tuple[bytes, ...] = (A,)) -> Envelope:
    """Return an envelope that knows one peer."""
    members = Members(Random(1))
    alive = Alive(1, peer, "127.0.0.1", 1, NodeMetadata(f"m{peer}", "edge", 1))
    members.add(Member(alive, "alive", 1, 0.0, encode_message(alive)))
    return Envelope(cluster, session, KeyRing(list(keys)), members, os.urandom)


def test_envelope_opens_a_packet_once() -> None:
    """At the process it was sent to; the second time it is a replay."""
    data = node(1, 2).seal_datagram(2, BODY)
    receiver = node(2, 1)
    assert receiver.open_datagram(data) == (1, [Ping(1, "two")])
    assert receiver.open_datagram(data) is None
    assert receiver.dropped == {"replayed": 1}


def test_envelope_largest_packet_is_within_the_bound() -> None:
    """The outbox's budget fits 1 400 bytes sealed."""
    assert len(node(1, 2).seal_datagram(2, b"\x91" + b"\0" * (BODY_BYTES_MAX - 1))) == DATAGRAM_BYTES_MAX


def test_envelope_hides_names_and_addresses() -> None:
    """Member names, addresses and the cluster's name are encrypted."""
    body = join_messages([encode_message(Alive(1, 7, "10.1.2.3", 1, NodeMetadata("secret-name", "edge", 1)))])
    data = node(1, 2, cluster="secret-cluster").seal_datagram(2, body)
    assert not any(word in data for word in (b"secret", b"10.1.2.3", b"edge"))


def sealed(cluster: str = "c", key: bytes = A, sender: int = 1, recipient: int = 2, body: bytes = BODY) -> bytes:
    """Seal a packet as a given process."""
    return node(sender, 99, cluster, (key,)).seal_datagram(recipient, body)


HOSTILE = {
    "oversized": sealed() + b"x" * DATAGRAM_BYTES_MAX,
    "truncated": sealed()[:40],
    "unknown_protocol": b"\x5a\x07" + sealed()[2:],
    "wrong_cluster": sealed(cluster="d"),
    "unknown_key": sealed(key=B),
    "forged": sealed()[:-1] + bytes([sealed()[-1] ^ 1]),
    "own_packet": sealed(sender=2),
    "stale_recipient": sealed(recipient=3),
    "unknown_sender": sealed(sender=5),
    "malformed": sealed(body=b"\x91\xc0"),
}


@pytest.mark.parametrize("reason", sorted(HOSTILE))
def test_envelope_drops_and_counts_hostile_packets(reason: str) -> None:
    """Each reason has a separate counter."""
    receiver = node(2, 1)
    assert receiver.open_datagram(HOSTILE[reason]) is None
    assert receiver.dropped == {reason: 1}


def test_envelope_every_drop_reason_is_tested() -> None:
    """``replayed`` is tested above."""
    assert {*HOSTILE, "replayed"} == set(DROP_REASONS)


def test_envelope_binds_the_full_cluster_name() -> None:
    """Two clusters with equal short tags cannot open each other's packets: the full name is associated data."""
    sender, receiver = node(1, 2, "c21431"), node(2, 1, "c29838")
    assert receiver.open_datagram(sender.seal_datagram(2, BODY)) is None
    assert receiver.dropped == {"forged": 1}


def test_envelope_binds_the_channel() -> None:
    """A frame of a TCP exchange is not a valid datagram."""
    sender, receiver = node(1, 2), node(2, 1)
    frame = sender.seal(pack(">QQQ", 1, 2, 1) + BODY, b"hello")
    assert receiver.open_datagram(frame) is None
    assert receiver.dropped == {"forged": 1}


def test_envelope_member_one_rotation_step_behind_can_communicate() -> None:
    """During a rotation both keys open."""
    ahead, behind = node(1, 2, keys=(B, A)), node(2, 1, keys=(A, B))
    assert behind.open_datagram(ahead.seal_datagram(2, BODY)) is not None
    assert ahead.open_datagram(behind.seal_datagram(1, BODY)) is not None


def fingerprint(simulation: Simulation) -> list[object]:
    """Return all state that a packet could change."""
    return [
        [member.swim.views(), member.swim.local.incarnation, member.swim.health.score, len(member.swim.news)]
        for member in simulation.members
    ]


def test_envelope_replayed_capture_changes_no_state() -> None:
    """Ten minutes of a cluster's packets, with a death and a return in them, replayed ten times to all members."""
    simulation = Simulation(1, 5, sealed=True)
    capture: list[tuple[Address, bytes]] = []
    simulation.capture = capture
    simulation.run(60)
    simulation.kill(4)
    simulation.run(120)
    simulation.start(4, 1 << 16)
    simulation.run(600)
    simulation.capture = None
    before = fingerprint(simulation)
    taken = sum(sum(member.envelope.dropped.values()) for member in simulation.members)
    for _ in range(10):
        for address, data in capture:
            simulation.deliver(address, data)
    assert fingerprint(simulation) == before
    dropped = sum(sum(member.envelope.dropped.values()) for member in simulation.members) - taken
    in_flight = 20  # of the last packets, some arrive for the first time
    assert dropped >= 10 * len(capture) - in_flight


def test_envelope_restarted_member_refuses_packets_of_its_former_process() -> None:
    """A new process has seen no packet numbers; packets to its predecessor are refused nevertheless."""
    simulation = Simulation(2, 4, sealed=True)
    capture: list[tuple[Address, bytes]] = []
    simulation.capture = capture
    simulation.run(30)
    member = simulation.start(3, 1 << 16)
    simulation.run(40)
    before = fingerprint(simulation)
    for address, data in capture:
        if address == member.address:
            simulation.deliver(address, data)
    assert fingerprint(simulation)[3] == before[3]
    assert member.envelope.dropped["stale_recipient"] > 20


VALID = sealed()


@settings(max_examples=300)
@given(st.binary(max_size=2000))
def test_envelope_drops_random_packets(data: bytes) -> None:
    receiver = node(2, 1)
    assert receiver.open_datagram(data) is None
    assert sum(receiver.dropped.values()) == 1


@settings(max_examples=300)
@given(st.integers(0, len(VALID) - 1), st.integers(1, 255), st.integers(0, len(VALID)))
def test_envelope_drops_damaged_packets(position: int, flip: int, cut: int) -> None:
    """Any single flip, or any cut."""
    damaged = bytearray(VALID)
    damaged[position] ^= flip
    receiver = node(2, 1)
    assert receiver.open_datagram(bytes(damaged)) is None
    if cut < len(VALID):
        assert receiver.open_datagram(VALID[:cut]) is None


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_envelope_counts_malformed_content_of_a_key_holder(body: bytes) -> None:
    """The packet changes no state."""
    receiver = node(2, 1)
    opened = receiver.open_datagram(node(1, 2).seal_datagram(2, body))
    assert opened is not None or receiver.dropped == {"malformed": 1}
    for decode in (decode_messages, decode_records):
        try:
            list(decode(body))
        except MalformedGossip:
            pass


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=80)
    | st.binary(max_size=80),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(_json, max_size=6)), max_size=5))
def test_envelope_refuses_or_handles_random_messages(messages: list[tuple[int, list[object]]]) -> None:
    """Well-formed msgpack with wrong types, sizes and kinds is refused as a whole, or handled by the core."""
    body = msgspec.msgpack.encode([[kind, *fields] for kind, fields in messages])
    try:
        decoded = decode_messages(body)
    except MalformedGossip:
        return
    simulation = Simulation(1, 1)
    simulation.run(0.1)
    core = simulation.members[0].swim
    core.handle(0.1, SeedsResolved(()))
    core.handle(0.1, MessagesReceived(7, decoded))
    assert len(core.members) == 0  # no member of that session is known


@pytest.mark.parametrize(
    "body",
    [
        join_messages([encode_message(Ack(2**32 - 1))])[:-1],
        msgspec.msgpack.encode([[2, 2**32]]),
        msgspec.msgpack.encode([[2, -1]]),
        msgspec.msgpack.encode([[6, "a b", 1, "c"]]),
        msgspec.msgpack.encode([[6, "a" * 65, 1, "c"]]),
        msgspec.msgpack.encode([[6, "a", 2**63, "c"]]),
        msgspec.msgpack.encode([[99, 1]]),
        msgspec.msgpack.encode([[2, 1]] * 65),
        msgspec.msgpack.encode({"a": 1}),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 1300,
    ],
)
def test_decode_messages_refuses_malformed_bodies(body: bytes) -> None:
    """Bounds of all fields, of the number of messages, and of nesting."""
    with pytest.raises(MalformedGossip):
        decode_messages(body)


def test_decode_messages_accepts_additional_fields() -> None:
    """A later release may append fields."""
    assert decode_messages(msgspec.msgpack.encode([[6, "a", 1, "c", "later"]])) == [Suspect("a", 1, "c")]


@pytest.mark.parametrize("host", ("localhost", "dead", "10.0.0", "10.0.0.1\n", "::g"))
def test_decode_messages_refuses_a_host_name(host: str) -> None:
    """A name would be resolved at every send."""
    with pytest.raises(MalformedGossip):
        decode_messages(join_messages([encode_message(Alive(1, 7, host, 1, NodeMetadata("m", "edge", 1)))]))


def test_decode_messages_refuses_unprintable_text() -> None:
    """A member's text is shown in operators' terminals."""
    for metadata in (NodeMetadata("m", "edge", 1, zone="\x1b[2J"), NodeMetadata("m", "ed\nge", 1)):
        with pytest.raises(MalformedGossip):
            decode_messages(join_messages([encode_message(Alive(1, 7, "10.0.0.1", 1, metadata))]))


def test_decode_messages_refuses_metadata_above_512_bytes() -> None:
    """Each field may be within its bound but the whole above."""
    addresses = {f"purpose{number}": "h" * 90 for number in range(8)}
    alive = Alive(1, 7, "10.1.2.3", 1, NodeMetadata("m", "edge", 1, addresses))
    with pytest.raises(MalformedGossip, match="512"):
        decode_messages(join_messages([encode_message(alive)]))
