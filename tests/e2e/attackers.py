"""Run one kind of attack in its own process: ``python -m tests.e2e.attackers KIND PORTS COUNT SECONDS``, PORTS as JSON.

Each of ``COUNT`` attackers is a coroutine; each kind has its own loopback addresses, so a block of an address never
affects honest clients. The process prints ``ready`` and starts at the first input line. It answers each further line
with the outcome counts as JSON, and stops at the end of input. The limits are in ``test_denial.py``.
"""

import collections
import itertools
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable

import trio

from mqtt.codec import decode_packet, decode_varint, encode_varint
from mqtt.packets import Packet, Publish
from tests.clients import packets
from tests.clients.packets import Splitter, text
from tests.e2e.hostile_clients import UPGRADE, connect, frame, publish, subscribe

READ_BYTES = 65_536
AGAIN_S = 0.05
COME_PER_S = 500.0
ABSENT_S = 0.05
SESSION_EXPIRY = packets.session_expiry(60)

Ports = dict[str, int]
seen: collections.Counter[str] = collections.Counter()


class Attacker:
    """One connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.is_in = False  # CONNACK received
        self._splitter = Splitter()
        self._packets: collections.deque[bytes] = collections.deque()

    async def send(self, data: bytes) -> None:
        """Send all bytes; a closed connection is detected by reading, and is no error here."""
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError:
            pass

    async def read(self) -> Packet | None:
        """Return the next packet, None at the end."""
        while not self._packets:
            data = await self.read_bytes()
            if not data:
                return None
            self._packets.extend(self._splitter.feed(data))
        data = self._packets.popleft()
        _, body = decode_varint(data, 1)
        return decode_packet(data[0], data[body:], 5)

    async def read_bytes(self) -> bytes:
        """Return received bytes, b"" at the end."""
        try:
            return await self.stream.receive_some(READ_BYTES)
        except trio.BrokenResourceError:
            return b""

    async def outcome(self) -> str:
        """Read to the end; return the last reason code, "silent" if there was none."""
        code = "silent"
        while (packet := await self.read()) is not None:
            code = code_of(packet) or code
        return code


def code_of(packet: Packet) -> str:
    """Return the reason code of a packet in hex, "" where it has none."""
    codes = getattr(packet, "reason_codes", None)
    code = max(codes) if codes else getattr(packet, "reason_code", None)
    return "" if code is None else f"{code:#04x}"


def address_of(kind: str, number: int) -> str:
    """Return the address of an attacker: 127.1.<kind>.<number>."""
    return f"127.1.{list(KINDS).index(kind) + 1}.{number % 250 + 1}"


def one_of(address: str) -> str:
    """Return one address for all attackers of its kind."""
    return address.rpartition(".")[0] + ".1"


async def come(port: int, address: str, receive_bytes: int = 0) -> Attacker:
    """Connect from an address."""
    found = trio.socket.socket()
    if receive_bytes:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await found.bind((address, 0))
    await found.connect(("127.0.0.1", port))
    return Attacker(trio.SocketStream(found))


async def come_in(port: int, address: str, name: bytes, properties: bytes = b"") -> Attacker:
    """Connect with MQTT 5; the answer is noted."""
    attacker = await come(port, address)
    await attacker.send(connect(name, properties=properties))
    answer = await attacker.read()
    note("connack", code_of(answer) if answer is not None else "closed")
    attacker.is_in = answer is not None and code_of(answer) == "0x00"
    return attacker


def note(what: str, code: str = "") -> None:
    """Count an outcome."""
    seen[f"{what} {code}".rstrip()] += 1


# -- kinds: (ports, number, address) -> None, repeated until the time ends


async def drip(ports: Ports, number: int, address: str) -> None:
    """A byte now and then: of the handshake, of CONNECT."""
    await drip_bytes(ports, address, ("handshake", "connect")[number % 2])


async def drip_later(ports: Ports, number: int, address: str) -> None:  # noqa: ARG001
    """A byte now and then of a PUBLISH, behind a CONNECT as it should be."""
    await drip_bytes(ports, address, "publish")


async def drip_bytes(ports: Ports, address: str, stage: str) -> None:
    """Drip at a stage of a connection, and note its end."""
    attacker = await come(ports["tls" if stage == "handshake" else "plain"], address)
    data = b"\x16\x03\x01\x02\x00\x01" + bytes(500)
    if stage == "connect":
        data = connect(b"drip" * 50)
    elif stage == "publish":
        await attacker.send(connect(b"drip-" + address.encode()))
        await attacker.read()
        data = publish(b"drip", bytes(1000))
    async with trio.open_nursery() as nursery:

        async def bytes_one_by_one() -> None:
            for at in range(len(data)):
                await attacker.send(data[at : at + 1])
                await trio.sleep(0.25)

        note(f"{stage} begun")
        nursery.start_soon(bytes_one_by_one)
        await attacker.outcome()
        nursery.cancel_scope.cancel()
    note(f"{stage} ended")


async def connect_flood(ports: Ports, number: int, address: str) -> None:
    """As many connections as go."""
    attacker = await come(ports["rated"], one_of(address))
    await attacker.send(connect(b"flood-%d" % number))
    answer = await attacker.read()
    note("let in" if answer is not None and code_of(answer) == "0x00" else "refused")


async def connect_flood_in_turn(ports: Ports, number: int, address: str) -> None:
    """Connect from 32 addresses, each within its rate: together they exceed the listener's rate many times."""
    attacker = await come(ports["scarce"], f"{address.rpartition('.')[0]}.{number % 32 + 1}")
    await attacker.send(connect(b"in-turn-%d" % number))
    answer = await attacker.read()
    note("let in" if answer is not None and code_of(answer) == "0x00" else "refused")


