"""One table of exchanges, played with an ephemeral and with a stored session: both get the same answers.

An ephemeral session is answered by its edge, a stored one by its edge and its partition. A case is a script of a
client's packets, with the answers to each step. Where the specification allows two answers and the sessions differ,
``LEGAL`` has the other one, with its reason.
"""

from collections.abc import Callable

import pytest

from tests.clients.packets import ack, publish
from tests.simulation.cluster import Cluster, Knobs
from tests.simulation.raw_client import RawClient

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
NOT_FOUND = " 0x92"
EXPIRY_2_S = b"\x02\x00\x00\x00\x02"
ENDED = ["DISCONNECT 0x82", "closed"]

Script = Callable[["Pair"], list[list[str]]]


class Pair:
    """The client with the tested session, and a peer that publishes to it and receives its messages."""

    def __init__(self, cluster: Cluster, name: str, version: int, *, stored: bool, properties: bytes = b"") -> None:
        self.version = version
        self.topic = name.encode()
        self.client = RawClient(cluster, f"{name}-c", version, stored=stored, properties=properties)
        self.other = RawClient(cluster, f"{name}-o", 5)
        self.other.subscribe(self.topic + b"/up", 0)
        self._numbers = 0

    def publish(self, qos: int, payload: bytes = b"m", identifier: int = 7, *, dup: bool = False) -> bytes:
        """Return a PUBLISH of the client."""
        return publish(self.topic + b"/up", payload, qos, identifier, self.version, dup=dup)

    def say(self, *packets: bytes) -> list[str]:
        return self.client.say(*packets)

    def deliver(self, qos: int, payload: bytes = b"m", properties: bytes = b"") -> list[str]:
        """Let the peer publish to the client; return the client's packets."""
        self._numbers += 1
        packet = publish(self.topic + b"/down", payload, qos, self._numbers, 5, properties)
        if qos == 2:
            packet += ack(PUBREL, self._numbers)
        self.other.say(packet)
        return self.client.read()

    def acknowledge(self, kind: int, code: int | None = None) -> list[str]:
        """Answer the newest message."""
        return self.say(ack(kind, self.client.identifier, code if self.version == 5 else None))

    def got(self) -> list[str]:
        """Return the messages of the client that the peer received."""
        return [text for text in self.other.say() if text.startswith("PUBLISH")]


# --- messages that the client publishes


def qos_1_twice(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(1)), pair.say(pair.publish(1, dup=True)), pair.got()]


def qos_2(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2)), pair.say(ack(PUBREL, 7)), pair.got()]


def qos_2_five_times(pair: Pair) -> list[list[str]]:
    answers = [text for dup in range(5) for text in pair.say(pair.publish(2, dup=dup > 0))]
    return [answers, pair.say(ack(PUBREL, 7)), pair.got()]


def qos_2_five_times_at_once(pair: Pair) -> list[list[str]]:
    return [pair.say(*[pair.publish(2, dup=dup > 0) for dup in range(5)]), pair.say(ack(PUBREL, 7)), pair.got()]


def qos_2_and_release_at_once(pair: Pair) -> list[list[str]]:
    first = pair.say(pair.publish(2), ack(PUBREL, 7))
    return [first, pair.say(pair.publish(2, b"n"), ack(PUBREL, 7)), pair.got()]


def identifier_of_another_message(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2)), pair.say(pair.publish(2, b"n")), pair.say(ack(PUBREL, 7)), pair.got()]


def identifier_shared_by_qos_1_and_2(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2)), pair.say(pair.publish(1, b"n")), pair.say(ack(PUBREL, 7)), pair.got()]


def release_twice(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2)), pair.say(ack(PUBREL, 7)), pair.say(ack(PUBREL, 7))]


def release_twice_at_once(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2)), pair.say(ack(PUBREL, 7), ack(PUBREL, 7))]


def release_of_nothing(pair: Pair) -> list[list[str]]:
    return [pair.say(ack(PUBREL, 9))]


def release_with_reason_code(pair: Pair) -> list[list[str]]:
    code = 0x92 if pair.version == 5 else None
    return [pair.say(pair.publish(2)), pair.say(ack(PUBREL, 7, code)), pair.say(pair.publish(2, b"n")), pair.got()]


def release_and_use_again_at_once(pair: Pair) -> list[list[str]]:
    first = pair.say(pair.publish(2))
    return [first, pair.say(ack(PUBREL, 7), pair.publish(2, b"n")), pair.say(ack(PUBREL, 7)), pair.got()]


