"""``python -m bench.federation``: nine real Mosquittos in a grid with an agent each; the numbers of
docs/federation.md.

    python -m bench.federation                        all of it, with our timers; takes a quarter of an hour
    python -m bench.federation --timers paper         the paper's: hello 5 s, all other periodic messages 20 s
    python -m bench.federation --only overlay first   overlay | first | contention | idle | stretch | growth | rate |
                                                      relayed | floor | faults
    python -m bench.federation --only faults --system star    ours | star | ring
    python -m bench.federation --only faults --system ring --inflight 20    Mosquitto's own bound; otherwise none
    python -m bench.federation --only faults --fault both     none | broker | agent | both | frozen | cut |
                                                              slow | starved

Each row has its limit, and "missed" where it does not hold; the exit code is 1 then. *star* and *ring* are brokers with
Mosquitto's own bridges, under the same faults (``bench/federation_faults.py``). *growth* uses the clock of the
simulation. *rate* and *relayed* are a line of three agents (``bench/federation_rates.py``); *floor* is the cheapest
replacement of the middle agent of *relayed* (``bench/federation_floor.py``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.federation_faults import FAULTS, INFLIGHT, SYSTEMS, faults
from bench.federation_floor import relayed_floor
from bench.federation_rates import NAMES as LINE
from bench.federation_rates import PAYLOAD_BYTES, through_a_line
from tests.gateways.federation.federation_simulation import FederationSimulation, make_graph
from tests.gateways.federation.graphs import GRID, breadth_first, idle_messages, links_of, subscribe
from tests.gateways.federation.real_federation import Federation, Publisher, Subscriber, running, until

NAMES = [str(number) for number in range(1, 10)]
TIMERS: dict[str, dict[str, Any]] = {
    "ours": {"hello_s": 1.0, "announce_s": 5.0},
    "paper": {"hello_s": 5.0, "announce_s": 20.0},
}
CONTROL = ("hl", "hb", "fd", "rc", "ca", "tc", "rt", "ts", "tu")
OF_THE_GRID = ("overlay", "first", "contention", "stretch", "idle")
FIGURES = (*OF_THE_GRID, "growth", "rate", "relayed", "floor", "faults")
START_S = 120.0
IDLE_S = 20.0
TIMES = 5
NOTHING_S = 30.0  # a longer silence ends the run
AGENTS = (5, 9, 16, 25, 50)


class Table:
    """Rows that are printed as they come; ``missed`` are those above their bar."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def row(self, what: str, bar: str, measured: str, holds: bool = True) -> None:
        """Print a row."""
        if not holds:
            self.missed.append(what)
            measured += ", missed"
        print(f"| {what} | {bar} | {measured} |", flush=True)


@contextmanager
def grid(timers: str) -> Iterator[tuple[Federation, float]]:
    """Run nine brokers and their agents; every agent answers, but has no routes yet, when the block begins."""
    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name), NAMES, GRID, {**TIMERS[timers], "redundancy": 2})
        begun = time.monotonic()
        with running(federation):
            until(lambda: all(site.ask("status") for site in federation.sites.values()), START_S, "agents")
            yield federation, begun


def overlay(federation: Federation, began: float, timers: str, table: Table) -> None:
    """Measure from the answer of the last agent until each knows all others and its broker."""
    begun = time.monotonic()
    federation.wait_overlay(START_S)
    now = time.monotonic()
    text = f"{now - begun:.2f} s behind the last agent's answer, {now - began:.1f} s behind the start of 18 processes"
    table.row(f"overlay of nine known to all, {timers} timers", "3 s", text, now - begun <= 3.0)


def first(federation: Federation, timers: str, table: Table) -> None:
    """Measure from SUBACK at 1 to the first message from 9: distance 4."""
    publisher = Publisher(federation.sites["9"].broker_port, "first-pub")
    found = [_first(federation, publisher, f"first{number}") for number in range(TIMES)]
    came = [each for each in found if each is not None]
    text = f"median {statistics.median(came):.2f} s, worst {max(came):.2f} s of {TIMES}" if came else ""
    text += f", {TIMES - len(came)} times nothing within {NOTHING_S:.0f} s" if len(came) < TIMES else ""
    holds = len(came) == TIMES and max(came) <= 1.0
    table.row(
        f"SUBACK at one end to the first delivery from the other, distance 4, {timers} timers", "1 s", text, holds
    )
    publisher.close()