async def keep_alive(ports: Ports, number: int, address: str) -> None:
    """Ask for 18 hours, or for none; then silence."""
    attacker = await come(ports["plain"], address)
    await attacker.send(packets.connect(b"idle-%d" % number, 5, keep_alive_s=65_535 if number % 2 else 0))
    answer = await attacker.read()
    note("asked")
    note("told", str(getattr(answer, "properties", {}).get(0x13)))
    note("ended", await attacker.outcome())


DEEPEST = b"/".join(b"%031d" % level for level in range(32))  # 32 levels and 1 023 bytes
TOO_DEEP = (
    publish(b"/" * 65_000, b""),
    publish(b"x" * 1025, b""),
    publish(b"/".join([b"a"] * 33), b""),
    subscribe(b"/" * 65_000, 0),
    subscribe(b"+/" * 32 + b"#", 0),
)


async def topics(ports: Ports, number: int, address: str) -> None:
    """Topics as deep and long as may be, and deeper and longer ones."""
    attacker = await come_in(ports["plain"], address, b"deep-%d" % number)
    if number:
        await attacker.send(TOO_DEEP[number % len(TOO_DEEP)] + packets.DISCONNECT)
        note("beyond", await attacker.outcome())
        return
    for _ in range(50):
        await attacker.send(publish(DEEPEST, b"") * 100)
        seen["within"] += 100
    await attacker.send(publish(DEEPEST, b"", 1, 1))
    await attacker.read()


HEADS = [b"/".join(head) for head in itertools.product((b"a", b"+"), repeat=10)]


async def wildcards(ports: Ports, number: int, address: str) -> None:
    """Subscribe to filters that all match against the same deep topic."""
    attacker = await come_in(ports["plain"], address, b"wild-%d" % number)
    deep = [head + b"/a" * 21 for head in HEADS]
    for start in range(0, 1000, 50):
        await attacker.send(subscribe(deep[start : start + 50], 0))
        answer = await attacker.read()
        if answer is None:
            break
        note("suback", code_of(answer))
    await attacker.send(publish(b"/".join([b"a"] * 31), b"x") * 10)
    await trio.sleep(0.1)


