"""paho-mqtt, as it is installed, while nodes of every tier are killed with -9 and frozen with SIGSTOP.

Clients of versions 3.1.1 and 5, QoS 1 and 2, publish without a pause and keep their sessions; each waits at one edge
and reconnects there by itself. Afterwards: a message whose PUBACK or PUBCOMP came reached every stored subscription,
QoS 2 once, and no client stands still for 10 s after the last fault. By hand, twenty times:
``python -m tests.e2e.test_paho_kills --runs 20``.
"""

import argparse
import itertools
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.e2e.local_cluster import LocalCluster, local_cluster

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


def _client(name: str, port: int, version: MQTTProtocolVersion, **callbacks: Callable[..., None]) -> paho.Client:
    options = {} if version == V5 else {"clean_session": False}
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=version, **options)  # type: ignore[arg-type]
    client.reconnect_delay_set(1, 2)
    client.max_inflight_messages_set(0)  # no bound of its own, as in an older libmosquitto
    for callback, function in callbacks.items():
        setattr(client, callback, function)
    more = {}
    if version == V5:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 600
        more = {"properties": properties, "clean_start": False}
    client.connect("127.0.0.1", port, keepalive=5, **more)  # type: ignore[arg-type]
    return client


class Progress:
    """Notes when something of a client was last acknowledged or received."""

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

    def __init__(self, port: int, version: MQTTProtocolVersion, qos: int) -> None:
        self.name = f"kills/{int(version)}/{qos}"
        self.qos = qos
        self.accepted: set[str] = set()
        self.progress = Progress()
        self._open: dict[int, str] = {}
        self._room = threading.Semaphore(OPEN_MAX)
        self._stop = threading.Event()
        self.excused: set[str] = set()  # QoS 2, sent anew by paho after their PUBREC
        self._received: set[int] = set()  # identifiers whose PUBREC came
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
        """Note what paho itself sends twice.

        A second attempt to reconnect makes paho forget that a PUBREC came: it sends the PUBLISH again instead of PUBREL
        [MQTT-4.3.3-5]. Where the broker has had the PUBREL before, that is a new message to it.
        """
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
            number += 1

    def end(self) -> None:
        """Publish nothing more, and wait until all is acknowledged."""
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
    """A stored session that counts what comes."""

    def __init__(self, name: str, port: int, version: MQTTProtocolVersion) -> None:
        self.name = name
        self.got: Counter[str] = Counter()
        self.progress = Progress()
        ready = threading.Event()
        self.paho = _client(name, port, version, on_message=self._on_message, on_subscribe=lambda *_: ready.set())
        self.paho.loop_start()
        if version == V5:
            self.paho.subscribe("kills/#", options=SubscribeOptions(2))
        else:
            self.paho.subscribe("kills/#", 2)
        assert ready.wait(30.0)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.got[message.payload.decode()] += 1
        self.progress.note()


@dataclass
class Outcome:
    """One run: what was wrong, in words, and how much was looked at."""

    wrong: list[str] = field(default_factory=list)
    accepted: int = 0
    excused: int = 0
    faults: list[str] = field(default_factory=list)
    longest_s: float = 0.0


def _wait_back(cluster: LocalCluster, node: str, former: int) -> None:
    cluster.wait_for(lambda: bool(cluster.state["nodes"].get(node, {}).get("pid", former) != former), f"{node} back")


def _faults(cluster: LocalCluster, rng: random.Random, outcome: Outcome) -> None:
    for _ in range(FAULTS):
        time.sleep(rng.uniform(*PAUSE_S))
        node = rng.choice(sorted(cluster.state["nodes"]))
        pid = cluster.pid(node)
        if rng.random() < 0.5:
            outcome.faults.append(f"kill {node}")
            os.kill(pid, signal.SIGKILL)
            _wait_back(cluster, node, pid)
        else:
            seconds = rng.uniform(*FROZEN_S)
            outcome.faults.append(f"freeze {node} {seconds:.1f} s")
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)


def run(seed: int) -> Outcome:
    """Run one cluster with one schedule of faults."""
    rng, outcome = random.Random(seed), Outcome()
    with local_cluster(*SHAPE) as cluster:
        ports = [cluster.port(edge, "plain") for edge in range(2)]
        subscribers = [Subscriber(f"reader-{n}", ports[n % 2], V5 if n < 2 else V311) for n in range(4)]
        publishers = [
            Publisher(ports[n % 2], v, qos)
            for n, (v, qos) in enumerate((v, qos) for v in (V311, V5) for qos in (1, 2) for _ in range(1))
        ]
        _faults(cluster, rng, outcome)
        last = time.monotonic()
        time.sleep(WATCH_S)
        clients: list[Publisher | Subscriber] = [*publishers, *subscribers]
        for client in clients:
            longest = client.progress.longest_s(last, time.monotonic())
            outcome.longest_s = max(outcome.longest_s, longest)
            if longest >= STANDSTILL_S:
                outcome.wrong.append(f"{client.name} stood still for {longest:.1f} s after the last fault")
        for publisher in publishers:
            publisher.end()
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
        for client in clients:
            client.paho.disconnect()
            client.paho.loop_stop()
    return outcome


@pytest.mark.slow
def test_real_clients_lose_nothing_and_never_stand_still() -> None:
    """One run; twenty are made by hand."""
    outcome = run(1)
    assert not outcome.wrong, (outcome.faults, outcome.wrong)
    assert outcome.accepted > 100


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    bad = total = 0
    for seed in range(given.seed, given.seed + given.runs):
        one = run(seed)
        bad += bool(one.wrong)
        total += one.accepted
        what = f"{one.accepted} accepted, {one.excused} sent anew by paho, longest {one.longest_s:.1f} s"
        print(f"seed {seed}: {'; '.join(one.faults)}: {what}: {'; '.join(one.wrong) or 'clean'}", flush=True)
    print(f"{given.runs - bad} passed, {bad} failed; {total} messages accepted")
    sys.exit(bool(bad))
