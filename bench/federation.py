"""``python -m bench.federation``: nine real Mosquittos in a grid with an agent each; the figures of docs/federation.md.

Prints one row for each figure with its bar. Both timer sets: ours, and ``--timers paper`` (hello 5 s, else 20 s).
``--rate`` measures one agent between two brokers instead: QoS 1 messages a second with the spool synced, and processor
time per message at an agent that only passes on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tests.gateways.federation.real_federation import GRID, Federation, Publisher, Subscriber, running, until

NAMES = [str(number) for number in range(1, 10)]
TIMERS: dict[str, dict[str, object]] = {
    "ours": {"hello_s": 1.0, "announce_s": 5.0, "redundancy": 2},
    "paper": {"hello_s": 5.0, "announce_s": 20.0, "redundancy": 2},
}
CONTROL = ("hl", "hb", "fd", "rc", "ca", "tc", "rt", "ts", "tu")
IDLE_S = 20.0
PAYLOAD = 256


def row(what: str, measured: str, bar: str) -> None:
    """Print a row."""
    print(f"| {what} | {bar} | {measured} |", flush=True)


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def control_messages(federation: Federation) -> int:
    """Return the control messages that all agents have received."""
    total = 0
    for site in federation.sites.values():
        counts = site.ask("status")["counts"]
        total += sum(counts.get(f"received_{tag}", 0) for tag in CONTROL)
    return total


def grid(timers: str) -> None:
    """Measure the grid."""
    settings = TIMERS[timers]
    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name), NAMES, GRID, settings)
        with running(federation):
            until(lambda: all(site.ask("status") for site in federation.sites.values()), 120, "agents")
            begun = time.monotonic()
            federation.wait_overlay(120)
            row(f"overlay of nine known to all, {timers} timers, after the last agent answers", _s(begun), "3 s")
            first_delivery(federation)
            contention(federation)
            before, begun = control_messages(federation), time.monotonic()
            time.sleep(IDLE_S)
            sent = control_messages(federation) - before
            rate = sent / (time.monotonic() - begun) / len(NAMES)
            row("idle control messages per agent and second at nine, with two filters", f"{rate:.1f}", "20")
            gap(federation)


def _s(begun: float) -> str:
    return f"{time.monotonic() - begun:.2f} s"


def first_delivery(federation: Federation) -> None:
    """SUBACK at 1, publisher at 9: distance 4."""
    publisher = Publisher(federation.sites["9"].broker_port, "first-pub")
    subscriber = Subscriber(federation.sites["1"].broker_port, "first-sub", "first/#")
    subscriber.subscribed.wait(10)
    number = 0
    while not subscriber.at and number < 3_000:
        publisher.publish("first/x", b"%d" % number, 1)
        number += 1
        time.sleep(0.01)
    row("SUBACK to the first delivery at distance 4", f"{subscriber.at[0][0] - subscriber.suback_at:.2f} s", "1 s")
    subscriber.close()
    publisher.close()


def contention(federation: Federation) -> None:
    """Two subscribers at once, at opposite corners."""
    subscribers = [Subscriber(federation.sites[name].broker_port, f"two-{name}", "two/#") for name in ("3", "7")]
    for each in subscribers:
        each.subscribed.wait(10)
    begun = time.monotonic()

    def cores() -> set[str]:
        found = set()
        for site in federation.sites.values():
            names = [each["core"] for each in site.ask("topics") if each["filter"] == "two/#"]
            found |= set(names) or {""}
        return found

    until(lambda: len(found := cores()) == 1 and "" not in found, 60, "one core")
    row("two subscribers at once: one core, known to all", _s(begun), "1 s")
    for each in subscribers:
        each.close()


def gap(federation: Federation) -> None:
    """Kill broker and agent 5 under load; the longest gap of subscribers at 3 and 8."""
    subscribers = [Subscriber(federation.sites[name].broker_port, f"gap-{name}", "gap/#") for name in ("3", "8")]
    federation.wait_members("gap/x", {"3", "8"}, 60)
    publisher = Publisher(federation.sites["7"].broker_port, "gap-pub")
    for number in range(1_000):
        publisher.publish("gap/x", b"%d" % number)
        time.sleep(0.02)
        if number == 200:
            federation.sites["5"].kill("agent")
            federation.sites["5"].kill("broker")
    publisher.wait(60)
    until(lambda: all(len(each.payloads) >= len(publisher.acked) for each in subscribers), 60, "all")
    time.sleep(2)
    longest = 0.0
    for each in subscribers:
        moments = [at for at, _ in each.at]
        longest = max(longest, *(b - a for a, b in pairwise(moments)))
    lost = sum(len(publisher.acked - set(each.payloads)) for each in subscribers)
    twice = sum(count > 1 for each in subscribers for count in each.payloads.values())
    row("broker and agent in the middle killed: longest gap elsewhere", f"{longest:.2f} s", "4 s")
    row("lost / twice of 1 000 at QoS 2 in it, at two subscribers", f"{lost} / {twice}", "0 / 0")
    for each in subscribers:
        each.close()
    publisher.close()


def rate(count: int) -> None:
    """A line of three: messages a second of QoS 1, and processor time at the one in the middle."""
    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name), ["a", "b", "c"], [("a", "b"), ("b", "c")])
        with running(federation):
            federation.wait_overlay(60)
            subscriber = Subscriber(federation.sites["c"].broker_port, "sub", "rate/#", 1)
            federation.wait_members("rate/x", {"c"})
            middle = federation.sites["b"].agent
            assert middle is not None
            publisher = Publisher(federation.sites["a"].broker_port, "pub")
            used, begun = processor_s(middle.pid), time.monotonic()
            for number in range(count):
                publisher.publish("rate/x", b"%d" % number + bytes(PAYLOAD), 1)
            until(lambda: len(subscriber.payloads) >= count, 300, "all messages")
            took, spent = time.monotonic() - begun, processor_s(middle.pid) - used
            row("QoS 1 messages a second, three agents on this machine, spools synced", f"{count / took:.0f}", "3 000")
            row("processor time per message at an agent that passes it on", f"{spent / count * 1e6:.0f} us", "60 us")
            subscriber.close()
            publisher.close()


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--timers", choices=sorted(TIMERS), default="ours")
    parser.add_argument("--rate", action="store_true")
    parser.add_argument("--messages", type=int, default=20_000)
    given = parser.parse_args()
    print("| figure | bar | measured |\n|---|---|---|")
    if given.rate:
        rate(given.messages)
    else:
        grid(given.timers)


if __name__ == "__main__":
    main()
