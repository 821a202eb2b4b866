"""Run an attack: attackers in their own process, honest clients beside them, and the counts of both.

An attack lasts until the attackers reach the outcome of the test, so slow machines only take longer.
The attacks are in ``test_denial.py``.
"""

import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mqtt.packets import Puback, Publish
from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge
from tests.e2e.local_cluster import LocalCluster
from tests.turn_time import assert_within

__all__ = ["DRIPPING", "LATE_S", "MIB", "Attackers", "Honest", "Outcome", "Place", "p99_ms"]

MIB = 1024 * 1024
LATE_S = 60.0  # for which attackers are waited for on a machine that is busy
LOOK_S = 0.2  # between two reads of the attackers' outcomes
DRIPPING = 20  # clients whose PUBLISH drips during all other attacks


@dataclass
class Outcome:
    """Counts of one attack."""

    seen: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    trips_s: list[float] = field(default_factory=list)  # of the honest pair
    calm_ms: float = 0.0  # P99 of the same before the attack
    connects_s: list[float] = field(default_factory=list)  # of honest newcomers
    refused: list[str] = field(default_factory=list)  # failed honest connects: time, and seconds of trying
    growth: int = 0  # bytes of the edge
    cpu_s: float = 0.0  # of the edge
    took_s: float = 0.0

    @property
    def p99_ms(self) -> float:
        """Of the honest pair's messages."""
        return p99_ms(self.trips_s)

    def total(self, *beginnings: str) -> int:
        """Return the sum of the outcomes that start with one of these prefixes."""
        return sum(count for name, count in self.seen.items() if name.startswith(beginnings))


Until = Callable[[Outcome], bool]


