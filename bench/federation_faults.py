"""Faults of nine brokers that agents join, or Mosquitto's own bridges as a star or a ring: loss, repeats, gaps.

Publishers at 7 and 3 to subscribers at 3 and 8, and one at 4 to a subscriber at 6, whose only shortest path leads
through 5; each publishes at QoS 1 and at QoS 2. A fault occurs in the middle of the run. A message that its broker
acknowledged and that reaches no subscriber is lost. Brokers store no state on disk, so that a killed one has lost all;
in the star, whose hub is 5, and in the ring each broker saves every second instead, in its favour. Copies in a ring
have no end: its publishers stop when one subscriber has 10 000.

Bridged brokers have no limit of in-flight messages (``max_inflight_messages 0``), in their favour too: with Mosquitto's
own 20 a reconnected bridge sends all its messages at once, and the broker closes it after the twentieth (PUBREC 0x97),
repeatedly: the link stays dead, and the ring is broken. ``--inflight 20`` shows that.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.free_ports import free_ports
from tests.gateways.federation.graphs import GRID
from tests.gateways.federation.real_federation import Federation, Publisher, Site, Subscriber, running, until
from tests.gateways.federation.slow_relay import Relays
from tests.patience import PATIENCE_S

__all__ = ["FAULTS", "SYSTEMS", "faults"]

SYSTEMS = ("ours", "star", "ring")
NAMES = [str(number) for number in range(1, 10)]
HUB = "5"
MIDDLE = {"2", "5", "8"}
RATE = 25.0  # of each publisher at each QoS
BEFORE_S, AFTER_S = 4.0, 12.0  # of publishing, around a fault
DOWN_S, CUT_S, STARVED_S = 8.0, 30.0, 60.0
STOPS_S, RUNS_SHARE = (0.05, 0.2, 0.5, 1.0, 3.0, 8.0), 0.1
DRAIN_S = 600.0
STALL_S = PATIENCE_S  # without a message, after which the rest is lost; above each of an agent's own waits
GAP_S_MAX = 4.0
LAST_S = 3.0  # until repeats arrived
COPIES_MAX = 10_000
QUALITIES = (1, 2)
BRIDGE = (
    "try_private true",
    "cleansession false",
    "notifications false",
    "restart_timeout 1",
    "keepalive_interval 5",
)
SAVES = ("autosave_interval 1",)
TOPICS = ("topic plant/# both 2", "topic across/# both 2")
INFLIGHT = 0  # no bound

Row = Callable[[str, str, str, bool], None]


class Brokers(NamedTuple):
    """Nine brokers, however they are joined."""

    sites: Mapping[str, Site]
    relays: Relays
    ready: Callable[[], None]  # waits until a message at each goes wherever it should


# --- the faults


def _none(brokers: Brokers) -> None:
    del brokers


def _killed(*whats: str) -> Callable[[Brokers], None]:
    def fault(brokers: Brokers) -> None:
        site = brokers.sites[HUB]
        has_agent = site.agent is not None
        for what in whats:
            site.kill(what)
        time.sleep(DOWN_S)
        if "broker" in whats:
            site.start_broker()
        if "agent" in whats and has_agent:
            site.start_agent()

    return fault


def _frozen(brokers: Brokers) -> None:
    """Stop both processes silently: their connections stay open without traffic."""
    site = brokers.sites[HUB]
    here = [each for each in (site.broker, site.agent) if each is not None]
    for each in here:
        each.send_signal(signal.SIGSTOP)
    time.sleep(DOWN_S)
    for each in here:
        each.send_signal(signal.SIGCONT)


def _cut(brokers: Brokers) -> None:
    brokers.relays.cut([pair for pair in brokers.relays.pairs if len(MIDDLE & set(pair)) == 1])
    time.sleep(CUT_S)
    brokers.relays.heal()


def _slow(brokers: Brokers) -> None:
    brokers.relays.delay_s, brokers.relays.stall_share = 0.3, 0.05
    time.sleep(20.0)


def _starved(brokers: Brokers) -> None:
    """Let each process run a tenth of the time only, in slices, as on a machine with much other work."""
    over = threading.Event()

    def starve(process: subprocess.Popen[bytes], random: Random) -> None:
        while not over.is_set():
            stop_s = random.choice(STOPS_S)
            process.send_signal(signal.SIGSTOP)
            over.wait(stop_s)
            process.send_signal(signal.SIGCONT)
            over.wait(stop_s * RUNS_SHARE / (1 - RUNS_SHARE))

    here = [each for site in brokers.sites.values() for each in (site.broker, site.agent) if each is not None]
    threads = [threading.Thread(target=starve, args=(each, Random(number))) for number, each in enumerate(here)]
    for thread in threads:
        thread.start()
    time.sleep(STARVED_S)
    over.set()
    for thread in threads:
        thread.join()


FAULTS: dict[str, tuple[str, Callable[[Brokers], None]]] = {
    "none": ("no fault", _none),
    "broker": (f"broker 5 killed, back after {DOWN_S:.0f} s", _killed("broker")),
    "agent": (f"agent 5 killed, back after {DOWN_S:.0f} s", _killed("agent")),
    "both": (f"broker and agent 5 killed, back after {DOWN_S:.0f} s", _killed("agent", "broker")),
    "frozen": (f"broker and agent 5 stand still for {DOWN_S:.0f} s, connections stay", _frozen),
    "cut": (f"middle column cut for {CUT_S:.0f} s, publishing on both sides", _cut),
    "slow": ("links of 300 ms, 0.3-3 s stalls on 5 % of the writes", _slow),
    "starved": (f"each process runs a tenth of {STARVED_S:.0f} s, and stands still for up to 8 s", _starved),
}


# --- the systems


@contextmanager
def _ours(folder: Path, settings: Mapping[str, object]) -> Iterator[Brokers]:
    relays = Relays()
    federation = Federation(folder, NAMES, GRID, {**settings, "redundancy": 2}, relays.port)

    def ready() -> None:
        federation.wait_overlay()
        federation.wait_members("plant/x", {"3", "8"})
        federation.wait_members("across/x", {"6"})

    try:
        with running(federation):
            federation.wait_overlay()
            yield Brokers(federation.sites, relays, ready)
    finally:
        relays.close()


@contextmanager
def _bridged(folder: Path, links: Iterable[tuple[str, str]], inflight: int) -> Iterator[Brokers]:
    """Join brokers by Mosquitto's bridges: all messages, both ways, at QoS 2; the first of each pair dials.

    Topics that test a link pass that link alone: otherwise they would circle endlessly.
    """
    relays = Relays()
    ports = free_ports(len(NAMES))
    sites = {name: Site(name, folder, port, 0, 0) for name, port in zip(NAMES, ports, strict=True)}
    for one, other in links:
        port = relays.port(one, other, sites[other].broker_port)
        bridge = (f"connection to-{other}", f"address 127.0.0.1:{port}", f"remote_clientid from-{one}", *BRIDGE)
        sites[one].further += (*bridge, *TOPICS, f"topic ready/{one}/{other}/# out 0")
    for site in sites.values():
        site.persistent = True
        site.further = (f"max_inflight_messages {inflight}", *SAVES, *site.further)
    linked = list(links)

    def ready() -> None:
        for one, other in linked:
            _see(sites[one].broker_port, sites[other].broker_port, f"ready/{one}/{other}/x")

    with ExitStack() as stack:
        stack.callback(relays.close)
        for site in sites.values():
            site.start_broker()
            stack.callback(site.stop)
        yield Brokers(sites, relays, ready)


def _see(one: int, other: int, topic: str) -> None:
    """Wait until a message goes from one broker to the other."""
    seen = Subscriber(other, topic, topic)
    seen.subscribed.wait(10)
    publisher = Publisher(one, f"{topic}/pub")

    def came() -> bool:
        publisher.publish(topic, b"x", 0)
        time.sleep(0.1)
        return bool(seen.payloads)

    until(came, 60, topic)
    seen.close()
    publisher.close()


STAR = [(name, HUB) for name in NAMES if name != HUB]
RING = [*pairwise(NAMES), (NAMES[-1], NAMES[0])]


# --- the load


class Load:
    """Publishers and subscribers of one run."""

    def __init__(self, sites: Mapping[str, Site], run: str) -> None:
        wanted = (("3", "plant/#"), ("8", "plant/#"), ("6", "across/#"))
        self.subscribers = {
            name: Subscriber(sites[name].broker_port, f"sub-{name}-{run}", topic_filter)
            for name, topic_filter in wanted
        }
        for each in self.subscribers.values():
            if not each.subscribed.wait(10):
                raise RuntimeError("no SUBACK")
        self.publishers = {name: Publisher(sites[name].broker_port, f"pub-{name}-{run}") for name in ("7", "3", "4")}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.published = 0

    def start(self) -> None:
        """Publish until ``stop``."""
        self._threads = [threading.Thread(target=self._publish, args=(name,)) for name in self.publishers]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop publishing."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Let all clients go."""
        for publisher in self.publishers.values():
            publisher.close()
        for subscriber in self.subscribers.values():
            subscriber.close()

    def _publish(self, name: str) -> None:
        topic = "across/x" if name == "4" else "plant/x"
        number, due = 0, time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            for qos in QUALITIES:
                self.publishers[name].publish(topic, f"{name}-{qos}-{number}".encode(), qos)
                self.published += 1
            number += 1
            due += 1 / RATE

    def copies(self) -> int:
        """Return how many messages the busiest subscriber has."""
        return max(sum(each.payloads.values()) for each in self.subscribers.values())

    def _expected(self, name: str, qos: int) -> set[bytes]:
        sources = ("4",) if name == "6" else ("7", "3")
        found = set().union(*(self.publishers[each].acked for each in sources))
        return {payload for payload in found if payload.split(b"-")[1] == b"%d" % qos}

    def lost(self, qos: int) -> int:
        """Return the number of acknowledged messages missing at a subscriber."""
        return sum(len(self._expected(name, qos) - set(each.payloads)) for name, each in self.subscribers.items())

    def twice(self, qos: int) -> int:
        """Return the number of repeated messages."""
        mark = b"%d" % qos
        return sum(
            count > 1
            for each in self.subscribers.values()
            for payload, count in each.payloads.items()
            if payload.split(b"-")[1] == mark
        )

    def gap(self) -> float:
        """Return the longest time without a message of one publisher, at one QoS, at a subscriber of another broker."""
        moments: dict[tuple[str, bytes], list[float]] = defaultdict(list)
        for name, each in self.subscribers.items():
            for at, payload in each.at:
                source, qos, _ = payload.split(b"-")
                if source.decode() != name:
                    moments[name, source + qos].append(at)
        return max((b - a for each in moments.values() for a, b in pairwise(each)), default=0.0)

    def wait(self) -> bool:
        """Wait until all is acknowledged and delivered, as long as some still comes; return whether it is."""
        before, since, end = -1, time.monotonic(), time.monotonic() + DRAIN_S
        while time.monotonic() - since < STALL_S and time.monotonic() < end:
            acked = sum(len(each.acked) for each in self.publishers.values())
            if acked == self.published and not any(self.lost(qos) for qos in QUALITIES):
                time.sleep(LAST_S)
                return True
            progress = acked + sum(sum(each.payloads.values()) for each in self.subscribers.values())
            if progress != before:
                before, since = progress, time.monotonic()
            time.sleep(0.2)
        return False


