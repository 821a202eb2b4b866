"""Forwarding of each client to its edge by hand-over, redirect or relay, with the next edge after a failure.

A client waits at most ``choose_s`` over all attempts and is not informed of failed ones. The directory chooses the
edge. One loop iteration forwards all clients that have arrived.
"""

import socket
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import trio

from conf.balance_settings import BalanceSettings
from conf.errors import UserError
from gateways.balancer.arrival import Arrival
from gateways.balancer.directory import Directory
from gateways.balancer.edge import Edge
from gateways.balancer.hand_over import EdgeSocket
from gateways.balancer.proxy_header import proxy_header
from gateways.balancer.relay import RelayPump
from gateways.balancer.server_busy import is_resource_exhausted
from gateways.balancer.tls_relay import SecuredPump
from mqtt.encode import encode_packet
from mqtt.packets import Connack
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode
from wire.clock import boot_time
from wire.links.connection import split_address
from wire.messages.socket_handoff import HandoffReply

__all__ = ["Forwarding"]

MQTT_5 = 5
SOCKETS_MAX = 64  # of edges of this host, including former ones
RETRY_S = 0.05  # interval of retries for clients without an edge
DRAIN_BYTES = 4096  # per read, of a redirected client


class Forwarding:
    """All clients without an edge, and the relayed connections.

    Args:
      settings: Table ``balance``.
      directory: Chooses edges.
      start: Starts a task of this process.
    """

    def __init__(self, settings: BalanceSettings, directory: Directory, start: Callable[..., None]) -> None:
        self._settings = settings
        self._directory = directory
        self._start = start
        self._sockets: dict[str, EdgeSocket] = {}  # by path
        self._pump, self._secured = RelayPump(), SecuredPump()
        self._waiting: deque[Arrival] = deque()
        self._has_waiting = trio.Event()
        self._pending = 0  # clients without an edge: offered without an answer yet, dialling, waiting
        self._numbers = 0
        self.picks: Counter[tuple[str, str]] = Counter()  # (edge, method)
        self.refused: Counter[str] = Counter()  # clients, by reason

    @property
    def relayed(self) -> int:
        """Connections that this process relays."""
        return len(self._pump) + len(self._secured)

    @property
    def held(self) -> int:
        """Connections that would end with this process."""
        return self.relayed + self._pending

    @property
    def waiting(self) -> int:
        """Clients that wait for an edge."""
        return len(self._waiting)

    async def run(self) -> None:
        """Relay, and retry waiting clients, until cancelled."""
        self._start(self._pump.run)
        self._start(self._secured.run)
        while True:
            if not self._waiting:
                self._has_waiting = trio.Event()
                await self._has_waiting.wait()  # unbounded: no client waits
            await trio.sleep(RETRY_S)
            self._retry_waiting()

    def _retry_waiting(self) -> None:
        """Retry all waiting clients, skipping those of a kind for which no edge was found."""
        without: set[tuple[str, bool]] = set()
        for _ in range(len(self._waiting)):
            arrival = self._waiting.popleft()
            kind = (arrival.wanted.listener, arrival.wanted.in_clear)
            if kind in without and boot_time() < arrival.until:
                self._waiting.append(arrival)
                continue
            self._pending -= 1
            if not self.forward(arrival):
                without.add(kind)

    def forward(self, arrival: Arrival) -> bool:
        """Forward a client to an edge, or queue it and return False."""
        while True:
            now = boot_time()
            if now >= arrival.until:
                self.refuse(arrival, "no_edge")
                return True
            edge = self._directory.choose(now, arrival.wanted)
            if edge is None:
                return self._enqueue(arrival)
            try:
                if self._forward_to(arrival, edge):
                    return True
            except OSError:  # this process lacks resources: the edge is not at fault
                edge.lost()
                self.refused["no_descriptors"] += 1
                return self._enqueue(arrival)
            self._directory.failed(now, edge)

    def _enqueue(self, arrival: Arrival) -> bool:
        if self.held >= self._settings.connections_max:
            self.refuse(arrival, "full")
            return True
        self._pending += 1
        self._waiting.append(arrival)
        self._has_waiting.set()
        return False

    def _forward_to(self, arrival: Arrival, edge: Edge) -> bool:
        """Forward by one method; False if the edge is not reachable.

        Raises:
          OSError: This process lacks resources (``is_resource_exhausted``).
        """
        forward = self._settings.forward
        if edge.socket and arrival.secured is None and forward in ("auto", "hand_over"):
            return self._hand_over(arrival, edge)
        redirects = forward in ("auto", "redirect") and arrival.settings.redirect and arrival.version == MQTT_5
        if redirects and self.held < self._settings.connections_max:
            self._pending += 1
            self._start(self._redirect, arrival, edge)
            return True
        if forward == "redirect" or self.held >= self._settings.connections_max:
            edge.lost()
            self.refuse(arrival, "full" if redirects or forward != "redirect" else "not_redirected")
            return True
        self._pending += 1
        self._start(self._relay, arrival, edge)
        return True

    def refuse(self, arrival: Arrival, reason: str) -> None:
        """Close a client's connection and count the reason."""
        self.refused[reason] += 1
        arrival.client.close()

    # -- hand-over

    def _hand_over(self, arrival: Arrival, edge: Edge) -> bool:
        to = self._sockets.get(edge.socket)
        if to is None:
            if len(self._sockets) >= SOCKETS_MAX:
                self._close_idle()
            to = self._sockets[edge.socket] = EdgeSocket(edge.socket, self._start)
        callback = partial(self._on_answer, arrival, edge)
        if not to.offer(arrival.client, arrival.wanted.listener, arrival.accepted, callback):
            return False
        self._pending += 1
        return True

    def _close_idle(self) -> None:
        for path, one in list(self._sockets.items()):
            if one.is_idle:
                one.close()
                del self._sockets[path]

    def _on_answer(self, arrival: Arrival, edge: Edge, answer: HandoffReply | None) -> None:
        self._pending -= 1
        if answer is HandoffReply.TAKEN:
            edge.took()
            self.picks[edge.node, "hand_over"] += 1
            arrival.client.close()
        elif answer is HandoffReply.UNUSABLE:  # the client disconnected
            edge.lost()
            self.refuse(arrival, "gone")
        else:
            self._directory.failed(boot_time(), edge)
            self.forward(arrival)

    # -- redirect

    async def _redirect(self, arrival: Arrival, edge: Edge) -> None:
        """Send an MQTT 5 client a Server Reference and close."""
        address = edge.addresses[arrival.wanted.listener]
        properties: dict[int, object] = {PropertyId.SERVER_REFERENCE: address}
        packet = encode_packet(Connack(False, ReasonCode.USE_ANOTHER_SERVER, properties), MQTT_5)
        self.picks[edge.node, "redirect"] += 1
        with trio.move_on_after(self._settings.choose_s):
            try:
                if arrival.secured is not None:
                    await arrival.secured.send_all(packet)
                    await arrival.secured.aclose()
                else:
                    arrival.client.send(packet)
                    arrival.client.shutdown(socket.SHUT_WR)
                    await _drain(arrival.client)
            except (OSError, trio.BrokenResourceError):
                pass  # the client closed first
            finally:
                self._pending -= 1
        arrival.client.close()

    # -- relay

    async def _relay(self, arrival: Arrival, edge: Edge) -> None:
        """Dial an edge and relay to it; try the next one if dialling fails."""
        try:
            host, port = split_address(edge.addresses[arrival.wanted.listener])
            with trio.fail_after(max(0.0, arrival.until - boot_time())):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, UserError, trio.TooSlowError, ValueError, ExceptionGroup) as error:
            self._pending -= 1
            if is_resource_exhausted(error):
                edge.lost()
                self.refused["no_descriptors"] += 1
                self._enqueue(arrival)
                return
            self._directory.failed(boot_time(), edge)
            self.forward(arrival)
            return
        edge.took()
        self.picks[edge.node, "relay"] += 1
        self._pending -= 1
        to = socket.socket(fileno=stream.socket.detach())
        if arrival.secured is not None:
            try:
                await self._secured.relay(arrival.secured, to, self._header(arrival) + arrival.first)
            finally:
                edge.lost()
            return
        try:
            self._pump.add(arrival.client, to, self._header(arrival), edge.lost)
        except OSError:  # the client disconnected meanwhile
            arrival.client.close()
            to.close()
            edge.lost()

    def _header(self, arrival: Arrival) -> bytes:
        if not arrival.settings.proxy:
            return b""
        self._numbers += 1
        try:
            source, destination = arrival.client.getpeername(), arrival.client.getsockname()
        except OSError:
            return b""
        unique = f"{int(arrival.accepted * 1000):x}-{self._numbers:x}".encode()
        return proxy_header(source[:2], destination[:2], unique, arrival.tls)


async def _drain(client: socket.socket) -> None:
    """Read until the client closes: its CONNECT was only peeked, and closing with unread bytes sends a reset.

    Raises:
      OSError: The connection broke.
    """
    while True:
        await trio.lowlevel.wait_readable(client)
        try:
            if not client.recv(DRAIN_BYTES):
                return
        except BlockingIOError:
            pass
