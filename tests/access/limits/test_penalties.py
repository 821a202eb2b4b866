"""Flapping, failed logins and takeovers: temporary refusals that never hit an owner for a stranger's behavior."""

from itertools import pairwise

import pytest

from access.limits.flapping import FailedLogins, Flapping
from access.limits.strikes import Strikes
from access.limits.takeovers import Takeovers
from conf.addresses import TrustedNetworks

NOBODY = TrustedNetworks()


def take(takeovers: Takeovers, client_id: str, now: float) -> float:
    """Take a client ID over, or return for how long that is refused."""
    refused_s = takeovers.refused_s(client_id, now)
    if not refused_s:
        takeovers.taken(client_id, now)
    return refused_s


def test_fifteen_ends_in_a_minute_keep_the_pair_out_for_five() -> None:
    """The fifteenth end causes it; active at 4:59, over at 5:00."""
    flapping = Flapping(NOBODY)
    brought = [flapping.ended("c", "192.0.2.1", at * 4.0) for at in range(15)]
    assert brought == [False] * 14 + [True]
    assert flapping.refused_s("c", "192.0.2.1", 56.0) == 300.0
    assert flapping.refused_s("c", "192.0.2.1", 355.9) > 0 and not flapping.refused_s("c", "192.0.2.1", 356.0)


def test_an_address_that_is_trusted_is_no_pairs() -> None:
    """All clients behind a proxy share its address: a periodic health check is not refused."""
    flapping = Flapping(TrustedNetworks(["10.0.0.0/8"]))
    assert not any(flapping.ended("c", "10.0.0.1", 0.0) for _ in range(100)) and len(flapping.strikes) == 0
    assert not flapping.refused_s("c", "10.0.0.1", 0.0)


def test_fifteen_ends_in_more_than_a_minute_are_no_flapping() -> None:
    """The window slides: no minute has fifteen."""
    flapping = Flapping(NOBODY)
    assert not any(flapping.ended("c", "192.0.2.1", at * 4.4) for at in range(200))


def test_a_stranger_locks_out_itself_alone() -> None:
    """The same client ID from another address connects; so does another client ID from the same address."""
    flapping = Flapping(NOBODY)
    for at in range(40):
        flapping.ended("owner", "198.51.100.9", at / 10)
    assert flapping.refused_s("owner", "198.51.100.9", 4.0)
    assert not flapping.refused_s("owner", "192.0.2.1", 4.0) and not flapping.refused_s("other", "198.51.100.9", 4.0)


def test_flapping_pairs_do_not_collide() -> None:
    """No client ID can collide with another pair."""
    flapping = Flapping(NOBODY)
    for at in range(15):
        flapping.ended("x", "192.0.2.1", at / 10)
    assert not flapping.refused_s("1x", "192.0.2.", 2.0) and not flapping.refused_s("", "192.0.2.1x", 2.0)
    flapping.ended("\ud800", "192.0.2.1", 0.0)


def test_ten_failed_logins_keep_an_address_out_and_no_user() -> None:
    """All of an IPv6 /64 is one address; a trusted proxy is never counted."""
    logins = FailedLogins(TrustedNetworks(["10.0.0.0/8"]))
    assert [logins.failed(f"2001:db8::{host}", host / 10) for host in range(10)] == [False] * 9 + [True]
    assert logins.refused_s("2001:db8::ffff", 1.0) == pytest.approx(299.9)
    assert not logins.refused_s("2001:db8:0:1::1", 1.0)
    assert not any(logins.failed("10.0.0.1", 0.0) for _ in range(1_000)) and not logins.refused_s("10.0.0.1", 0.0)


def test_a_flood_of_keys_does_not_free_one_that_has_its_penalty() -> None:
    """Keys with one event each only evict each other."""
    strikes = Strikes(3, 60.0, 300.0, keys_max=100)
    assert [strikes.note("bad", 0.0) for _ in range(3)] == [False, False, True]
    for number in range(10_000):
        strikes.note(number, 1.0)
    assert strikes.penalty_s("bad", 1.0) and len(strikes) <= 101 and strikes.dropped == 9_900
    for number in range(101):
        for _ in range(3):
            strikes.note(f"b{number}", 2.0)
    assert not strikes.penalty_s("bad", 2.0) and len(strikes) <= 200  # beyond the bound the one with the earliest end


def test_an_event_during_the_penalty_does_not_lengthen_it() -> None:
    """A client that retries constantly connects after five minutes, and its count restarts."""
    strikes = Strikes(2, 60.0, 300.0, keys_max=10)
    strikes.note("k", 0.0)
    strikes.note("k", 0.0)
    assert not any(strikes.note("k", float(at)) for at in range(300))
    assert not strikes.penalty_s("k", 300.0) and not strikes.note("k", 300.0) and strikes.note("k", 301.0)


def test_old_keys_leave_the_table() -> None:
    """An idle table does not grow, a busy one holds a minute of keys."""
    strikes = Strikes(3, 60.0, 300.0, keys_max=100_000)
    for number in range(3_000):
        strikes.note(number, number / 10)
    assert len(strikes) <= 602 and strikes.dropped == 0
    strikes.forget(2_999)
    assert len(strikes) <= 601


def test_two_clients_with_one_client_id() -> None:
    """Check D12: at most 10 in the first minute, then one per minute; others are not affected."""
    takeovers = Takeovers()
    taken = [at / 10 for at in range(3_000) if not take(takeovers, "loop", at / 10)]
    assert taken[:5] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert 5 < len([at for at in taken if at < 60]) <= 10
    assert all(later - at >= 59 for at, later in pairwise(taken[10:]))
    assert not take(takeovers, "other", 1.0)


def test_a_takeover_now_and_then_is_free() -> None:
    """A roaming device: four per minute for an hour, and after a loop that ended two minutes ago."""
    takeovers = Takeovers()
    assert not any(take(takeovers, "roams", at * 15.0) for at in range(240))
    while take(takeovers, "loop", 0.0) == 0.0:
        pass
    assert take(takeovers, "loop", 1.0) == pytest.approx(1.0)
    assert take(takeovers, "loop", 121.0) == 0.0 and take(takeovers, "loop", 121.1) == 0.0


def test_an_owner_gets_in_within_the_largest_delay() -> None:
    """For any duration of the conflict: a client that retries each second connects once a minute."""
    takeovers = Takeovers()
    for at in range(100_000):
        take(takeovers, "loop", at / 10)
    assert take(takeovers, "loop", 10_000.0) <= 60.0


def test_the_table_of_takeovers_is_bounded() -> None:
    """The client ID with the oldest takeover is evicted."""
    takeovers = Takeovers(keys_max=10)
    for number in range(25):
        take(takeovers, f"c{number}" + "x" * 65_000, 0.0)
    assert len(takeovers) == 10 and takeovers.dropped == 15
    with pytest.raises(ValueError, match="1 or more"):
        Takeovers(free=0)
    with pytest.raises(ValueError, match="above 0"):
        Strikes(0, 1, 1, 1)