async def retain(attacker: Attacker, prefix: bytes, payload: bytes) -> list[str]:
    """Publish a batch of retained messages; return the reason codes."""
    batch, codes = range(1, 20), []
    await attacker.send(b"".join(publish(prefix + b"/%d" % one, payload, 1, one, retain=True) for one in batch))
    for _ in batch:
        answer = await attacker.read()
        codes.append(code_of(answer) if answer is not None else "closed")
    return codes


async def retained_flood(ports: Ports, number: int, address: str) -> None:
    """A register for each message."""
    attacker = await come_in(ports["plain"], address, b"retain-%d" % number)
    for turn in itertools.count():
        for code in await retain(attacker, b"kept/%d/%d" % (number, turn), bytes(100)):
            note("puback", code)


async def retained_replay(ports: Ports, number: int, address: str) -> None:
    """Request all retained messages repeatedly."""
    attacker = await come_in(ports["plain"], address, b"replay-%d" % number)
    if number == 0:
        for turn in range(5):  # few, so that a later flood still fits in each partition
            await retain(attacker, b"replay/%d" % turn, bytes(500))
    while True:
        await attacker.send(subscribe(b"replay/#", 0))
        note("asked")
        with trio.move_on_after(0.2):
            while (answer := await attacker.read()) is not None:
                note("retained" if isinstance(answer, Publish) else "suback")


async def never_released(ports: Ports, number: int, address: str) -> None:
    """Publish QoS 2 without PUBREL, up to the limit."""
    attacker = await come_in(ports["plain"], address, b"half-%d" % number)
    if not attacker.is_in:  # ten thousand keep their own process busy for longer than a CONNECT may take
        return
    for start in range(1, 3001, 100):
        await attacker.send(b"".join(publish(b"half", b"x" * 100, 2, start + n) for n in range(100)))
    note("ended", await attacker.outcome())


async def never_acks(ports: Ports, number: int, address: str) -> None:
    """Receive QoS 1 messages without acknowledging them, while another client keeps publishing."""
    attacker = await come_in(ports["plain"], address, b"mute-%d" % number)
    if number == 0:
        for identifier in range(1, 10_000):
            await attacker.send(publish(b"mute/x", bytes(100), 1, identifier))
            if await attacker.read() is None:
                break
            note("published")
    await attacker.send(subscribe(b"mute/#", 1))
    while isinstance(answer := await attacker.read(), Packet):
        note("given" if isinstance(answer, Publish) else "suback")


async def absent(ports: Ports, number: int, address: str) -> None:
    """Leave a session behind, and fill its queue from elsewhere, one after the other: it is no flood of messages."""
    await trio.sleep(number * ABSENT_S)
    port, name = ports["plain"], b"absent-%d-%d" % (number, os.getpid())
    attacker = await come_in(port, address, name, SESSION_EXPIRY)
    topic = b"absent/%d" % number
    await attacker.send(subscribe(topic, 1))
    await attacker.read()
    await attacker.send(packets.DISCONNECT)
    await attacker.outcome()
    other = await come_in(port, address, name + b"-w")
    for start in range(1, 121, 20):
        await other.send(b"".join(publish(topic, bytes(1000), 1, start + one) for one in range(20)))
        for _ in range(20):
            answer = await other.read()
            note("puback", code_of(answer) if answer is not None else "closed")
    back = await come(port, address)
    await back.send(packets.connect(name, 5, SESSION_EXPIRY + b"\x21\xff\xff", 60, clean=False))
    with trio.move_on_after(1.0):
        while (answer := await back.read()) is not None:
            if isinstance(answer, Publish):
                note(f"left {number}")
    note("read again")
    await trio.sleep_forever()


