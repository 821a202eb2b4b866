"""A federation of real brokers with one Mosquitto and one agent process per name, links, faults and clients.

All processes are started and stopped here. Clients use paho-mqtt. Links use relays where a test delays or cuts them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from stratamq.federate_folder import make_folder
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
INSTALLED = Path(MOSQUITTO).exists()
FEDERATION = "test"
START_S = PATIENCE_S
STALL_S = PATIENCE_S  # without a message, after which the rest counts as lost

needs_mosquitto = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first true value of a condition, which is checked 50 times a second."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Site:
    """One broker and its agent.

    Attributes:
        settings: Of this agent only, in section ``federate``.
    """

    settings: Mapping[str, object] = {}

    def __init__(self, name: str, folder: Path, broker_port: int, link_port: int, page_port: int) -> None:
        self.name, self.folder = name, folder
        self.broker_port, self.link_port, self.page_port = broker_port, link_port, page_port
        self.broker: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self.broker_config = folder / f"mosquitto-{name}.conf"
        self.agent_log = folder / f"agent-{name}.log"
        self.persistent = False
        self.further: tuple[str, ...] = ()  # additional lines of the broker's configuration

    def start_broker(self) -> None:
        """Start and wait until it listens."""
        (self.folder / f"mq-{self.name}").mkdir(exist_ok=True)
        lines = [
            f"listener {self.broker_port} 127.0.0.1",
            "allow_anonymous true",
            "user root",
            "max_queued_messages 0",
            "log_dest topic",
            "log_type subscribe",
            "log_type unsubscribe",
            "log_type notice",
            "connection_messages true",
            f"persistence {str(self.persistent).lower()}",
            f"persistence_location {self.folder}/mq-{self.name}/",
            *self.further,
        ]
        self.broker_config.write_text("\n".join(lines) + "\n")
        command = [MOSQUITTO, "-c", str(self.broker_config)]
        self.broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._broker_listens, START_S, f"broker {self.name}")

    def _broker_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.broker_port)) == 0

    def start_agent(self) -> None:
        """Start; ``ask`` answers once it is ready."""
        command = [sys.executable, "-m", "stratamq", "federate", "--config", str(self.folder / f"{self.name}.toml")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)

    def ask(self, verb: str, argument: str = "") -> Any:
        """Return the agent's answer, or None while it does not answer."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE_S)
                connection.connect(str(self.folder / self.name / "status.sock"))
                connection.sendall(json.dumps({"verb": verb, "argument": argument}).encode() + b"\n")
                data = b""
                while part := connection.recv(1 << 16):
                    data += part
                return json.loads(data)
        except OSError:
            return None

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``stratamq federate`` with the agent's configuration."""
        line = [
            sys.executable,
            "-m",
            "stratamq",
            "federate",
            *words,
            "--config",
            str(self.folder / f"{self.name}.toml"),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=300, check=False)

    def kill(self, what: str) -> None:
        """Send SIGKILL to the broker or the agent."""
        process = getattr(self, what)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            setattr(self, what, None)

    def stop(self) -> None:
        """Stop both, the agent gracefully."""
        if self.agent is not None:
            self.agent.terminate()
            try:
                self.agent.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill("agent")
        self.kill("broker")


