"""Fuzz target of the decoder: any bytes give packets or RemoteProtocolError, and never anything else.

What is decoded must also be the same however the stream is cut, and must survive being written and read again.
With atheris installed, ``python tests/fuzz/fuzz_decoder.py [corpus]`` is guided by coverage; without it the same
command mutates golden packets for a minute. ``tests/fuzz/test_fuzz_decoder.py`` runs two seconds of that with a fixed
seed.
"""

import importlib
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mqtt import Connect, Limits, Packet, RemoteProtocolError, StreamDecoder, encode_packet
from tests.mqtt.test_vectors import ALL

LIMITS = Limits(
    maximum_packet_size=70_000, first_packet_bytes_max=70_000, user_properties_bytes_max=8192, subscriptions_max=100
)
CORPUS = [vector.raw for vector in ALL]


def decode(stream: bytes, version: int, connect_first: bool, cuts: list[int]) -> tuple[list[Packet], int | None]:
    """Feed a stream in pieces; return its packets and the reason code that ended it."""
    decoder = StreamDecoder(version, LIMITS, connect_first=connect_first)
    packets: list[Packet] = []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            packets += decoder.feed(stream[start:end])
        if decoder.error is not None:
            raise decoder.error
    except RemoteProtocolError as error:
        return packets, error.reason_code
    assert len(decoder) <= LIMITS.maximum_packet_size
    return packets, None


def check(data: bytes) -> None:
    """One case: the first byte chooses version, mode and how to cut what follows."""
    if not data:
        return
    choice, stream = data[0], data[1:]
    version, connect_first = (3, 4, 5)[choice % 3], bool(choice & 0x40)
    step = choice % 7 + 1
    whole = decode(stream, version, connect_first, [])
    assert decode(stream, version, connect_first, list(range(step, len(stream), step))) == whole
    spoken = version
    for packet in whole[0]:
        if isinstance(packet, Connect):
            spoken = packet.protocol_version
        written = encode_packet(packet, spoken)
        again = StreamDecoder(spoken, LIMITS).feed(written)
        assert again == [packet], (packet, again)


def mutate(rng: random.Random) -> bytes:
    """Return one to three golden packets, damaged in up to five places."""
    stream = bytearray(b"".join(rng.choice(CORPUS) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.randint(0, 5)):
        if not stream:
            break
        at = rng.randrange(len(stream))
        damage = rng.randrange(5)
        if damage == 0:
            stream[at] = rng.randrange(256)
        elif damage == 1:
            stream[at] ^= 1 << rng.randrange(8)
        elif damage == 2:
            stream.insert(at, rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))))
        elif damage == 3:
            del stream[at : at + rng.randint(1, 4)]
        else:
            stream[at:at] = stream[at : at + rng.randint(1, 16)]
    return bytes((rng.randrange(256),)) + bytes(stream)


def run(seed: int, seconds: float) -> int:
    """Mutate for a while; return the number of cases."""
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    cases = 0
    while time.monotonic() < end:
        for _ in range(100):
            data = mutate(rng)
            try:
                check(data)
            except Exception:
                print(f"seed {seed}, case {cases}: {data.hex()}", file=sys.stderr)
                raise
            cases += 1
    return cases


def main() -> None:
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        seed = random.SystemRandom().randrange(2**32)
        print(f"atheris is not installed; mutating golden packets for 60 s, seed {seed}")
        print(f"{run(seed, 60.0)} cases")
        return
    atheris.instrument_all()
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
