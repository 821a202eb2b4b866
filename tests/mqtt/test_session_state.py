"""Packet identifiers, topic aliases and the keep-alive deadline."""

import math
import random

import pytest

from mqtt import InboundAliases, KeepAlive, OutboundAliases, PacketIdentifiers, RemoteProtocolError


def test_identifiers_count_up_and_wrap() -> None:
    """From 1, past those in use, never 0 [MQTT-2.2.1-3]."""
    identifiers = PacketIdentifiers()
    assert [identifiers.allocate() for _ in range(3)] == [1, 2, 3]
    assert identifiers.release(2)
    assert not identifiers.release(2)
    assert identifiers.allocate() == 4  # an identifier just released rests as long as it can
    for _ in range(65_535 - 4):
        assert identifiers.allocate() is not None
    assert identifiers.allocate() == 2
    assert (identifiers.allocate(), len(identifiers)) == (None, 65_535)


def test_restored_identifiers_are_skipped() -> None:
    """What a resumed session has in flight is claimed, then passed over."""
    identifiers = PacketIdentifiers()
    assert identifiers.claim(1) and identifiers.claim(3)
    assert not identifiers.claim(3)
    assert [identifiers.allocate(), identifiers.allocate()] == [2, 4]
    assert 3 in identifiers and 5 not in identifiers


def test_identifiers_are_unique() -> None:
    """Under a random mix none is given twice at a time."""
    rng = random.Random(7)
    identifiers = PacketIdentifiers()
    held: set[int] = set()
    for _ in range(5000):
        if held and rng.random() < 0.5:
            chosen = rng.choice(sorted(held))
            held.remove(chosen)
            assert identifiers.release(chosen)
        else:
            given = identifiers.allocate()
            assert given is not None and given not in held and 1 <= given <= 65_535
            held.add(given)


def test_inbound_aliases() -> None:
    """Set, use, change; 0 and too large are 0x94, unknown is 0x82 (section 3.3.2.3.4)."""
    aliases = InboundAliases(2)
    assert aliases.resolve("a", None) == "a"
    assert aliases.resolve("a", 1) == "a"
    assert aliases.resolve("", 1) == "a"
    assert aliases.resolve("b", 1) == "b"
    assert aliases.resolve("", 1) == "b"
    for name, alias, code in (("a", 0, 0x94), ("a", 3, 0x94), ("", 3, 0x94), ("", 2, 0x82), ("", None, 0x82)):
        with pytest.raises(RemoteProtocolError) as caught:
            aliases.resolve(name, alias)
        assert caught.value.reason_code == code


def test_no_alias_was_announced() -> None:
    """Topic Alias Maximum 0 (or absent) takes none [MQTT-3.3.2-9]."""
    with pytest.raises(RemoteProtocolError):
        InboundAliases(0).resolve("a", 1)
    assert OutboundAliases(0).choose("a") == ("a", None)


def test_outbound_aliases() -> None:
    """The name goes with the alias until it was written once; a full table sends names."""
    aliases = OutboundAliases(2)
    assert aliases.choose("a") == ("a", 1)
    assert aliases.choose("a") == ("a", 1)  # the first packet was not written
    aliases.written("a", 1)
    assert aliases.choose("a") == ("", 1)
    assert aliases.choose("b") == ("b", 2)
    aliases.written("b", 2)
    assert aliases.choose("c") == ("c", None)
    aliases.written("c", None)
    assert aliases.choose("c") == ("c", None)


def test_our_aliases_are_understood() -> None:
    """What one side chooses, the other resolves."""
    ours, theirs = OutboundAliases(3), InboundAliases(3)
    rng = random.Random(1)
    for _ in range(200):
        topic = rng.choice("abcdef")
        name, alias = ours.choose(topic)
        if rng.random() < 0.8:
            ours.written(name, alias)
            assert theirs.resolve(name, alias) == topic


def test_keep_alive() -> None:
    """One and a half times [MQTT-3.1.2-22]; 0 means never."""
    keep_alive = KeepAlive(10, now=100.0)
    assert keep_alive.deadline == 115.0
    keep_alive.packet_received(107.0)
    assert keep_alive.deadline == 122.0
    never = KeepAlive(0, now=5.0)
    never.packet_received(6.0)
    assert never.deadline == math.inf
