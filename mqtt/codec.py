"""Entry point to decoding and encoding of packets, for other packages.

The parts are in ``mqtt/decode.py`` and ``mqtt/decode_connect.py`` (packets from bytes), ``mqtt/encode.py`` (bytes from
packets), ``mqtt/stream_decoder.py`` (framing), ``mqtt/data_types.py`` (integers and strings).
"""

from mqtt.data_types import decode_varint, encode_varint
from mqtt.decode import check_first_byte, decode_packet
from mqtt.encode import encode_packet, encode_publish
from mqtt.limits import DEFAULT_LIMITS, Limits
from mqtt.stream_decoder import StreamDecoder

__all__ = [
    "DEFAULT_LIMITS",
    "Limits",
    "StreamDecoder",
    "check_first_byte",
    "decode_packet",
    "decode_varint",
    "encode_packet",
    "encode_publish",
    "encode_varint",
]
