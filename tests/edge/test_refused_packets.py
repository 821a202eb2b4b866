"""Repeatedly refused packets leave no memory."""

import gc
import resource
from pathlib import Path

import pytest

from mqtt.codec import encode_varint
from mqtt.packets import Publish
from tests.clients.packets import packet, publish, subscribe, text, unsubscribe
from tests.edge.edge_harness import Edge
from tests.mqtt.test_vectors import ALL

REFUSED = [vector for vector in ALL if not vector.valid]
PAGE_BYTES = resource.getpagesize()
MIB = 1024 * 1024


def resident() -> int:
    """Return the bytes of this process, without collectable garbage."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def refuse_all(edge: Edge, rounds: int) -> None:
    """Send each refused packet on its own connection: as the first one, and after a CONNECT."""
    for _ in range(rounds):
        for vector in REFUSED:
            for session in (edge.accept(), edge.client("c", version=vector.version)):
                session.send(vector.raw)
                session.drop()
        edge.seen.clear()
        edge.core.hot.dirty_conns()  # as the shell does after a flush
        edge.turn(1.0)
        edge.core.hot.sweep(edge.ns)


@pytest.mark.parametrize("rounds", [5, pytest.param(500, marks=pytest.mark.slow)])
def test_refused_packets_leave_no_memory(rounds: int) -> None:
    """For any fault (CVE-2023-3592: with a will): less than 1 MiB for all of them."""
    assert len(REFUSED) > 100
    edge = Edge()
    refuse_all(edge, 5)
    before = resident()
    refuse_all(edge, rounds)
    growth = resident() - before
    assert growth < MIB, f"{growth / 1024:.0f} KiB after {2 * rounds * len(REFUSED)} refused packets"


NO_TEXT = {
    "cut": b"a\xe2\x82",
    "a byte that is none": b"a\xff",
    "NUL in two bytes": b"\xc0\x80",
    "half a pair": b"\xed\xa0\x80",
    "beyond the last character": b"\xf4\x90\x80\x80",
    "NUL": b"a\0b",
}


def first(flags: int, behind: bytes, version: int = 5, properties: bytes = b"") -> bytes:
    """Return CONNECT with these bytes after its header."""
    head = text(b"MQTT") + bytes([version, flags]) + b"\0\x3c"
    return packet(0x10, head + (encode_varint(len(properties)) + properties) * (version == 5) + behind)


@pytest.mark.parametrize("fault", NO_TEXT)
def test_invalid_utf_8_closes_the_sender_only(fault: str) -> None:
    """In each text field of a client's packets (CVE-2017-7653)."""
    bad = NO_TEXT[fault]
    firsts = {
        "client identifier": first(0x02, text(bad)),
        "user": first(0x82, text(b"c") + text(bad)),
        "method": first(0x02, text(b"c"), properties=b"\x15" + text(bad)),
        "property": first(0x02, text(b"c"), properties=b"\x26" + text(b"k") + text(bad)),
        "topic of a will": first(0x06, text(b"c") + b"\0" + text(bad) + text(b"x")),
        "property of a will": first(0x06, text(b"c") + encode_varint(6 + len(bad)) + b"\x26" + text(b"k") + text(bad)),
    }
    later = {
        "topic": publish(bad, b"x", version=5),
        "topic of QoS 1": publish(bad, b"x", 1, 1, 5),
        "topic of QoS 2": publish(bad, b"x", 2, 1, 5),
        "topic that is kept": publish(bad, b"x", 1, 1, 5, retain=True),
        "response topic": publish(b"t", b"x", version=5, properties=b"\x08" + text(bad)),
        "content type": publish(b"t", b"x", version=5, properties=b"\x03" + text(bad)),
        "name of a property": publish(b"t", b"x", version=5, properties=b"\x26" + text(bad) + text(b"v")),
        "value of a property": publish(b"t", b"x", version=5, properties=b"\x26" + text(b"k") + text(bad)),
        "filter": subscribe(bad, version=5),
        "filter of a group": subscribe(b"$share/" + bad + b"/t", version=5),
        "filter let go": unsubscribe([bad], 5),
    }
    edge = Edge()
    reader = edge.client("reader")
    reader.subscribe("#")
    reader.read()
    for place, data in firsts.items():
        session = edge.accept()
        session.send(data)
        assert session.closed and all(answer.reason_code >= 0x80 for answer in session.read()), place
    for place, data in later.items():
        session = edge.client("c")
        session.send(data)
        edge.turn()
        assert session.closed, place
    assert not reader.read() and not reader.closed


ODD_TOPICS = (
    "", "/", "//", "$", "$/", "$x", "$SYS", "$SYS/", "$SYS/x", "$share", "$share/", "$share//", "$share/g", "$share/g/",
    "$share/g/$SYS/x", "$share/+/x", "$queue/x", "+", "#", "+/+/#", "a/#/b", "a+", "#a", " ", "\ufeff", "x" * 65_535,
    "/" * 65_535,
)  # fmt: skip


@pytest.mark.parametrize("version", [4, 5])
def test_odd_topics_raise_no_assertion(version: int) -> None:
    """As topic, retained topic, will, filter: answered or closed, and others are served (CVE-2018-12543)."""
    edge = Edge()
    for number, odd in enumerate(ODD_TOPICS):
        name = odd.encode()
        later = [
            publish(name, b"x", qos, min(qos, 1), version, retain=retain)
            for qos in range(3)
            for retain in (False, True)
        ]
        later += [subscribe(name, version=version), unsubscribe([name], version)]
        for data in later:
            session = edge.client("odd", version=version)
            session.send(data)
            session.drop()
        session = edge.accept()
        session.send(first(0x06, text(b"odd") + b"\0" * (version == 5) + text(name) + text(b"x"), version))
        session.drop()
        reader = edge.client(f"reader-{number}")
        reader.subscribe("good/+")
        reader.publish("good/x", b"m")
        edge.turn()
        assert [one.payload for one in reader.read() if isinstance(one, Publish)] == [b"m"], odd[:20]
        reader.drop()
