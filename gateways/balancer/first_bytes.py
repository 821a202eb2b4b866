"""Reader of the first bytes of a connection: one CONNECT within bounds, or the reason of the refusal.

The bytes are not changed. Pure.
"""

from mqtt.decode_connect import decode_connect
from mqtt.errors import MqttError
from mqtt.limits import Limits
from mqtt.packets import Connect

__all__ = ["WrongFirstBytes", "bytes_wanted", "read_connect"]

CONNECT = 0x10
LENGTH_BYTES_MAX = 4


class WrongFirstBytes(ValueError):
    """The bytes are no CONNECT; the text is the reason label of a counter."""


def bytes_wanted(data: bytes | bytearray, bytes_max: int) -> int:
    """Return how many bytes must be present before the next parse; at most ``len(data)`` means parse now.

    Raises:
      WrongFirstBytes: They begin no CONNECT, or one that is too large.
    """
    if not data:
        return 1
    if data[0] != CONNECT:
        raise WrongFirstBytes("not_mqtt")
    length, at = 0, 1
    while True:
        if at > LENGTH_BYTES_MAX:
            raise WrongFirstBytes("malformed")
        if at == len(data):
            return at + 1
        length |= (data[at] & 0x7F) << (7 * (at - 1))
        at += 1
        if data[at - 1] < 0x80:
            break
    if at + length > bytes_max:
        raise WrongFirstBytes("too_large")
    return at + length


def read_connect(data: bytes | bytearray, bytes_max: int) -> Connect | None:
    """Return the CONNECT at the beginning of the received bytes, None while it is incomplete.

    Raises:
      WrongFirstBytes: They begin no CONNECT, or one that is too large.
    """
    end = bytes_wanted(data, bytes_max)
    if len(data) < end:
        return None
    head = 1
    while data[head] >= 0x80:
        head += 1
    try:
        return decode_connect(CONNECT, bytes(data[head + 1 : end]), Limits(maximum_packet_size=bytes_max))
    except MqttError:
        raise WrongFirstBytes("malformed") from None
