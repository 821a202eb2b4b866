"""Circuit breaker and cache of a callout server, and daily quotas."""

import math
import random

import pytest

from access.limits.answer_cache import AnswerCache
from access.limits.breaker import Breaker
from access.limits.quotas import DailyBytes

SECRET = bytes(32)


def failed(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.done(breaker.ask(now), False, now)


def test_five_failures_in_ten_seconds_open_for_five() -> None:
    """Then one probe is sent; its success closes, its failure opens again."""
    breaker = Breaker()
    failed(breaker, 4, 0.0)
    assert breaker.closed
    failed(breaker, 1, 10.0)
    assert not breaker.closed and not breaker.ask(14.9)
    probe = breaker.ask(15.0)
    assert probe and not breaker.ask(15.0)
    breaker.done(probe, False, 16.0)
    assert not breaker.ask(20.9)
    probe = breaker.ask(21.0)
    breaker.done(probe, True, 21.1)
    assert breaker.closed and breaker.ask(21.1) and breaker.opened == 2
    failed(breaker, 4, 21.2)
    assert breaker.closed


def test_failures_that_lie_apart_open_nothing() -> None:
    """Five in more than ten seconds; a success between them removes none of them."""
    breaker = Breaker()
    for at in range(100):
        failed(breaker, 1, at * 2.6)
        breaker.done(breaker.ask(at * 2.6), True, at * 2.6)
    assert breaker.closed and not breaker.opened
    failed(breaker, 3, 300.0)
    breaker.done(breaker.ask(300.0), True, 300.0)
    failed(breaker, 2, 300.0)
    assert not breaker.closed


def test_breaker_ignores_late_results() -> None:
    """Requests from before it opened end while it is open, while the probe runs, and after it closed again."""
    breaker = Breaker()
    late = [breaker.ask(0.0) for _ in range(30)]
    failed(breaker, 5, 0.0)
    breaker.done(late.pop(), True, 1.0)
    assert not breaker.closed
    probe = breaker.ask(5.0)
    breaker.done(late.pop(), True, 5.5)
    assert not breaker.closed and not breaker.ask(6.0)
    breaker.done(probe, True, 6.0)
    for permit in late:
        breaker.done(permit, False, 6.1)
    assert breaker.closed


def test_breaker_probe_without_result_is_replaced() -> None:
    """A cancelled task must not leave it open forever; the old probe's result is ignored."""
    breaker = Breaker()
    failed(breaker, 5, 0.0)
    first = breaker.ask(5.0)
    assert not breaker.ask(9.9)
    second = breaker.ask(10.0)
    breaker.done(first, True, 10.1)
    assert second and not breaker.closed
    breaker.done(second, True, 10.2)
    assert breaker.closed
    with pytest.raises(ValueError, match="above 0"):
        Breaker(failures=0)


def test_an_answer_is_kept_as_long_as_it_says_and_never_longer_than_five_minutes() -> None:
    """Positive ones by their max-age, negative ones for 5 s."""
    cache: AnswerCache[str] = AnswerCache(SECRET)
    key = cache.key([b"ann", b"password"])
    for max_age_s, kept_s in ((60.0, 60.0), (1e9, 300.0), (math.inf, 300.0), (0.5, 0.5)):
        assert cache.put(key, "allow", 0.0, positive=True, max_age_s=max_age_s, ticket=cache.ticket)
        assert cache.get(key, kept_s * 0.99) == "allow" and cache.get(key, kept_s) is None
    for none in (None, 0.0, -5.0, math.nan):
        assert not cache.put(key, "allow", 0.0, positive=True, max_age_s=none, ticket=cache.ticket)
        assert cache.put(key, "deny", 0.0, positive=False, max_age_s=none, ticket=cache.ticket)
        assert cache.get(key, 4.9) == "deny" and cache.get(key, 5.0) is None
    cache.put(key, "deny", 0.0, positive=False, max_age_s=1e9, ticket=cache.ticket)
    assert cache.get(key, 5.0) is None


def test_cache_keys_are_distinct_and_contain_no_password() -> None:
    """By length as well; the cache stores digests with the process's secret."""
    cache: AnswerCache[str] = AnswerCache(SECRET)
    assert cache.key([b"ab", b"c"]) != cache.key([b"a", b"bc"]) != cache.key([b"abc"])
    assert cache.key([b"a"]) != AnswerCache[str](bytes(31) + b"1").key([b"a"])
    cache.put(cache.key([b"ann", b"hunter2"]), "allow", 0.0, positive=True, max_age_s=60, ticket=0)
    assert "hunter2" not in repr(vars(cache))
    with pytest.raises(ValueError, match="16 bytes"):
        AnswerCache(b"short")


def test_an_answer_from_before_a_change_of_rights_is_not_kept() -> None:
    """The server allowed, then rights changed, then the response arrived."""
    cache: AnswerCache[str] = AnswerCache(SECRET)
    key, ticket = cache.key([b"ann"]), cache.ticket
    cache.clear()
    assert not cache.put(key, "allow", 0.0, positive=True, max_age_s=60, ticket=ticket)
    assert cache.get(key, 0.0) is None
    assert cache.put(key, "allow", 0.0, positive=True, max_age_s=60, ticket=cache.ticket)


def test_the_cache_is_bounded() -> None:
    """The oldest responses are evicted."""
    cache: AnswerCache[int] = AnswerCache(SECRET, answers_max=50)
    for number in range(120):
        key = cache.key([str(number).encode()])
        cache.put(key, number, 0.0, positive=True, max_age_s=60, ticket=0)
    assert len(cache) == 50 and cache.dropped == 70 and cache.get(cache.key([b"119"]), 1.0) == 119


def test_quota_resets_at_midnight_utc() -> None:
    """Refused bytes are not counted; setting the clock back gives no second day."""
    quota = DailyBytes()
    day = 86_400.0
    assert (
        quota.spend("ann", 60, 100, day) and not quota.spend("ann", 41, 100, day) and quota.spend("ann", 40, 100, day)
    )
    assert quota.left("ann", 100, day) == 0 and quota.left("bob", 100, day) == 100
    assert not quota.spend("ann", 1, 100, 2 * day - 1)
    assert quota.left("ann", 100, 2 * day) == 100 and quota.spend("ann", 100, 100, 2 * day)
    assert not quota.spend("ann", 1, 100, day) and not quota.spend("ann", -5, 100, 2 * day)


def test_quotas_never_let_more_through_than_they_say() -> None:
    """Random amounts of random users, against a sum."""
    random_ = random.Random(3)
    quota, sums = DailyBytes(), {"a": 0, "b": 0}
    for _ in range(2_000):
        user, octets = random_.choice("ab"), random_.randint(0, 300)
        if quota.spend(user, octets, 10_000, 5.0):
            sums[user] += octets
    assert max(sums.values()) <= 10_000 < min(sums.values()) + 300


def test_the_table_of_quotas_is_bounded() -> None:
    """The least recently active user is evicted."""
    quota = DailyBytes(users_max=3)
    for user in "abcad":
        quota.spend(user, 10, 100, 5.0)
    assert quota.dropped == 1 and quota.left("b", 100, 5.0) == 100 and quota.left("a", 100, 5.0) == 80
    with pytest.raises(ValueError, match="at least one user"):
        DailyBytes(0)