def many_repeats_use_up_no_receive_maximum(pair: Pair) -> list[list[str]]:
    repeats = pair.say(*[pair.publish(2, dup=dup > 0) for dup in range(60)])
    answers = [f"{len(repeats)} {sorted(set(repeats))}"]
    others = pair.say(*[pair.publish(2, b"n", 10 + number) for number in range(15)])
    return [answers, [f"{len(others)} {sorted(set(others))}"], pair.say(ack(PUBREL, 7))]


def flags_of_release(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2)), pair.say(ack(0x60, 7))]


def release_of_identifier_0(pair: Pair) -> list[list[str]]:
    return [pair.say(ack(PUBREL, 0))]


def publish_with_identifier_0(pair: Pair) -> list[list[str]]:
    return [pair.say(pair.publish(2, identifier=0))]


# --- messages that the client receives


def delivered(qos: int, *kinds: int, code: int | None = None) -> Script:
    """Return a script: a message is delivered, and answered with these packets."""

    def script(pair: Pair) -> list[list[str]]:
        pair.client.subscribe(pair.topic + b"/down", qos)
        steps = [pair.deliver(qos)]
        for kind in kinds:
            steps.append(pair.acknowledge(kind, code if kind in (PUBACK, PUBREC) else None))
            if "closed" in steps[-1]:
                return steps
        return [*steps, pair.deliver(qos, b"next")]

    return script


def unknown(kind: int, code: int | None = None) -> Script:
    """Return a script: an acknowledgement without a message, before and after the client received one."""

    def script(pair: Pair) -> list[list[str]]:
        packet = ack(kind, 900, code if pair.version == 5 else None)
        first = pair.say(packet)
        pair.client.subscribe(pair.topic + b"/down", 2)
        return [first, pair.deliver(1), pair.say(packet), pair.acknowledge(PUBACK)]

    return script


def identifier_0(kind: int) -> Script:
    return lambda pair: [pair.say(ack(kind, 0))]


def invalid_code(kind: int) -> Script:
    def script(pair: Pair) -> list[list[str]]:
        pair.client.subscribe(pair.topic + b"/down", 2)
        return [pair.deliver(1 if kind == PUBACK else 2), pair.say(ack(kind, pair.client.identifier, 0x42))]

    return script


def too_large(pair: Pair) -> list[list[str]]:
    pair.client.subscribe(pair.topic + b"/down", 1)
    return [pair.deliver(1, b"x" * 300), pair.deliver(1, b"small")]


def expired_while_it_waits(pair: Pair) -> list[list[str]]:
    """Behind the window for longer than its expiry; messages sent in time stay open (MQTT 5.0 section 4.4)."""
    pair.client.subscribe(pair.topic + b"/down", 1)
    first = pair.deliver(1, b"a", EXPIRY_2_S) + pair.deliver(1, b"b", EXPIRY_2_S) + pair.deliver(1, b"c")
    pair.client.wait(3.0)
    return [first, pair.acknowledge(PUBACK), pair.acknowledge(PUBACK)]


def receive_maximum(pair: Pair) -> list[list[str]]:
    """One message at a time; the second waits for its PUBACK, and the third for the second."""
    pair.client.subscribe(pair.topic + b"/down", 1)
    first = [text for payload in (b"a", b"b", b"c") for text in pair.deliver(1, payload)]
    return [first, pair.acknowledge(PUBACK), pair.acknowledge(PUBACK), pair.acknowledge(PUBACK)]


