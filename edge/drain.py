"""Drain of an edge by an operator: not ready, then refusing, then disconnecting clients at a rate.

| phase | readiness | new connections | clients | ends |
|---|---|---|---|---|
| "" | unchanged | accepted | stay | the map marks it as draining |
| announced | 503 | accepted | stay | after ``REFUSE_AFTER_S``, when balancers have seen it |
| refusing | 503 | refused | disconnected, ``rate`` a second | the map no longer marks it as draining |

Refusing follows the 503; otherwise balancers would send clients to closed listeners. ``node undrain`` reopens it in any
phase, and the remaining clients stay. Source: docs/adr/0048-drain-of-an-edge.md.
"""

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from conf.events import say
from conf.metrics import Metrics
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.phase import ClientPhase
from edge.node.node import EdgeNode
from mqtt.reasons import ReasonCode
from wire.decoding import strictly
from wire.messages.hello import TIER_EDGE
from wire.messages.orders import DrainOrder, NodeOrdered, OrderNode

__all__ = ["ClientEndpoints", "Drain"]

logger = logging.getLogger(__name__)

REFUSE_AFTER_S = 3.0  # two checks of a balancer with one check a second
UNKNOWN_LOAD = 2.0  # of an edge that is unknown to gossip or suspect: used only if there is no other
SERVERS_S = 1.0  # lifetime of a choice of another edge
ORDER_S = 30.0  # an order waits so long for the draining mark of the map
BURST_S = 0.25  # a late call disconnects at most this time's share

_decode = strictly(msgspec.json.Decoder(DrainOrder).decode, "order to drain")


class ClientEndpoints(Protocol):
    """The listeners of clients."""

    def open(self) -> None:
        """Accept connections."""

    def shut(self) -> None:
        """Refuse connections; keep the addresses, and accept those already in the kernel's backlog."""


