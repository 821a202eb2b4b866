"""Periodic probes of one route shard and one partition: does the cluster behind this edge answer?

A lease and links show that nodes run, not that they process requests. This core decides which probes are sent and when
``/readyz`` reports the edge as not ready: after two consecutive failures, until one success. Rules:
docs/adr/0180-canary.md.
"""

from collections.abc import Callable
from itertools import count

from conf.metrics import Metrics, PowersOfTwo
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.routes.route_cache import RouteCache
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control
from wire.messages.retained import ReadRetained

__all__ = ["Canary"]

PERIOD_S = 10.0  # 5 s cost 5 % of an idle cluster's processor; a probe without answer after this time has failed
FAILURES = 2  # consecutive; a failover costs one
TOPIC = "$canary"  # its first level matches no filter with a wildcard


class Canary:
    """The probes of one edge, one at a time.

    Args:
        node: The edge.
        requests: Sends requests to partitions.
        cache: Sends requests to shards.
        clock: Seconds, on the clock of ``look``.
        kick: Wakes the loop.
    """

    def __init__(
        self,
        node: EdgeNode,
        requests: PartitionRequests,
        cache: RouteCache,
        clock: Callable[[], float],
        kick: Callable[[], None],
    ) -> None:
        self._node = node
        self._requests = requests
        self._cache = cache
        self._clock = clock
        self._kick = kick
        self._number = -1  # of the current probe
        self._started_at = 0.0
        self._request_number = 0  # request number at the partition
        self._pending: set[str] = set()
        self._failed = 0  # consecutive failures
        self._failure_reason = ""
        self.failures = 0
        self.times = PowersOfTwo()

    @property
    def is_healthy(self) -> bool:
        """Whether the cluster answers."""
        return self._failed < FAILURES

    def reason(self) -> str:
        """Return why the edge is not ready, "" if the canary has not failed."""
        return "" if self.is_healthy else self._failure_reason

    def look(self, now: float) -> None:
        """Start the next probe if it is due; call about once a second.

        An edge without a lease sends no probe; its lease check reports it as not ready.
        """
        if now - self._started_at < PERIOD_S:
            return
        if self._pending:
            self._fail()
        cluster_map = self._node.map
        if not self._node.has_lease() or not cluster_map.partitions or not cluster_map.base_shards:
            return
        self._started_at = now
        self._number += 1
        self._ask(cluster_map, now)

    def _ask(self, cluster_map: ClusterMap, now: float) -> None:
        shard = self._number % len(cluster_map.shards)
        partition = self._number % len(cluster_map.partitions)
        topic = _topic_of(cluster_map, shard)
        self._pending = {f"partition {partition}"}
        if topic:
            self._pending.add(f"route shard {shard}")
            self._cache.probe(shard, topic, lambda: self._answered(f"route shard {shard}"))

        def answered(answer: Control) -> None:
            del answer
            self._answered(f"partition {partition}")

        self._request_number = self._requests.next_number()
        # A read without effect: only a primary that holds its lease answers it.
        request = ReadRetained(self._request_number, partition, 0, f"{TOPIC}/{self._node.name}", "", 1)
        self._requests.ask(request, answered, now)
        self._node.wake()
        self._kick()

    def _answered(self, target: str) -> None:
        self._pending.discard(target)
        if not self._pending:
            self._failed = 0
            self.times.observe(self._clock() - self._started_at)

    def _fail(self) -> None:
        self._requests.cancel(self._request_number)
        self.failures += 1
        self._failed += 1
        self._failure_reason = f"no answer within {PERIOD_S:g} s from {' and '.join(sorted(self._pending))}"
        self._pending = set()

    def register(self, metrics: Metrics) -> None:
        """Add the metrics and the readiness check."""
        metrics.check("canary", lambda: self.is_healthy)
        metrics.show(
            "canary_seconds", "From this edge's canary being sent to the answers of its shard and partition.",
            lambda: self.times,
        )  # fmt: skip
        metrics.counter(
            "canary_failures_total", "Canaries that were not answered within 10 s.", lambda: float(self.failures)
        )


def _topic_of(cluster_map: ClusterMap, shard: int) -> str:
    """Return a topic of a shard; "" if deeper prefixes own all its topics."""
    if shard < cluster_map.base_shards:
        names = (f"{TOPIC}-{number}" for number in count())
        return next(name for name in names if cluster_map.shard_for_topic(name) == shard)
    pinned = (f"{delegation.prefix}/{TOPIC}" for delegation in cluster_map.delegations)
    return next((name for name in pinned if cluster_map.shard_for_topic(name) == shard), "")