def p99_ms(times_s: list[float]) -> float:
    """Return the 99th percentile of the times, in ms."""
    return sorted(times_s)[len(times_s) * 99 // 100] * 1e3


class Attackers:
    """Attackers of one kind in a process of their own, which waits until ``go``.

    Args:
        kind: Of ``attackers.py``.
        ports: Where they attack, by the listeners' names.
        count: So many.
        seconds: After half of it break those that leave wills.
    """

    def __init__(self, kind: str, ports: dict[str, int], count: int, seconds: float) -> None:
        command = [sys.executable, "-m", "tests.e2e.attackers", kind, json.dumps(ports), str(count), str(seconds)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._timer = threading.Timer(seconds + 2 * LATE_S, self._process.kill)
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> "Attackers":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self.leave()
        with self._process:  # waited for
            pass

    def go(self) -> None:
        """Attack."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def seen(self) -> Counter[str]:
        """Return how often they saw each outcome so far."""
        self.go()
        assert self._process.stdout is not None
        return Counter(json.loads(self._process.stdout.readline()))

    def leave(self) -> None:
        """Let all of them end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class Place:
    """The cluster and its edge."""

    def __init__(self, cluster: LocalCluster, edge: ExtraEdge) -> None:
        self.cluster, self.edge = cluster, edge
        self.ports = {name: edge.port(name) for name in ("plain", "tls", "ws", "rated", "scarce", "proxied")}
        self.dripping = Attackers("drip_later", self.ports, DRIPPING, 14.0)
        self.dripping.go()

    def dripped(self) -> Counter[str]:
        """Wait until each dripping connection has ended; return the outcomes."""
        deadline = time.monotonic() + LATE_S
        while (seen := self.dripping.seen())["publish ended"] < DRIPPING and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return seen

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
        """Return the edge's counter increments since then, and the end of its log."""
        log = (self.cluster.data / "edge-9.txt").read_text()[-2000:]
        try:
            return f"edge: {self._since(before)}\n{log}"
        except OSError as error:
            return f"edge: no page of metrics: {error}\n{log}"

    def _since(self, before: dict[str, float]) -> Counter[str]:
        """Return the edge's counter increments since then."""
        return Counter({name: int(more) for name, now in self._counts().items() if (more := now - before.get(name, 0))})

    def attack(
        self, kind: str, count: int, seconds: float, until: Until, port: str = "plain", growth_max: int = 50 * MIB
    ) -> Outcome:
        """Run attackers for a time, and until they reach the expected outcome; honest clients connect meanwhile."""
        before = self._counts()
        outcome = Outcome()
        with Attackers(kind, self.ports, count, seconds) as attackers, Honest(self.ports[port], outcome) as honest:
            honest.serve(min(3.0, seconds / 4))
            resident, cpu_s, outcome.calm_ms = self._resident(), self._cpu_s(), outcome.p99_ms
            outcome.trips_s.clear()
            attackers.go()
            began = time.monotonic()
            try:
                honest.serve(seconds)
                while outcome.took_s < seconds + LATE_S:
                    outcome.growth, outcome.cpu_s = self._resident() - resident, self._cpu_s() - cpu_s
                    outcome.seen = attackers.seen()
                    outcome.events, outcome.took_s = self._since(before), time.monotonic() - began
                    if until(outcome):
                        break
                    honest.serve(LOOK_S)
                attackers.leave()
                honest.serve(0.1)  # still, when they have gone
            except OSError as error:
                raise AssertionError(f"the honest pair: {error}\n{self._told(before)}") from error
        p50, slowest = statistics.median(outcome.trips_s) * 1e3, max(outcome.connects_s) * 1e3
        print(
            f"{kind}: {dict(outcome.seen)} within {outcome.took_s:.1f} s,"
            f" honest p50 {p50:.1f} ms, p99 {outcome.calm_ms:.1f} -> {outcome.p99_ms:.1f},"
            f" connects to {slowest:.0f} ms, memory {outcome.growth / MIB:+.1f} MiB, {dict(outcome.events)}"
        )
        assert not outcome.refused, "\n".join([*outcome.refused, self._told(before)])
        assert_within(f"half of the honest messages beside {kind}", statistics.median(outcome.trips_s) * 1e3, 50)
        assert_within(f"an honest message beside {kind}", max(outcome.trips_s) * 1e3, 2_000)
        assert_within(f"an honest connect beside {kind}", max(outcome.connects_s) * 1e3, 2_000)
        assert outcome.growth < growth_max, f"{outcome.growth / MIB:.0f} MiB"
        return outcome


class Honest:
    """A client that sends messages to itself, and new clients that connect, each from its own address."""

    def __init__(self, port: int, outcome: Outcome) -> None:
        self._port, self._outcome, self._numbers = port, outcome, 0
        self._client = BlockingClient(port)
        self._next_connect = 0.0

    def __enter__(self) -> "Honest":
        self._client.open("honest")
        self._client.subscribe("honest/#", qos=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def serve(self, seconds: float) -> None:
        """Exchange a message each 20 ms and connect each 100 ms for a while."""
        end, began = time.monotonic() + seconds, 0.0
        while began < end:
            began = time.monotonic()
            self._numbers += 1
            payload = b"%d" % self._numbers
            self._exchange(payload)
            self._outcome.trips_s.append(time.monotonic() - began)
            if began > self._next_connect:
                self._next_connect = began + 0.1
                self._connect()
            time.sleep(max(0.0, began + 0.02 - time.monotonic()))

    def _exchange(self, payload: bytes) -> None:
        """Publish and read the copy and PUBACK, in whichever order."""
        self._client.send(Publish("honest/x", payload, 1, packet_identifier=self._client.next_identifier()))
        left = 2
        while left:
            packet = self._client.read()
            if packet is None:
                raise ConnectionError("the broker closed the connection")
            left -= isinstance(packet, Puback) or (isinstance(packet, Publish) and packet.payload == payload)

    def _connect(self) -> None:
        began = time.monotonic()
        try:
            newcomer = BlockingClient(
                self._port, source=f"127.2.{self._numbers // 250 % 250}.{self._numbers % 250 + 1}"
            )
            newcomer.open(f"newcomer-{self._numbers}")
            newcomer.close()
        except (OSError, AssertionError) as error:
            tried_s = time.monotonic() - began
            self._outcome.refused.append(f"{type(error).__name__} {error} behind {tried_s:.2f} s, at {began:.1f}")
        self._outcome.connects_s.append(time.monotonic() - began)
