"""Unmodified paho-mqtt, while nodes of every tier are killed with -9 and stopped with SIGSTOP.

Clients of versions 3.1.1 and 5, QoS 1 and 2, publish continuously and keep their sessions; each uses one edge
and reconnects there by itself. Afterwards: a message with PUBACK or PUBCOMP reached every stored subscription,
QoS 2 once, and no client stalls for 10 s after the last fault. By hand, twenty times:
``python -m tests.e2e.test_paho_kills --runs 20``.
"""

import argparse
import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

SHAPE = ("--routers", "3", "--storages", "3", "--edges", "2")
V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
FAULTS = 4
FROZEN_S = (0.5, 6.0)
PAUSE_S = (1.0, 5.0)
GAP_S = 0.02  # between two messages of one publisher
OPEN_MAX = 60  # messages of a publisher without PUBACK or PUBCOMP; three times Receive Maximum
WATCH_S = 14.0  # after the last fault
STANDSTILL_S = 10.0
DRAIN_S = 60.0
DENSE_ROUNDS = 3
DENSE_FROZEN_S = (1.8, 6.0)  # a lease is 2 s, a death declared soon after


def _client(name: str, port: int, version: MQTTProtocolVersion, **callbacks: Callable[..., None]) -> paho.Client:
    options = {} if version == V5 else {"clean_session": False}
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=version, **options)  # type: ignore[arg-type]
    client.reconnect_delay_set(1, 2)
    client.max_inflight_messages_set(0)  # unlimited, as in an older libmosquitto
    for callback, function in callbacks.items():
        setattr(client, callback, function)
    more = {}
    if version == V5:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 600
        more = {"properties": properties, "clean_start": False}
    client.connect("127.0.0.1", port, keepalive=5, **more)  # type: ignore[arg-type]
    return client


class Journal:
    """One client's sent and received messages with times, in its own file if a folder is given."""

    def __init__(self, keep: Path | None, name: str) -> None:
        self._file = (keep / f"{name}.log").open("w") if keep is not None else None

    def note(self, line: str) -> None:
        """Write a line."""
        if self._file is not None:
            self._file.write(f"{time.time():.3f} {line}\n")

    def close(self) -> None:
        """No line comes any more."""
        if self._file is not None:
            self._file.close()


