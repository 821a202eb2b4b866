"""The fast path for messages and PUBACKs in frames has the same effects as the general path, one message at a time.

Each scene is run three times: by the general path, by the compiled fast path, and by the same files uncompiled. Rows,
pushes, replies and the state of the sessions must be equal after each frame.
"""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mqtt.reasons import ReasonCode
from storage.messages.delivery import PartitionDelivery
from storage.messages.publishers import Publishers
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import LogRow, unpack
from storage.state.settings import PartitionSettings
from storage.store.settings import StoreSettings
from tests.simulation.model_store import ModelDisk, ModelStore
from tests.storage.compiled_forms import FORMS, load
from wire.decoding import Unreadable
from wire.messages.batches import (
    NO_EXPIRY,
    PublishMessage,
    PublishRun,
    PushAck,
    decode_publish_acks,
    decode_pushes,
    encode_message,
    encode_push_ack,
    encode_run,
)
from wire.messages.frames import FrameKind
from wire.messages.sessions import SessionSubscription

EDGE, INCARNATION, LEASE_S = "e1", 7, 3.0
PARTITION = 5
SESSION = PARTITION << 48


class Scene:
    """One partition with sessions, on one of the paths; ``form`` None: one message at a time."""

    def __init__(self, form: SimpleNamespace | None, settings: PartitionSettings) -> None:
        self.store = ModelStore.open(ModelDisk(), "cluster", "s1", StoreSettings())
        self.partition = Partition(PARTITION, settings, self.store, {}, 100.0)
        self.partition.epoch, self.partition.since = 4, 3
        self.delivery = PartitionDelivery(self.partition, lambda *_: "")
        self.publishers = Publishers()
        self.runs = self.ones = 0  # runs, and messages that were processed one by one
        self.form = form
        if form is not None:
            self.fast_path = form.fast_path_publish.FastPathPublish(
                self.partition, self.delivery.origins, self.publishers
            )
            self.delivery.targets.forget_routes = self.fast_path.forget_routes
            self.fast_path_acks = form.fast_path_acks.FastPathAcks(
                self.partition, self.delivery.consumed, self.delivery.outbound
            )
        modules = form or load("pure")
        self.handler = modules.fast_path_publish.PublishHandler(self._get_fast_path, self._one, self._run)
        self.acks = modules.fast_path_acks.AckHandler(self._get_fast_path_acks, self.delivery.outbound.acknowledged)
        for number, (topic_filter, qos, window, edge) in enumerate(
            [("a", 1, 3, EDGE), ("b/#", 2, 64, EDGE), ("b/c", 1, 64, "e2"), ("d", 0, 64, EDGE), ("e", 1, 64, "")]
        ):
            session = DurableSession(SESSION + number, f"client {number}")
            session.edge, session.incarnation, session.owner_epoch, session.window = edge, INCARNATION, 9, window
            self.partition.sessions[session.number] = session
            self.subscribe(session, SessionSubscription(topic_filter, qos, identifier=number))

    def subscribe(self, session: DurableSession, subscription: SessionSubscription) -> None:
        session.subscriptions[subscription.topic_filter] = subscription
        self.partition.trie.add(subscription.topic_filter, session.number, (session, subscription))
        self.delivery.targets.forget_routes()

    def _get_fast_path(self, number: int) -> Any:
        return self.fast_path if self.form is not None and number == PARTITION else None

    def _get_fast_path_acks(self, number: int) -> Any:
        return self.fast_path_acks if self.form is not None and number == PARTITION else None

    def _run(self) -> None:
        self.runs += 1

    def _one(self, message: PublishMessage, number: int, epoch: int) -> None:
        self.ones += 1
        if number != PARTITION or not self.partition.since <= epoch <= self.partition.epoch:
            self.partition.count("elsewhere")
        elif self.publishers.observe(message.session, message.owner_epoch, self.partition.now, LEASE_S):
            self.delivery.acknowledge(message, EDGE, ReasonCode.SESSION_TAKEN_OVER)
        else:
            self.delivery.publish(message, EDGE, INCARNATION)

    def publish(self, payload: bytes) -> None:
        self.handler.take(payload, 0, EDGE, INCARNATION, self.partition.now, LEASE_S)

    def acknowledge(self, payload: bytes) -> None:
        self.acks.take(payload, EDGE, INCARNATION)

    def end_turn(self) -> list[Any]:
        """Close the operation and commit it; return its rows, with the decoded log row, and its outputs."""
        self.delivery.outbound.pump_freed(1000)
        self.delivery.consumed.ride()
        written = self.partition.close_operation()
        self.store.write(written)
        rows: dict[bytes, Any] = dict(written)
        for key, value in rows.items():
            if value is not None and key[2:3] == keys.LOG:
                rows[key] = sorted(unpack(LogRow, value).writes)
        self.partition.note_synced("", self.partition.meta.op_index)
        said: dict[tuple[str, int], bytes] = {}
        for node, kind, payload in self.partition.committed_outputs():
            said[node, kind] = said.get((node, kind), b"") + payload
        pushes = {node: decode_pushes(data) for (node, kind), data in said.items() if kind == FrameKind.PUSH}
        answers = [decode_publish_acks(data) for (_, kind), data in said.items() if kind == FrameKind.PUBLISH_ACK]
        return [rows, pushes, answers, self.state()]

    def state(self) -> list[Any]:
        sessions = [
            (
                session.row(),
                [
                    (seq, flight.packet_identifier, flight.qos, flight.state, flight.size, flight.sent, flight.out)
                    for seq, flight in session.inflight.items()
                ],
                (session.out, session.out_bytes, session.queue_bytes, session.push_seq, session.acked_rows),
                (list(session.sizes), len(session.unsent), session.behind),
            )
            for session in self.partition.sessions.values()
        ]
        origins = self.delivery.origins.counters
        return [sessions, origins, self.publishers.newest, dict(self.partition.counts), self.runs]


