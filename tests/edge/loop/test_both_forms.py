"""The compiled loop and the same files uncompiled give equal results for any bytes, also for damaged ones.

This finds C integers that wrap and wrong lengths; run it with an address sanitizer from time to time.
"""

import random
from typing import Any

import pytest

from mqtt.codec import encode_varint as varint
from tests.clients.packets import ack, publish
from tests.edge.loop.conftest import load
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import PublishMessage, PublishRun, Push, encode_message, encode_push, encode_run

PROPERTIES = [b"", b"\x01\x01", b"\x02\x00\x00\x00\x05", b"\x23\x00\x03", b"\x26\x00\x01a\x00\x01b", b"\x03\x00\x02xy"]


def client_bytes(rng: random.Random, version: int) -> bytes:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.randrange(8)
        identifier = rng.choice([0, 1, 2, 127, 128, 129, 65_535])
        if kind < 5:
            properties = b"".join(rng.sample(PROPERTIES, rng.randrange(3)))
            topic = rng.choice([b"t", b"t", b"t/u", b"", b"\xc3\xbc"])
            size = rng.choice([0, 3, 120, 130, 20_000])
            qos = rng.randrange(3)
            parts.append(publish(topic, rng.randbytes(size), qos, identifier, version, properties, rng.random() < 0.1))
        elif kind < 7:
            code = rng.choice([None, 0, 0x10, 0x80]) if version == 5 else None
            parts.append(ack(rng.choice([0x40, 0x50, 0x62, 0x70]), identifier, code))
        else:
            parts.append(rng.choice([b"\xc0\x00", b"\x30" + varint(rng.choice([127, 128, 16_383, 16_384, 2_097_152]))]))
    return b"".join(parts)


def link_payload(rng: random.Random) -> tuple[int, bytes]:
    if rng.random() < 0.5:
        run = b"".join(publish(b"t", rng.randbytes(rng.randrange(200)), version=5) for _ in range(rng.randrange(1, 5)))
        message = PublishMessage(rng.randrange(5), b"t", b"m", rng.randrange(3), properties=rng.choice(PROPERTIES[:2]))
        return 4, encode_run(PublishRun(5, b"t", run)) + encode_message(message)
    pushes = [Push(50, 6, 1, rng.randrange(9), rng.randrange(1, 9), rng.randrange(3), b"t", b"m") for _ in range(3)]
    return 6, b"".join(encode_push(p) for p in pushes)


def damaged(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 3])):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(changed[: rng.randrange(len(changed) + 1)]) if rng.random() < 0.2 else bytes(changed)


def play(modules: Any, seed: int) -> list[Any]:
    """Return all output of one random session."""
    rng = random.Random(seed)
    broker = Broker(modules, output_high_bytes=50_000, output_low_bytes=10_000, pending_messages_max=20)
    edge, store = Node(broker, 2, "edge"), Node(broker, 3, "storage")
    broker.hot.set_primary(0, store.peer)
    if rng.random() < 0.5:
        broker.route_to(edges=(edge.peer,))
    version = rng.choice([4, 5])
    subs = [broker.subscriber(b"#", rng.randrange(3), rng.choice([4, 5]), rng.randrange(2)) for _ in range(3)]
    broker.handler.session_options = {"session": 50, "owner_epoch": 6}
    durable = broker.client(5)
    broker.handler.session_options = {}
    pub = broker.client(version)
    output: list[Any] = []
    for _ in range(6):
        data = damaged(rng, client_bytes(rng, version))
        cut = rng.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            if not pub.closed and not pub.parked:
                broker.send(pub, piece)
        kind, payload = link_payload(rng)
        payload = damaged(rng, payload)
        node = store if kind == 6 else edge
        if not node.conn.closed:
            node.send(kind, payload)
            output += node.take()
        for conn in (*subs, durable, pub):
            output.append(broker.raw(conn))
        answers = damaged(rng, b"".join(ack(rng.choice([0x40, 0x50, 0x70]), i) for i in range(1, 5)))
        target = rng.choice([*subs, durable])
        if not target.closed and not target.parked:
            broker.send(target, answers)
        broker.turn()
    output.append([code for _, code in broker.handler.errors])
    output.append(broker.handler.violations)
    counters = broker.hot.counters()
    output.append(counters)
    return output


def compare(seeds: range) -> None:
    pure, compiled = load("pure"), load("compiled")
    if not compiled.compiled:
        pytest.skip("not built")
    for seed in seeds:
        assert play(compiled, seed) == play(pure, seed), f"seed={seed}"


def test_compiled_and_uncompiled_loop_have_equal_output() -> None:
    compare(range(500))


@pytest.mark.slow
def test_compiled_and_uncompiled_loop_have_equal_output_for_many_seeds() -> None:
    compare(range(1_000, 11_000))
