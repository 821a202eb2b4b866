"""Limits of a receiver, beyond what the specification allows.

Only bounds that must hold while a packet is being decoded; limits on topics, sessions and rates are the broker's.
"""

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "PACKET_BYTES_MAX", "Limits"]

PACKET_BYTES_MAX = 268_435_455 + 5  # longest remaining length, and the fixed header before it (section 2.1.4)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one receiver; the defaults are those of the specification.

    Attributes:
        maximum_packet_size: Bytes of a whole packet, fixed header included; more is 0x95.
        first_packet_bytes_max: The same for the first packet of a connection, before authentication.
        user_properties_bytes_max: Bytes of all names and values of one packet (a will counts by itself); more is 0x97.
        user_properties_max: How many of them; more is 0x97.
        subscriptions_max: Topic filters in one SUBSCRIBE or UNSUBSCRIBE; more is 0x97.
        from_client: The peer is a client: refuse packets and codes that only a server may send.
        control_characters: Accept U+0001..U+001F, U+007F..U+009F and non-characters, which section 1.5.4 lets a
            receiver refuse.
    """

    maximum_packet_size: int = PACKET_BYTES_MAX
    first_packet_bytes_max: int = PACKET_BYTES_MAX
    user_properties_bytes_max: int = PACKET_BYTES_MAX
    user_properties_max: int = PACKET_BYTES_MAX
    subscriptions_max: int = PACKET_BYTES_MAX
    from_client: bool = False
    control_characters: bool = False


DEFAULT_LIMITS = Limits()
