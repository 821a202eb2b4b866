"""The will of a CONNECT in the form that its partition stores, with the client's data for firing it later.

The client and its edge may no longer exist then: the limits of its user, its address and its certificate are copied.
Decision: docs/adr/0209-wills-carry-their-clients-place.md.
"""

from edge.clients.client import Client
from mqtt.properties import PropertyId
from mqtt.properties import encode_properties as encode_block
from wire.messages.wills import ADDRESS_CHARS_MAX, SessionWill

__all__ = ["will_of"]

NO_EXPIRY_INTERVAL = 0xFFFFFFFF


def will_of(client: Client) -> SessionWill | None:
    """Return the will of an authenticated client, None for none."""
    packet, bounds = client.connect, client.known_bounds
    will = packet.will if packet is not None else None
    if will is None:
        return None
    properties = dict(will.properties)
    delay_s = int(properties.pop(PropertyId.WILL_DELAY_INTERVAL, 0))  # type: ignore[call-overload]
    expiry_s = int(properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, NO_EXPIRY_INTERVAL))  # type: ignore[call-overload]
    block = _without_length(encode_block(properties)) if properties else b""
    return SessionWill(
        will.topic_name,
        will.payload,
        will.qos,
        will.retain,
        block,
        delay_s,
        expiry_s,
        bounds.retained_user_max,
        bounds.retained_bytes_user_max,
        client.seat.address[:ADDRESS_CHARS_MAX] if client.seat is not None else "",
        client.principal.fingerprint if client.principal is not None else "",
    )


def _without_length(block: bytes) -> bytes:
    """Strip the varint length of a property block."""
    at = 0
    while block[at] & 0x80:
        at += 1
    return block[at + 1 :]
