"""A member's metadata about its listeners and its load, within 512 bytes."""

from msgspec import structs

from membership.metadata import CLIENTS_MAX, METADATA_BYTES_MAX, NodeMetadata, metadata_bytes, with_addresses

LINKS = {"links": "10.0.0.1:7949"}


def edge() -> NodeMetadata:
    """Return the metadata of an edge without listeners."""
    return NodeMetadata("e" * 64, "edge", 2**45, LINKS, "zone", 1.0, 3, 0.25)


def test_with_addresses_adds_listeners() -> None:
    """Beside the address of links; the other fields are unchanged."""
    told, left_out = with_addresses(edge(), {"tls": "10.0.0.1:8883", "plain": "10.0.0.1:1883"})
    assert told.addresses == {**LINKS, "tls": "10.0.0.1:8883", "plain": "10.0.0.1:1883"}
    assert (told.clients, told.load, left_out) == (3, 0.25, [])


def test_with_addresses_leaves_out_and_names_the_excess() -> None:
    """Long names, the name of the links' address, and the excess above 512 bytes; the rest is kept."""
    wanted = {f"l{number}": "h" * 90 + ":1883" for number in range(8)}
    wanted |= {"a-name-longer-than-16": "h:1", "links": "h:2", "short": "h:3"}
    told, left_out = with_addresses(edge(), wanted)
    assert told.addresses["links"] == LINKS["links"]
    assert {"a-name-longer-than-16", "links"} <= set(left_out)
    assert set(told.addresses) | set(left_out) == set(wanted)
    assert "short" in told.addresses and "l0" in told.addresses and "l7" in left_out


def test_with_addresses_reserves_space_for_later_values() -> None:
    """The largest number of clients and the longest load still fit."""
    for length in range(60, 97):
        told, _ = with_addresses(edge(), {f"l{number}": "h" * length for number in range(8)})
        assert metadata_bytes(structs.replace(told, clients=CLIENTS_MAX, load=0.99)) <= METADATA_BYTES_MAX
