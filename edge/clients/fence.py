"""Effects of the lease on clients: without it QoS 1 and 2 wait; after a longer time all clients are disconnected.

``wire/node/lease_holder.py`` decides when the lease ends; the loop holds back acknowledgements by itself. A removal of
permissions waits until an isolated edge has surely disconnected its clients. Their time therefore counts from the end
of the lease, not from its detection by this node. Rules: docs/protocol.md section 2, docs/adr/0034 rule 6.
"""

from edge.clients.clients import Clients
from edge.loop.state import LoopConnection
from edge.node.node import NS, EdgeNode
from edge.node.ports import LeaseGate
from mqtt.reasons import ReasonCode

__all__ = ["Fence"]

NEVER = float("inf")


class Fence:
    """Publishers paused until the next lease, and the time without a lease.

    ==========  =====================================  =============================================================
    state       holds                                  transition
    ==========  =====================================  =============================================================
    leased      the end of the lease                   end of the lease or of this incarnation: silent
    silent      deadline of the clients                a lease: leased; the deadline: without
    without     no client is left                      a lease: leased
    ==========  =====================================  =============================================================
    """

    def __init__(self, node: EdgeNode, loop: LeaseGate, clients: Clients) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._waiting: list[LoopConnection] = []
        self._had_lease = False
        self._closes_at = NEVER

    def wait(self, conn: LoopConnection) -> None:
        """Resume a paused connection that published without a lease when there is one."""
        self._waiting.append(conn)

    def step(self, now: float) -> bool:
        """Update the lease of the loop and act on clients; return whether the lease was regained in this call."""
        lease = self._node.lease
        leased = lease.has_lease(now)
        regained = leased and not self._had_lease
        self._loop.set_lease(int(lease.lease_until * NS) if leased else 0)
        if leased or self._had_lease:  # a lease may end early: the map can declare this incarnation dead
            end = lease.lease_until if leased else min(now, lease.lease_until)
            self._closes_at = end + self._node.limits.fence_close_s
        self._had_lease = leased
        if regained:
            waiting, self._waiting = self._waiting, []
            for conn in waiting:
                if not conn.closed:
                    self._loop.resume(conn)
        if now >= self._closes_at:
            self._closes_at = NEVER
            self._node.count("clients_closed_fenced")
            self._clients.cut_all(ReasonCode.SERVER_BUSY)  # DISCONNECT has no 0x88
        self._loop.set_fence(int(self._closes_at * NS) if self._closes_at < NEVER else 0)
        return regained

    def next_deadline(self) -> float:
        """Return when the lease expires; without one, the deadline of the clients."""
        return self._node.lease.lease_until if self._had_lease else self._closes_at