# --- the runs


def faults(
    system: str, names: list[str], timers: str, settings: Mapping[str, object], row: Row, inflight: int = INFLIGHT
) -> None:
    """Print a row for each fault: lost / twice at QoS 2, lost at QoS 1, and the longest gap."""
    names = [name for name in names if name != "agent" or system == "ours"]
    if system == "ring":
        for name in names:
            _run_ring(FAULTS[name], row, inflight)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with _ours(path, settings) if system == "ours" else _bridged(path, STAR, inflight) as brokers:
            for name in names:
                _run(brokers, name, system + (f", {timers} timers" if system == "ours" else ""), row)


def _run(brokers: Brokers, name: str, system: str, row: Row) -> None:
    what, fault = FAULTS[name]
    load = Load(brokers.sites, name)
    brokers.ready()
    load.start()
    time.sleep(BEFORE_S)
    fault(brokers)
    time.sleep(AFTER_S)
    load.stop()
    begun = time.monotonic()
    is_whole = load.wait()
    settled = f"all there {time.monotonic() - begun - LAST_S:.1f} s after the last" if is_whole else "not whole"
    text_of_stand = "" if is_whole else f"; {_stand(brokers.sites)}"
    brokers.relays.delay_s = brokers.relays.stall_share = 0.0
    lost, twice, gap = load.lost(2), load.twice(2), load.gap()
    text = f"{lost} / {twice}; {load.lost(1)}; longest gap {gap:.1f} s; {settled}; of {load.published}"
    sites = brokers.sites.items()
    ended = [each for each, site in sites if site.broker is None or site.broker.poll() is not None]
    text += text_of_stand
    text += f"; brokers that ended by themselves: {', '.join(ended)}" if ended else ""
    is_dead = name not in ("cut", "slow", "starved")
    holds = not (lost or twice or load.lost(1) or (is_dead and gap > GAP_S_MAX))
    bar = f"0 / 0; 0; {GAP_S_MAX:.0f} s" if is_dead else "0 / 0; 0"
    row(f"{what}: {system}", bar if "ours" in system else "", text, holds or "ours" not in system)
    load.close()


