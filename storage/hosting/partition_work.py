"""Background work of partitions in slices: expired sessions, route retries.

Partitions are served round-robin. The rest is done in the next iteration, which the node starts at once. Decision:
docs/adr/0022-cost-of-filters.md.
"""

from collections.abc import Callable

from storage.hosting.hosted_partition import HostedPartition, ProcessPending

__all__ = ["PartitionWork"]

STEPS_PER_ITERATION = 10  # of one partition
ITERATION_STEPS = 250  # of about ten microseconds, for all partitions together, for work that clients wait for


class PartitionWork:
    """The partitions of a node with background work."""

    def __init__(
        self,
        is_hosted: Callable[[int, HostedPartition], bool],
        touch: Callable[[int, HostedPartition], None],
        process_pending: ProcessPending,
    ) -> None:
        self._is_hosted = is_hosted
        self._touch = touch
        self._take_up = process_pending
        self._waiting: dict[int, HostedPartition] = {}  # round-robin
        self._behind: dict[int, HostedPartition] = {}  # partitions with work left from their iteration, round-robin

    def __len__(self) -> int:
        return len(self._waiting) + len(self._behind)

    def catch_up(self, active: dict[int, HostedPartition], taken: int) -> None:
        """Let partitions resume the work of iterations that exceeded their budget.

        Args:
            active: Partitions with events.
            taken: Steps that this iteration used already.
        """
        for number in sorted(active):
            if active[number].is_behind:
                self._behind.setdefault(number, active[number])
        left = ITERATION_STEPS - taken
        for number in list(self._behind):
            if left <= 0:
                return
            hosted = self._behind.pop(number)
            if self._is_hosted(number, hosted):
                self._touch(number, hosted)
                left -= hosted.catch_up(left, self._take_up)
                if hosted.is_behind:
                    self._behind[number] = hosted

    def add(self, number: int, hosted: HostedPartition) -> None:
        """Add a partition if it has work after an event."""
        if hosted.has_work:
            self._waiting.setdefault(number, hosted)

    def resume(self, steps_max: int) -> int:
        """Do some of the work; return the steps of about ten microseconds that it took."""
        left = steps_max
        while self._waiting and left > 0:
            number = next(iter(self._waiting))
            hosted = self._waiting.pop(number)
            if self._is_hosted(number, hosted) and hosted.has_work:
                self._touch(number, hosted)
                left -= max(1, hosted.do_work(min(left, STEPS_PER_ITERATION)))
                self.add(number, hosted)
        return steps_max - left
