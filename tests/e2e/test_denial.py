"""Denial of service, a row each of docs/security_checks.md: attackers in a process of their own, honest clients beside.

All rows share a cluster and an edge whose bounds are reached soon. The honest pair exchanges messages, and a newcomer
connects, all the while; each row asserts what became of the attackers. Times and counts are larger with ``-m slow``.
"""

import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mqtt.packets import Pingreq, Publish
from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.turn_time import assert_within, timed

MIB = 1024 * 1024
QUEUE_MAX = 50  # messages of an absent session
RETAINED_MAX = 30  # topics of a partition
PARTITIONS = 8
WILL_RATE = 40
DRIPPING = 20
TAKEOVERS_MAX = 5
SESSION_BURST = 10
STORED = {
    "storage.queue_messages_max": QUEUE_MAX,
    "storage.retained_messages_max": RETAINED_MAX,
    "router.partitions": PARTITIONS,
}
BOUNDS = {
    "connect_timeout_s": 1.5,
    "packet_timeout_s": 1.5,
    "keep_alive_max_s": 2,
    "receive_excess_wait_s": 0.5,
    "takeovers_max": TAKEOVERS_MAX,
    "will_rate_max": float(WILL_RATE),
    "session_rate": 2.0,
    "session_burst": SESSION_BURST,
    "flapping_ends_max": 0,  # it would end each row before its own bound is met
    "pending_messages_max": 100,
    "user_property_bytes_max": 8192,
}


@dataclass
class Outcome:
    """What became of an attack."""

    seen: dict[str, int]
    events: dict[str, float]
    trips_s: list[float] = field(default_factory=list)  # of the honest pair
    calm_ms: float = 0.0  # P99 of the same before the attack
    connects_s: list[float] = field(default_factory=list)  # of honest newcomers
    refused: list[str] = field(default_factory=list)  # what honest newcomers met: when, and for how long they had tried
    growth: int = 0  # bytes of the edge
    cpu_s: float = 0.0  # of the edge

    @property
    def p99_ms(self) -> float:
        """Of the honest pair's messages."""
        return statistics.quantiles(self.trips_s, n=100)[98] * 1e3

    def total(self, *beginnings: str) -> int:
        """Return how often one of these was seen, whatever comes behind."""
        return sum(count for name, count in self.seen.items() if name.startswith(beginnings))


