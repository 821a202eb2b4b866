"""MQTT 3.1, 3.1.1 and 5.0 as a library without I/O: packets and their bytes, topics, small session state.

It imports no other package of the broker and may be used on its own:

    decoder = StreamDecoder(connect_first=True, limits=Limits(from_client=True))
    for packet in decoder.feed(data): ...
    reply = encode_packet(Connack(), decoder.protocol_version)
"""

from mqtt.codec import (
    Limits,
    StreamDecoder,
    decode_packet,
    decode_varint,
    encode_packet,
    encode_publish,
    encode_varint,
)
from mqtt.errors import LocalProtocolError, MalformedPacket, MqttError, RemoteProtocolError
from mqtt.packet_identifiers import PacketIdentifiers
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt.properties import Properties, PropertyId, decode_properties, encode_properties
from mqtt.reasons import ConnectReturnCode, PacketType, ReasonCode, connect_return_code
from mqtt.topics import (
    is_reserved,
    levels,
    matches,
    parse_shared,
    validate_topic_filter,
    validate_topic_name,
)

# The trie and the index are imported from their modules: the trie is compiled, and library users may not need it.
__all__ = [
    "Auth",
    "Connack",
    "Connect",
    "ConnectReturnCode",
    "Disconnect",
    "Limits",
    "LocalProtocolError",
    "MalformedPacket",
    "MqttError",
    "Packet",
    "PacketIdentifiers",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "PropertyId",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "RemoteProtocolError",
    "StreamDecoder",
    "Suback",
    "Subscribe",
    "SubscriptionRequest",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "connect_return_code",
    "decode_packet",
    "decode_properties",
    "decode_varint",
    "encode_packet",
    "encode_properties",
    "encode_publish",
    "encode_varint",
    "is_reserved",
    "levels",
    "matches",
    "parse_shared",
    "validate_topic_filter",
    "validate_topic_name",
]
