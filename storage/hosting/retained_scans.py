"""Look-ups of retained topics by wildcard, a slice per turn: no filter makes the node's loop stand.

A look-up goes through its partitions in order and answers each with its first page, or with "none" where nothing
matches. It may take many turns; the state that it meets in each is as good as another page's. The one that has looked
at the fewest topics goes first, so that a short one need not wait for a thousand long ones.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from storage.hosting.hosted_partition import HostedPartition
from wire.messages.retained import ReadRetained, ReadRetainedAll, RetainedMessage, RetainedPage

__all__ = ["RetainedScan", "RetainedScans"]

VISITS_PER_STEP = 8  # topics looked at in a step of about ten microseconds
VISITS_PER_TURN = 128  # of one look-up, before another one is looked for
VISITS_PER_PARTITION = 4  # what looking into one costs, if only to see that it has nothing, and
VISITS_PER_MESSAGE = 16  # what reading a message from the store does, and
VISITS_PER_KIB = 0.5  # what its payload does
SCANS_MAX = 20_000  # under way; edges give up after some seconds, so more could not be answered in time either
SCAN_S = 60.0  # most that an edge waits for an answer (edge.retained_hold_s)
PAGE_BYTES_MAX = 1024 * 1024
PAGE_MESSAGES_MAX = 1000
HELD_BYTES_MAX = 32 * 1024 * 1024  # of pages that are not full yet, together: beyond it a page ends where it is

Touch = Callable[[int, HostedPartition], None]


class RetainedScan:
    """One look-up: a filter in some partitions."""

    __slots__ = ("after", "edge", "messages", "partitions", "request", "size", "until", "visits")

    def __init__(
        self, edge: str, request: ReadRetained | ReadRetainedAll, partitions: list[tuple[int, HostedPartition]]
    ) -> None:
        self.edge = edge
        self.request = request
        self.partitions = partitions[::-1]  # the one at the end is next
        self.after = request.after if isinstance(request, ReadRetained) else ""  # topic of the partition at hand
        self.messages: list[RetainedMessage] = []
        self.size = 0
        self.visits = 0.0
        self.until = 0.0  # when its edge does not wait any more

    def step(self, touch: Touch) -> bool | None:
        """Look at some topics of the partition at hand; return whether more is behind its page, None before its end."""
        number, hosted = self.partitions[-1]
        request = self.request
        limit = min(request.limit, PAGE_MESSAGES_MAX)
        found, after, visits = hosted.retained.page(request.topic_filter, self.after or None, VISITS_PER_TURN)
        self.visits += VISITS_PER_PARTITION + visits
        if found:
            touch(number, hosted)  # its clock goes on
        for topic, (size, deadline, *_) in found:
            if len(self.messages) >= limit or (self.messages and self.size + size > PAGE_BYTES_MAX):
                return True  # a page with one large message at most fits into a frame
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
    """The look-ups of a node's partitions."""

    def __init__(self, is_hosted: Callable[[int, HostedPartition], bool], touch: Touch) -> None:
        self._is_hosted = is_hosted
        self._touch = touch
        self._scans: list[tuple[int, int, RetainedScan]] = []  # turns had, number: a heap
        self._number = 0
        self._held = 0  # bytes of messages that look-ups have found, and not told yet
        self.refused = 0
        self.cut = 0

    def __len__(self) -> int:
        return len(self._scans)

    def add(self, scan: RetainedScan, now: float) -> None:
        """Begin a look-up; what it finds is told behind the commits of each partition."""
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
        heappush(self._scans, (int(scan.visits // VISITS_PER_TURN), self._number, scan))

    def go_on(self, now: float, steps_max: int) -> list[tuple[RetainedScan, list[int]]]:
        """Do some of the work; return, per look-up, partitions without a match that may be told at once."""
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
            none = self._turn(scan)
            left -= max(1.0, scan.visits - before)
            if none:
                told.append((scan, none))
            if scan.partitions:
                self._push(scan)
        return told

    def _turn(self, scan: RetainedScan) -> list[int]:
        none = []
        until = scan.visits + VISITS_PER_TURN
        while scan.partitions and scan.visits < until:
            number, hosted = scan.partitions[-1]
            if not self._is_hosted(number, hosted):
                scan.next_partition()  # whoever asks it again asks another node
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
                partition.tell(scan.edge, RetainedPage(scan.request.request, scan.messages, more, number))
            scan.next_partition()
        return none

    def _give_up(self, scan: RetainedScan) -> None:
        """Answer what an edge asks until it is answered; what its read misses it counts by its own deadline."""
        if isinstance(scan.request, ReadRetained):
            for number, hosted in scan.partitions:
                if self._is_hosted(number, hosted):
                    self._touch(number, hosted)
                    hosted.partition.tell(scan.edge, RetainedPage(scan.request.request, scan.messages, True, number))
