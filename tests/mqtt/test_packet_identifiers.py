"""Packet identifiers: unique, ascending, restored."""

import random

from mqtt import PacketIdentifiers


def test_identifiers_count_up_and_wrap() -> None:
    """From 1, past those in use, never 0 [MQTT-2.2.1-3]."""
    identifiers = PacketIdentifiers()
    assert [identifiers.allocate() for _ in range(3)] == [1, 2, 3]
    assert identifiers.release(2)
    assert not identifiers.release(2)
    assert identifiers.allocate() == 4  # a released identifier is reused as late as possible
    for _ in range(65_535 - 4):
        assert identifiers.allocate() is not None
    assert identifiers.allocate() == 2
    assert (identifiers.allocate(), len(identifiers)) == (None, 65_535)


def test_restored_identifiers_are_skipped() -> None:
    """Identifiers in flight in a resumed session are claimed, then skipped."""
    identifiers = PacketIdentifiers()
    assert identifiers.claim(1) and identifiers.claim(3)
    assert not identifiers.claim(3)
    assert [identifiers.allocate(), identifiers.allocate()] == [2, 4]
    assert 3 in identifiers and 5 not in identifiers


def test_identifiers_are_unique() -> None:
    """In a random mix no identifier is allocated twice at a time."""
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
