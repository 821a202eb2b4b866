"""Table 2-4 of MQTT 5.0: property, a value, and the packets that may carry it; copied from the specification,
independent of the code.
"""

from mqtt import PacketType
from mqtt.properties import WILL_PROPERTIES

MESSAGE = "Publish Will"
TABLE = [
    (0x01, 1, MESSAGE),
    (0x02, 7, MESSAGE),
    (0x03, "t", MESSAGE),
    (0x08, "t", MESSAGE),
    (0x09, b"b", MESSAGE),
    (0x0B, [7], "Publish Subscribe"),
    (0x11, 7, "Connect Connack Disconnect"),
    (0x12, "t", "Connack"),
    (0x13, 7, "Connack"),
    (0x15, "t", "Connect Connack Auth"),
    (0x16, b"b", "Connect Connack Auth"),
    (0x17, 1, "Connect"),
    (0x18, 7, "Will"),
    (0x19, 1, "Connect"),
    (0x1A, "t", "Connack"),
    (0x1C, "t", "Connack Disconnect"),
    (0x1F, "t", "Connack Puback Pubrec Pubrel Pubcomp Suback Unsuback Disconnect Auth"),
    (0x21, 7, "Connect Connack"),
    (0x22, 7, "Connect Connack"),
    (0x23, 7, "Publish"),
    (0x24, 1, "Connack"),
    (0x25, 1, "Connack"),
    (
        0x26,
        [("k", "v")],
        "Will Connect Connack Publish Puback Pubrec Pubrel Pubcomp "
        "Subscribe Suback Unsubscribe Unsuback Disconnect Auth",
    ),
    (0x27, 7, "Connect Connack"),
    (0x28, 1, "Connack"),
    (0x29, 1, "Connack"),
    (0x2A, 1, "Connack"),
]
PLACES = {packet_type.name.capitalize(): int(packet_type) for packet_type in PacketType} | {"Will": WILL_PROPERTIES}
