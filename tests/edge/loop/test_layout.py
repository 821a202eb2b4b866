"""Constants of Python and C are equal, and offsets agree with the encoding of ``wire/messages/batches.py``."""

import re
from pathlib import Path
from typing import Any

import pytest

from edge.loop import layout
from mqtt.reasons import ReasonCode
from tests.edge.loop.conftest import load
from wire.messages.batches import (
    PublishMessage,
    PublishRun,
    Push,
    PushAck,
    encode_message,
    encode_publish_ack,
    encode_push,
    encode_push_ack,
    encode_run,
)

FOLDER = Path(layout.__file__).parent
ENUM = re.compile(r"^cdef enum:\n((?:    .*\n)+)", re.MULTILINE)
CONSTANT = re.compile(r"^    (\w+) = (.+)$", re.MULTILINE)


def constants(text: str) -> dict[str, str]:
    """Return the constants of a .pxd in their written form."""
    return {name: value for block in ENUM.findall(text) for name, value in CONSTANT.findall(block)}


def pxds() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.pxd") if constants(path.read_text(encoding="utf-8")))


def test_layout_check_covers_main_modules() -> None:
    text = "cdef enum:\n    ONE = 1\n    TWO = 0x2\n\n\ncdef int one()\n\n\ncdef enum:\n    THREE = ONE\n"
    assert constants(text) == {"ONE": "1", "TWO": "0x2", "THREE": "ONE"}
    assert {"layout", "state", "loop"} <= set(pxds())


@pytest.mark.parametrize("name", pxds())
def test_constants_are_the_same_in_c(name: str) -> None:
    module: Any = layout if name == "layout" else getattr(load("pure"), name)
    found = constants((FOLDER / f"{name}.pxd").read_text(encoding="utf-8"))
    values = {key: getattr(module, value) if value.isidentifier() else int(value, 0) for key, value in found.items()}
    assert values == {key: getattr(module, key, None) for key in found}


def test_layout_has_each_constant_in_c() -> None:
    assert set(layout.__all__) == set(constants((FOLDER / "layout.pxd").read_text(encoding="utf-8")))


def test_layout_constants_are_defined_once() -> None:
    """Frame kinds, offsets and reason codes are defined once."""
    for name in pxds():
        if name != "layout":
            assert not layout.__all__ & constants((FOLDER / f"{name}.pxd").read_text(encoding="utf-8")).keys(), name


def test_reason_codes_are_those_of_mqtt() -> None:
    shared = {code.name: int(code) for code in ReasonCode if code.name in layout.__all__}
    assert len(shared) > 15
    assert shared == {name: getattr(layout, name) for name in shared}
    assert min(code for code in ReasonCode if code >= 0x80) == layout.FAILURE


