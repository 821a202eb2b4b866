"""Retained reads of one durable session: the hold of its live messages, and the topics that a read must not deliver.

Live messages are held for a limited time until the copies of a read are queued. The hold may end before a slow read
does, and QoS 0 messages are never held. So each topic with a live value during a read is recorded, and the read's
older copy of it is not delivered. A read's name is the request that began it. Source: MQTT 5.0 section 3.3.1.3;
docs/protocol.md rules 7.4, 7.5.
"""

__all__ = ["SessionReads"]

READS_MAX = 64  # in progress for one session; the oldest is forgotten and has to restart
REQUESTS_MAX = 32  # of one read whose results are remembered; its edge has fewer in progress
TOPICS_MAX = 10_000  # recorded for one read; above it a copy of any topic counts as older


class _Read:
    __slots__ = ("deadline", "newest", "taken", "topics")

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline  # of the hold, on the served clock; 0: ended
        self.newest = 0  # last request with copies
        self.taken: dict[int, int] = {}  # request -> number of its copies that were queued; the last ones
        self.topics: set[bytes] | None = set()  # topics received live; None: too many


class SessionReads:
    """The reads in progress of one session; the object exists only during reads."""

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads: dict[int, _Read] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def __contains__(self, read: int) -> bool:
        return read in self._reads

    @property
    def hold(self) -> bool:
        """Whether live messages are held."""
        return any(read.deadline for read in self._reads.values())

    def left_ms(self, now: int) -> int | None:
        """Return how long live messages are held at most, None if they are not."""
        left = [read.deadline - now for read in self._reads.values() if read.deadline]
        return max(0, *left) if left else None

    def begin(self, read: int, deadline: int) -> None:
        """Begin a read, or ignore its repeat; live messages are held until the deadline."""
        if read in self._reads:
            return
        if len(self._reads) >= READS_MAX:
            del self._reads[next(iter(self._reads))]
        self._reads[read] = _Read(deadline)

    def take_request(self, read: int, request: int) -> bool:
        """Record a request with copies; return whether it is new."""
        known = self._reads[read]
        known.newest, former = max(known.newest, request), known.newest
        return request > former

    def note_taken(self, read: int, request: int, count: int) -> None:
        """Record how many of a request's copies were queued."""
        taken = self._reads[read].taken
        taken[request] = count
        if len(taken) > REQUESTS_MAX:
            del taken[next(iter(taken))]

    def taken(self, read: int, request: int) -> int:
        """Return how many of a request's copies were queued when it was first processed."""
        return self._reads[read].taken.get(request, 0)

    def end(self, read: int) -> None:
        """Remove a read whose copies are all queued."""
        self._reads.pop(read, None)

    def end_holds(self) -> None:
        """End all holds; the reads continue without delivering older copies."""
        for read in self._reads.values():
            read.deadline = 0

    def expire(self, now: int) -> None:
        """End the holds whose deadline has passed."""
        for read in self._reads.values():
            if read.deadline <= now:
                read.deadline = 0

    def record_live(self, topic: bytes) -> None:
        """Record a live message with RETAIN of this topic."""
        for read in self._reads.values():
            if read.topics is not None:
                read.topics.add(topic)
                if len(read.topics) > TOPICS_MAX:
                    read.topics = None

    def is_older(self, read: int, topic: bytes) -> bool:
        """Return whether the read's copy of this topic may be older than a live message."""
        topics = self._reads[read].topics
        return topics is None or topic in topics