async def wills(ports: Ports, number: int, address: str) -> None:
    """All connections of a switch break at once."""
    attacker = await come(ports["plain"], address)
    name = b"will-%d" % number
    body = text(b"MQTT") + b"\x05\x06\x00\x3c\x00" + text(name) + b"\x00" + text(b"wills/%d" % number) + text(b"x")
    await attacker.send(packets.packet(0x10, body))
    answer = await attacker.read()
    note("connack", code_of(answer) if answer is not None else "closed")
    await trio.sleep(max(0.0, BREAK_AT - time.monotonic()))
    attacker.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    attacker.stream.socket.close()
    await trio.sleep_forever()


async def takeovers(ports: Ports, number: int, address: str) -> None:
    """Two clients with one client identifier, each of which comes back at once."""
    attacker = await come_in(ports["plain"], address, b"twin")
    note(f"ended {number % 2}", await attacker.outcome())


async def sessions(ports: Ports, number: int, address: str) -> None:
    """A stored session for each connection."""
    name = b"random-%d-%d-%d" % (number, os.getpid(), next(SERIAL))
    await come_in(ports["plain"], one_of(address), name, SESSION_EXPIRY)


SERIAL = itertools.count()


def user_properties(count: int) -> bytes:
    """Return so many small ones."""
    return (b"\x26" + text(b"key") + text(b"value")) * count


async def properties(ports: Ports, number: int, address: str) -> None:
    """Send thousands of user properties in CONNECT and PUBLISH, and topic aliases above the maximum."""
    attacker = await come(ports["plain"], address)
    kind = ("properties of connect", "properties of publish", "alias")[number % 3]
    data = connect(b"many-%d" % number, properties=user_properties(5000) if number % 3 == 0 else b"")
    await attacker.send(data)
    if number % 3 == 1:
        await attacker.send(publish(b"p", b"", 1, 1, properties=user_properties(70_000)) + packets.DISCONNECT)
    elif number % 3 == 2:
        await attacker.send(publish(b"p", b"", properties=b"\x23\xff\xff"))
    note(kind, await attacker.outcome())


def large_frame(length: int) -> bytes:
    """Return the head of a masked frame."""
    return b"\x82\xff" + length.to_bytes(8, "big") + bytes(4)


WEBSOCKETS = {  # the first, the third and the last one behind a CONNECT
    "tiny fragments": frame(b"\x30", 2, False) + frame(b"\xff", 0, False) * 2000,
    "pings": frame(b"x" * 100, 9) * 5000,
    "huge": large_frame(1 << 40) + b"\x30\xff\xff\xff\x7f",
    "unmasked": b"\x82\x02\xc0\x00",
    "compressed": b"\xc2" + frame(b"\xc0\0")[1:],
    "wide packet": large_frame(1 << 20) + b"\x30\xff\xff\xff\x7f",
}


async def websockets(ports: Ports, number: int, address: str) -> None:
    """Send one-byte frames, ping floods, frames of a tebibyte, and compression that was not negotiated."""
    kind = list(WEBSOCKETS)[number % len(WEBSOCKETS)]
    attacker = await come(ports["ws"], address)
    head, _, tail = UPGRADE.partition(b"\r\n")
    offer = b"\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    await attacker.send(head + offer + b"\r\n" + tail)
    answer = await attacker.read_bytes()
    note("compression" if b"sec-websocket-extensions" in answer.lower() else "no compression")
    data, received = frame(connect(b"ws-%d" % number)) * (number % len(WEBSOCKETS) in (0, 2, 5)) + WEBSOCKETS[kind], b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attacker.send, data)
        while more := await attacker.read_bytes():
            received += more
        nursery.cancel_scope.cancel()
    at = received.rfind(b"\x88")
    note(kind, str(int.from_bytes(received[at + 2 : at + 4], "big")) if at >= 0 else "without a word")


async def tls_compression(ports: Ports, number: int, address: str) -> None:  # noqa: ARG001
    """Offer TLS compression."""

    def offer() -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.options &= ~ssl.OP_NO_COMPRESSION
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", ports["tls"])) as plain, context.wrap_socket(plain) as secure:
            note("compression" if secure.compression() else "no compression")

    await trio.to_thread.run_sync(offer)


