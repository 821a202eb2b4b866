"""Retained reads of one durable session: how long its live messages wait for them, and what they must not bring then.

Live messages are held, at most for a while, until the copies of a read are queued. The holding may end before a slow
read does, and QoS 0 is not held at all: so every topic whose value came live during a read is noted, and that read's
copy of it, which is older, is not delivered. A read is named by the request that began it.
Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md rules 7.4, 7.5.
"""

__all__ = ["SessionReads"]

READS_MAX = 64  # under way for one session; the oldest is forgotten, and has to begin again
REQUESTS_MAX = 32  # of one read whose outcome is remembered; its edge has fewer under way
TOPICS_MAX = 10_000  # noted for one read; beyond it a copy of any topic counts as older


class _Read:
    __slots__ = ("deadline", "newest", "taken", "topics")

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline  # of the holding, on the served clock; 0: it is over
        self.newest = 0  # request that brought copies last
        self.taken: dict[int, int] = {}  # by the last requests, how many of their copies were taken
        self.topics: set[bytes] | None = set()  # that came live; None: too many


class SessionReads:
    """The reads under way of one session; there is none of these where no read is under way."""

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads: dict[int, _Read] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def __contains__(self, read: int) -> bool:
        return read in self._reads

    @property
    def hold(self) -> bool:
        """Whether live messages wait."""
        return any(read.deadline for read in self._reads.values())

    def left_ms(self, now: int) -> int | None:
        """Return how long live messages wait at most, None where they do not."""
        left = [read.deadline - now for read in self._reads.values() if read.deadline]
        return max(0, *left) if left else None

    def begin(self, read: int, deadline: int) -> None:
        """A read begins, or is asked for again; live messages wait for it until the deadline."""
        if read in self._reads:
            return
        if len(self._reads) >= READS_MAX:
            del self._reads[next(iter(self._reads))]
        self._reads[read] = _Read(deadline)

    def take_request(self, read: int, request: int) -> bool:
        """Take a request's copies; return whether they were not taken before."""
        known = self._reads[read]
        known.newest, former = max(known.newest, request), known.newest
        return request > former

    def note_taken(self, read: int, request: int, count: int) -> None:
        """Note how many of a request's copies were taken."""
        taken = self._reads[read].taken
        taken[request] = count
        if len(taken) > REQUESTS_MAX:
            del taken[next(iter(taken))]

    def taken(self, read: int, request: int) -> int:
        """Return how many of a request's copies were taken when it came first."""
        return self._reads[read].taken.get(request, 0)

    def end(self, read: int) -> None:
        """All copies of a read are queued."""
        self._reads.pop(read, None)

    def end_holds(self) -> None:
        """Live messages wait no more; the reads go on, and bring nothing older."""
        for read in self._reads.values():
            read.deadline = 0

    def expire(self, now: int) -> None:
        """Live messages have waited long enough for the reads whose deadline came."""
        for read in self._reads.values():
            if read.deadline <= now:
                read.deadline = 0

    def came_live(self, topic: bytes) -> None:
        """A retained message of this topic came live."""
        for read in self._reads.values():
            if read.topics is not None:
                read.topics.add(topic)
                if len(read.topics) > TOPICS_MAX:
                    read.topics = None

    def is_older(self, read: int, topic: bytes) -> bool:
        """Whether the read's copy of this topic's retained message may be older than what came live."""
        topics = self._reads[read].topics
        return topics is None or topic in topics
