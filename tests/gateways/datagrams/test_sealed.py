"""Sealed sessions: only who has the key is heard, nothing twice, and an address proves itself."""

import tracemalloc

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateways.datagrams.messages import Endpoint
from gateways.datagrams.sealed import SEALED_BYTES, SealedPort
from gateways.datagrams.subscribers import Peer

NODE, DEVICE, ELSEWHERE = (Endpoint(bytes((10, 0, 0, last)), 1000) for last in (1, 2, 3))
KEY, OTHER = b"k" * 32, b"o" * 32


class Pair:
    """A node and a device, whose datagrams a test carries."""

    def __init__(self, device_key: bytes = KEY, name: str = "pump") -> None:
        self.node = SealedPort({"pump": KEY, "valve": OTHER})
        self.device = SealedPort({}, name, device_key)

    def shake(self) -> list[tuple[Peer, str, bool, bytes]]:
        """Carry the handshake, and return what the node took behind it."""
        taken = []
        assert self.device.send(1.0, Peer(NODE), b"first") is None
        for _ in range(2):
            replies, self.device.replies = self.device.replies, []
            taken += [self.node.receive(1.0, DEVICE, data) for _, data in replies]
            answers, self.node.replies = self.node.replies, []
            for endpoint, data in answers:
                assert endpoint == DEVICE
                self.device.receive(1.0, NODE, data)
        replies, self.device.replies = self.device.replies, []
        taken += [self.node.receive(1.0, DEVICE, data) for _, data in replies]
        return [each for each in taken if each is not None]

    def seal(self, data: bytes) -> bytes:
        made = self.device.send(2.0, Peer(NODE), data)
        assert made is not None
        return made


def test_a_session_carries_both_ways() -> None:
    pair = Pair()
    [(peer, name, is_proved, data)] = pair.shake()
    assert (peer.endpoint, name, is_proved, data) == (DEVICE, "pump", True, b"first") and peer.session
    back = pair.node.send(2.0, peer, b"answer")
    assert back is not None and len(back) == len(b"answer") + SEALED_BYTES
    assert pair.device.receive(2.0, NODE, back) == (Peer(NODE), "", True, b"answer")


def test_the_answer_to_open_is_no_lever() -> None:
    pair = Pair()
    pair.device.send(1.0, Peer(NODE), b"x")
    _, opening = pair.device.replies[0]
    pair.node.receive(1.0, DEVICE, opening)
    assert len(pair.node.replies[0][1]) <= 3 * len(opening)


def test_strangers_are_not_answered() -> None:
    for key, name in ((OTHER, "pump"), (KEY, "valve"), (KEY, "nobody")):
        pair = Pair(key, name)
        assert pair.shake() == [] and pair.node.refused


def test_nothing_is_taken_twice_or_changed() -> None:
    """The window is 1 024 wide, to the datagram."""
    pair = Pair()
    pair.shake()
    made = [pair.seal(b"%d" % number) for number in range(1_100)]
    assert pair.node.receive(3.0, DEVICE, made[-1]) is not None
    assert pair.node.receive(3.0, DEVICE, made[-1]) is None
    assert pair.node.receive(3.0, DEVICE, made[-1024]) is not None
    assert pair.node.receive(3.0, DEVICE, made[-1025]) is None
    assert pair.node.receive(3.0, DEVICE, made[-2][:-1] + b"\0") is None
    assert pair.node.receive(3.0, DEVICE, made[-2]) is not None
    for cut in range(len(made[-3])):
        assert pair.node.receive(3.0, DEVICE, made[-3][:cut]) is None
    assert pair.node.receive(3.0, DEVICE, made[-3]) is not None