async def slow_readers(ports: Ports, number: int, address: str) -> None:
    """Subscribe to a flood and never read it; every tenth client publishes the flood."""
    attacker = await come(ports["plain"], address, receive_bytes=4096)
    await attacker.send(connect(b"lazy-%d" % number))
    await attacker.read()
    if number % 10 == 0:
        for identifier in itertools.cycle(range(1, 60_000)):
            await attacker.send(publish(b"lazy/x", bytes(10_000), 1, identifier))
            answer = await attacker.read()
            if answer is None:
                break
            note("flooded")
    else:
        await attacker.send(subscribe(b"lazy/#", 0))
        note("lazy")
    await trio.sleep_forever()


async def group_churn(ports: Ports, number: int, address: str) -> None:
    """Join and leave a group as fast as answers arrive; keep the received messages."""
    attacker = await come_in(ports["plain"], address, b"churn-%d" % number)
    while True:
        await attacker.send(subscribe(b"$share/crew/crew/#", 1))
        await attacker.send(packets.unsubscribe([b"$share/crew/crew/#"], 5))
        for _ in range(2):
            while isinstance(answer := await attacker.read(), Publish):
                note("kept")
            if answer is None:
                return
        note("joined")


async def takeover_churn(ports: Ports, number: int, address: str) -> None:
    """Take a client identifier over and over while its subscriptions come and go."""
    attacker = await come_in(ports["plain"], address, b"victim-%d" % (number // 2))
    for turn in range(20):
        await attacker.send(subscribe(b"churn/%d/+" % turn, 1) + packets.unsubscribe([b"churn/%d/+" % turn], 5))
        await attacker.send(publish(b"churn/%d/x" % turn, b"x", 1, turn + 1))
    note("churned", await attacker.outcome())


async def half_a_connect(ports: Ports, number: int, address: str) -> None:  # noqa: ARG001
    """Declare a CONNECT that is as long as may be, send half of it, and stay."""
    attacker = await come(ports["plain"], address)
    await attacker.send(b"\x10" + encode_varint(60_000) + b"\x00\x04MQTT\x05" + bytes(30_000))
    note("held")
    await trio.sleep_forever()


Kind = Callable[[Ports, int, str], Awaitable[None]]
KINDS: dict[str, Kind] = {
    one.__name__: one
    for one in (
        drip, drip_later, connect_flood, keep_alive, topics, wildcards, retained_flood, retained_replay, never_released,
        never_acks, absent, wills, takeovers, sessions, properties, websockets, tls_compression, slow_readers,
        group_churn, takeover_churn, half_a_connect, connect_flood_in_turn,
    )
}  # fmt: skip
ONCE = {drip, drip_later, keep_alive}  # each connection ends with one outcome
BREAK_AT = 0.0  # when all connections that leave a will break


async def attack(kind: str, ports: Ports, count: int) -> None:
    """Run all attackers, repeatedly or once, until the test has the expected outcomes."""
    run = KINDS[kind]

    async def again(number: int) -> None:
        await trio.sleep(number / COME_PER_S)  # a slower ramp keeps thousands below the login limit
        while True:
            try:
                await run(ports, number, address_of(kind, number))
                if run in ONCE:
                    return
            except OSError:
                note("connection refused")
            await trio.sleep(AGAIN_S)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(again, number)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(seen), flush=True)
        nursery.cancel_scope.cancel()


def main() -> None:
    """Run one kind."""
    global BREAK_AT
    kind, ports, count, seconds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    os.nice(5)  # the attackers share the machine with the edge
    print("ready", flush=True)
    sys.stdin.readline()
    BREAK_AT = time.monotonic() + seconds / 2
    trio.run(attack, kind, ports, count)


if __name__ == "__main__":
    main()
