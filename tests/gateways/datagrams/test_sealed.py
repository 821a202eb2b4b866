"""Sealed sessions: only key owners are accepted, replays are dropped, and addresses are proved."""

import tracemalloc

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateways.datagrams.messages import Endpoint
from gateways.datagrams.sealed import SEALED_BYTES, SealedPort
from gateways.datagrams.subscribers import DatagramPeer

NODE, DEVICE, ELSEWHERE = (Endpoint(bytes((10, 0, 0, last)), 1000) for last in (1, 2, 3))
KEY, OTHER = b"k" * 32, b"o" * 32


class Pair:
    """A node and a device whose datagrams a test carries."""

    def __init__(self, device_key: bytes = KEY, name: str = "pump") -> None:
        self.node = SealedPort({"pump": KEY, "valve": OTHER})
        self.device = SealedPort({}, name, device_key)

    def do_handshake(self) -> list[tuple[DatagramPeer, str, bool, bytes]]:
        """Carry the handshake, and return the packets that the node received after it."""
        assert self.device.send(1.0, DatagramPeer(NODE), b"first") is None
        return self.carry(self.device, 1.0)

    def carry(self, device: SealedPort, now: float) -> list[tuple[DatagramPeer, str, bool, bytes]]:
        """Carry datagrams between a device and the node until none is left."""
        taken = []
        while device.replies:
            replies, device.replies = device.replies, []
            taken += [self.node.receive(now, DEVICE, data) for _, data in replies]
            answers, self.node.replies = self.node.replies, []
            for endpoint, data in answers:
                assert endpoint == DEVICE
                device.receive(now, NODE, data)
        return [each for each in taken if each is not None]

    def open(self, name: str = "pump") -> bytes:
        """Open a session for a further device, and return the OPEN that created it."""
        device, now = SealedPort({}, name, KEY), 1.0
        device.send(now, DatagramPeer(NODE), b"x")
        [(_, first)] = device.replies
        self.node.receive(now, DEVICE, first)
        [(_, retry)] = self.node.replies
        device.replies.clear()
        device.receive(now, NODE, retry)
        [(_, second)] = device.replies
        self.node.replies.clear()
        self.carry(device, now)
        return second

    def seal(self, data: bytes) -> bytes:
        made = self.device.send(2.0, DatagramPeer(NODE), data)
        assert made is not None
        return made


def test_a_session_carries_both_ways() -> None:
    pair = Pair()
    [(peer, name, is_proved, data)] = pair.do_handshake()
    assert (peer.endpoint, name, is_proved, data) == (DEVICE, "pump", True, b"first") and peer.session
    back = pair.node.send(2.0, peer, b"answer")
    assert back is not None and len(back) == len(b"answer") + SEALED_BYTES
    assert pair.device.receive(2.0, NODE, back) == (DatagramPeer(NODE), "", True, b"answer")


def test_sealed_open_answer_is_not_amplified() -> None:
    pair = Pair()
    opening = pair.open()
    for opened in (opening, _without_cookie(pair)):
        pair.node.receive(1.0, DEVICE, opened)
        [(_, answer)] = pair.node.replies
        pair.node.replies.clear()
        assert len(answer) <= 3 * len(opened)


def _without_cookie(pair: Pair) -> bytes:
    pair.device.send(1.0, DatagramPeer(NODE), b"x")
    return pair.device.replies[0][1]


def test_sealed_repeated_open_creates_no_session() -> None:
    """From its address it gets the same OPENED within the cookie's lifetime; elsewhere a cookie of that address."""
    pair = Pair()
    opening = pair.open()
    assert pair.node.sessions == 1
    for _ in range(2):
        pair.node.receive(2.0, DEVICE, opening)
    (_, first), (_, second) = pair.node.replies
    assert first == second and first[0] == 2 and pair.node.counts["open_repeated"] == 2
    pair.node.replies.clear()
    for now, endpoint in ((3.0, ELSEWHERE), (500.0, DEVICE)):
        for _ in range(5):
            pair.node.receive(now, endpoint, opening)
        assert {data[0] for _, data in pair.node.replies} == {4}
        pair.node.replies.clear()
    assert pair.node.sessions == 1 and pair.node.counts["sessions_opened"] == 1


def test_sealed_replayed_opens_do_not_block_device() -> None:
    """Its four sessions have sent data, and every OPEN of them is replayed in each round trip."""
    pair = Pair()
    recorded = [pair.open() for _ in range(6)]

    def replay(now: float) -> None:
        for data in recorded:
            for endpoint in (DEVICE, ELSEWHERE):
                pair.node.receive(now, endpoint, data)
        pair.node.replies.clear()

    for now in (10.0, 100.0, 4_000.0):
        device = SealedPort({}, "pump", KEY)
        assert device.send(now, DatagramPeer(NODE), b"hello") is None
        for _ in range(3):  # OPEN and RETRY, OPEN and OPENED, DATA
            replies, device.replies = device.replies, []
            replay(now)
            taken = [pair.node.receive(now, DEVICE, data) for _, data in replies]
            answers, pair.node.replies = pair.node.replies, []
            replay(now)
            for _, data in answers:
                device.receive(now, NODE, data)
        assert [each[3] for each in taken if each is not None] == [b"hello"]


