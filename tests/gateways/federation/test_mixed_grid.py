"""Tests a grid of six Mosquittos, an aedes and two StrataMQ clusters, and subscriptions made before an agent
started.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.free_ports import free_ports
from tests.gateways.bridges.third_parties import AEDES, javascript
from tests.gateways.federation.graphs import GRID
from tests.gateways.federation.real_federation import (
    START_S,
    Federation,
    Publisher,
    Site,
    Subscriber,
    needs_mosquitto,
    until,
)
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, needs_mosquitto]

NAMES = [str(number) for number in range(1, 10)]
MESSAGES = 100


class Cluster(Site):
    """A StrataMQ cluster instead of a Mosquitto."""

    def __init__(self, *place: object) -> None:
        super().__init__(*place)  # type: ignore[arg-type]
        (self.admin_port,) = free_ports(1)
        self.token = self.folder / f"token-{self.name}"
        self.settings = {
            "host_kind": "stratamq",
            "api": f"http://127.0.0.1:{self.admin_port}",
            "api_token_file": str(self.token),
            "list_s": 2,
        }
        self._stack = ExitStack()
        self.cluster: LocalCluster | None = None

    def start_broker(self) -> None:
        """Start a small one and create a token for the agent."""
        ports = ("--plain-port", str(self.broker_port), "--admin-port", str(self.admin_port))
        made = local_cluster("--edges", "1", *ports, "--set", "edge.events=true")
        self.cluster = self._stack.enter_context(made)
        shown = self.cluster.admin("token", "create", "agent", "--role", "viewer")
        self.token.touch(0o600)
        self.token.write_text(str(shown["token"]))

    def stop(self) -> None:
        """Stop the cluster as well."""
        super().stop()
        self._stack.close()


class Aedes(Site):
    """An aedes instead of a Mosquitto, with MQTT 3.1.1, no log and no No Local."""

    def __init__(self, *place: object) -> None:
        super().__init__(*place)  # type: ignore[arg-type]
        self.settings = {"host_kind": "static", "filters": ["plant/#"], "protocol": "3.1.1", "no_local": False}

    def start_broker(self) -> None:
        """Start and wait until it listens."""
        environment = javascript("aedes")
        command = ["node", "-e", AEDES, "--", str(self.broker_port)]
        self.broker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._broker_listens, START_S, f"broker {self.name}")


def payloads(head: str) -> list[bytes]:
    return [f"{head}-{number}".encode() for number in range(MESSAGES)]


def test_subscriptions_from_before_the_agent_count(tmp_path: Path) -> None:
    """The agent of a cluster reads it from the list; its own captures do not count as interest."""
    federation = Federation(tmp_path, ["a", "b"], [("a", "b")], kinds={"b": Cluster})
    a, b = federation.sites["a"], federation.sites["b"]
    try:
        a.start_broker()
        b.start_broker()
        subscriber = Subscriber(b.broker_port, "before", "plant/#")
        assert subscriber.subscribed.wait(PATIENCE_S)
        other = Subscriber(a.broker_port, "other", "office/#")
        a.start_agent()
        b.start_agent()
        federation.wait_overlay()
        federation.wait_members("plant/x", {"b"})
        publisher = Publisher(a.broker_port, "pub")
        for payload in payloads("a"):
            publisher.publish("plant/x", payload)
        federation.wait_delivered(publisher, [subscriber], MESSAGES)
        assert set(subscriber.payloads.values()) == {1}
        assert b.ask("status")["list_of_subscriptions"] == "whole"
        subscriber.client.unsubscribe("plant/#")
        until(lambda: not a.ask("why", "plant/x")["to"], PATIENCE_S, "nobody wants plant/x any more")
        other.subscribed.wait(PATIENCE_S)
        other.client.subscribe("office/+/late", 1)
        until(
            lambda: "b" not in str(_members(b, "office/#")), PATIENCE_S, "the capture of office/# is not b's interest"
        )
        subscriber.close()
        other.close()
        publisher.close()
    finally:
        federation.stop()


def _members(site: Site, topic_filter: str) -> list[str]:
    return [name for row in site.ask("topics") if row["filter"] == topic_filter for name in row["members"]]


def test_six_mosquittos_an_aedes_and_two_clusters(tmp_path: Path) -> None:
    """Publishers at a Mosquitto and a cluster, subscribers at two Mosquittos and the other cluster; each gets each
    once.
    """
    javascript("aedes")  # skips
    kinds: dict[str, type[Site]] = {"1": Cluster, "5": Aedes, "9": Cluster}
    federation = Federation(tmp_path, NAMES, GRID, {"redundancy": 2}, kinds=kinds)
    try:
        for site in federation.sites.values():
            site.start_broker()
        ends = {"1": Subscriber(federation.sites["1"].broker_port, "sub-1", "plant/#")}
        for site in federation.sites.values():
            site.start_agent()
        federation.wait_overlay()
        for name in ("3", "8"):
            ends[name] = Subscriber(federation.sites[name].broker_port, f"sub-{name}", "plant/#")
        federation.wait_members("plant/x", {"1", "3", "5", "8"})
        publishers = [Publisher(federation.sites[name].broker_port, f"pub-{name}") for name in ("7", "9")]
        for name, publisher in zip(("7", "9"), publishers, strict=True):
            for payload in payloads(name):
                publisher.publish("plant/x", payload)
        for publisher in publishers:
            publisher.wait()
        wanted = set(payloads("7")) | set(payloads("9"))
        until(lambda: all(set(each.payloads) == wanted for each in ends.values()), PATIENCE_S, "all messages")
        until(
            lambda: not any(site.ask("status")["messages_kept"] for site in federation.sites.values()),
            PATIENCE_S,
            "spools",
        )
        assert [set(each.payloads.values()) for each in ends.values()] == [{1}] * 3
        for end in ends.values():
            end.close()
        for publisher in publishers:
            publisher.close()
    finally:
        federation.stop()