class Place:
    """The cluster and its edge."""

    def __init__(self, cluster: LocalCluster, edge: ExtraEdge) -> None:
        self.cluster, self.edge = cluster, edge
        self.ports = {name: edge.port(name) for name in ("plain", "tls", "ws", "rated")}
        self.dripping = self._begin("drip_later", DRIPPING, 14.0)
        _go(self.dripping)

    def _begin(self, kind: str, count: int, seconds: float) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.e2e.attackers", kind, json.dumps(self.ports), str(count), str(seconds)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _resident(self) -> int:
        status = Path(f"/proc/{self.edge.process}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.edge.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def _counts(self) -> dict[str, float]:
        """Return events of the edge, and ``dropped_<reason>``."""
        page = self.cluster.metrics_at(self.edge.addresses["metrics"])
        dropped = re.findall(r'stratamq_messages_dropped_total\{reason="(\w+)"\} (\S+)', page)
        return self.edge.events(self.cluster) | {f"dropped_{reason}": float(amount) for reason, amount in dropped}

    def _told(self, before: dict[str, float]) -> str:
        """Return what the edge counted since then, and the end of its log."""
        log = (self.cluster.data / "edge-9.txt").read_text()[-2000:]
        try:
            counted = {name: more for name, now in self._counts().items() if (more := now - before.get(name, 0))}
        except OSError as error:
            return f"edge: no page of metrics: {error}\n{log}"
        return f"edge: {counted}\n{log}"

    def attack(self, kind: str, count: int, seconds: float, port: str = "plain") -> Outcome:
        """Let so many attack for so long; honest clients come to a listener meanwhile."""
        before = self._counts()
        outcome = Outcome({}, {})
        with self._begin(kind, count, seconds) as attackers, _ends(attackers, seconds):
            assert attackers.stdout is not None and attackers.stdout.readline() == "ready\n"
            with Honest(self.ports[port], outcome) as honest:
                honest.serve(min(3.0, seconds / 4))
                resident, cpu_s, outcome.calm_ms = self._resident(), self._cpu_s(), outcome.p99_ms
                outcome.trips_s.clear()
                _go(attackers)
                try:
                    honest.serve(seconds + 0.5)
                except OSError as error:
                    raise AssertionError(f"the honest pair: {error}\n{self._told(before)}") from error
                outcome.growth, outcome.cpu_s = self._resident() - resident, self._cpu_s() - cpu_s
                outcome.seen = json.loads(attackers.stdout.readline())
                honest.serve(0.1)  # still, when they have gone
        after = self._counts()
        outcome.events = {name: more for name in after if (more := after[name] - before.get(name, 0))}
        p50, slowest = statistics.median(outcome.trips_s) * 1e3, max(outcome.connects_s) * 1e3
        print(
            f"{kind}: {outcome.seen} honest p50 {p50:.1f} ms, p99 {outcome.calm_ms:.1f} -> {outcome.p99_ms:.1f},"
            f" connects to {slowest:.0f} ms, memory {outcome.growth / MIB:+.1f} MiB, {outcome.events}"
        )
        assert not outcome.refused, "\n".join([*outcome.refused, self._told(before)])
        assert_within(f"half of the honest messages beside {kind}", statistics.median(outcome.trips_s) * 1e3, 50)
        assert_within(f"an honest message beside {kind}", max(outcome.trips_s) * 1e3, 2_000)
        assert_within(f"an honest connect beside {kind}", max(outcome.connects_s) * 1e3, 2_000)
        assert outcome.growth < 50 * MIB, f"{outcome.growth / MIB:.0f} MiB"
        return outcome


class Honest:
    """A client that sends itself messages, and newcomers that connect, from another address than the attackers'."""

    def __init__(self, port: int, outcome: Outcome) -> None:
        self._port, self._outcome, self._numbers = port, outcome, 0
        self._client = BlockingClient(port, 5, 10)

    def __enter__(self) -> "Honest":
        self._client.open("honest")
        self._client.subscribe("honest/#", qos=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def serve(self, seconds: float) -> None:
        """Exchange a message each 20 ms and connect each 100 ms for a while."""
        end, next_connect = time.monotonic() + seconds, 0.0
        while (began := time.monotonic()) < end:
            self._numbers += 1
            payload = b"%d" % self._numbers
            self._client.publish("honest/x", payload)
            while self._client.published().payload != payload:
                pass
            self._outcome.trips_s.append(time.monotonic() - began)
            if began > next_connect:
                next_connect = began + 0.1
                self._connect()
            time.sleep(max(0.0, began + 0.02 - time.monotonic()))

    def _connect(self) -> None:
        began = time.monotonic()
        try:
            newcomer = BlockingClient(self._port, 5, 10)
            newcomer.open(f"newcomer-{self._numbers}")
            newcomer.close()
        except (OSError, AssertionError) as error:
            tried_s = time.monotonic() - began
            self._outcome.refused.append(f"{type(error).__name__} {error} behind {tried_s:.2f} s, at {began:.1f}")
        self._outcome.connects_s.append(time.monotonic() - began)


def _go(attackers: "subprocess.Popen[str]") -> None:
    assert attackers.stdin is not None
    attackers.stdin.write("\n")
    attackers.stdin.flush()


@contextmanager
def _ends(process: "subprocess.Popen[str]", seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds + 30, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    settings = [word for name, value in STORED.items() for word in ("--set", f"{name}={value}")]
    with local_cluster("--edges", "1", "--storages", "1", *settings) as cluster:
        listeners: dict[str, dict[str, Any]] = {
            "plain": {"tls": False},
            "tls": {"tls": True},
            "ws": {"tls": False, "protocol": "ws"},
            "rated": {"tls": False, "accept_rate_address_max": 50.0, "accept_rate_max": 200.0},
        }
        for table in listeners.values():
            table["proxy_trusted"] = ["127.0.0.1/32"]  # the honest one's; the other addresses of loopback are counted
        with extra_edge(cluster, listeners, "edge-9", **BOUNDS) as edge:
            place = Place(cluster, edge)
            yield place
            place.dripping.kill()
            place.dripping.wait()


def sizes(short: tuple[int, float], long: tuple[int, float]) -> pytest.MarkDecorator:
    """Return the short form (attackers, seconds) that each run has, and the slow one."""
    return pytest.mark.parametrize(("count", "seconds"), [short, pytest.param(*long, marks=pytest.mark.slow)])


@sizes((40, 2.5), (2000, 45.0))
@timed
def test_handshakes_and_connects_that_drip(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. A byte at a time: each is ended in its time, and comes back no sooner."""
    found = place.attack("drip", count, seconds)
    seen = found.seen
    assert_within("99 of 100 honest connects", statistics.quantiles(found.connects_s, n=100)[98] * 1e3, 1_000)
    for stage in ("handshake", "connect"):
        assert seen[f"{stage} ended"] == seen[f"{stage} begun"] == count // 2


@sizes((30, 0.8), (200, 20.0))
@timed
def test_a_flood_of_connects(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. One address gets its rate and no more; newcomers from another one all get in."""
    found = place.attack("connect_flood", count, seconds, "rated")
    assert 0 < found.seen["let in"] <= 50 * (seconds + 2)
    assert found.seen["refused"] > found.seen["let in"]


@sizes((10, 4.0), (1000, 10.0))
@timed
def test_keep_alive_for_ever(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. 18 hours, or none: the cap is told, and the silent are ended by it."""
    seen = place.attack("keep_alive", count, seconds).seen
    assert seen == {"asked": count, "told 2": count, "ended 0x8d": count}


@sizes((6, 0.8), (20, 20.0))
@timed
def test_deep_and_long_topics(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. 32 levels and 1 KiB cost microseconds; what is beyond ends its connection or is refused."""
    found = place.attack("topics", count, seconds)
    assert found.total("beyond 0x90", "beyond 0x8f") == found.total("beyond") > count
    assert found.seen["within"] > 5_000
    assert_within("a topic of 32 levels", found.cpu_s * 1e3 / found.seen["within"], 0.2)


@sizes((5, 1.2), (100, 20.0))
@timed
def test_an_explosion_of_wildcards(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. Filters are refused before a look-up could cost what they want."""
    found = place.attack("wildcards", count, seconds)
    assert_within("99 of 100 honest messages", found.p99_ms, 50)
    assert found.seen["suback 0x97"] >= count


@sizes((5, 1.2), (50, 20.0))
@timed
def test_a_replay_of_retained_messages(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. All that is retained, asked for again and again: the honest ones go on."""
    found = place.attack("retained_replay", count, seconds)
    assert found.seen["retained"] > found.seen["asked"] >= count


@sizes((20, 0.8), (50, 20.0))
@timed
def test_a_flood_of_retained_topics(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. 0x97 above the bound; what is kept does not grow."""
    found = place.attack("retained_flood", count, seconds)
    assert 0 < found.total("puback 0x00", "puback 0x10") <= RETAINED_MAX * PARTITIONS
    assert found.seen["puback 0x97"] >= count


@sizes((50, 2.0), (1000, 30.0))
@timed
def test_qos_2_that_is_never_released(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. 0x93, and the memory of one client is small."""
    found = place.attack("never_released", count, seconds)
    assert found.events["disconnects_0x93"] >= count  # on a busy machine some attackers have not read it yet
    assert found.seen.get("ended 0x93", 0) == found.total("ended")
    assert found.growth < max(20 * MIB, 20 * 1024 * count)


@sizes((10, 1.0), (100, 30.0))
@timed
def test_a_client_that_never_acknowledges(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. It is given its window; then its queue is full and drops, and the publisher goes on."""
    found = place.attack("never_acks", count, seconds)
    assert found.seen["published"] > 500
    assert 0 < found.seen["given"] <= 64 * found.seen["connack 0x00"]
    assert found.events["dropped_window"] > 0


@sizes((10, 1.8), (200, 20.0))
@timed
def test_queues_of_absent_sessions(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. A session that is away keeps so many messages and no more."""
    found = place.attack("absent", count, seconds)
    left = [found.seen[name] for name in found.seen if name.startswith("left")]
    assert left and max(left) <= QUEUE_MAX


@sizes((40, 1.5), (500, 20.0))
@timed
def test_a_storm_of_wills(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. All at once they break: each will is published once, at the rate of wills."""
    reader = BlockingClient(place.ports["plain"], 5, 10)
    reader.open("wills", keep_alive_s=60)
    reader.subscribe("wills/#", qos=0)
    fired: list[str] = []

    def read() -> None:
        reader.socket.settimeout(0.5)
        while len(fired) < count:
            try:
                packet = reader.read()
            except TimeoutError:
                reader.send(Pingreq())
                continue
            if packet is None:
                return
            if isinstance(packet, Publish):
                fired.append(packet.topic_name)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    found = place.attack("wills", count, seconds)
    assert found.seen["connack 0x00"] == count
    thread.join(30)
    assert len(fired) == len(set(fired)) == count
    reader.close()


@sizes((2, 1.5), (2, 60.0))
@timed
def test_two_clients_of_one_identifier(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. Few takeovers, then 0x9F for a delay that grows."""
    found = place.attack("takeovers", count, seconds)
    assert 0 < found.total("ended 0 0x8e", "ended 1 0x8e") <= 2 * TAKEOVERS_MAX
    assert found.seen["connack 0x9f"] > 5


@sizes((10, 0.8), (100, 20.0))
@timed
def test_sessions_of_random_names(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. One address makes so many stored sessions, then a few a second; more get 0x97."""
    found = place.attack("sessions", count, seconds)
    assert 0 < found.seen["connack 0x00"] <= SESSION_BURST + 2 * (seconds + 2)
    assert found.seen["connack 0x97"] > 10


@sizes((9, 0.8), (300, 30.0))
@timed
def test_thousands_of_user_properties(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. Refused by their bytes in a CONNECT and in a PUBLISH; a wrong alias."""
    found = place.attack("properties", count, seconds)
    for kind, code in (("properties of connect", "0x97"), ("properties of publish", "0x97"), ("alias", "0x94")):
        assert found.seen[f"{kind} {code}"] == found.total(kind) >= count // 3


def test_renegotiation(place: Place) -> None:
    """NIST: protect. A client of TLS 1.2 that begins another handshake is refused it."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{place.ports['tls']}", "-tls1_2", "-legacy_renegotiation"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None and client.stdout is not None
        said = b""
        while b"---\n" not in said[-200:] or b"Verify return code" not in said:
            said += client.stdout.read1(65_536)  # type: ignore[attr-defined]
        client.stdin.write(b"R\n")
        client.stdin.flush()
        said = client.communicate(timeout=10)[0]
    assert b"RENEGOTIATING" in said and re.search(rb"no renegotiation|no_renegotiation|unexpected", said), said[-500:]


@sizes((10, 0.8), (200, 20.0))
@timed
def test_frames_of_websockets(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. Fragments of a byte, floods of pings, frames that are none; a large frame widens no packet."""
    found = place.attack("websockets", count, seconds)
    codes = {name.rpartition(" ")[0]: name.rpartition(" ")[2] for name in found.seen if name[-4:].isdigit()}
    assert codes == {"tiny fragments": "1008", "pings": "1008", "unmasked": "1002", "compressed": "1002"}
    assert found.seen["huge without a word"] >= 2 and found.events["disconnects_0x95"] >= 2


@timed
def test_compression(place: Place) -> None:
    """NIST: protect. None is agreed on: neither of WebSocket nor of TLS."""
    for kind in ("websockets", "tls_compression"):
        seen = place.attack(kind, 5, 0.5).seen
        assert seen["no compression"] >= 5 and "compression" not in seen


@sizes((20, 1.2), (200, 10.0))
@timed
def test_clients_that_stop_reading(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. A flood of QoS 0 that nobody reads is dropped, counted, and takes bounded memory."""
    found = place.attack("slow_readers", count, seconds)
    assert found.seen["flooded"] > 100
    assert found.events.get("dropped_slow", 0) + found.events.get("holds_cut_full", 0) > 100


@sizes((10, 0.8), (1000, 20.0))
@timed
def test_members_of_a_group_that_come_and_go(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. A member that stays has messages of its group, and other clients theirs."""
    member, writer = BlockingClient(place.ports["plain"], 5, 10), BlockingClient(place.ports["plain"], 5, 10)
    member.open("member", keep_alive_s=60)
    member.subscribe("$share/crew/crew/#", qos=1)
    writer.open("writer")
    over, got = threading.Event(), []

    def write() -> None:
        while not over.wait(0.02):
            writer.publish("crew/x", b"x")

    def read() -> None:
        while True:
            try:
                got.append(member.take().topic_name)
            except OSError:
                return

    threads = [threading.Thread(target=one, daemon=True) for one in (write, read)]
    for thread in threads:
        thread.start()
    found = place.attack("group_churn", count, seconds)
    over.set()
    threads[0].join(10)
    assert found.seen["joined"] > 50 and len(got) > 3
    writer.close()
    member.socket.shutdown(2)
    threads[1].join(10)


@sizes((6, 0.8), (20, 60.0))
@timed
def test_takeovers_while_subscriptions_come_and_go(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. Nobody is torn between two connections of one client, and the edge lives."""
    found = place.attack("takeover_churn", count, seconds)
    assert found.total("churned") >= 1 and found.seen["connack 0x9f"] > 0


@sizes((500, 0.8), (1000, 1.2))
@timed
def test_memory_of_connections_before_their_connect(place: Place, count: int, seconds: float) -> None:
    """NIST: protect. Half a CONNECT of 60 000 bytes costs what it brought, 64 KiB at most."""
    found = place.attack("half_a_connect", count, seconds)
    assert found.seen["held"] >= count and found.growth < count * 64 * 1024


@pytest.mark.slow
@timed
def test_a_thousand_packets_that_drip(place: Place) -> None:
    """NIST: protect. Behind a CONNECT as it should be; all are gone in half a minute."""
    seen = place.attack("drip_later", 1000, 30.0).seen
    assert seen["publish ended"] == seen["publish begun"] == 1000


def test_packets_that_drip_behind_a_connect(place: Place) -> None:
    """NIST: protect. 4 B/s, and a packet's time is over 10 s after it began: ended, beside all of the above."""
    seen = json.loads(place.dripping.communicate(timeout=60)[0].splitlines()[-1])
    assert seen["publish ended"] == seen["publish begun"] == DRIPPING
