"""The first message on a topic: CPU time of each node, and the publisher's wait, two trees alternately.

    python -m bench.first_messages ../other                     1 000 new topics a second: one route query for each
    python -m bench.first_messages ../other --rate 5000         in batches
    python -m bench.first_messages ../other --known             the same messages on topics that are known
    python -m bench.first_messages ../other --burst 150000      N new topics on one connection without a pause

A burst is QoS 0, with a PINGREQ each 0.25 s between the messages. It shows topics a second and the longest time from
PINGREQ in the socket's buffer to PINGRESP.
QoS 1 without subscribers, over 100 connections in rotation: PUBACK shows that the topic's Route was there. The clusters
are on CPU 0, the generator on CPU 1; the idle cluster waits.
"""

import argparse
import os
import select
import shutil
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

from bench.cluster import Cluster, machine
from bench.hot import make_certificate

CONNECTIONS = 100
PAYLOAD = b"x" * 64
PATIENCE_S = 20.0  # for late answers
BURST_S = 600.0
PING_S = 0.25


def _packet(first_byte: int, body: bytes) -> bytes:
    assert len(body) < 128, "one byte of length"
    return bytes([first_byte, len(body)]) + body


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def _connected(port: int, run: str) -> list[socket.socket]:
    made = []
    for number in range(CONNECTIONS):
        made.append(socket.create_connection(("127.0.0.1", port)))
        made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made[-1].sendall(_packet(0x10, _text("MQTT") + b"\x04\x02\x00\x00" + _text(f"c{run}-{number}")))
    for connection in made:
        assert connection.recv(4)[3] == 0, "refused"
        connection.setblocking(False)
    return made


def publish(port: int, rate: float, count: int, *, known: bool) -> list[float]:
    """Publish so many messages; return how long each waited for its PUBACK, in microseconds, ascending."""
    run = f"{time.time_ns() & 0xFFFFFFFF:x}"
    connections = _connected(port, run)
    places = {connection.fileno(): at for at, connection in enumerate(connections)}
    waiting: list[list[float]] = [[] for _ in connections]
    poll = select.epoll()
    for descriptor in places:
        poll.register(descriptor, select.EPOLLIN)
    took: list[float] = []
    sent, began = 0, time.perf_counter()
    ends = began + count / rate + PATIENCE_S
    while len(took) < count and time.perf_counter() < ends:
        while sent < count and began + sent / rate <= time.perf_counter():
            place = sent % CONNECTIONS
            topic = f"{run}/{place if known else sent}"
            body = _text(topic) + struct.pack(">H", sent // CONNECTIONS % 60_000 + 1) + PAYLOAD
            connections[place].send(_packet(0x32, body))
            waiting[place].append(began + sent / rate)
            sent += 1
        for descriptor, _ in poll.poll(0.0005, CONNECTIONS):
            place = places[descriptor]
            answers = len(connections[place].recv(65_536)) // 4
            now = time.perf_counter()
            took += [(now - since) * 1e6 for since in waiting[place][:answers]]
            del waiting[place][:answers]
    for connection in connections:
        connection.close()
    assert len(took) == count, f"{len(took)} of {count} PUBACKs"
    return sorted(took)


def burst(port: int, count: int) -> tuple[float, list[float]]:
    """Publish to ``count`` new topics over one connection; return topics a second, and seconds until each PINGRESP."""
    run = f"{time.time_ns() & 0xFFFFFFFF:x}"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(_packet(0x10, _text("MQTT") + b"\x04\x02\x00\x00" + _text(f"b{run}")))
    assert connection.recv(4)[3] == 0, "refused"
    connection.setblocking(False)
    pinged: list[float] = []
    took: list[float] = []
    data, sent, asked = b"", 0, 0.0
    began = time.perf_counter()
    while time.perf_counter() < began + BURST_S:
        if len(data) < 65_536 and sent <= count:
            for number in range(sent, min(sent + 500, count)):
                data += _packet(0x30, _text(f"burst/{run}/device/{number}") + b"21.5")
            sent += 500
            if sent > count:
                data += _packet(0x32, _text(f"burst/{run}/last") + b"\x00\x01" + b"x")
        if time.perf_counter() - asked > PING_S and not any(since == 0 for since in pinged):
            asked = time.perf_counter()
            data, at = data + b"\xc0\x00", len(data) + 2
            pinged.append(0)
        readable, writable, _ = select.select([connection], [connection] if data else [], [], 0.01)
        if writable:
            taken = connection.send(data)
            data = data[taken:]
            if pinged and pinged[-1] == 0:
                at -= taken
                if at <= 0:
                    pinged[-1] = time.perf_counter()
        if readable:
            answer = connection.recv(65_536)
            now = time.perf_counter()
            took += [now - pinged[len(took) + place] for place in range(answer.count(b"\xd0\x00"))]
            if b"\x40\x02\x00\x01" in answer:
                connection.close()
                return count / (now - began), took
    connection.close()
    return 0.0, took


def bursts(clusters: list[Cluster], count: int, runs: int) -> None:
    """Print the results of alternating bursts at both clusters."""
    for _ in range(runs):
        for name, cluster in zip(("this tree", "the other"), clusters, strict=True):
            rate, took = burst(cluster.ports("plain")[0], count)
            waited = f"{max(took, default=0) * 1000:.0f} ms" + ("" if rate else f", unfinished after {BURST_S:.0f} s")
            print(f"{name:10} {rate:.0f} topics a second; PINGRESP at most {waited}")


def _used_us(cluster: Cluster) -> dict[str, float]:
    return {
        node: sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1000
        for node, pid in cluster.pids.items()
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout, with its modules compiled")
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--messages", type=int, default=1_500)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--known", action="store_true", help="topics that are known after the first round")
    parser.add_argument("--burst", type=int, default=0, help="new topics on one connection, nothing else")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    make_certificate(folder)
    clusters = [Cluster(folder, 1), Cluster(folder, 1, arguments.other.resolve())]
    found: list[list[tuple[dict[str, float], list[float]]]] = [[], []]
    try:
        os.sched_setaffinity(0, {1})
        for cluster in clusters:
            publish(cluster.ports("plain")[0], 500, 300, known=False)
        if arguments.burst:
            bursts(clusters, arguments.burst, arguments.runs)
            return
        for turn in range(arguments.runs):
            for index in (1, 0) if turn % 2 else (0, 1):
                before = _used_us(clusters[index])
                took = publish(
                    clusters[index].ports("plain")[0], arguments.rate, arguments.messages, known=arguments.known
                )
                after = _used_us(clusters[index])
                found[index].append(({n: (after[n] - before[n]) / arguments.messages for n in after}, took))
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    for name, runs in zip(("this tree", "the other"), found, strict=True):
        nodes = ", ".join(f"{node} {statistics.median(used[node] for used, _ in runs):.0f}" for node in runs[0][0])
        waits = ", ".join(
            f"{label} {statistics.median(took[int(len(took) * part)] for _, took in runs):.0f}"
            for label, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        )
        print(f"{name:10} us of processor a message: {nodes}; PUBACK us: {waits}")
    ratios = [sum(here.values()) / sum(there.values()) for (here, _), (there, _) in zip(*found, strict=True)]
    print(f"processor, by turns: {statistics.median(ratios):.3f} of the other; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
