"""Work of partitions that nobody waits for, some of it at a time: expired sessions, routes to repeat.

Partitions take turns. What is left is done in the next turn, which the node asks for at once.
Decision: docs/adr/0022-cost-of-filters.md.
"""

from collections.abc import Callable

from storage.hosting.hosted_partition import HostedPartition, TakeUp

__all__ = ["PartitionWork"]

STEPS_PER_TURN = 10  # of one partition
TURN_STEPS = 250  # of about ten microseconds, of all together, for what clients wait for


class PartitionWork:
    """The partitions of a node that have such work."""

    def __init__(
        self,
        is_hosted: Callable[[int, HostedPartition], bool],
        touch: Callable[[int, HostedPartition], None],
        take_up: TakeUp,
    ) -> None:
        self._is_hosted = is_hosted
        self._touch = touch
        self._take_up = take_up
        self._waiting: dict[int, HostedPartition] = {}  # in turn
        self._behind: dict[int, HostedPartition] = {}  # likewise

    def __len__(self) -> int:
        return len(self._waiting) + len(self._behind)

    def catch_up(self, active: dict[int, HostedPartition], taken: int) -> None:
        """Let partitions go on with what belongs to a turn, and may be more than one turn takes.

        Args:
            active: Partitions that something happened to.
            taken: Steps that this turn took before.
        """
        for number in sorted(active):
            if active[number].is_behind:
                self._behind.setdefault(number, active[number])
        left = TURN_STEPS - taken
        for number in list(self._behind):
            if left <= 0:
                return
            hosted = self._behind.pop(number)
            if self._is_hosted(number, hosted):
                self._touch(number, hosted)
                left -= hosted.catch_up(left, self._take_up)
                if hosted.is_behind:
                    self._behind[number] = hosted

    def look(self, number: int, hosted: HostedPartition) -> None:
        """Something happened to a partition: it may have work now."""
        if hosted.has_work:
            self._waiting.setdefault(number, hosted)

    def go_on(self, steps_max: int) -> int:
        """Do some of the work; return the steps of about ten microseconds that it took."""
        left = steps_max
        while self._waiting and left > 0:
            number = next(iter(self._waiting))
            hosted = self._waiting.pop(number)
            if self._is_hosted(number, hosted) and hosted.has_work:
                self._touch(number, hosted)
                left -= max(1, hosted.do_work(min(left, STEPS_PER_TURN)))
                self.look(number, hosted)
        return steps_max - left
