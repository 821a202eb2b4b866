"""Partitions with this node as primary, as the core's components access them during an iteration.

A component gets a partition by number. If the map assigned one to this node that is not promoted yet, it is promoted
then: its pending requests go before the current one. A component that changes a partition *touches* it. At the end of
the iteration its operation is closed and its committed outputs leave. Without a lease no output leaves; those
partitions are touched again in the first iteration with one.
"""

from collections.abc import Callable

from storage.hosting.activation import PartitionActivation
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.placements import Placements
from storage.hosting.write_batches import WriteBatches
from storage.sessions.subscriptions import Subscriptions

__all__ = ["Partitions"]


class Partitions:
    """The hosted partitions of one node, and those with events.

    Args:
        placements: The owner of the partitions.
        iteration: Time and lease.
        batches: Numbers of writes.
        settling: Gets each new partition.
        came: Called with the number of each new partition, to process its pending requests.
    """

    def __init__(
        self,
        placements: Placements,
        iteration: Iteration,
        batches: WriteBatches,
        settling: PartitionActivation,
        came: Callable[[int], None],
    ) -> None:
        self.hosted = placements.hosted
        self.users = placements.users
        self._placements = placements
        self._iteration = iteration
        self._batches = batches
        self._settling = settling
        self._came = came
        self._active: dict[int, HostedPartition] = {}  # touched in this iteration
        self._held: dict[int, HostedPartition] = {}  # touched in iterations without a lease: their outputs are pending

    # --- access

    def here(self, number: int) -> HostedPartition | None:
        """Return a partition without touching it; None if another node is its primary. A coming one is promoted."""
        if number in self._placements.coming:
            self.arrive(self._placements.promote(number, self._iteration.now, self._batches.next))
        return self.hosted.get(number)

    def reach(self, number: int) -> HostedPartition | None:
        """Return a partition after touching it; None if another node is its primary."""
        hosted = self.hosted.get(number)
        if hosted is None:
            hosted = self.here(number)
        if hosted is not None:
            self.touch(number, hosted)
        return hosted

    def arrive(self, hosted: HostedPartition) -> None:
        """Add a partition to this node: its pending requests go before later ones."""
        number = hosted.partition.number
        self._settling.add(number)
        self.touch(number, hosted)
        self._came(number)

    def arrive_all(self) -> None:
        """Promote every partition that the map assigned to this node, for a request to all of them."""
        for number in list(self._placements.coming):
            self.here(number)

    def is_hosted(self, number: int, hosted: HostedPartition) -> bool:
        """Return whether this object is still the partition's primary here."""
        return self.hosted.get(number) is hosted

    def routes_of(self, number: int) -> Subscriptions:
        """Return the routes of a partition that is about to send some."""
        hosted = self.hosted[number]
        self.touch(number, hosted)
        return hosted.subscriptions

    def order_again(self, edge: str) -> None:
        """Let every partition repeat its orders to an edge whose frames were lost."""
        for number, hosted in self.hosted.items():
            if hosted.serving and hosted.orders:
                self.touch(number, hosted)
                hosted.orders.frames_lost(edge)

    # --- time and touch

    def tick(self, hosted: HostedPartition) -> None:
        """Set a partition's clock to this iteration's time; idle partitions are not updated."""
        hosted.partition.tick(self._iteration.now, running=hosted.serving and not self._iteration.fenced)

    def tick_all(self) -> None:
        """Set every clock to this iteration's time, before the lease state changes."""
        for hosted in self.hosted.values():
            self.tick(hosted)

    def touch(self, number: int, hosted: HostedPartition, *, changed: bool = True) -> None:
        """Mark a partition as used in this iteration."""
        if changed:
            hosted.changed = True
        hosted.partition.tick(self._iteration.now, running=hosted.serving and not self._iteration.fenced)
        self._active[number] = hosted

    @property
    def active(self) -> dict[int, HostedPartition]:
        """Partitions with events in this iteration."""
        return self._active

    def lease_came(self) -> None:
        """Touch again the partitions that were touched while this node had no lease."""
        self._active = self._held | self._active
        self._held = {}

    def end_turn(self, *, fenced: bool) -> None:
        """Clear the touched partitions; without a lease they are kept for later."""
        if fenced:
            self._held |= self._active
        self._active = {}

    def forget_left(self) -> None:
        """Remove partitions that have another primary now."""
        for table in (self._active, self._held):
            for number in [number for number in table if number not in self.hosted]:
                del table[number]
        self._settling.keep_only(self.hosted)
