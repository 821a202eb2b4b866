"""A real cluster as its operator and its clients see it: commands about it, and MQTT 5 clients that end with it."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

WAIT_S = PATIENCE_S
Got = tuple[str, bytes, bool]  # topic, payload, retained


class Answer(NamedTuple):
    """How a command about the cluster ended."""

    shown: Any
    said: str
    code: int
    took_s: float


class OperatedCluster:
    """A cluster, commands about it, and clients."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.clients: list[paho.Client] = []

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command; return its exit code, output and errors.

        A node has one second to answer. If a busy machine delays a running node, the command is repeated.
        """
        return self.heard(lambda: self._run(*words))

    def heard(self, ask: Callable[[], tuple[int, str, str]]) -> tuple[int, str, str]:
        """Ask until each node that runs has answered in time."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            code, shown, said = ask()
            is_late = code != 0 and "no answer in " in said and not self._somebody_is_stopped()
            if not is_late or time.monotonic() > deadline:
                return code, shown, said

    def _somebody_is_stopped(self) -> bool:
        """Return whether a node's process is held up by SIGSTOP."""
        stats = [Path(f"/proc/{node['pid']}/stat") for node in self.cluster.state["nodes"].values()]
        return any(stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)

    def _run(self, *words: str) -> tuple[int, str, str]:
        done = self.cluster.command(*words, "--data", str(self.cluster.data))
        return done.returncode, done.stdout, done.stderr

    def ask(self, *words: str) -> Answer:
        """Run a command with ``-o json``; ``shown`` is None if it printed no JSON."""
        began = time.monotonic()
        code, shown, said = self.run(*words, "-o", "json")
        return Answer(json.loads(shown) if shown else None, said, code, time.monotonic() - began)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """Return the rows of a list that succeeds."""
        answer = self.ask(*words)
        assert answer.code == 0, answer.said
        found: list[dict[str, Any]] = answer.shown["rows"]
        return found

    def come(
        self,
        name: str,
        edge: int = 0,
        *,
        expiry_s: int = 0,
        clean: bool = True,
        receive: int = 0,
        acks: bool = True,
        origins: bool = False,
    ) -> paho.Client:
        """Connect a client to an edge's listener in clear; ``origins``: it asks for those of its messages."""
        made = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=not acks)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = expiry_s
        if receive:
            properties.ReceiveMaximum = receive
        if origins:
            properties.UserProperty = ("stratamq-origin", "1")
        port = self.cluster.port(edge, "plain")
        made.connect("127.0.0.1", port, clean_start=clean, properties=properties)
        made.loop_start()
        self.cluster.wait_for(made.is_connected, f"connected: {name}", WAIT_S)
        self.clients.append(made)
        return made

    def subscribe(self, client: paho.Client, topic_filter: str, **options: Any) -> list[Got]:
        """Subscribe at QoS 1; return the list to which its messages are added."""
        done: list[int] = []
        got: list[Got] = []
        client.on_subscribe = lambda *_: done.append(1)
        client.on_message = lambda _, __, message: got.append((message.topic, bytes(message.payload), message.retain))
        client.subscribe(topic_filter, options=SubscribeOptions(qos=1, **options))
        self.cluster.wait_for(lambda: bool(done), f"subscribed: {topic_filter}", WAIT_S)
        return got

    def publish(self, client: paho.Client, topic: str, count: int = 1) -> None:
        """Publish at QoS 1, one after the other."""
        for number in range(count):
            client.publish(topic, b"%d" % number, qos=1).wait_for_publish(WAIT_S)

    def origins(self, client: paho.Client, topic: str, count: int = 1, *, retain: bool = False) -> list[str]:
        """Publish at QoS 1 by a client that requests origins; return the origins from its PUBACKs."""
        origins: list[str] = []
        client.on_publish = lambda *given: origins.append(dict(given[4].UserProperty)["stratamq-origin"])
        for number in range(count):
            client.publish(topic, b"%d" % number, qos=1, retain=retain)
            self.cluster.wait_for(lambda: len(origins) > number, "acknowledged", WAIT_S)  # noqa: B023 - called here
        return origins


@contextlib.contextmanager
def operated_cluster(*options: str) -> Iterator[OperatedCluster]:
    """Run a cluster; the clients that came are ended before it is."""
    with local_cluster(*options) as cluster:
        here = OperatedCluster(cluster)
        try:
            yield here
        finally:
            for client in here.clients:
                client.loop_stop()
