"""Retained reads with wildcards, one slice per iteration, so that no filter blocks the node's loop.

A read scans its partitions in order and replies for each with its first page, or with "none" if no topic matches. It
may take many iterations; the state in each is as valid as another page's. The read with the fewest scanned topics goes
first, so that a short one need not wait for a thousand long ones.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from storage.hosting.hosted_partition import HostedPartition
from wire.messages.retained import ReadRetained, ReadRetainedAll, RetainedMessage, RetainedPage

__all__ = ["RetainedScan", "RetainedScans"]

VISITS_PER_STEP = 8  # topics scanned in a step of about ten microseconds
VISITS_PER_SLICE = 128  # of one read, before another one is chosen
VISITS_PER_PARTITION = 4  # cost of scanning one partition, even an empty one
VISITS_PER_MESSAGE = 16  # cost of reading a message from the store
VISITS_PER_KIB = 0.5  # cost of its payload
SCANS_MAX = 20_000  # in progress; edges time out after some seconds, so more could not be answered in time
SCAN_S = 60.0  # maximum time that an edge waits for a reply (edge.retained_hold_s)
PAGE_BYTES_MAX = 1024 * 1024
PAGE_MESSAGES_MAX = 1000
HELD_BYTES_MAX = 32 * 1024 * 1024  # of incomplete pages, together: above it a page ends early

Touch = Callable[[int, HostedPartition], None]


class RetainedScan:
    """One read: a filter in some partitions."""

    __slots__ = ("after", "edge", "messages", "partitions", "request", "size", "until", "visits")

    def __init__(
        self, edge: str, request: ReadRetained | ReadRetainedAll, partitions: list[tuple[int, HostedPartition]]
    ) -> None:
        self.edge = edge
        self.request = request
        self.partitions = partitions[::-1]  # the last one is next
        self.after = request.after if isinstance(request, ReadRetained) else ""  # topic in the current partition
        self.messages: list[RetainedMessage] = []
        self.size = 0
        self.visits = 0.0
        self.until = 0.0  # when its edge stops waiting

    def step(self, touch: Touch) -> bool | None:
        """Scan some topics of the current partition; return whether more follow its page, None if it is incomplete."""
        number, hosted = self.partitions[-1]
        request = self.request
        limit = min(request.limit, PAGE_MESSAGES_MAX)
        found, after, visits = hosted.retained.page(request.topic_filter, self.after or None, VISITS_PER_SLICE)
        self.visits += VISITS_PER_PARTITION + visits
        if found:
            touch(number, hosted)  # advances its clock
        for topic, (size, deadline, *_) in found:
            if len(self.messages) >= limit or (self.messages and self.size + size > PAGE_BYTES_MAX):
                return True  # a page with at most one large message fits into a frame
            message = hosted.retained.message(topic, deadline)
            self.visits += VISITS_PER_MESSAGE
            if message is not None:
                self.messages.append(message)
                self.size += len(message.payload)
                self.visits += VISITS_PER_KIB * len(message.payload) / 1024
        if after is None:
            return False
        self.after = after
        return None

    def next_partition(self) -> None:
        """Begin the next partition."""
        self.partitions.pop()
        self.after, self.messages, self.size = "", [], 0


class RetainedScans:
    """The retained reads of a node's partitions."""

    def __init__(self, is_hosted: Callable[[int, HostedPartition], bool], touch: Touch) -> None:
        self._is_hosted = is_hosted
        self._touch = touch
        self._scans: list[tuple[int, int, RetainedScan]] = []  # completed slices, number: a heap
        self._number = 0
        self._held = 0  # bytes of messages that are found and not sent
        self.refused = 0
        self.cut = 0

    def __len__(self) -> int:
        return len(self._scans)

    def add(self, scan: RetainedScan, now: float) -> None:
        """Begin a read; its pages leave after the commits of each partition."""
        if len(self._scans) >= SCANS_MAX:
            self.refused += 1
            self._give_up(scan)
            return
        waits_s = scan.request.waits_s
        scan.until = now + (waits_s if 0 < waits_s < SCAN_S else SCAN_S)
        self._push(scan)

    def _push(self, scan: RetainedScan) -> None:
        self._number += 1
        self._held += scan.size
        heappush(self._scans, (int(scan.visits // VISITS_PER_SLICE), self._number, scan))

    def resume(self, now: float, steps_max: int) -> list[tuple[RetainedScan, list[int]]]:
        """Run a slice of work; return, per read, partitions without a match whose reply needs no commit."""
        told = []
        left = float(steps_max * VISITS_PER_STEP)
        while self._scans and left > 0:
            _, _, scan = heappop(self._scans)
            self._held -= scan.size
            if now > scan.until:
                self.cut += 1
                self._give_up(scan)
                continue
            before = scan.visits
            none = self._run_slice(scan)
            left -= max(1.0, scan.visits - before)
            if none:
                told.append((scan, none))
            if scan.partitions:
                self._push(scan)
        return told

    def _run_slice(self, scan: RetainedScan) -> list[int]:
        none = []
        until = scan.visits + VISITS_PER_SLICE
        while scan.partitions and scan.visits < until:
            number, hosted = scan.partitions[-1]
            if not self._is_hosted(number, hosted):
                scan.next_partition()  # the edge sends it again to another node
                continue
            more = scan.step(self._touch)
            if more is None:
                if not scan.messages or self._held + scan.size <= HELD_BYTES_MAX:
                    continue
                more = True
            partition = hosted.partition
            settled = partition.commit_index == partition.meta.op_index and not partition.dirty
            if settled and not scan.messages and not more:
                none.append(number)
            else:
                self._touch(number, hosted)
                partition.send_control(scan.edge, RetainedPage(scan.request.request, scan.messages, more, number))
            scan.next_partition()
        return none

    def _give_up(self, scan: RetainedScan) -> None:
        """Reply to a request that the edge repeats until answered; a read of all partitions times out at the edge."""
        if isinstance(scan.request, ReadRetained):
            for number, hosted in scan.partitions:
                if self._is_hosted(number, hosted):
                    self._touch(number, hosted)
                    hosted.partition.send_control(
                        scan.edge, RetainedPage(scan.request.request, scan.messages, True, number)
                    )
