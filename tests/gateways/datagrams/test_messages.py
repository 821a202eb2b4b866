"""Encoding of the six messages: round trips, and refusal of other bytes."""

from pathlib import Path
from random import Random

import pytest

from gateways.datagrams.messages import (
    DATAGRAM_BYTES_MAX,
    Body,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    Join,
    MalformedDatagram,
    PubAccept,
    PubAck,
    PubConnect,
    decode,
    encode,
)
from gateways.datagrams.stratamq_udp_pb2 import Packet as Form  # type: ignore[attr-defined]
from gateways.datagrams.subtrees import is_inside, is_within, restrict, touches

HERE = Endpoint(bytes((127, 0, 0, 1)), 5)
GOOD: list[Body] = [
    PubConnect("a/b", HERE, 3, b"c" * 16),
    PubConnect("a"),
    PubAccept("", 600, 1 << 60, b"k"),
    PubAccept("a/b", 0),
    DatagramPublish("a", b"", 0, 0),
    DatagramPublish("", b"x" * 900, 1, (1 << 64) - 1, 7, b"c"),
    PubAck(0),
    PubAck(16, (HERE, Endpoint(bytes(16), 1)), 300, 5, b"c"),
    DatagramSubscribe("a/+/#", 1, HERE, 300, True, 16, b"c", True),
    DatagramSubscribe("#"),
    Join("a", 5, HERE, True, b"c"),
]


@pytest.mark.parametrize("body", GOOD, ids=lambda body: type(body).__name__)
def test_decode_returns_encoded_message(body: Body) -> None:
    assert decode(encode(Datagram(7, body))) == Datagram(7, body)


def test_decode_star_filter_becomes_hash() -> None:
    kept = DatagramSubscribe("a/+", 1, keep_open=True)
    assert decode(encode(Datagram(1, kept))).body == kept
    assert decode(encode(Datagram(1, DatagramSubscribe("a/*")))).body == DatagramSubscribe("a/#")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        bytes(DATAGRAM_BYTES_MAX + 1),
        Form(version=2).SerializeToString(),
        Form(version=1).SerializeToString(),
        encode(Datagram(1, DatagramPublish("a/#", b""))),
        encode(Datagram(1, DatagramPublish("a\0", b""))),
        encode(Datagram(1, DatagramPublish("", b""))),
        encode(Datagram(1, DatagramPublish("a", b"", 0, 0, 3))),
        encode(Datagram(1, DatagramPublish("a", b"", 2))),
        encode(Datagram(1, DatagramSubscribe("a#"))),
        encode(Datagram(1, DatagramSubscribe("a", hops=17))),
        encode(Datagram(1, DatagramSubscribe("a", cookie=bytes(17)))),
        encode(Datagram(1, Join("a", 5, Endpoint(b"abc", 5)))),
        encode(Datagram(1, Join("a", 5, Endpoint(bytes(4), 0)))),
        encode(Datagram(1, Join("+", 5, HERE))),
        encode(Datagram(1, PubAck(256))),
        encode(Datagram(1, PubAck(0, (HERE,) * 33))),
        encode(Datagram(1, PubConnect("a/" * 129))),
    ],
)
def test_decode_invalid_datagram_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedDatagram):
        decode(data)


def test_decode_noise_raises_only_malformed() -> None:
    """Modified, truncated and random datagrams decode or raise MalformedDatagram."""
    random, taken = Random(1), 0
    for _ in range(20_000):
        data = bytearray(encode(Datagram(random.getrandbits(64), random.choice(GOOD))))
        for _ in range(random.randrange(4)):
            if data:
                data[random.randrange(len(data))] = random.getrandbits(8)
        del data[random.randrange(len(data) + 1) if random.random() < 0.3 else len(data) :]
        try:
            decode(bytes(data))
            taken += 1
        except MalformedDatagram:
            pass
    assert taken > 1_000


def test_generated_module_matches_proto(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    folder = Path(__file__).parents[3] / "gateways" / "datagrams"
    arguments = ["protoc", f"-I{folder}", f"--python_out={tmp_path}", str(folder / "stratamq_udp.proto")]
    assert protoc.main(arguments) == 0
    made = (tmp_path / "stratamq_udp_pb2.py").read_text()
    assert made == (folder / "stratamq_udp_pb2.py").read_text()


def test_subtrees() -> None:
    assert is_within("a/b", "a/b") and is_within("a/b/c", "a/b") and not is_within("a/bc", "a/b")
    assert is_inside("a/b/#", "a/b") and not is_inside("a/#", "a/b") and not is_inside("+/b", "a/b")
    assert touches("+/b/c", "a/b") and touches("a/#", "a/b") and not touches("a", "a/b") and not touches("b/#", "a")
    assert (
        restrict("#", "a/b") == restrict("a/#", "a/b") == "a/b/#"
        and restrict("+/b/c", "a/b") == "a/b/c"
        and restrict("#", "") == "#"
    )