class Drain:
    """Drain of one edge.

    Args:
        node: This edge.
        clients: Its connections.
        doors: Its listeners.
        kick: Called after clients were disconnected.
        rate: Disconnected clients a second.
        loads: Returns the reported loads, 0 to 1, of the nodes that are alive in gossip.
    """

    def __init__(
        self,
        node: EdgeNode,
        clients: Clients,
        doors: ClientEndpoints,
        kick: Callable[[], None],
        rate: int,
        loads: Callable[[], Mapping[str, float]],
    ) -> None:
        self._node = node
        self._clients = clients
        self._doors = doors
        self._kick = kick
        self._rate_set = self._rate = rate
        self._redirects = False
        self._order_until = float("-inf")  # an order waits so long for the map
        self._loads = loads
        self._servers: dict[str, str] = {}  # by listener: address of the least loaded edge
        self._servers_at = float("-inf")
        self._phase = ""
        self._opened = False  # the edge was ready once
        self._refuse_at = 0.0
        self._last_step = 0.0
        self._allowed = 0.0  # clients that may be disconnected now
        self._remaining: deque[Client] = deque()
        self._drained: Counter[str] = Counter()  # clients, by kind of end
        self._is_logged = False

    @property
    def _is_draining(self) -> bool:
        entry = self._node.map.nodes.get(self._node.name)
        return entry is not None and bool(entry.admin_state)

    @property
    def busy(self) -> bool:
        """Whether ``look`` must be called again soon."""
        return self._phase == "announced" or (self._phase == "refusing" and len(self._clients) > 0)

    def reason(self) -> str:
        """Return why the edge is not ready, "" if it is not for a drain."""
        if not self._is_draining:
            return ""
        if self._phase == "refusing" and not len(self._clients):
            return "drained: `stratamq node undrain` lets clients in again"
        return f"draining: {len(self._clients)} clients left"

    def open(self) -> None:
        """Accept connections unless the edge is drained; called when the edge becomes ready."""
        self._opened = True
        if self._is_draining:
            self._phase = "refusing"
        else:
            self._doors.open()

    def look(self, now: float) -> None:
        """Move to the next phase, or back, as the map requires."""
        if not self._opened or self._node.lease.ended:
            return
        if not self._is_draining:
            if self._phase == "refusing":
                self._doors.open()
            if self._phase:
                say(logger, "drain.over")
            if now >= self._order_until:
                self._rate, self._redirects = self._rate_set, False
            self._phase, self._is_logged = "", False
        elif not self._phase:
            self._phase, self._refuse_at = "announced", now + REFUSE_AFTER_S
            self._order_until = now
            say(logger, "drain.began", clients=len(self._clients), rate=self._rate)
        elif self._phase == "announced" and now >= self._refuse_at:
            self._phase = "refusing"
            self._doors.shut()
        elif self._phase == "refusing":
            self._disconnect_some(now)
        self._last_step = now

    def _disconnect_some(self, now: float) -> None:
        self._allowed = min(self._allowed + self._rate * (now - self._last_step), max(1.0, self._rate * BURST_S))
        if not self._remaining:
            self._remaining.extend(self._clients.all())
        if not self._remaining and not self._is_logged:
            self._is_logged = True
            say(logger, "drain.done")
        while self._remaining and self._allowed >= 1.0:
            client = self._remaining.popleft()
            # A pending CONNECT is answered first; a client that sent DISCONNECT ends by itself.
            if client.phase != ClientPhase.OPEN or client.conn.closed or client.end_code >= 0 or client.close_by:
                continue
            self._allowed -= 1.0
            self._drained["told" if client.version == 5 else "closed"] += 1
            self._clients.count_end("drained", client)
            self._clients.disconnect(client, ReasonCode.USE_ANOTHER_SERVER, self._server_for(client, now))
        self._kick()

    def order(self, order: OrderNode) -> NodeOrdered:
        """Set the options of the next drain; return the number of clients and its effects.

        The lines are ``clients N``, ``wills N`` (that fire at once) and ``sessions N`` (that continue elsewhere).
        """
        try:
            wanted = _decode(order.subject.encode())
        except msgspec.ValidationError:
            return NodeOrdered(order.request, error="this order to drain is none")
        if not order.dry_run:
            self._rate, self._redirects = wanted.rate or self._rate_set, wanted.redirect
            self._order_until = self._node.now + ORDER_S  # it precedes the draining mark of the map
        here = [client for client in self._clients.all() if client.phase == ClientPhase.OPEN and not client.conn.closed]
        wills = sum(client.will_at_once for client in here)
        sessions = sum(client.session != 0 and client.expiry_s > 0 for client in here)
        lines = [
            f"clients {len(here)}",
            f"wills {wills}",
            f"sessions {sessions}",
            f"rate {wanted.rate or self._rate_set}",
        ]
        return NodeOrdered(order.request, count=len(here), lines=lines)

    def _server_for(self, client: Client, now: float) -> str:
        """Return the listener address of the least loaded edge with the same listener name, "" without redirects."""
        if not self._redirects or client.version != 5:
            return ""
        if now - self._servers_at >= SERVERS_S:
            self._servers_at, loads = now, self._loads()
            found: dict[str, tuple[float, str]] = {}
            for entry in self._node.map.live(TIER_EDGE):
                if entry.node != self._node.name and not entry.admin_state:
                    load = loads.get(entry.node, UNKNOWN_LOAD)
                    for listener, address in entry.clients.items():
                        found[listener] = min(found.get(listener, (math.inf, "")), (load, address))
            self._servers = {listener: address for listener, (_, address) in found.items()}
        return self._servers.get(client.policy.name, "")

    def register(self, metrics: Metrics) -> None:
        """Add the metrics and the readiness check."""
        metrics.check("drain", lambda: not self._is_draining)
        metrics.counter(
            "edge_drained_clients_total",
            "Clients that a drain let go: told (MQTT 5, DISCONNECT 0x9C), closed (3.1.1).",
            lambda: {(how,): float(self._drained[how]) for how in ("told", "closed")},
            ("how",),
        )