def read(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(data[at : at + count], "big")


def test_offsets_of_a_message() -> None:
    message = PublishMessage(
        tag=0x0102030405060708,
        topic=b"topic",
        payload=b"payload",
        qos=2,
        retain=True,
        properties=b"\x01\x01",
        origin_kind=2,
        origin_a=0x1112131415161718,
        origin_b=0x2122232425262728,
        session=0x3132333435363738,
        owner_epoch=0x4142434445464748,
        expiry_s=0x51525354,
        partitions=(0x0506, 7),
        epochs=(0x61626364, 8),
        share=b"share/filter",
    )
    data = encode_message(message)
    assert data[0] == layout.MESSAGE_RECORD
    assert data[layout.MESSAGE_VERSION_AT] == 5
    flags = data[layout.MESSAGE_FLAGS_AT]
    assert flags & layout.QOS_BITS == message.qos
    assert flags & ~layout.QOS_BITS == layout.RETAIN_FLAG | layout.SHARE_FLAG
    assert data[layout.MESSAGE_ORIGIN_KIND_AT] == message.origin_kind
    assert read(data, layout.MESSAGE_TAG_AT, 8) == message.tag
    assert read(data, layout.MESSAGE_ORIGIN_A_AT, 8) == message.origin_a
    assert read(data, layout.MESSAGE_ORIGIN_B_AT, 8) == message.origin_b
    assert read(data, layout.MESSAGE_SESSION_AT, 8) == message.session
    assert read(data, layout.MESSAGE_OWNER_EPOCH_AT, 8) == message.owner_epoch
    assert read(data, layout.MESSAGE_EXPIRY_AT, 4) == message.expiry_s
    assert read(data, layout.MESSAGE_PARTITIONS_AT, 2) == len(message.partitions)
    assert read(data, layout.MESSAGE_TOPIC_BYTES_AT, 2) == len(message.topic)
    assert read(data, layout.MESSAGE_PROPERTY_BYTES_AT, 4) == len(message.properties)
    assert read(data, layout.MESSAGE_PAYLOAD_BYTES_AT, 4) == len(message.payload)
    assert read(data, layout.MESSAGE_HEAD, 2) == message.partitions[0]
    assert read(data, layout.MESSAGE_HEAD + layout.PLACE_EPOCH_AT, 4) == message.epochs[0]
    share_at = layout.MESSAGE_HEAD + 2 * layout.PLACE_BYTES
    assert data[share_at:] == b"\x00\x0cshare/filter" + b"topic" + b"\x01\x01" + b"payload"


def test_offsets_of_a_run() -> None:
    data = encode_run(PublishRun(4, b"topic", b"packets"))
    assert data[0] == layout.RUN_RECORD
    assert data[layout.RUN_VERSION_AT] == 4
    assert data[layout.RUN_FLAGS_AT] == 0
    assert read(data, layout.RUN_TOPIC_BYTES_AT, 2) == 5
    assert read(data, layout.RUN_PACKET_BYTES_AT, 4) == 7
    assert data[layout.RUN_HEAD :] == b"topicpackets"


def test_offsets_of_a_push() -> None:
    push = Push(0x0102030405060708, 0x1112131415161718, 0x21222324, 0x3132333435363738, 0x4142, 1, b"topic", b"payload")
    data = encode_push(push)
    assert read(data, layout.PUSH_SESSION_AT, 8) == push.session
    assert read(data, layout.PUSH_OWNER_EPOCH_AT, 8) == push.owner_epoch
    assert read(data, layout.PUSH_PARTITION_EPOCH_AT, 4) == push.partition_epoch
    assert read(data, layout.PUSH_SESSION_SEQ_AT, 8) == push.session_seq
    assert read(data, layout.PUSH_IDENTIFIER_AT, 2) == push.packet_identifier
    assert data[layout.PUSH_FLAGS_AT] == push.qos
    assert read(data, layout.PUSH_EXPIRY_AT, 4) == layout.NO_EXPIRY
    assert read(data, layout.PUSH_TOPIC_BYTES_AT, 2) == 5
    assert read(data, layout.PUSH_PROPERTY_BYTES_AT, 4) == 0
    assert read(data, layout.PUSH_PAYLOAD_BYTES_AT, 4) == 7
    assert data[layout.PUSH_HEAD :] == b"topicpayload"


def test_offsets_of_acknowledgements() -> None:
    data = encode_publish_ack(0x0102030405060708, 0x1112, 0x97)
    assert len(data) == layout.PUBLISH_ACK_BYTES
    assert read(data, layout.PUBLISH_ACK_TAG_AT, 8) == 0x0102030405060708
    assert read(data, layout.PUBLISH_ACK_PARTITION_AT, 2) == 0x1112
    assert data[layout.PUBLISH_ACK_CODE_AT] == 0x97
    data = encode_push_ack(PushAck(0x0102030405060708, 0x1112131415161718, 0x21222324, 0x3132333435363738, 5, 0x80))
    assert len(data) == layout.PUSH_ACK_BYTES
    assert read(data, layout.PUSH_ACK_SESSION_AT, 8) == 0x0102030405060708
    assert read(data, layout.PUSH_ACK_OWNER_EPOCH_AT, 8) == 0x1112131415161718
    assert read(data, layout.PUSH_ACK_PARTITION_EPOCH_AT, 4) == 0x21222324
    assert read(data, layout.PUSH_ACK_SESSION_SEQ_AT, 8) == 0x3132333435363738
    assert data[layout.PUSH_ACK_TYPE_AT] == 5
    assert data[layout.PUSH_ACK_CODE_AT] == 0x80
