"""Tests real Mosquittos with one agent each: exactly one delivery between any two of them, and the three by three
grid.
"""

from __future__ import annotations

from pathlib import Path

from tests.gateways.federation.graphs import GRID
from tests.gateways.federation.real_federation import (
    Federation,
    Publisher,
    Site,
    Subscriber,
    needs_mosquitto,
    running,
    until,
)
from tests.patience import PATIENCE_S

pytestmark = needs_mosquitto

NAMES = [str(number) for number in range(1, 10)]


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def words_of(site: Site, *words: str) -> list[list[str]]:
    """Return the words of each line that a command prints."""
    done = site.command(*words)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_two_brokers(tmp_path: Path) -> None:
    """Messages published at one are delivered at the other once, also after an empty restart; commands show them."""
    federation = Federation(tmp_path, ["a", "b"], [("a", "b")])
    with running(federation):
        federation.wait_overlay()
        subscriber = Subscriber(federation.sites["b"].broker_port, "sub", "plant/#")
        federation.wait_members("plant/x", {"b"})
        publisher = Publisher(federation.sites["a"].broker_port, "pub")
        for payload in payloads(100):
            publisher.publish("plant/x", payload)
        federation.wait_delivered(publisher, [subscriber], 100)
        assert set(subscriber.payloads.values()) == {1}
        publisher.close()
        publisher = restart_empty(federation.sites["a"])
        for payload in payloads(20):
            publisher.publish("plant/x", b"again" + payload)
        publisher.wait(PATIENCE_S)
        until(lambda: len(subscriber.payloads) == 120, PATIENCE_S, "what was published behind it")
        assert set(subscriber.payloads.values()) == {1}
        subscriber.close()
        check_commands(federation, publisher)
        publisher.close()


def restart_empty(site: Site) -> Publisher:
    """Restart a broker without its sessions; return a publisher when the agent captures again."""
    site.kill("broker")
    until(lambda: not site.ask("status")["host"], PATIENCE_S, "the agent to notice")
    site.start_broker()
    until(
        lambda: (now := site.ask("status"))["host"] and now["capture"] == ["plant/#"],
        PATIENCE_S,
        "a filter granted anew",
    )
    return Publisher(site.broker_port, "pub")


def check_commands(federation: Federation, publisher: Publisher) -> None:
    """Run ``topics`` and ``why``; ``forget`` a reachable agent, no agent and a dead one."""
    site = federation.sites["a"]
    (row,) = [row for row in words_of(site, "topics") if row[0] == "plant/#"]
    assert row[1:3] == ["b", "b"]
    why = words_of(site, "why", "plant/x")
    assert ["captured", "by", "plant/#"] in why and ["to", "b", "distance", "1", "by", "b"] in why
    assert ["path", "to", "b", "a", ">", "b"] in why
    tree = ["distribution", "tree", "of", "plant/#", "towards", "the", "core:", "b;", "members", "below:", "none"]
    assert tree in why
    for no_topic in ("plant/#", "$SYS/x"):
        done = site.command("why", no_topic)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "can be reached" in site.ask("forget", "b")["error"]
    assert "was asked" in site.ask("forget", "a")["error"]
    assert "no agent bb is known" in site.ask("forget", "bb")["error"]
    federation.sites["b"].kill("agent")
    until(lambda: not site.ask("status")["neighbours"][0]["up"], PATIENCE_S, "b to be away")
    assert ["to", "b", "unreachable:", "messages", "are", "stored"] in words_of(site, "why", "plant/x")
    assert ["a,", "without", "a", "link"] in words_of(site, "graph")
    for payload in payloads(5):
        publisher.publish("plant/x", b"late" + payload)
    publisher.wait(PATIENCE_S)
    until(lambda: site.ask("status")["messages_kept"] == 5, PATIENCE_S, "messages that are kept")
    done = site.command("forget", "")  # the empty name is the agent's own broker internally
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "not empty" in done.stderr
    assert site.ask("status")["messages_kept"] == 5
    assert words_of(site, "forget", "b")[0][:3] == ["b", "is", "removed;"]
    until(lambda: site.ask("status")["messages_kept"] == 0, PATIENCE_S, "nothing that is kept")
    assert site.ask("status")["counts"]["forgotten"] == 5


def test_grid_of_nine(tmp_path: Path) -> None:
    """The predecessor's grid has subscribers at 3 and 8 and a publisher at 7; each message reaches both once."""
    federation = Federation(tmp_path, NAMES, GRID, {"redundancy": 2})
    with running(federation):
        federation.wait_overlay()
        subscribers = [Subscriber(federation.sites[name].broker_port, f"sub-{name}", "plant/#") for name in ("3", "8")]
        federation.wait_members("plant/x", {"3", "8"})
        publisher = Publisher(federation.sites["7"].broker_port, "pub")
        for payload in payloads(200):
            publisher.publish("plant/x", payload)
        federation.wait_delivered(publisher, subscribers, 200)
        assert [set(each.payloads.values()) for each in subscribers] == [{1}, {1}]
        for subscriber in subscribers:
            assert [payload for _, payload in subscriber.at] == payloads(200)  # one origin and topic along one path
            subscriber.close()
        publisher.close()
