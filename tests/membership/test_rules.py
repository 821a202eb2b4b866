"""Small pure parts: suspicion, local health, dissemination, timers, replay window, profiles, the table of members."""

import ast
from math import inf
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from membership import profiles
from membership.dissemination import Dissemination
from membership.local_health import LocalHealth
from membership.members import Member, Members
from membership.metadata import NodeMetadata, encode_metadata
from membership.packets import Alive, encode_message
from membership.profiles import LAN, LOCAL, PROFILES
from membership.replay import WINDOW_PACKETS, ReplayWindow
from membership.suspicion import Suspicion, suspicion_timeout_s
from membership.timers import Timers
from tests.memory import allocated


@pytest.mark.parametrize(
    ("confirmations", "expected", "timeout_s"),
    [
        (0, 3, 36.0),  # no confirmation yet
        (1, 3, 21.0),  # log 2 / log 4 is a half
        (3, 3, 6.0),
        (9, 3, 6.0),
        (0, 0, 6.0),  # no other member could confirm
    ],
)
def test_suspicion_timeout(confirmations: int, expected: int, timeout_s: float) -> None:
    """Lifeguard, Local Health Aware Suspicion: falls with the logarithm of the confirmations."""
    assert suspicion_timeout_s(confirmations, expected, 6.0, 36.0) == pytest.approx(timeout_s)


def test_suspicion_timeout_refuses_crossed_bounds() -> None:
    """min_s above max_s is a caller's mistake."""
    with pytest.raises(ValueError, match="exceeds"):
        suspicion_timeout_s(0, 3, 2.0, 1.0)


def test_suspicion_counts_each_accuser_once() -> None:
    """Only independent accusers confirm, at most the expected number."""
    suspicion = Suspicion(100.0, "a", 2, 6.0, 36.0)
    assert not suspicion.confirm("a")
    assert suspicion.confirm("b")
    assert not suspicion.confirm("b")
    assert suspicion.confirm("c")
    assert not suspicion.confirm("d")
    assert suspicion.deadline == pytest.approx(106.0)
    suspicion.shift(5.0)
    assert suspicion.deadline == pytest.approx(111.0)


def test_local_health_follows_the_paper() -> None:
    """Lifeguard, Local Health Aware Probe: +1 per missing nack, +1 per refutation, -1 per success, within 0..S."""
    health = LocalHealth(8)
    health.probe_failed(relays_asked=3, nacks=3)
    assert health.score == 0  # all relays sent a nack: the target is at fault
    health.probe_failed(relays_asked=3, nacks=1)
    assert health.score == 2
    health.probe_failed(relays_asked=0, nacks=0)
    health.refuted()
    assert health.local_health_multiplier == 5
    for _ in range(20):
        health.paused()
    assert health.score == 8
    for _ in range(20):
        health.probe_succeeded()
    assert health.score == 0


def test_local_health_off_stays_healthy() -> None:
    """Plain SWIM has no such score."""
    health = LocalHealth(8, enabled=False)
    health.refuted()
    assert health.local_health_multiplier == 1


def test_dissemination_sends_least_sent_news_first_up_to_the_limit() -> None:
    """SWIM section 4.1: a bounded number of transmissions, newer news first."""
    news = Dissemination()
    news.add("a", b"A" * 10)
    news.add("b", b"B" * 10)
    assert news.take(10, 9, 3) == [b"B" * 10]
    assert news.take(10, 9, 3) == [b"A" * 10]
    assert sorted(news.take(100, 9, 3)) == [b"A" * 10, b"B" * 10]
    assert news.take(100, 1, 3) == [b"B" * 10]
    assert news.take(100, 9, 3) == [b"A" * 10]
    assert news.take(100, 9, 3) == []
    assert len(news) == 0


def test_dissemination_newer_news_replaces_older() -> None:
    """One item per member, so the number of members bounds the queue."""
    news = Dissemination()
    for number in range(100):
        news.add("a", b"%d" % number)
    assert len(news) == 1
    assert news.take(100, 9, 1) == [b"99"]


def test_dissemination_large_news_does_not_block_small() -> None:
    """News that does not fit waits for the next packet."""
    news = Dissemination()
    news.add("small", b"s")
    news.add("large", b"l" * 50)
    assert news.take(10, 9, 2) == [b"s"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 20), st.booleans()), max_size=60))
def test_timers_agree_with_a_dictionary(steps: list[tuple[str, int, bool]]) -> None:
    """Setting moves, cancelling removes, popping is in order of deadlines."""
    timers, model = Timers(), {}
    for name, deadline, keep in steps:
        if keep:
            timers.set((name, 0), float(deadline))
            model[name] = float(deadline)
        else:
            timers.cancel((name, 0))
            model.pop(name, None)
        assert timers.next_deadline == min(model.values(), default=inf)
    timers.shift(5.0)
    popped = []
    while (key := timers.pop_due(100.0)) is not None:
        popped.append(model[str(key[0])])
    assert popped == sorted(model.values())