def test_a_new_address_must_prove_itself() -> None:
    pair = Pair()
    [(peer, *_)] = pair.shake()
    taken = pair.node.receive(3.0, ELSEWHERE, pair.seal(b"moved"))
    assert taken is not None and taken[0] == Peer(ELSEWHERE, peer.session) and taken[2] is False
    pair.node.prove(taken[0])
    again = pair.node.receive(3.0, ELSEWHERE, pair.seal(b"again"))
    assert again is not None and again[2] is True


def test_a_node_that_began_again_is_opened_again() -> None:
    """A device that hears nothing for 3 s takes its session for forgotten."""
    pair = Pair()
    pair.shake()
    pair.node = SealedPort({"pump": KEY})
    assert pair.node.receive(4.0, DEVICE, pair.seal(b"lost")) is None
    assert pair.device.send(9.0, Peer(NODE), b"waits") is None
    for _ in range(2):
        replies, pair.device.replies = pair.device.replies, []
        taken = [pair.node.receive(9.0, DEVICE, data) for _, data in replies]
        answers, pair.node.replies = pair.node.replies, []
        for _, data in answers:
            pair.device.receive(9.0, NODE, data)
    replies, pair.device.replies = pair.device.replies, []
    taken += [pair.node.receive(9.0, DEVICE, data) for _, data in replies]
    assert [each[3] for each in taken if each is not None] == [b"waits"]


def test_sessions_are_bounded() -> None:
    """Replayed handshakes end no session that speaks."""
    pair = Pair()
    [(peer, *_)] = pair.shake()
    for _ in range(20):
        device = SealedPort({}, "pump", KEY)
        device.send(1.0, Peer(NODE), b"x")
        pair.node.receive(1.0, ELSEWHERE, device.replies[0][1])
    assert pair.node.receive(3.0, DEVICE, pair.seal(b"still here")) is not None
    assert pair.node.send(3.0, peer, b"x") is not None


def test_sessions_of_keys_that_are_gone_end() -> None:
    """Another key of the same name counts as gone; who kept his stays."""
    pair = Pair()
    [(peer, *_)] = pair.shake()
    pair.node.take_keys({"pump": KEY})
    assert pair.node.receive(2.0, DEVICE, pair.seal(b"again")) is not None
    pair.node.take_keys({"pump": OTHER})
    assert pair.node.receive(2.0, DEVICE, pair.seal(b"late")) is None
    assert pair.node.send(2.0, peer, b"x") is None


def test_silence_after_an_answer_says_nothing() -> None:
    """A subscriber that answered and heard nothing for long had its session opened anew at its next word."""
    pair = Pair()
    pair.shake()
    assert pair.device.send(3.0, Peer(NODE), b"delivered", is_answer=True) is not None
    assert pair.device.send(30.0, Peer(NODE), b"renewal") is not None
    assert pair.device.send(34.0, Peer(NODE), b"again") is None and pair.device.replies


def test_left_out_counters_cost_nothing() -> None:
    """A device that went to the last counter at once made the window shift by as many bits: 256 MB."""
    pair = Pair()
    pair.device.send(1.0, Peer(NODE), b"first")
    [(_, opening)] = pair.device.replies
    pair.node.receive(1.0, DEVICE, opening)
    [(_, opened)] = pair.node.replies
    nonces = opening[2 + len("pump") :][:16] + opened[9:25]
    key = HKDF(algorithm=SHA256(), length=64, salt=nonces, info=b"stratamq udp 1").derive(KEY)[:32]

    def sealed_as(counter: int) -> bytes:
        head = b"\3" + opened[1:9] + counter.to_bytes(8, "big")
        return head + AESGCM(key).encrypt(bytes(4) + head[9:], b"packet", head)

    first, last = sealed_as(1), sealed_as(1 << 31)
    assert pair.node.receive(2.0, DEVICE, first) is not None
    tracemalloc.start()
    try:
        assert pair.node.receive(3.0, DEVICE, last) is not None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert pair.node.receive(3.0, DEVICE, last) is None and pair.node.receive(3.0, DEVICE, sealed_as(5)) is None
