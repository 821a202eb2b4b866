"""``python -m bench.datagram_figures``: the numbers of docs/udp.md that are counted from captures of loopback.

    --what data      data messages per publish for 1, 10, 100 subscribers, ours beside a cluster and two Mosquittos
    --what control   control datagrams of resolve and subscribe, by the depth of the node that decides

Our cluster has its publisher and its subscribers at different edges, and so have two Mosquittos with a bridge;
sessions are clean, all messages QoS 1. TLS hides packets between nodes of the cluster: there bytes are counted, less
those of an idle cluster, and divided by the payload. Needs CAP_NET_RAW, and mosquitto for its row.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.capture import Capture, mqtt_packets
from bench.cluster import Cluster
from gateways.datagrams.device import Device
from gateways.datagrams.messages import (
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    Join,
    MalformedDatagram,
    PubAccept,
    PubAck,
    PubConnect,
    decode,
)
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sockets import DatagramSocket, bind_udp, endpoint_of
from gateways.datagrams.subscribers import DatagramPeer
from tests.free_ports import free_ports
from tests.gateways.federation.real_federation import INSTALLED, MOSQUITTO, until

PUBLISHES = 20
PAYLOAD = bytes(800)
SUBSCRIBERS = (1, 10, 100)
DEPTHS = ("", "a", "a/b", "a/b/c")
WAIT_S = 60.0
IDLE_S = 3.0
PUBLISH, PUBACK = 3, 4


class PlainDevice:
    """One device in clear, and its received messages."""

    def __init__(self, home: Endpoint) -> None:
        self.device = Device((home,), time.time_ns() // 1000 << 8)
        self.port = DatagramSocket(bind_udp("127.0.0.1", 0))
        self.outcomes: dict[int, int] = {}
        self.payloads: Counter[bytes] = Counter()
        self._arrived: list[tuple[Endpoint, Datagram]] = []

    @property
    def delivered(self) -> int:
        """Return how many messages came."""
        return self.payloads.total()

    def step(self, now: float) -> None:
        """Read, act and send."""
        self.port.read(now, self._received)
        arrived, self._arrived = self._arrived, []
        ready = self.device.handle(now, arrived)
        self.payloads.update(message.payload for message in ready.delivered)
        self.outcomes |= {each.ref: each.code for each in ready.outcomes}
        for endpoint, packet in ready.send:
            self.port.send(now, Sent(DatagramPeer(endpoint), packet))

    def _received(self, peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None:
        del name, is_proved, length
        self._arrived.append((peer.endpoint, packet))


def run(devices: list[PlainDevice], is_over: Callable[[], bool]) -> None:
    """Run devices until a condition holds."""
    end = time.monotonic() + WAIT_S
    while not is_over():
        if time.monotonic() > end:
            raise RuntimeError("the nodes do not answer")
        for each in devices:
            each.step(time.monotonic())
        time.sleep(0.001)


def make_rules(folder: Path) -> None:
    """Write a file of rules that allow all."""
    (folder / "roles.toml").write_text('[roles.device]\npublish = ["#"]\nsubscribe = ["#"]\n')
    (folder / "node.toml").touch()
    for path in folder.iterdir():
        path.chmod(0o600)


@contextmanager
def tree(folder: Path, subtrees: tuple[str, ...]) -> Iterator[list[Endpoint]]:
    """Run a node for each subtree, each the child of the one before, in clear; return their addresses."""
    make_rules(folder)
    with ExitStack() as stack:
        found: list[Endpoint] = []
        parent = ""
        for number, (subtree, below) in enumerate(pairwise((*subtrees, ""))):
            settings = [f"gateway.data_dir={folder / str(number)}", "udp.port=0", "udp.bind=127.0.0.1"]
            settings += ["udp.security=plain", f"udp.roles_file={folder / 'roles.toml'}", "metrics.enabled=false"]
            settings += [f"udp.parent={parent}", f"udp.subtree={subtree}"] if parent else []
            settings += [f'udp.children={{"-"=["{below}"]}}'] if below else []
            parent = stack.enter_context(running_node(folder, settings))
            found.append(endpoint_of(parent))
        yield found


@contextmanager
def running_node(folder: Path, settings: list[str]) -> Iterator[str]:
    """Run a node for the length of a block; return its address."""
    reader, writer = os.pipe()
    line = [sys.executable, "-m", "stratamq", "gateway", "udp", "--config", str(folder / "node.toml")]
    line += ["--ready-fd", str(writer), *(word for text in settings for word in ("--set", text))]
    with subprocess.Popen(line, pass_fds=(writer,)) as process:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            yield str(json.loads(pipe.readline())["addresses"]["udp"])
        process.kill()


def kind_of(data: bytes) -> str:
    """Return the kind of a datagram in clear: data, answer, join, or a control message's name."""
    try:
        body = decode(data).body
    except MalformedDatagram:
        return "malformed"
    match body:
        case DatagramPublish():
            return "data"
        case PubAck(code) if code in (Code.DISTRIBUTED, Code.DELIVERED):
            return "answer"
        case Join():
            return "join"
        case PubAck(code) if code == Code.JOINED:
            return "join"
        case PubConnect() | PubAccept() | DatagramSubscribe() | PubAck():
            return type(body).__name__
    return "other"


