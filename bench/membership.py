"""Measure gossip on this machine against its bars.

    python -m bench.membership [seal] [join] [idle] [hostile] [kills] [load] [--kills 20] [--seconds 20]

- seal: a sealed 1 200-byte packet costs < 5 us (sealing, and opening).
- join: a newcomer with one seed and the key is known everywhere in < 2 s.
- idle: a node of an idle 9-node cluster uses < 1 % of a core.
- hostile: 1 000 hostile packets per second cost < 10 % of a core.
- kills: a killed node (SIGKILL) is known dead everywhere in <= 12 s, P99 of the kills made (LAN profile, 9 nodes).
- load: no false death while every core is busy (LAN profile, 9 nodes), for --seconds.

Real processes on loopback, LAN profile; processor time from /proc. Without a name, all but kills and load.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from random import Random

from membership.envelope import Envelope
from membership.keyring import KeyRing, generate_key
from membership.members import Member, Members
from membership.metadata import NodeMetadata
from membership.packets import Alive, encode_message, join_messages
from tests.membership.processes import Cluster

NODES = 9


def _best_us(action: Callable[[], object], rounds: int = 7, calls: int = 20_000) -> tuple[float, float]:
    """Return the best and the median time of a call, microseconds, of some rounds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            action()
        times.append((time.perf_counter() - started) / calls * 1e6)
    return min(times), statistics.median(times)


def measure_seal() -> None:
    """Seal and open one datagram of 1 200 bytes."""
    key_ring, members = KeyRing([generate_key()]), Members(Random(1))
    alive = Alive(1, 2, "127.0.0.1", 1, NodeMetadata("peer", "edge", 1))
    members.add(Member(alive, "alive", 1, 0.0, encode_message(alive)))
    envelope = Envelope("bench", 1, key_ring, members, os.urandom)
    peer = Envelope("bench", 2, key_ring, members, os.urandom)
    body = b"x" * (1200 - len(envelope.seal_datagram(2, b"")))
    sealed = envelope.seal_datagram(2, body)
    assert len(sealed) == 1200
    best, median = _best_us(lambda: envelope.seal_datagram(2, body))
    print(f"seal 1200 B: best {best:.2f} us, median {median:.2f} us (bar 5)")
    best, median = _best_us(lambda: peer.open(sealed, b"datagram"))
    print(f"open 1200 B, without decoding: best {best:.2f} us, median {median:.2f} us")
    news = join_messages([encode_message(alive)] * 15)
    packets = [peer.seal_datagram(1, news) for _ in range(20_000)]
    size, position = len(packets[0]), iter(packets)
    started = time.perf_counter()
    for data in position:
        assert envelope.open_datagram(data) is not None
    print(f"open and decode 15 alive messages, {size} B: {(time.perf_counter() - started) / 20_000 * 1e6:.2f} us")


def _cluster(folder: str) -> Cluster:
    return Cluster(Path(tempfile.mkdtemp(dir=folder)))


def measure_join(folder: str) -> None:
    """Start a newcomer, several times."""
    with _cluster(folder) as cluster:
        cluster.start_many(NODES)
        rows = []
        for number in range(5):
            newcomer = cluster.start(f"new{number}")
            others = [member for member in cluster.members.values() if member is not newcomer]
            known = max(float(member.wait_for("NodeJoin", 10, name=newcomer.name)["at"]) for member in others)
            rows.append((known - newcomer.started_at, known - newcomer.ready_at))
        print(
            f"join of {len(rows)} newcomers: known everywhere at most {max(row[0] for row in rows):.2f} s after its "
            f"process started, {max(row[1] for row in rows):.2f} s after its sockets were open (bar 2)"
        )


def measure_idle(folder: str, seconds: float) -> None:
    """Processor time of nine idle nodes."""
    with _cluster(folder) as cluster:
        cluster.start_many(NODES)
        time.sleep(10)  # the early full exchanges are over
        before = {name: member.cpu_seconds() for name, member in cluster.members.items()}
        time.sleep(seconds)
        used = [100 * (member.cpu_seconds() - before[name]) / seconds for name, member in cluster.members.items()]
        mean = sum(used) / NODES
        print(f"idle, {NODES} nodes, {seconds:.0f} s: mean {mean:.2f} %, most {max(used):.2f} % of a core (bar 1)")