class Federation:
    """All sites and the links between them."""

    def __init__(
        self,
        folder: Path,
        names: Iterable[str],
        links: Iterable[Iterable[str]],
        settings: Mapping[str, object] | None = None,
        relay: Callable[[str, str, int], int] | None = None,
        kinds: Mapping[str, type[Site]] | None = None,
    ) -> None:
        """Create folders and configurations.

        Args:
            kinds: Site classes of sites without Mosquitto, by name.
            settings: Of section ``federate``, at each agent.
            relay: Returns the port of a relay to a port, for the link of two names.
        """
        folder.chmod(0o700)
        self.folder = folder
        names = list(names)
        ports = free_ports(3 * len(names))
        self.sites = {
            name: (kinds or {}).get(name, Site)(name, folder, *ports[3 * number : 3 * number + 3])
            for number, name in enumerate(names)
        }
        agents = [f"{name}=127.0.0.1:{self.sites[name].link_port}" for name in names]
        made = make_folder(folder, FEDERATION, agents, ["-".join(link) for link in links])
        dials: dict[str, list[int]] = defaultdict(list)
        for one, other in (sorted(link) for link in links):
            port = self.sites[other].link_port
            dials[one].append(relay(one, other, port) if relay is not None else port)
        for name, file in zip(names, made, strict=True):
            site = self.sites[name]
            text = file.read_text()
            text = text.replace("mqtt://127.0.0.1:1883", f"mqtt://127.0.0.1:{site.broker_port}")
            neighbours = ", ".join(f'"127.0.0.1:{port}"' for port in dials[name])
            own = {**(settings or {}), **site.settings}
            given = ("neighbours", "port =", *(f"{key} =" for key in own))
            lines = [line for line in text.splitlines() if not line.startswith(given)]
            at = lines.index("[federate]") + 1
            lines[at:at] = [f"port = {site.link_port}", f"neighbours = [{neighbours}]"]
            lines[at:at] = [
                f"{key} = {json.dumps(value)}" for key, value in {**(settings or {}), **site.settings}.items()
            ]
            lines.append(f"port = {site.page_port}")
            file.write_text("\n".join(lines) + "\n")

    def start(self, names: Iterable[str] = ()) -> None:
        """Start the brokers, then the agents."""
        for name in names or self.sites:
            self.sites[name].start_broker()
        for name in names or self.sites:
            self.sites[name].start_agent()

    def wait_overlay(self, seconds: float = PATIENCE_S) -> None:
        """Wait until every agent knows all others and its broker is connected."""
        count = len(self.sites)

        def complete() -> bool:
            for site in self.sites.values():
                assert site.agent is None or site.agent.poll() is None, site.agent_log.read_text()[-2_000:]
                found = site.ask("status")
                if not found or not found["host"] or len(found["agents"]) != count - 1:
                    return False
            return True

        try:
            until(complete, seconds, "overlay")
        except AssertionError as error:
            stand = {name: site.ask("status") for name, site in self.sites.items()}
            raise AssertionError(f"{error}; agents: {json.dumps(stand)}") from None

    def wait_members(self, topic: str, members: set[str], seconds: float = PATIENCE_S) -> None:
        """Wait until each agent sends a topic to all its members and its broker has granted the captured filters."""

        def complete() -> bool:
            for name, site in self.sites.items():
                if site.agent is None:
                    continue
                found = site.ask("why", topic)
                to = {each["agent"] for each in found["to"]} if found else set()
                if not members - {name} <= to or (members - {name} and not found["captured_by"]):
                    return False
            return True

        until(complete, seconds, f"members {members} of {topic}")

    def wait_delivered(self, publisher: Publisher, subscribers: Iterable[Subscriber], count: int) -> None:
        """Wait until a publisher's messages are acknowledged and received by each subscriber, as long as some still
        arrive.
        """
        subscribers = list(subscribers)
        before, since = -1, time.monotonic()
        while True:
            here = [len(each.payloads) for each in subscribers]
            if len(publisher.acked) == count and all(each >= count for each in here):
                return
            if (progress := len(publisher.acked) + sum(here)) != before:
                before, since = progress, time.monotonic()
            if time.monotonic() > since + STALL_S:
                missing = [sorted(publisher.acked - set(each.payloads))[:10] for each in subscribers]
                stand = {name: site.ask("status") for name, site in self.sites.items()}
                raise AssertionError(
                    f"nothing more comes: {len(publisher.acked)} of {count} acknowledged, delivered {here}, missing "
                    f"{missing}; agents: {json.dumps(stand)}"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop all sites."""
        for site in self.sites.values():
            if site.agent is not None:
                site.agent.terminate()
        for site in self.sites.values():
            site.stop()


@contextmanager
def running(federation: Federation) -> Iterator[Federation]:
    """Run a federation for the duration of a block."""
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()


class Subscriber:
    """A durable subscriber that records received messages.

    Attributes:
        paths: The agents on each payload's path, from its user property.
    """

    def __init__(self, port: int, name: str, topic_filter: str, qos: int = 2, *, waits: bool = False) -> None:
        """Connect and subscribe, unless it ``waits`` for ``subscribe``."""
        self.payloads: Counter[bytes] = Counter()
        self.paths: dict[bytes, list[str]] = {}
        self.connected = threading.Event()
        self._waits = waits
        self.at: list[tuple[float, bytes]] = []
        self.subscribed = threading.Event()
        self.suback_at = 0.0
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
        self._filter, self._qos = topic_filter, qos
        self.client.on_message = lambda _client, _data, message: self._message(message)
        self.client.on_connect = lambda *_: self._connected()
        self.client.on_subscribe = lambda *_: self._granted()
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        self.client.reconnect_delay_set(1, 1)
        self.client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self.client.loop_start()

    def _connected(self) -> None:
        self.connected.set()
        if not self._waits:
            self.subscribe()

    def subscribe(self) -> None:
        """Send SUBSCRIBE now and after each later connection."""
        self._waits = False
        self.client.subscribe(self._filter, options=SubscribeOptions(qos=self._qos))

    def _granted(self) -> None:
        self.suback_at = time.monotonic()
        self.subscribed.set()

    def _message(self, message: mqtt.MQTTMessage) -> None:
        payload = bytes(message.payload)
        named = dict(getattr(message.properties, "UserProperty", ()))
        if "federation-path" in named:
            self.paths[payload] = named["federation-path"].split(">")
        self.payloads[payload] += 1
        self.at.append((time.monotonic(), payload))

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


class Publisher:
    """A publisher that records acknowledged messages."""

    def __init__(self, port: int, name: str) -> None:
        self.acked: set[bytes] = set()
        self._open: dict[int, bytes] = {}
        self._early: set[int] = set()  # acknowledged before ``publish`` returned
        self._lock = threading.Lock()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
        self.client.max_queued_messages_set(0)
        self.client.on_publish = lambda _client, _data, mid, *_: self._published(mid)
        self.client.reconnect_delay_set(1, 1)
        self.client.connect("127.0.0.1", port, clean_start=False)
        self.client.loop_start()

    def publish(self, topic: str, payload: bytes, qos: int = 2, retain: bool = False) -> None:
        """Publish one message."""
        info = self.client.publish(topic, payload, qos, retain)  # paho calls back under its own lock
        with self._lock:
            if info.mid in self._early:
                self._early.remove(info.mid)
                self.acked.add(payload)
            else:
                self._open[info.mid] = payload

    def _published(self, mid: int) -> None:
        with self._lock:
            payload = self._open.pop(mid, None)
            if payload is None:
                self._early.add(mid)
            else:
                self.acked.add(payload)

    def publish_slowly(self, topic: str, head: str, count: int, pause_s: float) -> threading.Thread:
        """Publish messages ``<head>-<number>`` from a thread."""

        def run() -> None:
            for number in range(count):
                self.publish(topic, f"{head}-{number}".encode())
                time.sleep(pause_s)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def wait(self, seconds: float = PATIENCE_S) -> None:
        """Wait until all messages are acknowledged."""
        until(lambda: not self._open, seconds, f"{len(self._open)} acknowledgements")

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()
