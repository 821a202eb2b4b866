"""A question through one route shard and one partition in turn: does the cluster behind this edge answer?

A lease and links show that nodes are there, not that their work goes on. Decides what is asked, and when the edge says
at ``/readyz`` that it is not ready: behind two failures in a row; one success ends it. Rules: docs/adr/0180-canary.md.
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

PERIOD_S = 10.0  # 5 s cost 5 % of an idle cluster's processor; what is unanswered when the next begins has failed
FAILURES = 2  # in a row: a node that failed over costs one
TOPIC = "$canary"  # of a first level that no filter with a wildcard matches


class Canary:
    """Questions of one edge, one at a time.

    Args:
        node: The edge.
        requests: Asks partitions.
        cache: Asks shards.
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
        self._number = -1  # of the canary
        self._began = 0.0
        self._question = 0  # to the partition
        self._unanswered: set[str] = set()
        self._failed = 0  # in a row
        self._why = ""
        self.failures = 0
        self.times = PowersOfTwo()

    @property
    def sings(self) -> bool:
        """Whether the cluster answers."""
        return self._failed < FAILURES

    def reason(self) -> str:
        """Return why the edge is not ready, "" if it is not for this."""
        return "" if self.sings else self._why

    def look(self, now: float) -> None:
        """Begin the next question when it is time; call about once a second.

        An edge without a lease asks nothing, and says so by itself.
        """
        if now - self._began < PERIOD_S:
            return
        if self._unanswered:
            self._fail()
        cluster_map = self._node.map
        if not self._node.has_lease() or not cluster_map.partitions or not cluster_map.base_shards:
            return
        self._began = now
        self._number += 1
        self._ask(cluster_map, now)

    def _ask(self, cluster_map: ClusterMap, now: float) -> None:
        shard = self._number % len(cluster_map.shards)
        partition = self._number % len(cluster_map.partitions)
        topic = _topic_of(cluster_map, shard)
        self._unanswered = {f"partition {partition}"}
        if topic:
            self._unanswered.add(f"route shard {shard}")
            self._cache.probe(shard, topic, lambda: self._answered(f"route shard {shard}"))

        def answered(answer: Control) -> None:
            del answer
            self._answered(f"partition {partition}")

        self._question = self._requests.next_number()
        # A read without effect: only a primary that holds its lease answers it.
        question = ReadRetained(self._question, partition, 0, f"{TOPIC}/{self._node.name}", "", 1)
        self._requests.ask(question, answered, now)
        self._node.wake()
        self._kick()

    def _answered(self, who: str) -> None:
        self._unanswered.discard(who)
        if not self._unanswered:
            self._failed = 0
            self.times.observe(self._clock() - self._began)

    def _fail(self) -> None:
        self._requests.cancel(self._question)
        self.failures += 1
        self._failed += 1
        self._why = f"no answer within {PERIOD_S:g} s from {' and '.join(sorted(self._unanswered))}"
        self._unanswered = set()

    def register(self, metrics: Metrics) -> None:
        """Add the figures, and the condition of readiness."""
        metrics.check("canary", lambda: self.sings)
        metrics.show(
            "canary_seconds", "From this edge's canary being sent to the answers of its shard and partition.",
            lambda: self.times,
        )  # fmt: skip
        metrics.counter(
            "canary_failures_total", "Canaries that were not answered within 10 s.", lambda: float(self.failures)
        )


def _topic_of(cluster_map: ClusterMap, shard: int) -> str:
    """Return a topic of a shard, "" if it has none: a pinned prefix whose topics all belong to deeper ones."""
    if shard < cluster_map.base_shards:
        names = (f"{TOPIC}-{number}" for number in count())
        return next(name for name in names if cluster_map.shard_for_topic(name) == shard)
    pinned = (f"{delegation.prefix}/{TOPIC}" for delegation in cluster_map.delegations)
    return next((name for name in pinned if cluster_map.shard_for_topic(name) == shard), "")