def measure_hostile(folder: str, seconds: float) -> None:
    """A thousand packets per second of every hostile kind at one node of a pair."""
    with _cluster(folder) as cluster:
        cluster.start_many(2)
        victim = cluster.members["m1"]
        forger = Envelope("stratamq", 1, KeyRing([cluster.key]), Members(Random(1)), os.urandom)
        forged = [bytearray(forger.seal_datagram(9, b"x" * 1100)) for _ in range(50)]
        for packet in forged:
            packet[-1] ^= 1
        stray = [forger.seal_datagram(9, b"x" * 1100) for _ in range(50)]  # right key, not for this process
        noise = [os.urandom(size) for size in (10, 100, 1200, 1400, 2000)] * 10
        packets = [bytes(each) for row in zip(forged, stray, noise, strict=True) for each in row]
        before, asked = victim.cpu_seconds(), victim.ask("counters")["counters"]
        started, count = time.monotonic(), 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hostile:
            while (elapsed := time.monotonic() - started) < seconds:
                while count < 1000 * elapsed:
                    hostile.sendto(packets[count % len(packets)], ("127.0.0.1", victim.port))
                    count += 1
                time.sleep(0.002)
        used = 100 * (victim.cpu_seconds() - before) / elapsed
        counters = victim.ask("counters")["counters"]
        dropped = {
            name.removeprefix("dropped_"): counters[name] - asked[name]
            for name in sorted(counters)
            if name.startswith("dropped_") and counters[name] > asked[name]
        }
        print(
            f"hostile, {count / elapsed:.0f} packets/s for {elapsed:.0f} s: {used:.2f} % of a core (bar 10); {dropped}"
        )
        assert sum(dropped.values()) >= 0.95 * count
        assert victim.ask("members")["members"] == {"m1": "alive", "m2": "alive"}


def measure_kills(folder: str, kills: int) -> None:
    """Kill one node after the other; a fresh one takes its place."""
    random, found = Random(time.time_ns()), []
    with _cluster(folder) as cluster:
        cluster.start_many(NODES)
        for turn in range(kills):
            time.sleep(random.random() * 2)  # at any point of the others' rounds
            name = random.choice([each for each in cluster.members if each != "m1"])  # m1 is the others' seed
            killed_at = time.time()
            cluster.members[name].end()
            found.append(cluster.known_dead_at(name, 40) - killed_at)
            del cluster.members[name]
            false = cluster.deaths()
            assert not false, false
            cluster.start(f"k{turn}")
            cluster.wait_all_alive(20)
    found.sort()
    p99 = found[ceil(0.99 * len(found)) - 1]
    print(
        f"{kills} kills, {NODES} nodes: dead everywhere P50 {statistics.median(found):.2f} s, P99 {p99:.2f} s (bar 12)"
    )


def _spin(until: float) -> None:
    while time.time() < until:
        sum(range(10_000))


def measure_load(folder: str, seconds: float) -> None:
    """Load every core twice; then count deaths and suspicions."""
    with _cluster(folder) as cluster:
        cluster.start_many(NODES)
        cores = os.cpu_count() or 1
        burners = [multiprocessing.Process(target=_spin, args=(time.time() + seconds,)) for _ in range(2 * cores)]
        for burner in burners:
            burner.start()
        for burner in burners:
            burner.join()
        counters = [member.ask("counters")["counters"] for member in cluster.members.values()]
        sums = {name: sum(each.get(name, 0) for each in counters) for name in ("suspicions", "refutations", "pauses")}
        print(
            f"{2 * cores} busy loops on {cores} cores for {seconds:.0f} s: {len(cluster.deaths())} false deaths; {sums}"
        )


def main() -> None:
    """Read the options and measure."""
    names = ("seal", "join", "idle", "hostile", "kills", "load")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="what", help=", ".join(names))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    chosen = options.what or names[:4]
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        measures: dict[str, Callable[[], None]] = {
            "seal": measure_seal,
            "join": lambda: measure_join(folder),
            "idle": lambda: measure_idle(folder, options.seconds),
            "hostile": lambda: measure_hostile(folder, options.seconds),
            "kills": lambda: measure_kills(folder, options.kills),
            "load": lambda: measure_load(folder, options.seconds),
        }
        for name in chosen:
            measures[name]()


if __name__ == "__main__":
    main()
