"""The ring's proposals are even, stable and deterministic."""

from collections import Counter

import pytest

from router.placement.ring import RingNode, propose_owners, propose_replicas


def nodes(count: int, **options: object) -> list[RingNode]:
    return [RingNode(f"storage-{number}", **options) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 4, 6, 9])
def test_adding_a_node_moves_few_replica_slots(count: int) -> None:
    """One node added to N moves at most 1.2 / (N + 1) of the replica slots."""
    before = propose_replicas(nodes(count), 256, 2)
    after = propose_replicas(nodes(count + 1), 256, 2)
    moved = sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))
    assert 0 < moved <= 1.2 / (count + 1) * 256 * 2


@pytest.mark.parametrize("count", [3, 5])
def test_primaries_and_owners_are_even(count: int) -> None:
    """No node leads more than its rounded-up share, as far as replicas allow; owners never do."""
    led = Counter(replicas[0] for replicas in propose_replicas(nodes(count), 256, 3))
    assert max(led.values()) - min(led.values()) <= 0.1 * 256
    owned = Counter(propose_owners(nodes(count), 64))
    assert max(owned.values()) <= -(-64 // count)


def test_proposals_do_not_depend_on_order() -> None:
    """The same nodes give the same proposal on every router."""
    assert propose_replicas(nodes(5), 64, 3) == propose_replicas(nodes(5)[::-1], 64, 3)
    assert propose_owners(nodes(5), 64) == propose_owners(nodes(5)[::-1], 64)


def test_replicas_are_distinct_and_spread_over_zones() -> None:
    """Every zone is used once before one is used twice; with fewer nodes than copies there are fewer copies."""
    zoned = [RingNode(f"s{number}", zone="abc"[number % 3]) for number in range(6)]
    for replicas in propose_replicas(zoned, 128, 3):
        assert {"abc"[int(name[1:]) % 3] for name in replicas} == set("abc")
    two_zones = [RingNode(f"s{number}", zone="ab"[number % 2]) for number in range(4)]
    for replicas in propose_replicas(two_zones, 64, 3):
        assert len(set(replicas)) == 3
        assert {"ab"[int(name[1:]) % 2] for name in replicas} == set("ab")
    assert all(len(replicas) == 2 for replicas in propose_replicas(nodes(2), 64, 3))
    assert propose_replicas([], 4, 3) == [()] * 4


def test_weights_are_honoured() -> None:
    """Twice the weight gives about twice the copies."""
    weighted = [RingNode("big", weight=2), *(RingNode(f"s{number}") for number in range(4))]
    held = Counter(name for replicas in propose_replicas(weighted, 512, 1) for name in replicas)
    assert 1.5 < held["big"] / (512 / 6) / 1.0 < 2.5
    owned = Counter(propose_owners(weighted, 60))
    assert owned["big"] <= 20
    assert owned["big"] > max(count for name, count in owned.items() if name != "big")
