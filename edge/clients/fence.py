"""The lease as clients feel it: without one QoS 1 and 2 wait, and without one for long everybody is let go.

When the lease ends is decided in ``wire/node/lease_holder.py``; the loop holds acknowledgements back by itself.
Rules: docs/protocol.md section 2.
"""

from edge.clients.clients import Clients
from edge.hot.state import Conn
from edge.node.node import NS, EdgeNode
from edge.node.ports import LeaseGate
from mqtt.reasons import ReasonCode

__all__ = ["Fence"]


class Fence:
    """Publishers that wait for a lease, and how long there has been none."""

    def __init__(self, node: EdgeNode, loop: LeaseGate, clients: Clients) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._waiting: list[Conn] = []
        self._had_lease = False
        self._since = float("inf")  # when the lease ran out

    def wait(self, conn: Conn) -> None:
        """Keep a connection parked, which published without a lease, until there is one."""
        self._waiting.append(conn)

    def step(self, now: float) -> bool:
        """Tell the loop about the lease, and clients where it matters; return whether it was regained just now."""
        lease = self._node.lease
        leased = lease.has_lease(now)
        regained = leased and not self._had_lease
        self._loop.set_lease(int(lease.lease_until * NS) if leased else 0)
        if regained:
            self._since = float("inf")
            waiting, self._waiting = self._waiting, []
            for conn in waiting:
                if not conn.closed:
                    self._loop.resume(conn)
        elif not leased and self._had_lease:
            self._since = now
        self._had_lease = leased
        if now - self._since > self._node.limits.fence_close_s:
            self._since = float("inf")
            self._clients.close_all(ReasonCode.SERVER_BUSY)  # DISCONNECT has no 0x88
        return regained

    def next_deadline(self) -> float:
        """Return when the lease runs out."""
        return self._node.lease.lease_until if self._had_lease else float("inf")
