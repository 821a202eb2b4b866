"""Advertised addresses of an edge: never a wildcard."""

import pytest
from pydantic import ValidationError

from conf.edge_settings import ListenerSettings
from edge.listeners.advertised import advertised_addresses
from edge.listeners.listeners import EdgeListener

LOCAL = "127.0.0.1:7949"


def addresses(seen: str, *seeds: str, **settings: str) -> dict[str, str]:
    """Return the addresses of one listener, with P for the bound port."""
    listener = EdgeListener(ListenerSettings(name="plain", port=0, tls=False, **settings))  # type: ignore[arg-type]
    with listener.socket:
        port = listener.socket.getsockname()[1]
        found = advertised_addresses([listener], seen, seeds)
        return {name: address.replace(f":{port}", ":P") for name, address in found.items()}


@pytest.mark.parametrize(
    ("settings", "seen", "seeds", "told"),
    [
        ({"bind": "127.0.0.1"}, "10.0.0.7:7949", (), "127.0.0.1:P"),
        ({"bind": "0.0.0.0"}, "10.0.0.7:7949", (), "10.0.0.7:P"),
        ({"bind": "0.0.0.0"}, "[2001:db8::7]:7949", (), "[2001:db8::7]:P"),
        ({"bind": "0.0.0.0"}, "0.0.0.0:7949", ("127.0.0.9:7947",), "127.0.0.1:P"),
        ({"bind": "0.0.0.0", "advertise": "edge.example:8883"}, LOCAL, (), "edge.example:8883"),
        ({"bind": "0.0.0.0", "advertise": "edge.example:0"}, LOCAL, (), "edge.example:P"),
    ],
)
def test_advertised_address_is_not_a_wildcard(
    settings: dict[str, str], seen: str, seeds: tuple[str, ...], told: str
) -> None:
    """Order: setting, bound host, host of the link address, local host towards a seed."""
    assert addresses(seen, *seeds, **settings) == {"plain": told}


def test_unreachable_seed_gives_no_wildcard() -> None:
    """The listener then has the default route's host, or no address."""
    found = addresses("0.0.0.0:7949", "no-such-host.invalid:7947", bind="0.0.0.0")
    assert not any(address.startswith(("0.0.0.0", "::", ":")) for address in found.values())


WRONG = ["0.0.0.0:1883", "[::]:1883", "edge.example", "edge:port", ":1883", "a:65536", "x" * 99]


@pytest.mark.parametrize("wrong", WRONG)
def test_advertise_rejects_wildcards_and_partial_addresses(wrong: str) -> None:
    with pytest.raises(ValidationError):
        ListenerSettings(name="plain", port=0, tls=False, advertise=wrong)
