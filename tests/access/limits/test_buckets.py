"""Token buckets, and the keys of addresses."""

import random

import pytest

from access.limits.buckets import AddressBuckets, Buckets
from conf.addresses import Networks, TrustedNetworks, address_key, parse_network


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("localhost", ""),
        ("1.2.3.4\x00", ""),
        ("9" * 10_000, ""),
    ],
)
def test_an_address_counts_under_its_network(address: str, key: str) -> None:
    """IPv4 alone, IPv6 with its /64; texts that are not addresses share one key, so they do not escape a limit."""
    assert address_key(address) == key


def test_a_network_look_up_finds_the_longest_prefix_first() -> None:
    """It takes a step for each prefix length, not for each network."""
    networks: Networks[str] = Networks()
    for number in range(20_000):
        networks.put(f"10.{number >> 8}.{number & 255}.0/24", f"n{number}")
    networks.put("10.0.0.0/8", "eight")
    networks.put("::ffff:192.0.2.0/120", "mapped")
    networks.put("2001:db8::/32", "six")
    assert list(networks.covering("10.0.5.9")) == ["n5", "eight"]
    assert list(networks.covering("192.0.2.77")) == ["mapped"]
    assert list(networks.covering("2001:db8:1::1")) == ["six"]
    assert not list(networks.covering("11.0.0.1")) and not list(networks.covering("nothing"))
    networks.remove("10.0.0.0/8")
    networks.remove("10.0.0.0/8")
    assert list(networks.covering("10.0.5.9")) == ["n5"]


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "x", "10.0.0.0/8 ", "1\n2", "::/129"])
def test_a_text_that_is_no_network_is_refused_in_one_line(text: str) -> None:
    """Bits after the prefix are a mistake with two possible meanings."""
    with pytest.raises(ValueError, match="is not a network") as caught:
        parse_network(text)
    assert "\n" not in str(caught.value)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    """At most burst + rate * time in any interval, and no less for a constantly active client."""
    buckets = Buckets(rate=50, burst=10)
    taken = [at / 1000 for at in range(5_000) if buckets.take("a", at / 1000)]
    assert len([at for at in taken if at < 0.001]) == 1 and len([at for at in taken if at < 0.011]) == 10
    assert 10 + 50 * 5 - 2 <= len(taken) <= 10 + 50 * 5
    assert buckets.take("b", 4.9)
    assert buckets.wait_s("a", 5.0, 10) == pytest.approx(0.2, abs=0.03)


def test_a_bucket_keeps_its_bound_however_it_is_asked() -> None:
    """A model with tokens, random times and amounts; a clock that stops or goes back adds no tokens."""
    random_ = random.Random(7)
    for _ in range(50):
        rate, burst = random_.uniform(0.5, 100), random_.randint(1, 50)
        buckets, tokens, now, last = Buckets(rate, burst), float(burst), 0.0, 0.0
        for _ in range(300):
            now += random_.choice([0.0, 0.0, 1e-6, 0.01, 1.0]) * random_.random()
            tokens, last = min(burst, tokens + (now - last) * rate), now
            amount = random_.choice([1, 1, 2, burst])
            taken = buckets.take("k", now, amount)
            if abs(tokens - amount) > 1e-6:
                assert taken == (tokens >= amount)
            tokens -= amount if taken else 0
        assert not buckets.take("k", now - 100, burst + 1)


def test_book_returns_time_until_token() -> None:
    """A burst at once, then one after the other, each at its time."""
    buckets = Buckets(rate=10, burst=2)
    assert [round(buckets.book("k", 0.0, 9.0), 3) for _ in range(5)] == [0, 0, 0.1, 0.2, 0.3]
    assert buckets.book("k", 0.35, 9.0) == pytest.approx(0.05) and buckets.book("other", 0.35, 9.0) == 0
    assert buckets.book("k", 9.0, 9.0) == 0
    for _ in range(1_000):
        assert buckets.book("k", 9.0, 2.0) <= 2.0, "who takes without end makes others wait without end"
    assert buckets.book("k", 12.0, 2.0) == 0


def test_the_table_is_bounded_and_drops_the_oldest() -> None:
    """At most 100 000 addresses; an active one stays refused during a flood of others."""
    buckets = Buckets(rate=0.001, burst=1, keys_max=1_000)
    assert buckets.take("attacker", 0.0)
    for number in range(5_000):
        assert buckets.take(f"k{number}", 0.0)
        assert not buckets.take("attacker", 0.0)
    assert len(buckets) == 1_000 and buckets.dropped == 4_001
    assert not buckets.take("k4999", 0.0) and buckets.take("k0", 0.0)


def test_full_buckets_leave_the_table() -> None:
    """Keys are removed as fast as others are added, without a full scan."""
    buckets = Buckets(rate=1, burst=1, keys_max=100_000)
    for number in range(1_000):
        buckets.take(number, 0.0)
    for number in range(1_000, 1_600):
        buckets.take(number, 10.0)
    assert len(buckets) <= 601 and buckets.dropped == 0


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (float("inf"), 1), (float("nan"), 1), (1, 0)])
def test_a_rate_that_is_none_makes_no_bucket(rate: float, burst: float) -> None:
    """A limit that admits all clients must not exist."""
    with pytest.raises(ValueError, match="finite"):
        Buckets(rate, burst)


def test_trusted_proxies_are_never_counted() -> None:
    """Many clients share their address; every other address counts with its /64."""
    trusted = TrustedNetworks(["10.0.0.0/8", "2001:db8:ff::/48"])
    buckets = AddressBuckets(Buckets(rate=1, burst=2), trusted)
    assert all(buckets.take("10.1.2.3", 0.0) and buckets.take("2001:db8:ff::1", 0.0) for _ in range(100))
    assert [buckets.take(f"2001:db8::{host}", 0.0) for host in range(4)] == [True, True, False, False]
    assert "10.1.2.3" in trusted and "11.0.0.1" not in trusted and 7 not in trusted
    assert buckets.dropped == 0
