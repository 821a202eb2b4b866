"""Denial of service, one test per row of docs/security_checks.md: attackers in their own process, honest clients
beside.

All rows share a cluster and an edge with low limits. An honest pair exchanges messages, and new clients connect,
all the time; each row asserts the attackers' outcomes. An attack lasts until the attackers reach the outcome of
the row, so slow machines only take longer. Times and counts are larger with ``-m slow``.
"""

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mqtt.packets import Connack, Pingreq, Publish
from tests.clients.blocking import BlockingClient
from tests.e2e.attacked_place import DRIPPING, LATE_S, MIB, Outcome, Place, p99_ms
from tests.e2e.extra_edge import extra_edge
from tests.e2e.hostile_clients import connect
from tests.e2e.local_cluster import local_cluster
from tests.turn_time import assert_within, timed

QUEUE_MAX = 50  # messages of an absent session
RETAINED_MAX = 30  # topics of a partition
PARTITIONS = 8
WILL_RATE = 100
TAKEOVERS_MAX = 5
SESSION_BURST = 10
STORED = {
    "storage.queue_messages_max": QUEUE_MAX,
    "storage.retained_messages_max": RETAINED_MAX,
    "router.partitions": PARTITIONS,
}
BOUNDS: dict[str, Any] = {
    "connect_timeout_s": 1.5,
    "connect_packet_timeout_s": 1.0,
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
    "user_properties_max": 64,
    "retained_rate_max": 1000.0,
}


# Times of conf/edge.toml: the length of an attack; the login of thousands of attackers takes seconds.
SHIPPED = {
    "connect_timeout_s": 10.0,
    "connect_packet_timeout_s": 5.0,
    "packet_timeout_s": 30.0,
    "keep_alive_max_s": 1200,
}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with attacked(BOUNDS) as place:
        yield place


@pytest.fixture(scope="module")
def shipped_place() -> Iterator[Place]:
    with attacked(BOUNDS | SHIPPED) as place:
        yield place


@pytest.fixture
def roomy(request: pytest.FixtureRequest) -> Place:
    """Return the place of the short form, and one with the times of operators for the long one."""
    is_long = request.node.get_closest_marker("slow") is not None
    place: Place = request.getfixturevalue("shipped_place" if is_long else "place")
    return place


@contextlib.contextmanager
def attacked(bounds: dict[str, Any]) -> Iterator[Place]:
    """Run a cluster and an edge with these bounds."""
    settings = [word for name, value in STORED.items() for word in ("--set", f"{name}={value}")]
    with local_cluster("--edges", "1", "--storages", "1", *settings) as cluster:
        listeners: dict[str, dict[str, Any]] = {
            "plain": {"tls": False},
            "tls": {"tls": True},
            "ws": {"tls": False, "protocol": "ws"},
            "scarce": {"tls": False, "accept_rate_address_max": 25.0, "accept_rate_max": 40.0},
            "proxied": {"tls": False, "proxy_protocol": "v1", "accept_rate_max": 2.0},
            "rated": {"tls": False, "accept_rate_address_max": 50.0, "accept_rate_max": 200.0},
        }
        with extra_edge(cluster, listeners, "edge-9", **bounds) as edge:
            place = Place(cluster, edge)
            yield place
            place.dripping.kill()


def sizes(short: tuple[int, float], long: tuple[int, float]) -> pytest.MarkDecorator:
    """Return the short form (attackers, seconds) that each run has, and the slow one."""
    return pytest.mark.parametrize(("count", "seconds"), [short, pytest.param(*long, marks=pytest.mark.slow)])


@sizes((40, 1.0), (2000, 45.0))
@timed
def test_dripping_handshakes_and_connects_time_out(place: Place, count: int, seconds: float) -> None:
    """One byte at a time: each ends at its timeout, and reconnects no sooner."""
    found = place.attack("drip", count, seconds, lambda now: now.total("handshake ended", "connect ended") >= count)
    assert_within("99 of 100 honest connects", p99_ms(found.connects_s), 1_000)
    for stage in ("handshake", "connect"):
        assert found.seen[f"{stage} ended"] == found.seen[f"{stage} begun"] == count // 2


