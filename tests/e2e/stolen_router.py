"""A thief with the certificate of a router that is in no Raft group: nodes dial it where their seeds name it."""

import contextlib
import socket
import ssl
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence

from stratamq.toml_text import toml_document
from tests.e2e.local_cluster import LocalCluster
from tests.e2e.test_forged_messages import LIFE
from tests.e2e.test_hostile_links import CLUSTER, authority
from tests.patience import PATIENCE_S
from wire.links.link import LinkCore
from wire.links.tls import link_contexts
from wire.messages.control import Control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import HelloReader, NodeIdentity, encode_hello

__all__ = ["STOLEN", "StolenRouter", "stolen_router"]

STOLEN = "router-77"
LOOK_S = 0.2


class _Link:
    """A node's connection, with its HELLO read and answered."""

    def __init__(self, connection: ssl.SSLSocket, address: str) -> None:
        self.connection = connection
        connection.settimeout(PATIENCE_S)
        hello = HelloReader()
        while (found := hello.receive(connection.recv(1 << 18))) is None:
            pass
        self.node = found.node
        connection.sendall(encode_hello(NodeIdentity(CLUSTER, STOLEN, "router", LIFE, address)))
        self._core = LinkCore()
        self._core.connected(0)
        self._core.receive(hello.rest)
        self._writing = threading.Lock()

    def say(self, *messages: Control) -> None:
        """Send messages in frames of their own."""
        with self._writing:
            for message in messages:
                self._core.send(FrameKind.CONTROL, encode_control(message))
            self.connection.sendall(self._core.take_output())

    def read(self) -> None:
        """Receive the node's requests without answering, acknowledge the frames, until it closes the link."""
        self.connection.settimeout(LOOK_S)
        with contextlib.suppress(OSError):
            while True:
                try:
                    data = self.connection.recv(1 << 18)
                except TimeoutError:
                    data = None
                if data == b"":
                    return
                with self._writing:
                    if data:
                        for _ in self._core.receive(data):
                            pass
                    self._core.keepalive()
                    self.connection.sendall(self._core.take_output())


class StolenRouter:
    """The listening thief."""

    def __init__(self, cluster: LocalCluster) -> None:
        files = authority(cluster).node("router", STOLEN)
        self._context = link_contexts(files).server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.links: dict[str, _Link] = {}  # by node; the newest one
        self._threads: list[threading.Thread] = []
        self._start(self._listen)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                self._start(self._serve, plain)

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
            link = _Link(connection, self.address)
            self.links[link.node] = link
            link.read()

    def say(self, node: str, *messages: Control) -> None:
        """Send messages to a node that dialled."""
        self.links[node].say(*messages)

    def close(self) -> None:
        """End all links."""
        self._listener.close()
        for link in self.links.values():
            link.connection.close()


@contextlib.contextmanager
def stolen_router(cluster: LocalCluster, nodes: Sequence[str]) -> Iterator[StolenRouter]:
    """Run a thief that some nodes have among their seeds: they are restarted for that, and dial it."""
    thief = StolenRouter(cluster)
    try:
        for node in nodes:
            (config,) = (cluster.data / node).glob("*.toml")
            document = tomllib.loads(config.read_text())
            document["node"]["seeds"] = [*document["node"]["seeds"], thief.address]
            config.write_text(toml_document(document))
            before = cluster.pid(node)
            cluster.kill(node)
            cluster.wait_for(lambda node=node, before=before: cluster.is_started_again(node, before), "started again")  # type: ignore[misc]
        until = time.monotonic() + 3 * PATIENCE_S
        while set(nodes) - set(thief.links):
            assert time.monotonic() < until, thief.links
            time.sleep(0.05)
        yield thief
    finally:
        thief.close()
