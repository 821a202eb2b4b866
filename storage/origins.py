"""Which messages of each sender a partition has taken: repeats are known by their origin.

A sender's messages reach a partition in the order of their counters, so one number per sender tells old from new;
shared picks and wills come in any order and are remembered one by one. Bounded: the longest silent sender is forgotten.
Source: docs/adr/0004-origins.md.
"""

from collections import deque
from functools import lru_cache
from hashlib import blake2b

from storage import keys
from storage.partition import Partition
from storage.picked_origins import PickedOrigins
from wire.batches import OriginKind, PublishMessage

__all__ = ["Origins", "edge_sender"]

SESSION_ORIGINS_MAX = 100_000  # per partition: nobody tells it that a publishing session elsewhere has ended
PICKED = 3  # in the key of an origin row, beside OriginKind: a session's picks
WILL_ORIGINS_MAX = 4_096  # wills reach a partition in any order, so each origin is kept, the newest ones


class Origins:
    """The senders of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._origins: dict[tuple[int, int], int] = {}
        self._will_origins: deque[int] = deque()
        self._picked: dict[int, PickedOrigins] = {}  # by group and publishing session, the longest silent first
        self._session_origins: dict[int, None] = {}  # publishing sessions of any partition, the longest silent first

    def restore(self, kind: int, sender: int, value: bytes) -> None:
        """Take over a sender's highest counter, or which picks came, from disk."""
        if kind == PICKED:
            self._picked[sender] = PickedOrigins(self._partition.settings.inbound_unreleased_max, value)
            return
        self._origins[kind, sender] = int.from_bytes(value, "big")
        if kind == OriginKind.WILL:
            self._will_origins.append(sender)
        elif kind == OriginKind.SESSION:
            self._session_origins[sender] = None

    def forget_sender(self, kind: int, sender: int) -> None:
        """The sender can never speak again: an edge's incarnation is dead, a session is deleted."""
        self._session_origins.pop(sender, None)
        if self._origins.pop((kind, sender), None) is not None:
            self._partition.delete(keys.origin_key(self._partition.number, kind, sender))

    def forget_dead_edges(self, live: set[int]) -> None:
        """Forget every edge's incarnation but these: the others died while this partition was not served."""
        for kind, sender in sorted(self._origins):
            if kind == OriginKind.EDGE and sender not in live:
                self.forget_sender(kind, sender)

    @property
    def counters(self) -> dict[tuple[int, int], int]:
        """Return (kind, sender) -> its highest counter."""
        return dict(self._origins)

    def is_repeat(self, message: PublishMessage, node: str, incarnation: int) -> bool:
        """True if a message of this origin was taken before (never at QoS 0, which is sent once)."""
        if not message.qos:
            return False
        sender, counter = origin_of(message, node, incarnation)
        if _is_session_pick(message):
            return sender in self._picked and self._picked[sender].has(counter)
        return counter <= self._origins.get((message.origin_kind, sender), 0)

    def remember(self, message: PublishMessage, node: str, incarnation: int) -> None:
        """Take a message's origin with the operation being built; the next one of it is a repeat."""
        partition, kind = self._partition, message.origin_kind
        sender, counter = origin_of(message, node, incarnation)
        if _is_session_pick(message):
            self._remember_pick(sender, counter)
            return
        self._origins[kind, sender] = counter
        partition.put(keys.origin_key(partition.number, kind, sender), counter.to_bytes(8, "big"))
        if kind == OriginKind.WILL:
            self._will_origins.append(sender)
            if len(self._will_origins) > WILL_ORIGINS_MAX:
                self.forget_sender(kind, self._will_origins.popleft())
        elif kind == OriginKind.SESSION:
            self._session_origins.pop(sender, None)
            self._session_origins[sender] = None
            if len(self._session_origins) > SESSION_ORIGINS_MAX:
                partition.count("origins_forgotten")
                self.forget_sender(kind, next(iter(self._session_origins)))

    def _remember_pick(self, sender: int, counter: int) -> None:
        partition = self._partition
        picked = self._picked.pop(sender, None) or PickedOrigins(partition.settings.inbound_unreleased_max)
        self._picked[sender] = picked
        picked.add(counter)
        partition.put(keys.origin_key(partition.number, PICKED, sender), picked.value())
        if len(self._picked) > SESSION_ORIGINS_MAX:
            partition.count("origins_forgotten")
            oldest = next(iter(self._picked))
            del self._picked[oldest]
            partition.delete(keys.origin_key(partition.number, PICKED, oldest))


@lru_cache(maxsize=4096)
def _sender(name: str, number: int) -> int:
    """Return 64 bits that stand for an edge's incarnation (unique only with its name), or for one will."""
    return int.from_bytes(blake2b(f"{number} {name}".encode(), digest_size=8).digest(), "big")


def origin_of(message: PublishMessage, node: str, incarnation: int) -> tuple[int, int]:
    """Return (sender, counter) of a message."""
    if message.origin_kind == OriginKind.EDGE:
        return _sender(node, incarnation), message.tag
    # A shared group's pick may meet the ordinary copy of the same message here: each has its own memory.
    if message.origin_kind == OriginKind.WILL:
        return _sender(f"{message.origin_a} {message.share.decode()}", message.origin_b), 1
    if message.share:
        return _sender(message.share.decode(), message.origin_a), message.origin_b
    return message.origin_a, message.origin_b


def _is_session_pick(message: PublishMessage) -> bool:
    """Whether it is a QoS 2 message's copy for a shared group: its session's picks come in any order."""
    return bool(message.share) and message.origin_kind == OriginKind.SESSION


def edge_sender(edge: str, incarnation: int) -> int:
    """Return the sender number of an edge's incarnation."""
    return _sender(edge, incarnation)