def test_timers_stay_small_when_moved_often() -> None:
    timers = Timers()
    with allocated() as kept:
        for step in range(10_000):
            timers.set(("round", 0), float(step))
    assert kept.bytes < 64_000


@given(st.lists(st.integers(1, 3 * WINDOW_PACKETS) | st.integers(1, 2**64 - 1), max_size=200))
@example([2**64 - 1, 1])
def test_replay_window_accepts_no_number_twice(numbers: list[int]) -> None:
    """RFC 4303 section 3.4.3: never twice; always when newer than all; no excessive shift."""
    window, taken, highest = ReplayWindow(), set(), 0
    for number in numbers:
        accepted = window.take(number)
        assert not (accepted and number in taken)
        assert accepted or number in taken or number <= highest - WINDOW_PACKETS
        if accepted:
            taken.add(number)
        highest = max(highest, number)


@pytest.mark.parametrize("number", (0, -1))
def test_replay_window_refuses_impossible_numbers(number: int) -> None:
    """Packet numbers start at 1."""
    assert not ReplayWindow().take(number)


def test_profiles_are_consistent() -> None:
    """A relay's nack must arrive before its prober's round ends; a stopped member must have time to refute."""
    for profile in PROFILES.values():
        assert profile.probe_timeout_s * (1 + profile.nack_fraction) < profile.protocol_period_s
        assert profile.gossip_interval_s < profile.probe_timeout_s + profile.gossip_interval_s / 2
        assert profile.lifeguard
    assert LAN.suspicion_min_s(9) == 6.0
    assert LAN.suspicion_min_s(100) == pytest.approx(12.0)
    assert [LAN.retransmit_limit(members) for members in (1, 9, 99, 999)] == [3, 8, 16, 24]
    assert [LOCAL.push_pull_s(members) for members in (2, 32, 33, 65)] == [10, 10, 20, 40]


def _member(name: str, session: int, state: str = "alive") -> Member:
    alive = Alive(1, session, "127.0.0.1", 7946, NodeMetadata(name, "edge", 1))
    return Member(alive, state, 1, 0.0, encode_message(alive))  # type: ignore[arg-type]


def test_members_are_probed_once_per_round() -> None:
    """SWIM section 4.3: the time to the first probe of a dead member is bounded, not only expected."""
    members = Members(Random(1))
    for number in range(10):
        members.add(_member(f"m{number}", number))
    for _ in range(3):
        assert sorted(members.next_to_probe().name for _ in range(10)) == [f"m{n}" for n in range(10)]  # type: ignore[union-attr]


def test_members_dead_ones_are_neither_probed_nor_sampled() -> None:
    """Only live members take part; a suspect one is no relay."""
    members = Members(Random(1))
    for number, state in enumerate(("alive", "suspect", "dead", "left")):
        members.add(_member(f"m{number}", number, state))
    assert {members.next_to_probe().name for _ in range(10)} == {"m0", "m1"}  # type: ignore[union-attr]
    assert [each.name for each in members.sample(5, unsuspected=True)] == ["m0"]
    assert members.live_count == 3


CORES = (
    *("swim", "members", "suspicion", "dissemination", "local_health", "member_states", "probing", "outbox", "packets"),
    *("timers", "replay", "events", "profiles", "metadata", "envelope", "exchange"),
)


@pytest.mark.parametrize("core", CORES)
def test_cores_have_no_clock_random_source_or_sockets(core: str) -> None:
    """Time and randomness are arguments; waiting belongs to the shell."""
    tree = ast.parse(Path(profiles.__file__).with_name(f"{core}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"trio", "time", "os", "socket", "secrets", "uuid", "datetime"}


@pytest.mark.parametrize(
    "metadata",
    [
        NodeMetadata("", "edge", 1),
        NodeMetadata("a b", "edge", 1),
        NodeMetadata("a", "edge", -1),
        NodeMetadata("a", "edge", 1, weight=float("nan")),
        NodeMetadata("a", "edge", 1, {f"p{number}": "h:1" for number in range(9)}),
        NodeMetadata("a", "edge", 1, {f"purpose{number}": "h" * 90 for number in range(8)}),
        NodeMetadata("a", "edge", 1, zone="z" * 33),
    ],
)
def test_encode_metadata_refuses_values_out_of_bounds(metadata: NodeMetadata) -> None:
    """All fields and the whole have a bound."""
    with pytest.raises(ValueError, match="metadata of"):
        encode_metadata(metadata)
