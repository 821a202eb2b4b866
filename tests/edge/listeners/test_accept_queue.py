"""Queue of connections beyond the rate of their listener."""

import pytest

from edge.listeners.accept_queue import WAIT_S, WAITING_MAX, AcceptQueue
from tests.whole_state import whole_state

RATE = 200.0
STEP_S = 0.005


def come(queue: AcceptQueue[str], now: float, key: str, *, known: bool = False) -> str:
    """Add a connection; return "in", "waits" or "closed"."""
    if queue.try_admit(now, key, known=known):
        return "in"
    return "closed" if queue.add(now, key, key, known=known) == key else "waits"


@pytest.mark.parametrize("addresses", [16, 32, 200])
def test_new_address_waits_one_token_during_floods(addresses: int) -> None:
    """Each address floods below 50 connections a second."""
    queue: AcceptQueue[str] = AcceptQueue(RATE)
    admitted: list[str] = []
    waits: list[float] = []
    came: dict[str, float] = {}
    for step in range(int(4.0 / STEP_S)):
        now = step * STEP_S
        for number in range(addresses):
            if step % 4 == number % 4:
                come(queue, now, f"flood-{number}")
        if step % 20 == 0:
            came[f"honest-{step}"] = now
            outcome = come(queue, now, f"honest-{step}")
            assert outcome != "closed"
            if outcome == "in":
                waits.append(0.0)
        due = queue.take_due(now)
        admitted += due
        waits += [now - came[key] for key in due if key in came]
        queue.take_late(now)
        assert len(queue) <= WAITING_MAX
    assert len(waits) >= len(came) - 2 and max(waits) <= max(0.2, addresses / RATE)
    each = [admitted.count(f"flood-{number}") for number in range(addresses)]
    assert max(each) - min(each) <= 2 and sum(each) > 0.7 * RATE * 4.0


def test_known_addresses_get_half_of_the_rate_others_get_the_unused_part() -> None:
    queue: AcceptQueue[str] = AcceptQueue(RATE)
    assert [come(queue, 0.0, f"stranger-{n}") for n in range(150)].count("in") == 101  # one of the unused half
    assert [come(queue, 0.0, f"node-{n}", known=True) for n in range(150)].count("in") == 99
    for step in range(1, 200):  # a second: both classes are queued
        come(queue, step * STEP_S, f"stranger-{step}", known=False)
        come(queue, step * STEP_S, f"node-{step}", known=True)
        queue.take_due(step * STEP_S)
    alone: AcceptQueue[str] = AcceptQueue(RATE)
    taken = 0
    for step in range(2_000):
        taken += come(alone, step * STEP_S, f"stranger-{step}") == "in"
        taken += len(alone.take_due(step * STEP_S))
    assert taken >= 0.95 * RATE * 2_000 * STEP_S  # known addresses leave theirs to the others


def test_full_queue_drops_newest_of_largest_address() -> None:
    queue: AcceptQueue[str] = AcceptQueue(1.0)
    assert [come(queue, 0.0, "greedy") for _ in range(WAITING_MAX + 2)].count("in") == 2 and not queue.is_full
    assert queue.add(0.0, "newcomer", "newcomer", known=False) == "greedy" and len(queue) == WAITING_MAX
    single: AcceptQueue[str] = AcceptQueue(1.0)
    for number in range(WAITING_MAX + 2):
        come(single, 0.0, f"address-{number}")
    assert single.is_full
    assert single.add(0.0, "late", "late", known=False) == "late"  # each has one: the new one is dropped


def test_take_late_removes_late_connections() -> None:
    queue: AcceptQueue[str] = AcceptQueue(1e-3)
    for number in range(10):
        come(queue, 0.0, f"address-{number}")
    assert queue.take_late(WAIT_S / 2) == [] and queue.wait_s(0.0) > WAIT_S
    assert len(queue.take_late(WAIT_S)) == 8 and len(queue) == 0 and queue.take_due(1e9) == []
    queue.set_rate(RATE)
    come(queue, 1e9, "again")
    assert queue.take_all() == []


def test_admission_history_is_bounded_for_100_000_addresses() -> None:
    queue: AcceptQueue[str] = AcceptQueue(RATE)
    for number in range(100_000):
        come(queue, number * 1e-3, f"10.{number}")
        queue.take_due(number * 1e-3)
    assert len(queue) <= WAITING_MAX and len(whole_state(queue)) < 500_000