def data_of_ours(count: int) -> str:
    """Root and one child; every device asks the root, the topic is the child's."""
    with tempfile.TemporaryDirectory() as name, tree(Path(name), ("", "west")) as nodes:
        publisher, subscribers = PlainDevice(nodes[0]), [PlainDevice(nodes[0]) for _ in range(count)]
        devices = [publisher, *subscribers]
        for each in subscribers:
            each.device.subscribe(time.monotonic(), 0, "west/#", 1)
        run(devices, lambda: all(0 in each.outcomes for each in subscribers))
        publisher.device.publish(time.monotonic(), 0, "west/t", PAYLOAD, 1)  # resolves
        run(devices, lambda: len(publisher.outcomes) == 1 and all(each.delivered for each in subscribers))
        ports = {node.port for node in nodes}
        with Capture(ports) as capture:
            for ref in range(1, PUBLISHES + 1):
                publisher.device.publish(time.monotonic(), ref, "west/t", PAYLOAD, 1)
                run(devices, lambda: len(publisher.outcomes) == ref + 1)  # noqa: B023
            run(devices, lambda: all(each.delivered == PUBLISHES + 1 for each in subscribers))
        kinds = Counter(kind_of(each.data) for each in capture.datagrams)
        between = sum(kind_of(each.data) == "data" for each in capture.datagrams if {each.source, each.target} <= ports)
    return _data_row("`gateway udp`, two nodes", count, kinds["data"], between, kinds["answer"])


def _data_row(what: str, count: int, data: float, between: float, answers: float) -> str:
    data, between, answers = data / PUBLISHES, between / PUBLISHES, answers / PUBLISHES
    return f"| {what} | {count} | {data:.1f} | {between:.1f} | {answers:.1f} |"


class MqttDevice:
    """A client with a clean session that counts."""

    def __init__(self, port: int, topic_filter: str = "") -> None:
        self.delivered = self.answered = 0
        self.granted = threading.Event()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self.client.on_message = lambda *_: self._delivered()
        self.client.on_publish = lambda *_: self._answered()
        self.client.on_subscribe = lambda *_: self.granted.set()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        if topic_filter:
            until(self.client.is_connected, WAIT_S, "CONNACK")
            self.client.subscribe(topic_filter, 1)

    @property
    def port(self) -> int:
        """Return this end's own port."""
        found = self.client.socket()
        assert isinstance(found, socket.socket)
        return int(found.getsockname()[1])

    def _delivered(self) -> None:
        self.delivered += 1

    def _answered(self) -> None:
        self.answered += 1

    def close(self) -> None:
        """Leave."""
        self.client.disconnect()
        self.client.loop_stop()


def data_of_mqtt(what: str, count: int, ports: tuple[int, int], links: set[int], is_clear: bool) -> str:
    """Publisher at the first port, subscribers at the second; ``links`` are ports by which brokers reach each other."""
    subscribers = [MqttDevice(ports[1], "west/#") for _ in range(count)]
    publisher = MqttDevice(ports[0])
    for each in subscribers:
        each.granted.wait(WAIT_S)
    end = time.monotonic() + WAIT_S
    while not all(each.delivered for each in subscribers) and time.monotonic() < end:  # until the bridge is connected
        publisher.client.publish("west/t", PAYLOAD, 1).wait_for_publish(WAIT_S)
        time.sleep(0.2)
    time.sleep(1.0)
    before = [each.delivered for each in subscribers]
    clients = {each.port for each in (publisher, *subscribers)}
    idle = 0.0
    if not is_clear:
        with Capture(tcp=links) as capture:
            time.sleep(IDLE_S)
        idle = sum(map(len, capture.streams.values())) / IDLE_S
    began = time.monotonic()
    with Capture(tcp=clients | links) as capture:
        for _ in range(PUBLISHES):
            publisher.client.publish("west/t", PAYLOAD, 1).wait_for_publish(WAIT_S)
        wanted = [each + PUBLISHES for each in before]
        until(lambda: all(a.delivered >= b for a, b in zip(subscribers, wanted, strict=True)), WAIT_S, "deliveries")
        time.sleep(0.3)  # the last answers
    lasted = time.monotonic() - began
    at_clients: Counter[int] = Counter()
    between, between_bytes = Counter[int](), 0
    for key, stream in capture.streams.items():
        if set(key) & clients:
            at_clients += mqtt_packets(stream)
        elif is_clear:
            between += mqtt_packets(stream)
        else:
            between_bytes += len(stream)
    messages = between[PUBLISH] if is_clear else max(0.0, between_bytes - idle * lasted) / len(PAYLOAD)
    for each in (publisher, *subscribers):
        each.close()
    return _data_row(what, count, at_clients[PUBLISH] + messages, messages, at_clients[PUBACK] + between[PUBACK])


