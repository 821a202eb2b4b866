"""Settings, seeds, and the advertised address."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from membership.discovery import resolve_seeds
from membership.keyring import KeyRingError, write_key_file
from membership.settings import MembershipSettings, open_key_ring, split_host_port
from membership.sockets import advertised_address

KEY = b"k" * 32


@pytest.mark.parametrize(
    ("text", "default", "expected"),
    [
        ("10.0.0.1:7946", None, ("10.0.0.1", 7946)),
        ("[::1]:0", None, ("::1", 0)),
        ("seed.example", 7946, ("seed.example", 7946)),
        ("::1", 7946, ("::1", 7946)),
        ("[::1]", 7946, ("::1", 7946)),
    ],
)
def test_split_host_port(text: str, default: int | None, expected: tuple[str, int]) -> None:
    """Both address families, with and without port."""
    assert split_host_port(text, default) == expected


@pytest.mark.parametrize("text", ("", "host", ":1", "host:", "host:x", "host:70000", "host:-1", "::1", "host:¹"))
def test_split_host_port_refuses_malformed_text(text: str) -> None:
    """Refused at start, not at the first packet."""
    with pytest.raises(ValueError, match="host:port"):
        split_host_port(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bind": "nowhere"},
        {"cluster": "a b"},
        {"cluster": ""},
        {"profile": "moon"},
        {"seeds": ["x:y"]},
        {"seeds": ["h:1"] * 65},
        {"key_file": "a", "key_fd": 3},
        {"key": "c2VjcmV0"},  # keys are never part of a configuration
        {"seed_resolve_interval_s": 0},
        {"unknown": 1},
    ],
)
def test_membership_settings_refuse_wrong_values(wrong: dict[str, object]) -> None:
    """Bounds, and no unknown keys."""
    with pytest.raises(ValidationError):
        MembershipSettings(**wrong)  # type: ignore[arg-type]


def test_gossip_never_runs_unsealed() -> None:
    """Without a key source there is no key ring."""
    with pytest.raises(KeyRingError, match="key_file"):
        open_key_ring(MembershipSettings())


def test_key_sources(tmp_path: Path) -> None:
    """A file, or a descriptor."""
    path = tmp_path / "keys"
    write_key_file(path, [KEY])
    assert open_key_ring(MembershipSettings(key_file=path)).keys == [KEY]
    assert open_key_ring(MembershipSettings(key_fd=os.open(path, os.O_RDONLY))).keys == [KEY]


def test_advertised_address() -> None:
    """The configured one, else the bound host, else the local address towards the seeds."""
    assert advertised_address(("127.0.0.1", 5), None, None) == ("127.0.0.1", 5)
    assert advertised_address(("0.0.0.0", 5), None, "10.0.0.7") == ("10.0.0.7", 5)
    assert advertised_address(("0.0.0.0", 5), ("1.2.3.4", 0), None) == ("1.2.3.4", 5)
    with pytest.raises(ValueError, match="advertise"):
        advertised_address(("::", 5), None, None)


async def test_resolve_seeds_by_address_and_name() -> None:
    """Names may have several addresses; unresolved ones are returned by name, and the rest is used."""
    found, failed = await resolve_seeds(("127.0.0.1:9", "localhost:9", "no-such-host.invalid:9", "127.0.0.1"))
    assert ("127.0.0.1", 9) in found and ("127.0.0.1", 7946) in found
    assert failed == ["no-such-host.invalid:9"]
    assert list(found) == sorted(set(found))