def _first(federation: Federation, publisher: Publisher, topic: str) -> float | None:
    subscriber = Subscriber(federation.sites["1"].broker_port, f"sub-{topic}", f"{topic}/#")
    if not subscriber.subscribed.wait(10):
        raise RuntimeError("no SUBACK")
    number, end = 0, time.monotonic() + NOTHING_S
    while not subscriber.at and time.monotonic() < end:
        publisher.publish(f"{topic}/x", b"%d" % number, 1)
        number += 1
        time.sleep(0.01)
    took = subscriber.at[0][0] - subscriber.suback_at if subscriber.at else None
    subscriber.close()
    return took


def contention(federation: Federation, timers: str, table: Table) -> None:
    """Measure from two simultaneous SUBSCRIBEs at opposite corners until all agents name one core."""
    took = max(_contention(federation, f"two{number}/#") for number in range(TIMES))
    text = f"worst of {TIMES}: {took:.2f} s"
    table.row(f"two subscribers at once, one core at all nine, {timers} timers", "1 s", text, took <= 1.0)


def _contention(federation: Federation, topic_filter: str) -> float:
    ends = [
        Subscriber(federation.sites[name].broker_port, f"{topic_filter[:4]}-{name}", topic_filter, waits=True)
        for name in ("3", "7")
    ]
    for each in ends:
        if not each.connected.wait(10):
            raise RuntimeError("no connection")
    begun = time.monotonic()
    for each in ends:
        each.subscribe()

    def is_one() -> bool:
        cores, members = set(), set()
        for site in federation.sites.values():
            row = next((each for each in site.ask("topics") if each["filter"] == topic_filter), None)
            cores.add(row["core"] if row else "")
            members.add(tuple(sorted(row["members"])) if row else ())
        return len(cores) == 1 and cores <= set(NAMES) and members == {("3", "7")}

    until(is_one, 60, "one core")
    took = time.monotonic() - begun
    for each in ends:
        each.close()
    return took


def stretch(federation: Federation, timers: str, table: Table) -> None:
    """Compare the agents that messages passed, by their user property, with a breadth-first search."""
    ends = [Subscriber(federation.sites[name].broker_port, f"stretch-{name}", "stretch/#") for name in NAMES]
    federation.wait_members("stretch/x", set(NAMES), 60)
    for name in NAMES:
        publisher = Publisher(federation.sites[name].broker_port, f"stretch-pub-{name}")
        publisher.publish("stretch/x", name.encode())
        publisher.wait(30)
        publisher.close()
    until(lambda: all(len(each.payloads) == len(NAMES) for each in ends), 30, "all messages")
    links = list(GRID)
    found = [
        (len(path) - 1) / breadth_first(links, path[0])[path[-1]][0]
        for each in ends
        for path in each.paths.values()
        if len(path) > 1
    ]
    for each in ends:
        each.close()
    text = f"{statistics.median(found):.2f} / {max(found):.2f} of {len(found)} ways"
    holds = len(found) == 72 and statistics.median(found) <= 1.2 and max(found) <= 2
    table.row(f"path against the shortest, median / worst, {timers} timers", "1.2 / 2", text, holds)


def idle(federation: Federation, timers: str, table: Table) -> None:
    """Count the control messages that all agents receive without publishes."""
    ends = [Subscriber(federation.sites[name].broker_port, f"idle-{name}", "idle/#") for name in ("3", "8")]
    federation.wait_members("idle/x", {"3", "8"}, 60)
    time.sleep(3.0)  # until the messages of the change have passed
    before, begun = _control_messages(federation), time.monotonic()
    time.sleep(IDLE_S)
    rate = (_control_messages(federation) - before) / (time.monotonic() - begun) / len(NAMES)
    for each in ends:
        each.close()
    table.row(f"idle control messages per agent and second at nine, {timers} timers", "20", f"{rate:.1f}", rate <= 20)


