"""The pump: windows, ordering keys, retries, dead letters."""

import math
from random import Random

from gateways.bridges.message import OVERHEAD_BYTES, BridgeMessage, SinkRecord
from gateways.bridges.pump import BridgePump, PumpBounds


def record(ordering_key: str, text: bytes = b"x") -> SinkRecord:
    message = BridgeMessage(ordering_key, text, 1)
    return SinkRecord(ordering_key, text, ordering_key, message)


def pump(**bounds: float) -> BridgePump:
    return BridgePump(PumpBounds(**bounds), Random(1))  # type: ignore[arg-type]


def offer(to: BridgePump, reference: int, *keys: str) -> None:
    records = [record(ordering_key) for ordering_key in keys]
    to.offer(reference, records[0].message if records else BridgeMessage("t", b""), records)


def take(from_: BridgePump, now: float = 0.0) -> list[int]:
    """Return the tokens that a sink with capacity receives."""
    found = []
    while (sending := from_.next_delivery(now)) is not None:
        found.append(sending.token)
    return found


def test_pump_window_is_bounded_by_messages_and_bytes() -> None:
    small = pump(messages=2)
    offer(small, 1, "a")
    assert small.has_capacity
    offer(small, 2, "a")
    assert not small.has_capacity
    assert take(small) == [0]
    small.done(0)
    assert small.has_capacity and small.finished() == [1]
    heavy = pump(messages=9, size_bytes=OVERHEAD_BYTES + 3)
    offer(heavy, 1, "a")
    assert heavy.has_capacity and heavy.open_bytes == OVERHEAD_BYTES + 2
    offer(heavy, 2, "a")
    assert not heavy.has_capacity


def test_pump_sends_one_record_per_key_unless_pipelined() -> None:
    for pipelined, first in ((False, [0, 2]), (True, [0, 1, 2])):
        found = BridgePump(PumpBounds(pipelined=pipelined), Random(1))
        offer(found, 1, "a")
        offer(found, 2, "a")
        offer(found, 3, "b")
        assert sorted(take(found)) == first
        found.done(0)
        assert take(found) == ([] if pipelined else [1])


def test_pump_message_finishes_with_its_last_record() -> None:
    found = pump()
    offer(found, 7, "a", "b")
    assert take(found) == [0, 1]
    found.done(1)
    assert found.finished() == []
    found.done(0)
    assert found.finished() == [7] and found.open_messages == 0 and found.open_bytes == 0
    offer(found, 8)
    assert found.finished() == [8], "without a record there is nothing to wait for"


def test_pump_retry_keeps_position_and_blocks_key() -> None:
    found = BridgePump(PumpBounds(pipelined=True), Random(1))
    for reference, ordering_key in enumerate("aab"):
        offer(found, reference, ordering_key)
    assert sorted(take(found)) == [0, 1, 2]
    found.retry(1, 10.0)
    found.retry(0, 10.0)
    due = found.next_deadline()
    assert 10.0 < due < 11.0 and take(found, 10.0) == []
    offer(found, 3, "a")
    offer(found, 4, "b")
    assert take(found, 10.0) == [4], "another ordering key is not delayed"
    assert take(found, 12.0) == [0, 1, 3]
    assert found.retry_s > 0


def test_pump_retry_without_delay_is_immediate() -> None:
    found = BridgePump(PumpBounds(pipelined=True), Random(1))
    offer(found, 1, "a")
    offer(found, 2, "a")
    assert take(found) == [0, 1]
    for token in (0, 1):
        found.retry(token, 0.0, 0.0, "session_lost")
    assert found.next_deadline() == math.inf
    assert take(found) == [0, 1]


def test_pump_retry_delay_grows_until_delivery() -> None:
    found = pump()
    offer(found, 1, "a")
    now, delays = 0.0, []
    for _ in range(30):
        assert take(found, now) == [0]
        found.retry(0, now)
        delays.append(found.next_deadline() - now)
        now = found.next_deadline()
    assert 3.0 < max(delays) <= 30.0 and found.counts["retried_failed"] == 30
    assert take(found, now) == [0]
    found.done(0)
    assert found.finished() == [1] and found.retry_s == 0.0


def test_pump_give_up_sends_dead_letter() -> None:
    found = pump(give_up_s=5.0)
    offer(found, 1, "a")
    assert take(found, 100.0) == [0]
    found.retry(0, 104.0)
    assert take(found, 200.0) == [0]
    found.retry(0, 200.0)
    letter = found.next_dead_letter(200.0)
    assert letter is not None and letter.reason == "gave_up" and found.counts["rejected_gave_up"] == 1


def test_pump_rejected_record_finishes_after_dead_letter() -> None:
    found = pump()
    offer(found, 1, "a")
    take(found)
    found.reject(0, "too_large")
    letter = found.next_dead_letter(0.0)
    assert letter is not None and found.finished() == [] and found.next_dead_letter(0.0) is None
    found.dead_letter_failed(letter.token, 0.0)
    assert found.finished() == [] and found.next_dead_letter(0.0) is None
    again = found.next_dead_letter(found.next_deadline())
    assert again == letter
    found.dead_letter_done(letter.token)
    assert found.finished() == [1]
    assert found.counts["dead_letter"] == 1 and found.counts["retried_dead_letter"] == 1


def test_pump_late_answers_are_ignored() -> None:
    """From a sink that answers twice, or after it returned a record."""
    found = pump()
    offer(found, 1, "a")
    take(found)
    found.retry(0, 0.0)
    found.done(0)
    found.reject(0, "x")
    assert found.finished() == [] and found.next_dead_letter(0.0) is None
    assert take(found, 60.0) == [0]
    found.done(0)
    found.done(0)
    assert found.finished() == [1]


def test_pump_batch_failure_increases_delay_once() -> None:
    """A failed batch of one ordering key does not increase the delay for each of its records."""
    found = BridgePump(PumpBounds(pipelined=True), Random(1))
    for reference in range(50):
        offer(found, reference, "a")
    assert len(take(found)) == 50
    for token in range(50):
        found.retry(token, 0.0)
    assert found.next_deadline() < 0.5
    assert take(found, 0.5) == list(range(50))
