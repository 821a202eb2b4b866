"""Time to decode and encode single packets with the codec of the slow path: python bench/codec.py

The bar: CONNECT and SUBSCRIBE decoded in under 15 us. PUBLISH and acknowledgements have a hot path of their own.
"""

import statistics
import sys
import timeit
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mqtt import (
    Connect,
    Packet,
    PropertyId,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
    decode_packet,
    encode_packet,
)

NUMBER, REPEAT = 20_000, 5

CASES: list[tuple[str, int, Packet]] = [
    ("CONNECT 3.1.1", 4, Connect("client-0001", True, 60, 4)),
    ("CONNECT 3.1.1, user, will", 4, Connect("c", True, 60, 4, Will("w/t", b"x", 1), "user", b"secret")),
    ("CONNECT 5, 2 properties", 5, Connect("c", properties={PropertyId.RECEIVE_MAXIMUM: 20, 0x11: 60})),
    (
        "CONNECT 5, will, 6 properties",
        5,
        Connect(
            "c",
            will=Will("w/t", b"x", 1, properties={PropertyId.WILL_DELAY_INTERVAL: 5}),
            username="user",
            password=b"secret",
            properties={0x11: 60, 0x21: 20, 0x22: 10, PropertyId.USER_PROPERTY: [("a", "b"), ("c", "d")]},
        ),
    ),
    ("SUBSCRIBE 5, 1 filter", 5, Subscribe(1, [SubscriptionRequest("a/+/c", 1)])),
    ("SUBSCRIBE 5, 8 filters", 5, Subscribe(1, [SubscriptionRequest(f"a/{n}/+", 1) for n in range(8)])),
    ("PUBLISH 5, QoS 1, 64 B", 5, Publish("a/b/c", bytes(64), 1, packet_identifier=7)),
    ("PUBACK 5", 5, Puback(7)),
]


def main() -> None:
    for name, version, packet in CASES:
        raw = encode_packet(packet, version)
        body = raw[2:]  # all of these are shorter than 128 bytes
        assert len(raw) < 130 and decode_packet(raw[0], body, version) == packet
        decode = timeit.Timer(partial(decode_packet, raw[0], body, version))
        encode = timeit.Timer(partial(encode_packet, packet, version))
        times = [statistics.median(timer.repeat(REPEAT, NUMBER)) / NUMBER * 1e6 for timer in (decode, encode)]
        print(f"{name:32} decode {times[0]:5.2f} us   encode {times[1]:5.2f} us")


if __name__ == "__main__":
    main()
