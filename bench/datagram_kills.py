"""``python -m bench.datagram_kills``: nodes of a UDP tree join and are killed under load; no acknowledged loss.

A root and some children as processes. Each round every child is killed with SIGKILL and restarted at its port, which
is a JOIN. Devices publish QoS 1 all the time, others have subscribed to all topics. Requests without an answer for 60 s
are printed with their topic. Exit code 1 if an answered message is missing at a subscriber.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench.datagram_figures import PlainDevice, make_rules, run, running_node
from gateways.datagrams.messages import Code, Endpoint
from gateways.datagrams.sockets import endpoint_of
from tests.free_ports import free_ports

OPEN_MAX = 8  # messages of each publisher that are not answered
SUBSCRIBERS = 2
SETTLE_S = 90.0
BEHIND_S = 3.0  # between a child that is there and its end


class Load:
    """Devices that publish to all parts, and devices that have subscribed to all topics."""

    def __init__(self, root: Endpoint, children: int) -> None:
        self.topics = [f"c{number}/t" for number in range(children)] + ["other"]
        self.publishers = [PlainDevice(root) for _ in self.topics]
        self.subscribers = [PlainDevice(root) for _ in range(SUBSCRIBERS)]
        self.published = 0
        self.began: dict[int, tuple[str, float]] = {}  # topic and time of each message
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        for each in self.subscribers:
            each.device.subscribe(time.monotonic(), -1, "#", 1)
        run(self.subscribers, lambda: not any(each.device.open for each in self.subscribers))

    @property
    def unanswered(self) -> list[str]:
        """Return each message that no node has answered in 60 s: its number, topic, and when it was sent first."""
        start = min(when for _, when in self.began.values())
        return [
            f"{ref} to {topic}, sent {when - start:.1f} s after the first"
            for ref, (topic, when) in self.began.items()
            if all(each.outcomes.get(ref, -1) == -1 for each in self.publishers)
        ]

    @property
    def acknowledged(self) -> set[bytes]:
        """Return the payloads that a node has answered as distributed."""
        found = [
            b"%d" % ref for each in self.publishers for ref, code in each.outcomes.items() if code == Code.DISTRIBUTED
        ]
        return set(found)

    def start(self) -> None:
        """Publish from now on."""
        self._thread.start()

    def finish(self) -> None:
        """Stop publishing, and wait for pending answers."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._step(True)
        end = time.monotonic() + SETTLE_S
        while any(each.device.open for each in self.publishers) and time.monotonic() < end:
            self._step(False)

    def _step(self, is_publishing: bool) -> None:
        now = time.monotonic()
        for topic, each in zip(self.topics, self.publishers, strict=True):
            if is_publishing and each.device.open < OPEN_MAX:
                self.published += 1
                self.began[self.published] = (topic, now)
                each.device.publish(now, self.published, topic, b"%d" % self.published, 1)
            each.step(now)
        for each in self.subscribers:
            each.step(now)
        time.sleep(0.002)


def kills(rounds: int, children: int) -> int:
    """Kill and restart; print counts; return the exit code."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, ports = Path(name), free_ports(children)
        make_rules(folder)
        common = ["udp.bind=127.0.0.1", "udp.security=plain", f"udp.roles_file={folder / 'roles.toml'}"]
        common.append("metrics.enabled=false")
        parts = ", ".join(f'"c{number}"' for number in range(children))
        given = [f"gateway.data_dir={folder / 'root'}", "udp.port=0", f'udp.children={{"-"=[{parts}]}}']
        root = stack.enter_context(running_node(folder, [*common, *given]))
        load = Load(endpoint_of(root), children)
        load.start()
        joins = deaths = 0
        for _ in range(rounds):
            with contextlib.ExitStack() as alive:
                for number, port in enumerate(ports):
                    given = [f"gateway.data_dir={folder / str(number)}", f"udp.port={port}", f"udp.parent={root}"]
                    alive.enter_context(running_node(folder, [*common, *given, f"udp.subtree=c{number}"]))
                    joins += 1
                time.sleep(BEHIND_S)
            deaths += children
        load.finish()
        return _report(load, joins, deaths)


def _report(load: Load, joins: int, deaths: int) -> int:
    acknowledged = load.acknowledged
    lost = [len(acknowledged - set(each.payloads)) for each in load.subscribers]
    twice = [sum(count > 1 for count in each.payloads.values()) for each in load.subscribers]
    print(f"joins {joins}, children killed {deaths}")
    print(f"messages published {load.published}, acknowledged {len(acknowledged)}")
    codes = Counter(code for each in load.publishers for code in each.outcomes.values() if code != Code.DISTRIBUTED)
    print(f"not acknowledged, by code, -1 is no answer in 60 s: {dict(codes)}")
    print(*load.unanswered, sep="\n")
    print(f"lost of the acknowledged, by subscriber: {lost}; more than once: {twice}")
    return 1 if any(lost) or not acknowledged else 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--children", type=int, default=5)
    options = parser.parse_args()
    return kills(options.rounds, options.children)


if __name__ == "__main__":
    sys.exit(main())