def _control_messages(federation: Federation) -> int:
    """Return the control messages that all agents have received."""
    counts = [site.ask("status")["counts"] for site in federation.sites.values()]
    return sum(each.get(f"received_{tag}", 0) for each in counts for tag in CONTROL)


def growth(timers: str, table: Table) -> None:
    """Count the messages of idle agents against their number: random graphs of model brokers, on the simulation's
    clock.
    """
    for count in AGENTS:
        simulation = FederationSimulation(count)
        names = make_graph(simulation, count, **TIMERS[timers])
        simulation.start()
        subscribe(simulation, names[0], "a/#")
        each = idle_messages(simulation, 20.0 * _slower(timers), 8.0 * _slower(timers))
        degree = 2 * len(links_of(simulation)) / count
        text = f"{each:.1f}, with {degree:.1f} neighbours each"
        table.row(f"the same with {count} agents, simulated, {timers} timers", "stated", text)


def _slower(timers: str) -> float:
    return 1.0 if timers == "ours" else 4.0


def rate(count: int, table: Table) -> None:
    """Measure messages a second of QoS 1 through a line of three."""
    found, spent = through_a_line(count, "")
    text = f"{found:,.0f} on the clock, all of it on this machine; " + _us(spent)
    table.row(
        f"QoS 1 messages of {PAYLOAD_BYTES} B a second, three agents, spools synced", "3 000", text, found >= 3000
    )


def relayed(count: int, table: Table) -> None:
    """Measure processor time per message at the agent in the middle, before which all messages wait."""
    found, spent = through_a_line(count, LINE[1])
    what = "processor time per message at an agent that only passes it on, in batches"
    table.row(what, "60 us", f"{spent[LINE[1]]:.0f} us ({found:,.0f} a second on the clock)", spent[LINE[1]] <= 60)


def floor(count: int, table: Table) -> None:
    """Measure the cheapest program in the middle."""
    found, spent = relayed_floor(count, PAYLOAD_BYTES)
    what = "the same of the cheapest program: frames over TLS, rows in a synced transaction, frames over TLS"
    table.row(what, "stated", f"{spent:.0f} us ({found:,.0f} a second on the clock)")


def _us(spent: dict[str, float]) -> str:
    roles = zip(("origin", "passes on", "delivers"), spent.values(), strict=True)
    return "processor us per message: " + ", ".join(f"{role} {each:.0f}" for role, each in roles)


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--timers", choices=sorted(TIMERS), default="ours")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="of faults; several; default: all")
    parser.add_argument("--fault", choices=sorted(FAULTS), action="append", help="of faults; several; default: all")
    parser.add_argument("--inflight", type=int, default=INFLIGHT, help="of bridged brokers; 0: no bound")
    parser.add_argument("--messages", type=int, default=20_000, help="of rate and relayed")
    given = parser.parse_args()
    table = Table()
    print("| figure | bar | measured |\n|---|---|---|")
    wanted: dict[str, Callable[[Federation, str, Table], None]] = {
        "first": first,
        "contention": contention,
        "stretch": stretch,
        "idle": idle,
    }
    if set(given.only) & set(OF_THE_GRID):
        with grid(given.timers) as (federation, began):
            overlay(federation, began, given.timers, table)
            for name, figure in wanted.items():
                if name in given.only:
                    figure(federation, given.timers, table)
    if "growth" in given.only:
        growth(given.timers, table)
    if "rate" in given.only:
        rate(given.messages, table)
    if "relayed" in given.only:
        relayed(given.messages, table)
    if "floor" in given.only:
        floor(given.messages, table)
    if "faults" in given.only:
        for system in given.system or SYSTEMS:
            names, settings = given.fault or list(FAULTS), TIMERS[given.timers]
            faults(system, names, given.timers, settings, table.row, given.inflight)
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
