"""Bans: one spelling of each, and a lookup time that is independent of their number."""

import time

import pytest

from access.limits.bans import Ban, BanTable, normal_value

PRINT = "ab" * 32


@pytest.mark.parametrize(
    ("kind", "value", "spelling"),
    [
        ("user", "ann", "ann"),
        ("user", "+/#", "+/#"),
        ("client_id", "é", "é"),
        ("address", "::ffff:192.0.2.1", "192.0.2.1"),
        ("address", "2001:DB8::0:1", "2001:db8::1"),
        ("network", "192.0.2.0/24", "192.0.2.0/24"),
        ("network", "192.0.2.7", "192.0.2.7/32"),
        ("certificate", ":".join(["AB"] * 32), PRINT),
    ],
)
def test_a_ban_has_one_spelling(kind: str, value: str, spelling: str) -> None:
    """An address in another notation is banned as well."""
    assert normal_value(kind, value) == spelling == normal_value(kind, spelling)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("user", ""),
        ("user", "x" * 65_536),
        ("user", "\ud800"),
        ("address", "192.0.2.0/24"),
        ("address", "localhost"),
        ("network", "192.0.2.1/24"),
        ("certificate", "ab"),
        ("certificate", PRINT + "\n"),
        ("planet", "earth"),
    ],
)
def test_a_ban_of_nothing_is_refused(kind: str, value: str) -> None:
    """A ban that never applies would give false protection."""
    with pytest.raises(ValueError):
        normal_value(kind, value)


def test_bans_are_found_until_they_end() -> None:
    """By address and network before the chain, by user, client ID and certificate after it."""
    table = BanTable()
    table.put(Ban("address", "::ffff:192.0.2.1", 100.0))
    table.put(Ban("network", "198.51.100.0/24", 100.0))
    table.put(Ban("network", "198.51.0.0/16"))
    table.put(Ban("user", "ann"))
    table.put(Ban("client_id", "c", 50.0))
    table.put(Ban("certificate", PRINT))
    assert table.of_address("192.0.2.1", 99.0) and not table.of_address("192.0.2.1", 100.0)
    found = table.of_address("::ffff:198.51.100.7", 1.0)
    assert found is not None and found.value == "198.51.100.0/24"
    found = table.of_address("198.51.100.7", 100.0)
    assert found is not None and found.value == "198.51.0.0/16"
    assert not table.of_address("203.0.113.1", 1.0) and not table.of_address("no address", 1.0)
    assert table.of_principal("ann", "x", "", 1.0) and table.of_principal("", "c", "", 49.0)
    assert not table.of_principal("", "c", "", 50.0) and table.of_principal("bob", "x", PRINT, 1.0)
    assert not table.of_principal("", "", "", 1.0)
    for kind, value in (("user", "ann"), ("network", "198.51.0.0/16"), ("user", "nobody")):
        table.remove(kind, value)
    assert not table.of_principal("ann", "x", "", 1.0) and not table.of_address("198.51.7.7", 1.0)
    assert len(table) == 4


def test_a_look_up_does_not_depend_on_the_number_of_bans() -> None:
    """Processor time of 2 000 lookups among 20 and among 20 000 networks and addresses."""

    def seconds(bans: int) -> float:
        table = BanTable()
        for number in range(bans):
            table.put(Ban("network", f"10.{number >> 8 & 255}.{number & 255}.0/24"))
            table.put(Ban("address", f"11.{number >> 8 & 255}.{number & 255}.1"))
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            for number in range(2_000):
                table.of_address(f"12.0.{number & 255}.1", 0.0)
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(20_000) < 3 * seconds(20) + 0.005
