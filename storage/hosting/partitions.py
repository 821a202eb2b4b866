"""Partitions whose primary is this node, as the parts of the core reach them in a turn.

A part asks for a partition by number. One that the map gave to this node, and that nobody has promoted yet, comes at
that moment: what waited for it goes before what comes next. A part that does something to a partition *touches* it:
then its operation is closed, and what may leave does, at the end of the turn. Without a lease nothing leaves; those
partitions are looked at again in the first turn with one.
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
    """The hosted partitions of one node, and those that something happened to.

    Args:
        placements: Keeps them.
        turn: Time and lease.
        batches: Numbers of writes.
        settling: Is told of each that comes.
        came: Called with the number of each that comes: takes up what waited for it.
    """

    def __init__(
        self,
        placements: Placements,
        turn: Iteration,
        batches: WriteBatches,
        settling: PartitionActivation,
        came: Callable[[int], None],
    ) -> None:
        self.hosted = placements.hosted
        self.users = placements.users
        self._placements = placements
        self._turn = turn
        self._batches = batches
        self._settling = settling
        self._came = came
        self._active: dict[int, HostedPartition] = {}  # touched in this turn
        self._held: dict[int, HostedPartition] = {}  # touched in turns without a lease: nothing left since

    # --- reaching one

    def here(self, number: int) -> HostedPartition | None:
        """Return a partition, untouched; None if another node is its primary. One that is to come comes now."""
        if number in self._placements.coming:
            self.arrive(self._placements.promote(number, self._turn.now, self._batches.next))
        return self.hosted.get(number)

    def reach(self, number: int) -> HostedPartition | None:
        """Return a partition that something happens to; None if another node is its primary."""
        hosted = self.hosted.get(number)
        if hosted is None:
            hosted = self.here(number)
        if hosted is not None:
            self.touch(number, hosted)
        return hosted

    def arrive(self, hosted: HostedPartition) -> None:
        """Note that a partition is here from now on: what waited for that goes before what comes next."""
        number = hosted.partition.number
        self._settling.add(number)
        self.touch(number, hosted)
        self._came(number)

    def arrive_all(self) -> None:
        """Let every partition that is to come arrive now: somebody asks all of them."""
        for number in list(self._placements.coming):
            self.here(number)

    def is_hosted(self, number: int, hosted: HostedPartition) -> bool:
        """Whether this very object is still the partition's primary here."""
        return self.hosted.get(number) is hosted

    def routes_of(self, number: int) -> Subscriptions:
        """Return the routes of a partition that is about to send some."""
        hosted = self.hosted[number]
        self.touch(number, hosted)
        return hosted.subscriptions

    def order_again(self, edge: str) -> None:
        """Let every partition order again, of an edge that is reached now, what lost frames had ordered."""
        for number, hosted in self.hosted.items():
            if hosted.serving and hosted.orders:
                self.touch(number, hosted)
                hosted.orders.frames_lost(edge)

    # --- time and touch

    def tick(self, hosted: HostedPartition) -> None:
        """Bring a partition's clock to this turn's time: an idle one is not kept up to date."""
        hosted.partition.tick(self._turn.now, running=hosted.serving and not self._turn.fenced)

    def tick_all(self) -> None:
        """Bring every clock to this turn's time: the next turn has a lease where this one had none, or the reverse."""
        for hosted in self.hosted.values():
            self.tick(hosted)

    def touch(self, number: int, hosted: HostedPartition, *, changed: bool = True) -> None:
        """Note that something happens to a partition in this turn."""
        if changed:
            hosted.changed = True
        hosted.partition.tick(self._turn.now, running=hosted.serving and not self._turn.fenced)
        self._active[number] = hosted

    @property
    def active(self) -> dict[int, HostedPartition]:
        """Partitions that something happened to in this turn."""
        return self._active

    def lease_came(self) -> None:
        """Look again at those that were touched while this node had no lease."""
        self._active = self._held | self._active
        self._held = {}

    def end_turn(self, *, fenced: bool) -> None:
        """Forget which were touched, but for what could not leave."""
        if fenced:
            self._held |= self._active
        self._active = {}

    def forget_left(self) -> None:
        """Forget what was noted of partitions whose primary is another node now."""
        for table in (self._active, self._held):
            for number in [number for number in table if number not in self.hosted]:
                del table[number]
        self._settling.keep_only(self.hosted)
