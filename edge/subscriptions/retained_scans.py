"""Reads of a wildcard at all storage nodes: one request to each node for the first pages of its partitions.

A node responds for each of its partitions. A partition is requested by itself if its primary changed, or if the node
sent no response for a while; a link between live nodes loses no message. Only one scan of a client for a filter runs at
a time, so repeated subscriptions do not multiply scans.
"""

from collections.abc import Callable, Iterable

from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.subscriptions.retained_read import RetainedRead
from wire.messages.cluster_map import ClusterMap
from wire.messages.retained import ReadRetainedAll, RetainedNone, RetainedPage

__all__ = ["NodeScans"]

ANSWER_S = 10.0  # timeout without a response to any scan; then a node's partitions are requested by themselves
CHECK_S = 1.0  # between timeout checks
SCAN_S = 60.0  # after which a node has given up

Key = tuple[int, str]


class NodeScans:
    """The scans of one edge.

    Args:
        node: This edge.
        requests: Allocates request numbers.
        came: Called with a partition's response; None: no message matches there.
        ask: Requests a partition by itself.
    """

    def __init__(
        self,
        node: EdgeNode,
        requests: PartitionRequests,
        came: Callable[[RetainedRead, int, RetainedPage | None], None],
        ask: Callable[[RetainedRead, int], None],
    ) -> None:
        self._node = node
        self._requests = requests
        self._came = came
        self._ask = ask
        self._reads: dict[int, RetainedRead] = {}  # by request
        self._by_filter: dict[Key, RetainedRead] = {}
        self._next: dict[Key, tuple[RetainedRead, Callable[[RetainedRead], None]]] = {}  # to start later
        self._answers: dict[str, float] = {}  # by node: time of its last response

    def __len__(self) -> int:
        return len(self._reads)

    def waits(self, read: RetainedRead, begin: Callable[[RetainedRead], None]) -> bool:
        """Return whether a read must wait for an older one of its client and filter; ``begin`` is called then."""
        key = _key(read)
        if key not in self._by_filter:
            return False
        former = self._next.get(key)
        self._next[key] = (read, begin)
        if former is not None:
            former[1](former[0])
        return True

    def begin(self, read: RetainedRead, page: int) -> None:
        """Request pages from the nodes, with a largest number of messages."""
        node = self._node
        placements = dict(enumerate(node.map.partitions))
        request = self._requests.next_number()
        message = ReadRetainedAll(request, read.subscription.topic_filter, page)
        primaries = sorted({one.primary for one in placements.values() if one.primary})
        sent = {name for name in primaries if node.tell(name, message)}
        read.placements = {number: one for number, one in placements.items() if one.primary in sent}
        read.scanning = set(read.placements)
        read.requested_at, read.deadline = node.now, node.now + CHECK_S
        if read.scanning:
            read.request = request
            self._reads[request] = self._by_filter[_key(read)] = read
        for number in sorted(placements.keys() - read.scanning):
            self._ask(read, number)

    def page(self, answer: RetainedPage, name: str) -> bool:
        """Handle a node's page; False if it belongs to no scan."""
        read = self._reads.get(answer.request)
        if read is None:
            return False
        self._answers[name] = self._node.now
        if answer.partition in read.scanning and read.placements[answer.partition].primary == name:
            read.scanning.discard(answer.partition)
            self._came(read, answer.partition, answer)
            self._scanned(read)
        return True

    def none(self, answer: RetainedNone, name: str) -> None:
        """Handle a node's partitions without a match."""
        read = self._reads.get(answer.request)
        if read is None:
            return
        self._answers[name] = self._node.now
        for number in answer.partitions:
            if number in read.scanning and read.placements[number].primary == name:
                read.scanning.discard(number)
                self._came(read, number, None)
        self._scanned(read)

    def _scanned(self, read: RetainedRead) -> None:
        """End a scan with all responses received, and start the next one of its client and filter."""
        if read.scanning or self._reads.pop(read.request, None) is None:
            return
        key = _key(read)
        del self._by_filter[key]
        after = self._next.pop(key, None)
        if after is not None:
            after[1](after[0])

    def _request_each(self, read: RetainedRead, numbers: Iterable[int]) -> None:
        for number in numbers:
            read.scanning.discard(number)
            self._ask(read, number)
        self._scanned(read)

    def tick(self, now: float) -> None:
        """Request partitions of unresponsive nodes by themselves."""
        for read in [read for read in self._reads.values() if read.deadline <= now]:
            read.deadline = now + CHECK_S
            given_up = now - read.requested_at >= SCAN_S
            silent = [
                number
                for number in sorted(read.scanning)
                if given_up or now - self._last_response(read, read.placements[number].primary) >= ANSWER_S
            ]
            if silent:
                self._node.count("retained_partitions_missed", len(silent))
                self._request_each(read, silent)

    def _last_response(self, read: RetainedRead, name: str) -> float:
        return max(read.requested_at, self._answers.get(name, 0.0))

    def map_moved(self, cluster_map: ClusterMap) -> None:
        """Request partitions with a changed primary by themselves."""
        placements = cluster_map.partitions
        for read in list(self._reads.values()):
            moved = [
                number
                for number in sorted(read.scanning)
                if number >= len(placements) or placements[number] != read.placements[number]
            ]
            self._request_each(read, moved)


def _key(read: RetainedRead) -> Key:
    return read.whole.client.number, read.subscription.topic_filter
