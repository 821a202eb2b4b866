"""Metadata that a member publishes about itself: tier, addresses, zone, weight, load, version, process incarnation.

The bound is 512 encoded bytes, so that two of them fit one packet. The ClusterMap interprets the fields for placement;
gossip only carries them.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

__all__ = ["METADATA_BYTES_MAX", "Name", "NodeMetadata", "encode_metadata", "metadata_bytes", "with_addresses"]

METADATA_BYTES_MAX = 512  # encoded; two alive messages and the envelope stay below 1 400 bytes
CLIENTS_MAX = 2**31 - 1

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# Printable ASCII, because all text here is shown in operators' terminals.
_PRINTABLE = r"^[ -~]*$"
Purpose = Annotated[str, msgspec.Meta(min_length=1, max_length=16, pattern=_PRINTABLE)]
# A count of starts, or milliseconds since 1970; the first SWIM incarnation of a process is derived from it.
ProcessIncarnation = Annotated[int, msgspec.Meta(ge=0, le=2**46 - 1)]
HostPort = Annotated[str, msgspec.Meta(min_length=1, max_length=96, pattern=_PRINTABLE)]


class NodeMetadata(msgspec.Struct, frozen=True, array_like=True):
    """One member's metadata; only that member changes it, and each change raises its SWIM incarnation."""

    name: Name  # the node's name, unique in the cluster
    tier: Annotated[str, msgspec.Meta(min_length=1, max_length=16, pattern=_PRINTABLE)]  # edge, router, storage
    process_incarnation: ProcessIncarnation  # identifies a start of the process; higher is newer
    addresses: Annotated[dict[Purpose, HostPort], msgspec.Meta(max_length=8)] = {}
    zone: Annotated[str, msgspec.Meta(max_length=32, pattern=_PRINTABLE)] = ""
    weight: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0  # relative share of placement
    clients: Annotated[int, msgspec.Meta(ge=0, le=CLIENTS_MAX)] | None = None  # connections; None: serves no clients
    load: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # with two digits; 1: full, or busy all the time


def metadata_bytes(metadata: NodeMetadata) -> int:
    """Return the encoded size, to check decoded metadata against METADATA_BYTES_MAX."""
    return len(_encoder.encode(metadata))


_encoder = msgspec.msgpack.Encoder(order="sorted")
_decoder = msgspec.msgpack.Decoder(NodeMetadata)


def encode_metadata(metadata: NodeMetadata) -> bytes:
    """Encode metadata and check all its bounds.

    Raises:
        ValueError: A field is outside its bounds, or the whole exceeds METADATA_BYTES_MAX bytes.
    """
    encoded = _encoder.encode(metadata)
    if len(encoded) > METADATA_BYTES_MAX:
        raise ValueError(f"metadata of {metadata.name} takes {len(encoded)} bytes, more than {METADATA_BYTES_MAX}")
    try:
        _decoder.decode(encoded)  # msgspec checks bounds when it decodes, not when a struct is made
    except msgspec.ValidationError as error:
        raise ValueError(f"metadata of {metadata.name}: {error}") from None
    return encoded


def with_addresses(metadata: NodeMetadata, addresses: Mapping[str, str]) -> tuple[NodeMetadata, list[str]]:
    """Add addresses by purpose, as many as fit, in the order of their names.

    The size of the largest ``clients`` is reserved, so that no later value displaces an address.

    Returns:
        The metadata, and the names that did not fit.
    """
    left_out = []
    for name in sorted(addresses):
        larger = msgspec.structs.replace(
            metadata, addresses={**metadata.addresses, name: addresses[name]}, clients=CLIENTS_MAX
        )
        try:
            if name in metadata.addresses:
                raise ValueError(name)
            encode_metadata(larger)
        except ValueError:
            left_out.append(name)
        else:
            metadata = msgspec.structs.replace(larger, clients=metadata.clients)
    return metadata, left_out