BOTH: dict[str, tuple[Script, list[list[str]]]] = {
    "QoS 1 again": (qos_1_twice, [["PUBACK"], ["PUBACK"], ["PUBLISH q0 m", "PUBLISH q0 m"]]),
    "QoS 2": (qos_2, [["PUBREC"], ["PUBCOMP"], ["PUBLISH q0 m"]]),
    "QoS 2 again": (qos_2_five_times, [["PUBREC"] * 5, ["PUBCOMP"], ["PUBLISH q0 m"]]),
    "QoS 2 again at once": (qos_2_five_times_at_once, [["PUBREC"] * 5, ["PUBCOMP"], ["PUBLISH q0 m"]]),
    "QoS 2 and PUBREL at once": (
        qos_2_and_release_at_once,
        [["PUBREC", "PUBCOMP"], ["PUBREC", "PUBCOMP"], ["PUBLISH q0 m", "PUBLISH q0 n"]],
    ),
    "another message under an open identifier": (
        identifier_of_another_message,
        [["PUBREC"], ["PUBREC"], ["PUBCOMP"], ["PUBLISH q0 m"]],
    ),
    "QoS 1 under the identifier of an open QoS 2": (
        identifier_shared_by_qos_1_and_2,
        [["PUBREC"], ["PUBACK"], ["PUBCOMP"], ["PUBLISH q0 m", "PUBLISH q0 n"]],
    ),
    "PUBREL again": (release_twice, [["PUBREC"], ["PUBCOMP"], ["PUBCOMP" + NOT_FOUND]]),
    "PUBREL of nothing": (release_of_nothing, [["PUBCOMP" + NOT_FOUND]]),
    "PUBREL with a reason code": (
        release_with_reason_code,
        [["PUBREC"], ["PUBCOMP"], ["PUBREC"], ["PUBLISH q0 m", "PUBLISH q0 n"]],
    ),
    "PUBREL and the identifier again at once": (
        release_and_use_again_at_once,
        [["PUBREC"], ["PUBCOMP", "PUBREC"], ["PUBCOMP"], ["PUBLISH q0 m", "PUBLISH q0 n"]],
    ),
    "60 repeats beside 15 messages": (
        many_repeats_use_up_no_receive_maximum,
        [["60 ['PUBREC']"], ["15 ['PUBREC']"], ["PUBCOMP"]],
    ),
    "PUBREL with wrong flags": (flags_of_release, [["PUBREC"], ["DISCONNECT 0x81", "closed"]]),
    "PUBREL of identifier 0": (release_of_identifier_0, [ENDED]),
    "PUBLISH with identifier 0": (publish_with_identifier_0, [ENDED]),
    "QoS 1, PUBACK": (delivered(1, PUBACK), [["PUBLISH q1 m"], [], ["PUBLISH q1 next"]]),
    "QoS 1, PUBACK twice": (delivered(1, PUBACK, PUBACK), [["PUBLISH q1 m"], [], [], ["PUBLISH q1 next"]]),
    "QoS 1, PUBREC": (delivered(1, PUBREC), [["PUBLISH q1 m"], ENDED]),
    "QoS 1, PUBCOMP": (delivered(1, PUBCOMP), [["PUBLISH q1 m"], ENDED]),
    "QoS 1, PUBACK with an error": (delivered(1, PUBACK, code=0x80), [["PUBLISH q1 m"], [], ["PUBLISH q1 next"]]),
    "QoS 2, PUBREC, PUBCOMP": (
        delivered(2, PUBREC, PUBCOMP),
        [["PUBLISH q2 m"], ["PUBREL"], [], ["PUBLISH q2 next"]],
    ),
    "QoS 2, PUBREC twice": (
        delivered(2, PUBREC, PUBREC, PUBCOMP),
        [["PUBLISH q2 m"], ["PUBREL"], ["PUBREL"], [], ["PUBLISH q2 next"]],
    ),
    "QoS 2, PUBCOMP twice": (
        delivered(2, PUBREC, PUBCOMP, PUBCOMP),
        [["PUBLISH q2 m"], ["PUBREL"], [], [], ["PUBLISH q2 next"]],
    ),
    "QoS 2, PUBREC behind PUBCOMP": (
        delivered(2, PUBREC, PUBCOMP, PUBREC),
        [["PUBLISH q2 m"], ["PUBREL"], [], ["PUBREL" + NOT_FOUND], ["PUBLISH q2 next"]],
    ),
    "QoS 2, PUBACK": (delivered(2, PUBACK), [["PUBLISH q2 m"], ENDED]),
    "QoS 2, PUBCOMP": (delivered(2, PUBCOMP), [["PUBLISH q2 m"], ENDED]),
    "QoS 2, PUBREC, PUBACK": (delivered(2, PUBREC, PUBACK), [["PUBLISH q2 m"], ["PUBREL"], ENDED]),
    "PUBACK of nothing": (unknown(PUBACK), [[], ["PUBLISH q1 m"], [], []]),
    "PUBREC of nothing": (unknown(PUBREC), [["PUBREL" + NOT_FOUND], ["PUBLISH q1 m"], ["PUBREL" + NOT_FOUND], []]),
    "PUBCOMP of nothing": (unknown(PUBCOMP), [[], ["PUBLISH q1 m"], [], []]),
    "PUBACK of identifier 0": (identifier_0(PUBACK), [ENDED]),
    "PUBREC of identifier 0": (identifier_0(PUBREC), [ENDED]),
    "PUBCOMP of identifier 0": (identifier_0(PUBCOMP), [ENDED]),
}  # fmt: skip
ONLY_5: dict[str, tuple[Script, list[list[str]]]] = {
    "QoS 2, PUBREC with an error": (
        delivered(2, PUBREC, code=0x80),
        [["PUBLISH q2 m"], [], ["PUBLISH q2 next"]],
    ),
    "QoS 2, PUBREC with an error, PUBCOMP": (
        delivered(2, PUBREC, PUBCOMP, code=0x80),
        [["PUBLISH q2 m"], [], [], ["PUBLISH q2 next"]],
    ),
    "PUBREC with an error of nothing": (unknown(PUBREC, 0x80), [[], ["PUBLISH q1 m"], [], []]),
    "PUBACK with a code that it has not": (invalid_code(PUBACK), [["PUBLISH q1 m"], ENDED]),
    "PUBREC with a code that it has not": (invalid_code(PUBREC), [["PUBLISH q2 m"], ENDED]),
    "PUBCOMP with a code that it has not": (invalid_code(PUBCOMP), [["PUBLISH q2 m"], ENDED]),
    "above Maximum Packet Size": (too_large, [[], ["PUBLISH q1 small"]]),
    "Receive Maximum 1": (
        receive_maximum,
        [["PUBLISH q1 a"], ["PUBLISH q1 b"], ["PUBLISH q1 c"], []],
    ),
    "expired behind Receive Maximum 1": (
        expired_while_it_waits,
        [["PUBLISH q1 a expiry 2"], ["PUBLISH q1 c"], []],
    ),
}  # fmt: skip
ONE = b"\x21\x00\x01"  # Receive Maximum
PROPERTIES = {
    "above Maximum Packet Size": b"\x27\x00\x00\x01\x00",
    "Receive Maximum 1": ONE,
    "expired behind Receive Maximum 1": ONE,
}
# A stored session releases an identifier in its partition after a commit. A PUBREL that arrives meanwhile comes from
# a client that waits for PUBCOMP, and is no mismatch (MQTT 5.0 section 3.7.2.1).
LEGAL: dict[tuple[str, bool], list[list[str]]] = {
    ("PUBREL again at once", False): [["PUBREC"], ["PUBCOMP", "PUBCOMP" + NOT_FOUND]],
    ("PUBREL again at once", True): [["PUBREC"], ["PUBCOMP", "PUBCOMP"]],
}
CASES = [(4, name) for name in BOTH] + [(5, name) for name in (*BOTH, *ONLY_5)]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    made = Cluster("kinds of sessions", Knobs(edges=2))
    made.start_all()
    return made


