"""Load of this edge for balancing: the larger of its share of clients and of its loop's busy share.

The loop is one thread that waits in the kernel when idle, so its processor time is its busy time.
"""

import time
from collections import deque

from conf.settings import EdgeConfig
from edge.clients.clients import Clients
from membership.node_gossip import NodeGossip
from wire.node.process import NodeProcess

__all__ = ["loaded_gossip"]

SAMPLES_MAX = 5  # samples: the busy share covers the last two seconds, with a sample each half second


def loaded_gossip(process: NodeProcess, config: EdgeConfig, clients: Clients) -> NodeGossip:
    """Return gossip that reports the load of this edge."""
    return NodeGossip(process, config.membership, figures=_Load(clients, config.edge.connections_max).figures)


class _Load:
    """The load of one edge; to be sampled in the loop's thread."""

    def __init__(self, clients: Clients, connections_max: int) -> None:
        self._clients = clients
        self._connections_max = connections_max
        self._samples: deque[tuple[float, float]] = deque([_sample()], maxlen=SAMPLES_MAX)

    def figures(self) -> tuple[int, float]:
        """Return (clients, load from 0 to 1)."""
        self._samples.append(_sample())
        (since, busy_before), (now, busy_now) = self._samples[0], self._samples[-1]
        busy = (busy_now - busy_before) / (now - since) if now > since else 0.0
        clients = len(self._clients)
        return clients, min(1.0, max(busy, clients / self._connections_max))


def _sample() -> tuple[float, float]:
    return time.monotonic(), time.thread_time()