class Progress:
    """Records when a client last received a message or an acknowledgement."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def note(self) -> None:
        self._times.append(time.monotonic())

    def longest_s(self, since: float, until: float) -> float:
        """Return the longest time without progress."""
        marks = [since, *(at for at in self._times if since < at < until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(marks))


class Publisher:
    """Publishes numbers to its topic, at most ``OPEN_MAX`` of them unacknowledged."""

    def __init__(self, port: int, version: MQTTProtocolVersion, qos: int, keep: Path | None = None) -> None:
        self.name = f"kills/{int(version)}/{qos}"
        self.journal = Journal(keep, self.name.replace("/", "-"))
        self.qos = qos
        self.accepted: set[str] = set()
        self.progress = Progress()
        self._open: dict[int, str] = {}
        self._room = threading.Semaphore(OPEN_MAX)
        self._stop = threading.Event()
        self.excused: set[str] = set()  # QoS 2, sent again by paho after their PUBREC
        self._received: set[int] = set()  # identifiers with a PUBREC
        callbacks: dict[str, Callable[..., None]] = {"on_publish": self._on_publish, "on_log": self._on_log}
        self.paho = _client(self.name.replace("/", "-"), port, version, **callbacks)
        self.paho.loop_start()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _on_publish(self, _client: object, _data: object, mid: int, code: object, _: object) -> None:
        payload = self._open.pop(mid, None)
        if payload is not None and not getattr(code, "is_failure", False):
            self.accepted.add(payload)
        self.progress.note()
        self._room.release()

    def _on_log(self, _client: object, _data: object, _level: object, line: str) -> None:
        """Record the messages that paho itself sends twice.

        After a second attempt to reconnect, paho has lost the PUBREC: it sends the PUBLISH again instead of PUBREL
        [MQTT-4.3.3-5]. If the broker has received the PUBREL before, that is a new message to it.
        """
        self.journal.note(line)
        if (found := re.match(r"Received PUBREC \(Mid: (\d+)\)", line)) is not None:
            self._received.add(int(found[1]))
        elif (found := re.match(r"Received PUBCOMP \(Mid: (\d+)\)", line)) is not None:
            self._received.discard(int(found[1]))
        elif (found := re.match(r"Sending PUBLISH \(d\d, q2, r\d, m(\d+)\)", line)) and int(found[1]) in self._received:
            self.excused.add(self._open.get(int(found[1]), ""))

    def _work(self) -> None:
        number = 0
        while not self._stop.wait(GAP_S):
            if not self._room.acquire(timeout=1.0):
                continue
            payload = f"{self.name}-{number}"
            with self.paho._out_message_mutex:  # the callback may come before publish returns
                info = self.paho.publish(self.name, payload, self.qos)
                self._open[info.mid] = payload
                self.journal.note(f"m{info.mid} is {payload}")
            number += 1

    def end(self) -> None:
        """Stop publishing, and wait until all messages are acknowledged."""
        self._stop.set()
        self._thread.join()
        deadline = time.monotonic() + DRAIN_S
        while self._open and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def waiting(self) -> int:
        """Messages that were never acknowledged."""
        return len(self._open)


class Subscriber:
    """A stored session that counts received messages."""

    def __init__(self, name: str, port: int, version: MQTTProtocolVersion, keep: Path | None = None) -> None:
        self.name = name
        self.journal = Journal(keep, name)
        self.got: Counter[str] = Counter()
        self.progress = Progress()
        ready = threading.Event()
        callbacks: dict[str, Callable[..., None]] = {"on_message": self._on_message, "on_log": self._on_log}
        self.paho = _client(name, port, version, on_subscribe=lambda *_: ready.set(), **callbacks)
        self.paho.loop_start()
        if version == V5:
            self.paho.subscribe("kills/#", options=SubscribeOptions(2))
        else:
            self.paho.subscribe("kills/#", 2)
        assert ready.wait(PATIENCE_S)

    def _on_log(self, _client: object, _data: object, _level: object, line: str) -> None:
        self.journal.note(line)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.journal.note(f"m{message.mid} brought {message.payload.decode()}")
        self.got[message.payload.decode()] += 1
        self.progress.note()


@dataclass
class Outcome:
    """One run: its errors as text, and the numbers of checked messages."""

    wrong: list[str] = field(default_factory=list)
    accepted: int = 0
    excused: int = 0
    faults: list[str] = field(default_factory=list)
    longest_s: float = 0.0


def _wait_back(cluster: LocalCluster, node: str, former: int) -> None:
    cluster.wait_for(lambda: bool(cluster.state["nodes"].get(node, {}).get("pid", former) != former), f"{node} back")


@dataclass(frozen=True)
class Fault:
    """A fault of one node; the faults of several nodes may overlap."""

    after_s: float  # the start of the one before
    node: str
    frozen_s: float = 0.0  # 0: killed

    def __str__(self) -> str:
        what = f"freeze {self.node} {self.frozen_s:.1f} s" if self.frozen_s else f"kill {self.node}"
        return f"{what} at +{self.after_s:.1f}"


def _drawn(rng: random.Random, nodes: list[str]) -> list[Fault]:
    """Return one fault after the other, at any node."""
    schedule, busy_s = [], 0.0
    for _ in range(FAULTS):
        after_s = busy_s + rng.uniform(*PAUSE_S)
        node = rng.choice(nodes)
        frozen_s = 0.0 if rng.random() < 0.5 else rng.uniform(*FROZEN_S)
        schedule.append(Fault(after_s, node, frozen_s))
        busy_s = frozen_s
    return schedule


def _drawn_dense(rng: random.Random, nodes: list[str]) -> list[Fault]:
    """Return overlapping stops of storage nodes and edges, of about the length of a lease."""
    schedule = []
    storages = [node for node in nodes if node.startswith("storage")]
    edges = [node for node in nodes if node.startswith("edge")]
    after_s = rng.uniform(*PAUSE_S)
    for _ in range(DENSE_ROUNDS):
        first, second = rng.sample(storages, 2)
        edge = rng.choice(edges)
        for node in rng.sample([first, edge, second], 3):
            schedule.append(Fault(after_s, node, rng.uniform(*DENSE_FROZEN_S) if rng.random() < 0.8 else 0.0))
            after_s = rng.uniform(0.0, 3.0)
        after_s = rng.uniform(5.0, 9.0)
    return schedule


def _read_schedule(text: str) -> list[Fault]:
    """Read "2.5 storage-2 4.3, 1.0 edge-1 4.6, 3.0 edge-0": seconds after the one before, node, seconds frozen."""
    parts = [part.split() for part in text.split(",")]
    return [Fault(float(part[0]), part[1], float(part[2]) if len(part) > 2 else 0.0) for part in parts]


def _carry_out(cluster: LocalCluster, fault: Fault) -> None:
    cluster.wait_for(lambda: fault.node in cluster.state["nodes"], f"{fault.node} running")  # a former fault ended it
    pid = cluster.pid(fault.node)
    if not fault.frozen_s:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _wait_back(cluster, fault.node, pid)
        return
    os.kill(pid, signal.SIGSTOP)
    time.sleep(fault.frozen_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _faults(cluster: LocalCluster, schedule: list[Fault], journal: Journal) -> None:
    """Apply a schedule; overlapping faults run concurrently."""
    under_way: dict[str, threading.Thread] = {}
    for fault in schedule:
        time.sleep(fault.after_s)
        if fault.node in under_way:
            under_way[fault.node].join()
        journal.note(str(fault))
        thread = under_way[fault.node] = threading.Thread(target=_carry_out, args=(cluster, fault))
        thread.start()
    for thread in under_way.values():
        thread.join()


Draw = Callable[[random.Random, list[str]], list[Fault]]


def run(seed: int, draw: Draw = _drawn, keep: Path | None = None) -> Outcome:
    """Run one cluster with one schedule of faults; ``keep`` is a folder for ledgers and journals."""
    options = list(SHAPE)
    if keep is not None:
        keep.mkdir(parents=True)
        options += ["--set", f"edge.ledger={keep}/edges", "--set", f"storage.ledger={keep}/storages"]
    with local_cluster(*options) as cluster:
        try:
            return _run(cluster, random.Random(seed), draw, keep)
        finally:
            if keep is not None:
                shutil.copy(cluster.log, keep)


def _run(cluster: LocalCluster, rng: random.Random, draw: Draw, keep: Path | None) -> Outcome:
    outcome, journal = Outcome(), Journal(keep, "faults")
    ports = [cluster.port(edge, "plain") for edge in range(2)]
    subscribers = [Subscriber(f"reader-{n}", ports[n % 2], V5 if n < 2 else V311, keep) for n in range(4)]
    kinds = [(version, qos) for version in (V311, V5) for qos in (1, 2)]
    publishers = [Publisher(ports[n % 2], version, qos, keep) for n, (version, qos) in enumerate(kinds)]
    clients: list[Publisher | Subscriber] = [*publishers, *subscribers]
    schedule = draw(rng, sorted(cluster.state["nodes"]))
    outcome.faults = [str(fault) for fault in schedule]
    _faults(cluster, schedule, journal)
    last = time.monotonic()
    time.sleep(WATCH_S)
    for client in clients:
        longest = client.progress.longest_s(last, time.monotonic())
        outcome.longest_s = max(outcome.longest_s, longest)
        if longest >= STANDSTILL_S:
            outcome.wrong.append(f"{client.name} stood still for {longest:.1f} s after the last fault")
    for publisher in publishers:
        publisher.end()
    _compare(publishers, subscribers, outcome)
    for client in clients:
        client.paho.disconnect()
        client.paho.loop_stop()
        client.journal.close()
    journal.close()
    return outcome


def _compare(publishers: list[Publisher], subscribers: list[Subscriber], outcome: Outcome) -> None:
    """Wait until all accepted messages arrived; report lost and repeated ones."""
    accepted = set[str]().union(*(publisher.accepted for publisher in publishers))
    excused = set[str]().union(*(publisher.excused for publisher in publishers))
    outcome.excused = len(excused)
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline and any(accepted - set(one.got) for one in subscribers):
        time.sleep(0.2)
    outcome.accepted = len(accepted)
    for subscriber in subscribers:
        lost = sorted(accepted - set(subscriber.got))
        twice = sorted(
            payload
            for payload, times in subscriber.got.items()
            if times > 1 and payload.split("-")[0].endswith("/2") and payload not in excused
        )
        if lost:
            outcome.wrong.append(f"{subscriber.name} lost {len(lost)}: {lost[:5]}")
        if twice:
            outcome.wrong.append(f"{subscriber.name} got {len(twice)} of QoS 2 twice: {twice[:5]}")
    for publisher in publishers:
        if publisher.waiting:
            outcome.wrong.append(f"{publisher.name}: {publisher.waiting} never acknowledged")


@pytest.mark.slow
def test_real_clients_lose_no_message_and_never_stall() -> None:
    """One run; run twenty by hand."""
    outcome = run(1)
    assert not outcome.wrong, (outcome.faults, outcome.wrong)
    assert outcome.accepted > 100


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedule", help=_read_schedule.__doc__)
    parser.add_argument("--dense", action="store_true", help=_drawn_dense.__doc__)
    parser.add_argument("--keep", type=Path, help="keep ledgers, logs and what clients saw of runs that go wrong here")
    given = parser.parse_args()
    draw: Draw = _drawn_dense if given.dense else _drawn
    if given.schedule:
        fixed = _read_schedule(given.schedule)
        draw = lambda *_: fixed  # noqa: E731
    bad = total = 0
    for seed in range(given.seed, given.seed + given.runs):
        keep = given.keep / f"seed-{seed}" if given.keep is not None else None
        one = run(seed, draw, keep)
        if keep is not None and not one.wrong:
            shutil.rmtree(keep)
        bad += bool(one.wrong)
        total += one.accepted
        what = f"{one.accepted} accepted, {one.excused} sent anew by paho, longest {one.longest_s:.1f} s"
        print(f"seed {seed}: {'; '.join(one.faults)}: {what}: {'; '.join(one.wrong) or 'clean'}", flush=True)
    print(f"{given.runs - bad} passed, {bad} failed; {total} messages accepted")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(_main())
