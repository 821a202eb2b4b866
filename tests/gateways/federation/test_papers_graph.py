"""Tests the paper's six brokers and eight links with real brokers, and the commands' output about them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.gateways.federation.graphs import PAPER, breadth_first
from tests.gateways.federation.real_federation import (
    Federation,
    Publisher,
    Site,
    Subscriber,
    needs_mosquitto,
    running,
    until,
)
from tests.gateways.federation.slow_relay import Relays
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, needs_mosquitto]

LINKS = list(PAPER)
NAMES = sorted({name for link in LINKS for name in link})
TOPIC = "mytopic/example_subtopic"
MESSAGES = 100


def rows_of(site: Site) -> dict[str, str]:
    """Return the table of ``federate status``, by its first column."""
    found = {}
    for line in site.command("status").stdout.splitlines():
        what, _, value = line.partition("  ")
        found[what] = value.strip()
    return found


def check_printed(federation: Federation) -> None:
    """Compare the output of ``graph`` and ``status`` at each agent with the links and a breadth-first search."""
    for name, site in federation.sites.items():
        lines = {frozenset(line.split(" -- ")) for line in site.command("graph").stdout.splitlines()}
        assert lines == {frozenset(link) for link in LINKS}, name
        dot = site.command("graph", "--dot").stdout.splitlines()
        assert [line for line in dot if " -- " in line] == sorted(
            f'  "{min(link)}" -- "{max(link)}";' for link in LINKS
        ), name
        rows = rows_of(site)
        neighbours = {what.split()[1] for what in rows if what.startswith("neighbour ")}
        assert neighbours == {other for link in LINKS if name in link for other in link if other != name}
        assert all(rows[f"neighbour {each}"].startswith("up, ") for each in neighbours)
        for other, (distance, hops) in breadth_first(LINKS, name).items():
            steps, _, by = rows[f"agent {other}"].removeprefix("distance ").partition(" by ")
            assert int(steps) == distance and set(by.split(", ")) == hops, (name, other, rows[f"agent {other}"])


def test_neighbours_and_next_hops_are_printed(tmp_path: Path) -> None:
    """One subscriber, publishers at both ends; then the agent in the middle is killed and restarted."""
    federation = Federation(tmp_path, NAMES, LINKS, {"redundancy": 2})
    with running(federation):
        federation.wait_overlay()
        until(lambda: len(federation.sites["243"].ask("graph")["links"]) == len(LINKS), PATIENCE_S, "links")
        check_printed(federation)
        subscriber = Subscriber(federation.sites["243"].broker_port, "sub", TOPIC)
        federation.wait_members(TOPIC, {"243"})
        cores = {name: [row["core"] for row in site.ask("topics")] for name, site in federation.sites.items()}
        assert cores == {name: ["243"] for name in NAMES}
        ends = [Publisher(federation.sites[name].broker_port, f"pub-{name}") for name in ("22", "230")]
        for number, end in enumerate(ends):
            for message in range(MESSAGES):
                end.publish(TOPIC, b"%d-%d" % (number, message))
        until(lambda: len(subscriber.payloads) == MESSAGES * len(ends), PATIENCE_S, "all messages")
        for path in subscriber.paths.values():
            assert len(path) - 1 == breadth_first(LINKS, path[0])["243"][0], path
        federation.sites["180"].kill("agent")  # 230's only shortest path; 22 has one by 150 and 217
        for number, end in enumerate(ends):
            for message in range(MESSAGES, 2 * MESSAGES):
                end.publish(TOPIC, b"%d-%d" % (number, message))
        until(lambda: len(subscriber.payloads) == 2 * MESSAGES * len(ends), PATIENCE_S, "all messages around 180")
        federation.sites["180"].start_agent()
        federation.wait_overlay()
        until(lambda: len(federation.sites["243"].ask("graph")["links"]) == len(LINKS), PATIENCE_S, "links")
        check_printed(federation)
        assert set(subscriber.payloads.values()) == {1}
        subscriber.close()
        for end in ends:
            end.close()


def test_two_subscribers_contend_for_a_core(tmp_path: Path) -> None:
    """Two simultaneous SUBSCRIBEs; a second later all six agree on one core, and both get each message."""
    relays = Relays()
    federation = Federation(tmp_path, NAMES, LINKS, {"redundancy": 2}, relays.port)
    try:
        with running(federation):
            federation.wait_overlay()
            ends = [
                Subscriber(federation.sites[name].broker_port, f"s{name}", TOPIC, waits=True) for name in ("22", "243")
            ]
            assert all(each.connected.wait(PATIENCE_S) for each in ends)
            begun = time.monotonic()
            for each in ends:
                each.subscribe()

            def cores() -> set[str]:
                return {row["core"] for site in federation.sites.values() for row in site.ask("topics")} or {""}

            def is_one() -> bool:
                known = [site.ask("topics") for site in federation.sites.values()]
                return all(len(each) == 1 and set(each[0]["members"]) == {"22", "243"} for each in known) and (
                    len(cores()) == 1
                )

            until(is_one, PATIENCE_S, "one core")
            took = time.monotonic() - begun
            (core,) = cores()
            assert core in ("22", "243") and took <= 1.0, (core, took)
            federation.wait_members(TOPIC, {"22", "243"})
            publisher = Publisher(federation.sites["230"].broker_port, "pub")
            relays.cut([("150", "22")])  # 22 is still reachable through 230
            for message in range(MESSAGES):
                publisher.publish(TOPIC, b"%d" % message)
            until(lambda: all(len(each.payloads) == MESSAGES for each in ends), PATIENCE_S, "all messages")
            relays.heal()
            assert all(set(each.payloads.values()) == {1} for each in ends)
            for each in ends:
                each.close()
            publisher.close()
    finally:
        relays.close()