def _stand(sites: Mapping[str, Site]) -> str:
    """Return the locations of missing messages: each agent's stored ones, and its neighbours that are up."""
    found = []
    for name, site in sites.items():
        status = site.ask("status") if site.agent is not None else None
        if status:
            up = ",".join(each["name"] for each in status["neighbours"] if each["up"])
            found.append(f"{name} keeps {status['messages_kept']}, up: {up}")
    return "; ".join(found)


def _run_ring(each: tuple[str, Callable[[Brokers], None]], row: Row, inflight: int) -> None:
    what, fault = each
    with tempfile.TemporaryDirectory() as folder, _bridged(Path(folder), RING, inflight) as brokers:
        brokers.ready()
        load = Load(brokers.sites, "ring")
        is_over = threading.Event()

        def go_wrong() -> None:
            if not is_over.wait(BEFORE_S):
                fault(brokers)

        begun, end = time.monotonic(), time.monotonic() + BEFORE_S + CUT_S + AFTER_S
        load.start()
        thread = threading.Thread(target=go_wrong)
        thread.start()
        while load.copies() < COPIES_MAX and time.monotonic() < end:
            time.sleep(0.02)
        took = time.monotonic() - begun
        is_over.set()
        load.stop()
        thread.join()
        came = f"{load.copies()} copies at one subscriber in {took:.0f} s, of {load.published} messages; stopped"
        text = f"{load.lost(2)} / {load.twice(2)}; {load.lost(1)}; {came}"
        row(f"{what}: ring", "", text, True)
        load.close()