@sizes((30, 0.6), (200, 60.0))
@timed
def test_connect_flood_of_one_address_rate_limited(place: Place, count: int, seconds: float) -> None:
    """One address gets its rate; new clients of another address all connect."""
    found = place.attack(
        "connect_flood", count, seconds, lambda now: now.seen["refused"] > now.seen["let in"] > 0, "rated"
    )
    assert found.seen["refused"] > found.seen["let in"]
    assert 0 < found.seen["let in"] <= 50 * (found.took_s + 2)


@sizes((400, 1.0), (800, 30.0))
@timed
def test_connect_flood_of_many_addresses_rate_limited(place: Place, count: int, seconds: float) -> None:
    """32 addresses, each within its own rate, exceed the listener's rate 20 times: new clients all connect."""
    found = place.attack(
        "connect_flood_in_turn",
        count,
        seconds,
        lambda now: now.seen["let in"] > 40 and now.events["refused_accept_rate"] > 0,
        "scarce",
    )
    assert 40 < found.seen["let in"] <= 40 * (found.took_s + 2) and found.events["refused_accept_rate"] > 0


def test_connects_behind_load_balancer_limited_by_header_address(place: Place) -> None:
    """After the PROXY header, the edge reads a connection only when the address in the header is within its rate."""
    clients = [BlockingClient(place.ports["proxied"]) for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(b"PROXY TCP4 203.0.113.%d 192.0.2.9 5555 1883\r\n" % (number // 2))
        client.send(connect(b"proxied-%d" % number))
    gone = clients.pop(3)
    gone.socket.close()  # the edge may have read it already
    for client in clients:
        answer = client.read()
        assert isinstance(answer, Connack) and answer.reason_code == 0
        client.close()


@sizes((10, 1.0), (1000, 10.0))
@timed
def test_long_keep_alive_capped(place: Place, count: int, seconds: float) -> None:
    """18 hours, or none: CONNACK has the maximum, and silent clients are closed after it."""
    seen = place.attack("keep_alive", count, seconds, lambda now: now.total("ended") >= count).seen
    assert seen == {"asked": count, "told 2": count, "ended 0x8d": count}


@sizes((6, 0.6), (20, 20.0))
@timed
def test_deep_and_long_topics(place: Place, count: int, seconds: float) -> None:
    """32 levels and 1 KiB cost microseconds; a longer topic closes its connection or is refused."""
    found = place.attack(
        "topics", count, seconds, lambda now: now.total("beyond") > count and now.seen["within"] > 5_000
    )
    assert found.total("beyond 0x90", "beyond 0x8f") == found.total("beyond") > count
    assert found.seen["within"] > 5_000
    assert_within("a topic of 32 levels", found.cpu_s * 1e3 / found.seen["within"], 0.2)


@sizes((5, 0.8), (1000, 30.0))
@timed
def test_expensive_wildcards_refused(roomy: Place, count: int, seconds: float) -> None:
    """SUBACK refuses filters that would make look-ups too expensive."""
    found = roomy.attack("wildcards", count, seconds, lambda now: now.seen["suback 0x97"] >= count)
    assert_within("99 of 100 honest messages", found.p99_ms, 50)
    assert found.seen["suback 0x97"] >= count


@sizes((5, 0.8), (50, 20.0))
@timed
def test_repeated_retained_reads_delay_no_honest_client(roomy: Place, count: int, seconds: float) -> None:
    """Attackers request all retained messages repeatedly."""
    found = roomy.attack(
        "retained_replay", count, seconds, lambda now: now.seen["retained"] > now.seen["asked"] >= count
    )
    assert found.seen["retained"] > found.seen["asked"] >= count


@sizes((20, 0.6), (50, 20.0))
@timed
def test_retained_topic_flood_refused_above_limit(place: Place, count: int, seconds: float) -> None:
    """0x97 above the limit; the store does not grow."""
    found = place.attack("retained_flood", count, seconds, lambda now: now.seen["puback 0x97"] >= count)
    assert 0 < found.total("puback 0x00", "puback 0x10") <= RETAINED_MAX * PARTITIONS
    assert found.seen["puback 0x97"] >= count


@sizes((50, 0.8), (10_000, 90.0))
@timed
def test_unreleased_qos_2_limited(roomy: Place, count: int, seconds: float) -> None:
    """0x93, and the memory of one client stays small."""
    most = max(20 * MIB, 20 * 1024 * count)
    found = roomy.attack(
        "never_released", count, seconds, lambda now: now.events["disconnects_0x93"] >= count, growth_max=most
    )
    assert found.events["disconnects_0x93"] >= count  # on a busy machine some attackers have not read it yet
    assert found.seen["ended 0x93"] == found.total("ended")


@sizes((10, 0.6), (100, 30.0))
@timed
def test_client_without_acknowledgements_gets_bounded_queue(roomy: Place, count: int, seconds: float) -> None:
    """It gets its receive window; then its full queue drops messages, and the publisher continues."""
    found = roomy.attack(
        "never_acks",
        count,
        seconds,
        lambda now: now.seen["published"] > 500 and min(now.seen["given"], now.events["dropped_window"]) > 0,
    )
    assert found.seen["published"] > 500
    assert 0 < found.seen["given"] <= 64 * found.seen["connack 0x00"]
    assert found.events["dropped_window"] > 0


@sizes((10, 0.8), (1000, 60.0))
@timed
def test_queue_of_absent_session_bounded(roomy: Place, count: int, seconds: float) -> None:
    """An absent session keeps at most its limit of messages."""
    found = roomy.attack("absent", count, seconds, lambda now: now.seen["read again"] >= count // 2)
    left = [found.seen[name] for name in found.seen if name.startswith("left")]
    assert left and max(left) <= QUEUE_MAX


@sizes((40, 1.0), (5000, 40.0))
@timed
def test_will_storm_publishes_each_will_once(roomy: Place, count: int, seconds: float) -> None:
    """All connections break together: each will is published once, at the rate of wills."""
    reader = BlockingClient(roomy.ports["plain"])
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
    most = max(50, count // 50) * MIB
    found = roomy.attack("wills", count, seconds, lambda now: now.total("connack") >= count, growth_max=most)
    assert found.seen["connack 0x00"] == count
    thread.join(LATE_S + count / WILL_RATE)
    assert len(fired) == len(set(fired)) == count
    reader.close()


@sizes((2, 0.8), (2, 60.0))
@timed
def test_takeover_loop_delayed(place: Place, count: int, seconds: float) -> None:
    """A few takeovers, then 0x9F with a growing delay."""
    found = place.attack(
        "takeovers", count, seconds, lambda now: now.total("ended") > 0 and now.seen["connack 0x9f"] > 5
    )
    assert 0 < found.total("ended 0 0x8e", "ended 1 0x8e") <= 2 * TAKEOVERS_MAX
    assert found.seen["connack 0x9f"] > 5


@sizes((10, 0.6), (100, 20.0))
@timed
def test_sessions_with_random_names_limited(place: Place, count: int, seconds: float) -> None:
    """One address creates stored sessions up to a limit, then a few per second; more get 0x97."""
    found = place.attack("sessions", count, seconds, lambda now: now.seen["connack 0x97"] > 10)
    assert 0 < found.seen["connack 0x00"] <= SESSION_BURST + 2 * (found.took_s + 2)
    assert found.seen["connack 0x97"] > 10


@sizes((9, 0.6), (300, 30.0))
@timed
def test_thousands_of_user_properties_refused(place: Place, count: int, seconds: float) -> None:
    """Refused by size in CONNECT and in PUBLISH; a wrong alias."""
    wanted = {"properties of connect": "0x97", "properties of publish": "0x97", "alias": "0x94"}
    found = place.attack(
        "properties", count, seconds, lambda now: all(now.total(kind) >= count // 3 for kind in wanted)
    )
    for kind, code in wanted.items():
        assert found.seen[f"{kind} {code}"] == found.total(kind) >= count // 3


def test_tls_renegotiation_refused(place: Place) -> None:
    """A client of TLS 1.2 that starts another handshake is refused."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{place.ports['tls']}", "-tls1_2", "-legacy_renegotiation"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None and client.stdout is not None
        output = b""
        while b"---\n" not in output[-200:] or b"Verify return code" not in output:
            more = client.stdout.read1(65_536)  # type: ignore[attr-defined]
            assert more, output[-500:]
            output += more
        client.stdin.write(b"R\n")
        client.stdin.flush()
        output = client.communicate(timeout=LATE_S)[0]
    assert b"RENEGOTIATING" in output and re.search(rb"no renegotiation|no_renegotiation|unexpected", output), output[
        -500:
    ]


@sizes((12, 0.6), (1000, 30.0))
@timed
def test_hostile_websocket_frames(roomy: Place, count: int, seconds: float) -> None:
    """One-byte fragments, ping floods, invalid or huge frames; none extends a packet."""
    wanted = {"tiny fragments": "1008", "pings": "1008", "huge": "1009", "unmasked": "1002", "compressed": "1002"}

    def until(now: Outcome) -> bool:
        ended = [*(f"{kind} {code}" for kind, code in wanted.items()), "wide packet without a word"]
        return min(now.seen[name] for name in ended) >= 2 and now.events["disconnects_0x95"] >= 2

    found = roomy.attack("websockets", count, seconds, until)
    codes = {name.rpartition(" ")[0]: name.rpartition(" ")[2] for name in found.seen if name[-4:].isdigit()}
    assert codes == wanted
    assert found.seen["wide packet without a word"] >= 2 and found.events["disconnects_0x95"] >= 2


@timed
def test_compression_not_negotiated(place: Place) -> None:
    """Neither of WebSocket nor of TLS."""
    for kind in ("websockets", "tls_compression"):
        seen = place.attack(kind, 5, 0.3, lambda now: now.seen["no compression"] >= 5).seen
        assert seen["no compression"] >= 5 and "compression" not in seen


@sizes((20, 0.8), (500, 20.0))
@timed
def test_output_of_client_that_stops_reading_bounded(roomy: Place, count: int, seconds: float) -> None:
    """A QoS 0 flood to clients that do not read is dropped, counted, and takes bounded memory."""

    def dropped(now: Outcome) -> int:
        return now.events["dropped_slow"] + now.events["holds_cut_full"]

    most = max(50, count * 3 // 2) * MIB  # a MiB of output for each client, and buffers
    found = roomy.attack(
        "slow_readers", count, seconds, lambda now: now.seen["flooded"] > 100 and dropped(now) > 100, growth_max=most
    )
    assert found.seen["flooded"] > 100 and dropped(found) > 100


@sizes((10, 0.6), (1000, 20.0))
@timed
def test_group_churn_keeps_deliveries(roomy: Place, count: int, seconds: float) -> None:
    """A stable member gets messages of its group, and other clients theirs."""
    member, writer = BlockingClient(roomy.ports["plain"]), BlockingClient(roomy.ports["plain"])
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
    found = roomy.attack("group_churn", count, seconds, lambda now: now.seen["joined"] > 50 and len(got) > 3)
    over.set()
    threads[0].join(LATE_S)
    assert found.seen["joined"] > 50 and len(got) > 3
    writer.close()
    member.socket.shutdown(2)
    threads[1].join(LATE_S)


@sizes((6, 0.6), (20, 60.0))
@timed
def test_takeovers_during_subscription_churn(place: Place, count: int, seconds: float) -> None:
    """Each client has one connection, and the edge keeps running."""
    found = place.attack(
        "takeover_churn", count, seconds, lambda now: now.total("churned") >= 1 and now.seen["connack 0x9f"] > 0
    )
    assert found.total("churned") >= 1 and found.seen["connack 0x9f"] > 0


@sizes((500, 0.6), (1000, 1.2))
@timed
def test_memory_before_connect_bounded(place: Place, count: int, seconds: float) -> None:
    """Half a CONNECT of 60 000 bytes uses memory for the received bytes, at most 64 KiB."""
    found = place.attack("half_a_connect", count, seconds, lambda now: now.seen["held"] >= count)
    assert found.seen["held"] >= count and found.growth < count * 64 * 1024


@pytest.mark.slow
@timed
def test_thousand_dripping_packets_time_out(place: Place) -> None:
    """After a valid CONNECT; all are closed within half a minute."""
    seen = place.attack("drip_later", 1000, 30.0, lambda now: now.seen["publish ended"] >= 1000).seen
    assert seen["publish ended"] == seen["publish begun"] == 1000


def test_packets_dripping_after_connect_time_out(place: Place) -> None:
    """4 B/s, and a packet times out after 10 s: closed, during all attacks above."""
    seen = place.dripped()
    assert seen["publish ended"] == seen["publish begun"] == DRIPPING
