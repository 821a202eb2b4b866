"""Grouping of overlapping subscriptions into copies, and the options of a copy."""

import pytest

from wire.messages.overlapping import COPIES_MAX, identifiers_of, options_of, sharing_a_copy
from wire.messages.sessions import SessionSubscription


def some(*identifiers: int, merged: bool = False) -> list[SessionSubscription]:
    return [
        SessionSubscription(f"f{at}", at % 3, identifier=identifier, merged=merged)
        for at, identifier in enumerate(identifiers)
    ]


@pytest.mark.parametrize(
    ("identifiers", "merged", "shared"),
    [
        ((1,), False, [[1]]),
        ((1, 2), False, [[1], [2]]),
        ((1, 2, 1), False, [[1, 1], [2]]),
        ((0, 0, 0), False, [[0, 0, 0]]),  # of MQTT 3.1.1 all are without
        ((0, 1, 0), False, [[0, 0], [1]]),
        ((1, 2, 0), True, [[1, 2, 0]]),
    ],
)
def test_sharing_a_copy_groups_by_identifier(
    identifiers: tuple[int, ...], merged: bool, shared: list[list[int]]
) -> None:
    found = sharing_a_copy(some(*identifiers, merged=merged))
    assert [[one.identifier for one in group] for group in found] == shared


def test_sharing_a_copy_many_identifiers_share_the_last_copy() -> None:
    """One message must not become hundreds for a session; all identifiers are sent nevertheless."""
    found = sharing_a_copy(some(*range(1, 201)))
    assert len(found) == COPIES_MAX and sum(map(len, found)) == 200
    assert identifiers_of(found[-1]).count(b"\x0b") >= 200 - COPIES_MAX


def test_options_of_a_copy() -> None:
    """[MQTT-3.3.4-2], [MQTT-3.3.4-4], [MQTT-3.3.1-13]; a merged copy repeats equal identifiers."""
    group = [SessionSubscription("a", 0, identifier=5), SessionSubscription("b", 2, False, True, identifier=5)]
    assert options_of(group) == (2, True, b"\x0b\x05")
    assert options_of(some(5, 300, 5, merged=True)) == (2, False, b"\x0b\x05\x0b\xac\x02\x0b\x05")
    assert options_of(some(0)) == (0, False, b"")