def test_sealed_lost_opened_creates_no_second_session() -> None:
    """OPEN is repeated with the same nonce; after five tries with a new one, since the session may have ended."""
    pair = Pair()
    pair.device.send(1.0, DatagramPeer(NODE), b"x")
    nonces = []
    for second in range(1, 13):
        replies, pair.device.replies = pair.device.replies, []
        for _, data in replies:
            nonces.append(data[6:22])
            pair.node.receive(float(second), DEVICE, data)
        answers, pair.node.replies = pair.node.replies, []
        for _, data in answers:
            if data[0] == 4:
                pair.device.receive(float(second), NODE, data)
        pair.device.send(second + 1.0, DatagramPeer(NODE), b"x")
    assert len(nonces) > 10 and len(set(nonces)) == len(nonces) // 5 + bool(len(nonces) % 5)
    assert pair.node.sessions == len(set(nonces))


def test_nonces_are_bounded() -> None:
    """A device that opens too many sessions gets no answers; another one does."""
    pair = Pair()
    for _ in range(64):
        pair.open()
    device = SealedPort({}, "pump", KEY)
    device.send(1.0, DatagramPeer(NODE), b"x")
    assert pair.carry(device, 1.0) == [] and pair.node.counts["open_too_often"] == 1
    valve = SealedPort({}, "valve", OTHER)
    valve.send(1.0, DatagramPeer(NODE), b"x")
    assert len(pair.carry(valve, 1.0)) == 1
    late = SealedPort({}, "pump", KEY)
    late.send(200.0, DatagramPeer(NODE), b"x")
    assert len(pair.carry(late, 200.0)) == 1


def test_sealed_open_with_wrong_key_is_not_answered() -> None:
    for key, name in ((OTHER, "pump"), (KEY, "valve"), (KEY, "nobody")):
        pair = Pair(key, name)
        assert pair.do_handshake() == [] and pair.node.counts["open_not_valid"]


def test_sealed_replayed_or_modified_datagram_is_dropped() -> None:
    """The window is exactly 1 024 wide."""
    pair = Pair()
    pair.do_handshake()
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


def test_sealed_new_address_is_unproved() -> None:
    pair = Pair()
    [(peer, *_)] = pair.do_handshake()
    taken = pair.node.receive(3.0, ELSEWHERE, pair.seal(b"moved"))
    assert taken is not None and taken[0] == DatagramPeer(ELSEWHERE, peer.session) and taken[2] is False
    pair.node.prove(taken[0])
    again = pair.node.receive(3.0, ELSEWHERE, pair.seal(b"again"))
    assert again is not None and again[2] is True


def test_sealed_device_reopens_after_node_restart() -> None:
    """After 3 s of silence a device assumes that its session is lost."""
    pair = Pair()
    pair.do_handshake()
    pair.node = SealedPort({"pump": KEY})
    assert pair.node.receive(4.0, DEVICE, pair.seal(b"lost")) is None
    assert pair.device.send(9.0, DatagramPeer(NODE), b"waits") is None
    assert [each[3] for each in pair.carry(pair.device, 9.0)] == [b"waits"]


def test_sessions_are_bounded() -> None:
    """Unused sessions do not displace a session that has sent data."""
    pair = Pair()
    [(peer, *_)] = pair.do_handshake()
    for _ in range(20):
        device = SealedPort({}, "pump", KEY)
        device.send(1.0, DatagramPeer(NODE), b"x")
        for _ in range(2):
            [(_, data)] = device.replies
            device.replies.clear()
            pair.node.receive(1.0, ELSEWHERE, data)
            [(_, answer)] = pair.node.replies
            pair.node.replies.clear()
            if answer[0] == 4:
                device.receive(1.0, NODE, answer)
    assert pair.node.sessions == 4
    assert pair.node.receive(3.0, DEVICE, pair.seal(b"still here")) is not None
    assert pair.node.send(3.0, peer, b"x") is not None


def test_sealed_set_keys_ends_sessions_of_changed_keys() -> None:
    """A changed key counts as removed; other sessions stay."""
    pair = Pair()
    [(peer, *_)] = pair.do_handshake()
    pair.node.set_keys({"pump": KEY})
    assert pair.node.receive(2.0, DEVICE, pair.seal(b"again")) is not None
    pair.node.set_keys({"pump": OTHER})
    assert pair.node.receive(2.0, DEVICE, pair.seal(b"late")) is None
    assert pair.node.send(2.0, peer, b"x") is None


def test_sealed_silence_after_answer_keeps_session() -> None:
    """Otherwise a subscriber that only acknowledged would open a new session at its next request."""
    pair = Pair()
    pair.do_handshake()
    assert pair.device.send(3.0, DatagramPeer(NODE), b"delivered", is_answer=True) is not None
    assert pair.device.send(30.0, DatagramPeer(NODE), b"renewal") is not None
    assert pair.device.send(34.0, DatagramPeer(NODE), b"again") is None and pair.device.replies


def test_sealed_skipped_counters_use_bounded_memory() -> None:
    """Otherwise a jump to the last counter would shift the window by 256 MB."""
    pair = Pair()
    opening = pair.open()
    pair.node.receive(1.0, DEVICE, opening)
    [(_, opened)] = pair.node.replies
    nonces = opening[2 + len("pump") :][:16] + opened[9:25]
    key = HKDF(algorithm=SHA256(), length=64, salt=nonces, info=b"stratamq udp 1").derive(KEY)[:32]

    def sealed_as(counter: int) -> bytes:
        head = b"\3" + opened[1:9] + counter.to_bytes(8, "big")
        return head + AESGCM(key).encrypt(bytes(4) + head[9:], b"packet", head)

    first, last = sealed_as(2), sealed_as(1 << 31)
    assert pair.node.receive(2.0, DEVICE, first) is not None
    tracemalloc.start()
    try:
        assert pair.node.receive(3.0, DEVICE, last) is not None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert pair.node.receive(3.0, DEVICE, last) is None and pair.node.receive(3.0, DEVICE, sealed_as(5)) is None