def some_message(rng: random.Random, tag: int) -> bytes:
    """Return a random record, mostly for the fast path."""
    if rng.random() < 0.03:
        return encode_run(PublishRun(4, b"a", b"\x30\x03\x00\x01a"))
    plain = rng.random() < 0.7
    message = PublishMessage(
        tag if plain or rng.random() < 0.8 else tag - rng.randrange(1, 4),
        rng.choice([b"a", b"b/c", b"b/d", b"d", b"e", b"none", "\xfc".encode()]),
        rng.randbytes(rng.choice([0, 5, 64, 300] if plain else [0, 300, 70_000, 600_000])),
        1 if plain else rng.randrange(3),
        not plain and rng.random() < 0.2,
        rng.choice([b"", b"\x26\x00\x01k\x00\x01v"]),
        expiry_s=rng.choice([NO_EXPIRY, NO_EXPIRY, 0, 30]),
        origin_a=INCARNATION,
        origin_b=tag,
        session=rng.choice([0, 77, SESSION]),
        owner_epoch=rng.choice([1, 1, 1, 2]) if rng.random() < 0.05 else 2,
        partitions=(PARTITION,) if plain else rng.choice([(PARTITION,), (PARTITION, 6), (6,), ()]),
        owner=b"" if plain else rng.choice([b"", b"user"]),
    )
    message.epochs = tuple(rng.choice([3, 4, 4, 4, 2, 5] if not plain else [3, 4]) for _ in message.partitions)
    return encode_message(message)


def some_acks(rng: random.Random, scene: Scene) -> bytes:
    """Return acknowledgements of in-flight messages, and some invalid ones."""
    records = []
    for session in scene.partition.sessions.values():
        for seq in [seq for seq in session.inflight if rng.random() < 0.6]:
            kind = 4 if rng.random() < 0.9 else rng.choice([3, 5, 7])
            owner_epoch = 9 if rng.random() < 0.95 else 8
            records.append(encode_push_ack(PushAck(session.number, owner_epoch, 4, seq, kind, rng.choice([0, 0x87]))))
    records.append(encode_push_ack(PushAck(SESSION + rng.randrange(9), 9, 4, 1_000_000, 4, 0)))
    rng.shuffle(records)
    return b"".join(records)


SETTINGS = [
    PartitionSettings(),
    PartitionSettings(acks_per_row=3, message_expiry_max_s=20),
    PartitionSettings(queue_messages_max=5, queue_full="refuse"),
    PartitionSettings(queue_messages_max=5, queue_bytes_max=2_000),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(24))
def test_fast_path_matches_the_general_path(form: str, seed: int) -> None:
    """Random frames of messages and acknowledgements, in the same order on each path."""
    modules = load(form)
    settings = SETTINGS[seed % len(SETTINGS)]
    one, other = Scene(None, settings), Scene(modules, settings)
    rng = random.Random(seed)
    tag = 10
    for _ in range(25):
        frame = b""
        for _ in range(rng.randrange(1, 12)):
            tag += 1
            frame += some_message(rng, tag)
        acks = some_acks(rng, one)
        for scene in (one, other):
            scene.partition.tick(100.0 + tag / 10)
            scene.publish(frame)
            if tag % 3 == 0:
                scene.acknowledge(acks)
        assert one.end_turn() == other.end_turn(), f"seed={seed}"
    assert other.ones < one.ones


@pytest.mark.parametrize("form", FORMS)
def test_damaged_publish_frame_has_no_effect(form: str) -> None:
    """Damaged frames raise Unreadable, or are read equally; a frame that raises has no effect."""
    modules, rng = load(form), random.Random(3)
    good = b"".join(some_message(rng, tag) for tag in range(10, 16))
    raised = 0
    for _ in range(150):
        changed = bytearray(good)
        for _ in range(rng.randrange(4)):
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        payload = bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.3 else changed)
        outcomes: list[Any] = []
        for scene in (Scene(None, SETTINGS[0]), Scene(modules, SETTINGS[0])):
            before = scene.state()
            try:
                scene.publish(payload)
            except Unreadable:
                raised += 1
                assert scene.state() == before
                outcomes.append("unreadable")
            else:
                outcomes.append(scene.end_turn())
        assert outcomes[0] == outcomes[1]
    assert raised > 40


@pytest.mark.parametrize("form", FORMS)
def test_partial_acknowledgement_record_is_unreadable(form: str) -> None:
    scene = Scene(load(form), SETTINGS[0])
    with pytest.raises(Unreadable):
        scene.acknowledge(bytes(31))


def test_compiled_form_is_compiled() -> None:
    """The parameter "compiled" means it, unless the whole build is pure."""
    assert not load("pure").compiled