def data_of_cluster(folder: Path) -> Iterator[str]:
    """One router, one storage node, two edges."""
    cluster = Cluster(folder, 2)
    try:
        first, second = cluster.ports("plain")
        links = {int(node["addresses"]["link"].rpartition(":")[2]) for node in cluster.state["nodes"].values()}
        for count in SUBSCRIBERS:
            yield data_of_mqtt("a cluster, two edges", count, (first, second), links, False)
    finally:
        cluster.stop()


def data_of_mosquittos(folder: Path) -> Iterator[str]:
    """Two, with a bridge of all topics from the first."""
    first, second = free_ports(2)
    bridge = f"connection b\naddress 127.0.0.1:{second}\ntopic # both 1\n"
    with ExitStack() as stack:
        for port, rest in ((second, ""), (first, bridge)):
            config = folder / f"mosquitto-{port}.conf"
            config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n{rest}")
            process = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
        time.sleep(2.0)
        for count in SUBSCRIBERS:
            yield data_of_mqtt("two Mosquittos, bridged", count, (first, second), {second}, True)


def control() -> Iterator[str]:
    """A chain of four nodes; each time a device without state asks the root."""
    with tempfile.TemporaryDirectory() as name, tree(Path(name), DEPTHS) as nodes:
        ports = {node.port for node in nodes}
        chain = PlainDevice(nodes[0])
        chain.device.publish(time.monotonic(), 0, "a/b/c/t", b"", 1)
        run([chain], lambda: 0 in chain.outcomes)
        time.sleep(8.0)  # all have joined, and are quiet
        for depth, subtree in enumerate(DEPTHS):
            topic = f"{subtree}/t".strip("/")
            resolve = _count(ports, nodes[0], "", topic)
            at_root = _count(ports, nodes[0], topic)
            at_node = _count(ports, nodes[depth], f"{topic}x/#")
            yield f"| {depth} | {_kinds(resolve)} | {_kinds(at_root)} | {_kinds(at_node)} |"
        everything = _count(ports, nodes[0], "#")
        yield f"| `#` at the root of four | | {_kinds(everything)} | |"


def _count(ports: set[int], home: Endpoint, topic_filter: str, topic: str = "") -> Counter[str]:
    """Count the datagrams of one subscription or message of a new device, without data and its answers."""
    device = PlainDevice(home)
    with Capture(ports) as capture:
        if topic:
            device.device.publish(time.monotonic(), 0, topic, b"", 1)
        else:
            device.device.subscribe(time.monotonic(), 0, topic_filter, 1)
        run([device], lambda: 0 in device.outcomes and not device.device.open)
        time.sleep(0.05)
    found = Counter(kind_of(each.data) for each in capture.datagrams)
    return Counter({kind: number for kind, number in found.items() if kind not in ("data", "answer", "join")})


def _kinds(found: Counter[str]) -> str:
    return f"{sum(found.values())} ({', '.join(f'{number} {kind}' for kind, number in sorted(found.items()))})"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("data", "control"), nargs="+", default=["data", "control"])
    options = parser.parse_args()
    try:
        Capture()
    except PermissionError:
        print("a capture of loopback needs CAP_NET_RAW", file=sys.stderr)
        return 2
    if "data" in options.what:
        print("| QoS 1 | subscribers | data messages per publish | of them between nodes | answers |")
        print("|---|---|---|---|---|")
        for count in SUBSCRIBERS:
            print(data_of_ours(count), flush=True)
        with tempfile.TemporaryDirectory() as name:
            for row in data_of_cluster(Path(name)):
                print(row, flush=True)
        if not INSTALLED:
            print("| mosquitto is not installed | | | | |")
        else:
            with tempfile.TemporaryDirectory() as name:
                for row in data_of_mosquittos(Path(name)):
                    print(row, flush=True)
    if "control" in options.what:
        print("\n| depth of the node | resolve | subscribe to its topic, at the root | and at that node |")
        print("|---|---|---|---|")
        for row in control():
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
