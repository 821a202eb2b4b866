"""The lease as clients feel it: without one QoS 1 and 2 wait, and without one for long everybody is let go.

When the lease ends is decided in ``wire/node/lease_holder.py``; the loop holds acknowledgements back by itself. Whoever
takes rights away waits until a silent edge has surely let go of its clients, so their time counts from the end of the
lease, not from when this node noticed it. Rules: docs/protocol.md section 2, docs/adr/0034 rule 6.
"""

from edge.clients.clients import Clients
from edge.loop.state import LoopConnection
from edge.node.node import NS, EdgeNode
from edge.node.ports import LeaseGate
from mqtt.reasons import ReasonCode

__all__ = ["Fence"]

NEVER = float("inf")


class Fence:
    """Publishers that wait for a lease, and how long there has been none.

    ==========  =====================================  =============================================================
    state       holds                                  way out
    ==========  =====================================  =============================================================
    leased      the end of the lease                   the lease is over, or this incarnation: silent from then on
    silent      when clients have to go                a lease: leased; that time: without
    without     nothing: no client is left             a lease: leased
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
        """Keep a connection parked, which published without a lease, until there is one."""
        self._waiting.append(conn)

    def step(self, now: float) -> bool:
        """Tell the loop about the lease, and clients where it matters; return whether it was regained just now."""
        lease = self._node.lease
        leased = lease.has_lease(now)
        regained = leased and not self._had_lease
        self._loop.set_lease(int(lease.lease_until * NS) if leased else 0)
        if leased or self._had_lease:  # a lease may end before its time: the map says that this incarnation is over
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
        """Return when the lease runs out, or the time of the clients without one."""
        return self._node.lease.lease_until if self._had_lease else self._closes_at
