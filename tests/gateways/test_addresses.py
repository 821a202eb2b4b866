"""Addresses of brokers, Server References, and retry delays."""

from random import Random

import pytest

from gateways.addresses import HOPS_MAX, Address, ReferenceRefused, follow_reference, parse_address, validate_reach
from gateways.retry_delay import DELAY_MAX_S, DELAY_MIN_S, RetryDelay

GOOD = [
    ("mqtts://e0.example:8884", Address("mqtts", "e0.example", 8884)),
    ("mqtts://e0.example", Address("mqtts", "e0.example", 8883)),
    ("e0.example", Address("mqtt", "e0.example", 1883)),
    ("127.0.0.1:1884", Address("mqtt", "127.0.0.1", 1884)),
    ("mqtt://[::1]:1884", Address("mqtt", "::1", 1884)),
    ("ws://broker:8083", Address("ws", "broker", 8083, "/mqtt")),
    ("wss://broker/other", Address("wss", "broker", 443, "/other")),
]
BAD = [
    "http://broker",
    "mqtt://",
    "mqtt://a:0",
    "mqtt://a:70000",
    "mqtt://user:secret@a",
    "mqtt://a/path",
    "ws://a/b?c=d",
]


@pytest.mark.parametrize(("text", "address"), GOOD)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", BAD)
def test_parse_address_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


SECURE, PLAIN = parse_address("mqtts://a"), parse_address("mqtt://a")
REFERENCES = [
    (SECURE, "b:8883", parse_address("mqtts://b")),
    (SECURE, "mqtts://b c", parse_address("mqtts://b")),
    (SECURE, "wss://b", parse_address("wss://b")),
    (SECURE, "mqtt://b", None),  # never from TLS to plain
    (SECURE, "ws://b", None),
    (PLAIN, "b:1884", parse_address("mqtt://b:1884")),
    (PLAIN, "mqtts://b", parse_address("mqtts://b")),
    (PLAIN, "mqtt://a:1883", None),  # the present address
    (PLAIN, "", None),
    (PLAIN, "   ", None),
    (PLAIN, "http://b", None),
]


@pytest.mark.parametrize(("present", "reference", "followed"), REFERENCES)
def test_references(present: Address, reference: str, followed: Address | None) -> None:
    """MQTT 5.0 section 4.11."""
    if followed is not None:
        assert follow_reference(reference, present, HOPS_MAX - 1, hosts=("*",)) == followed
    for hops in (0, HOPS_MAX) if followed is None else (HOPS_MAX,):
        with pytest.raises(ReferenceRefused):
            follow_reference(reference, present, hops, hosts=("*",))


@pytest.mark.parametrize(
    ("hosts", "reference", "is_followed"),
    [
        ((), "b", False),
        (("b",), "b", True),
        (("B",), "b:1999", True),
        (("b:1999",), "B:1999", True),
        (("b:1999",), "b:1998", False),
        (("b",), "b.evil.example", False),
        (("b.example",), "b.example@evil", False),
        (("::1",), "[::1]:1999", True),
        (("[::1]:1999",), "[::1]:1999", True),
        ((), "own:1884", True),  # an address of the settings
        ((), "own:1885", False),
    ],
)
def test_follow_reference_only_to_listed_hosts(hosts: tuple[str, ...], reference: str, is_followed: bool) -> None:
    """Otherwise a broker could direct the bridge's password to any host."""
    configured = (PLAIN, parse_address("mqtt://own:1884"))
    if is_followed:
        follow_reference(reference, PLAIN, 0, configured=configured, hosts=hosts)
    else:
        with pytest.raises(ReferenceRefused):
            follow_reference(reference, PLAIN, 0, configured=configured, hosts=hosts)


INSIDE: tuple[str, ...] = (
    "127.0.0.1",
    "::1",
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "169.254.169.254",
    "fe80::1%eth0",
    "fd00::1",
)
INSIDE += ("100.64.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1")


@pytest.mark.parametrize("target", INSIDE)
def test_validate_reach_public_broker_refuses_private_address(target: str) -> None:
    """Neither alone nor beside a public one: a host name may have both."""
    for sender in ("198.41.0.4", "2001:503:ba3e::2:30", "::ffff:198.41.0.4"):
        for targets in ((target,), ("198.41.0.5", target)):
            with pytest.raises(ReferenceRefused):
                validate_reach(sender, targets)
        validate_reach(sender, ("198.41.0.5", "2001:503:ba3e::2:30"))
    validate_reach("127.0.0.1", (target, "198.41.0.5"))  # a private broker may refer to listed private hosts


def test_retry_delay_is_random_and_bounded() -> None:
    delay = RetryDelay(Random(1))
    delays = [delay.next() for _ in range(200)]
    assert all(DELAY_MIN_S <= each <= DELAY_MAX_S for each in delays)
    assert delays[0] == DELAY_MIN_S and max(delays) == DELAY_MAX_S and len(set(delays)) > 100
    delay.reset()
    assert delay.next() == DELAY_MIN_S