def in_version(steps: list[list[str]], version: int) -> list[list[str]]:
    """Return the answers without the parts that MQTT 3.1.1 lacks."""
    if version == 5:
        return steps
    return [[text.split(" 0x")[0] for text in step if not text.startswith("DISCONNECT")] for step in steps]


@pytest.mark.parametrize("stored", [False, True], ids=["ephemeral", "stored"])
@pytest.mark.parametrize(("version", "name"), CASES)
def test_both_kinds_of_session_answer_alike(cluster: Cluster, version: int, name: str, stored: bool) -> None:
    script, wanted = (BOTH | ONLY_5)[name]
    number = CASES.index((version, name))
    pair = Pair(cluster, f"k{number}-{int(stored)}", version, stored=stored, properties=PROPERTIES.get(name, b""))
    assert script(pair) == in_version(wanted, version)


@pytest.mark.parametrize("stored", [False, True], ids=["ephemeral", "stored"])
@pytest.mark.parametrize("version", [4, 5])
def test_release_repeated_at_once(cluster: Cluster, version: int, stored: bool) -> None:
    pair = Pair(cluster, f"legal-{version}-{int(stored)}", version, stored=stored)
    assert release_twice_at_once(pair) == in_version(LEGAL["PUBREL again at once", stored], version)


@pytest.mark.parametrize("edge", ["e1", "e2"])
@pytest.mark.parametrize("version", [4, 5])
def test_stored_session_resumes_at_either_edge(cluster: Cluster, version: int, edge: str) -> None:
    """A message of an earlier connection is answered by PUBREC, not delivered again, and released without an error."""
    pair = Pair(cluster, f"resumed-{version}-{edge}", version, stored=True)
    assert pair.say(pair.publish(2)) == ["PUBREC"]
    pair.client.drop()
    assert pair.client.open(edge=edge) == []
    assert [pair.say(pair.publish(2, dup=True)) for _ in range(4)] == [["PUBREC"]] * 4
    assert pair.say(ack(PUBREL, 7)) == ["PUBCOMP"]
    pair.client.drop()
    pair.client.open(edge=edge)
    assert pair.say(ack(PUBREL, 7)) == ["PUBCOMP"]  # its PUBCOMP may have been lost
    assert pair.got() == ["PUBLISH q0 m"]
    assert pair.say(pair.publish(2, b"n")) == ["PUBREC"] and pair.got() == ["PUBLISH q0 n"]
