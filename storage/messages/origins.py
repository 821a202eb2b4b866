"""Which messages of each sender a partition has taken: repeats are known by their origin.

An edge's messages reach a partition in the order of their counters, so one number per edge tells old from new; those
of publishing sessions, shared picks and wills may not, and are remembered one by one. Bounded: the longest silent
sender is forgotten. Source: docs/protocol.md rules 4.7 to 4.10.
"""

from collections import deque
from functools import lru_cache
from hashlib import blake2b

from storage.state import keys
from storage.state.partition import Partition
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.origin_window import OriginWindow

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
        # Of publishing sessions of any partition, by the key's kind, the longest silent first; picks by group as well.
        self._windows: dict[int, dict[int, OriginWindow]] = {OriginKind.SESSION: {}, PICKED: {}}

    def restore(self, kind: int, sender: int, value: bytes) -> None:
        """Take over a sender's highest counter, or which of them came, from disk."""
        if kind in self._windows:
            self._windows[kind][sender] = OriginWindow(self._partition.settings.inbound_unreleased_max, value)
            return
        self._origins[kind, sender] = int.from_bytes(value, "big")
        if kind == OriginKind.WILL:
            self._will_origins.append(sender)

    def forget_sender(self, kind: int, sender: int) -> None:
        """The sender can never speak again: an edge's incarnation is dead, a session is deleted."""
        known = (
            self._windows[kind].pop(sender, None) if kind in self._windows else self._origins.pop((kind, sender), None)
        )
        if known is not None:
            self._partition.delete(keys.origin_key(self._partition.number, kind, sender))

    def forget_dead_edges(self, live: set[int]) -> None:
        """Forget every edge's incarnation but these: the others died while this partition was not served."""
        for kind, sender in sorted(self._origins):
            if kind == OriginKind.EDGE and sender not in live:
                self.forget_sender(kind, sender)

    @property
    def counters(self) -> dict[tuple[int, int], int | bytes]:
        """Return (kind, sender) -> its highest counter, or which ones came as the store has it."""
        exact = {(kind, one): window.value() for kind, known in self._windows.items() for one, window in known.items()}
        return {**self._origins, **exact}

    def is_repeat(self, message: PublishMessage, node: str, incarnation: int) -> bool:
        """True if a message of this origin was taken before (never at QoS 0, which is sent once)."""
        if not message.qos:
            return False
        sender, counter = origin_of(message, node, incarnation)
        if message.origin_kind == OriginKind.SESSION:
            window = self._windows[_window_kind(message)].get(sender)
            return window is not None and window.has(counter)
        return counter <= self._origins.get((message.origin_kind, sender), 0)

    def remember(self, message: PublishMessage, node: str, incarnation: int) -> None:
        """Take a message's origin with the operation being built; the next one of it is a repeat."""
        partition, kind = self._partition, message.origin_kind
        sender, counter = origin_of(message, node, incarnation)
        if kind == OriginKind.SESSION:
            self._remember_exactly(_window_kind(message), sender, counter)
            return
        self._origins[kind, sender] = counter
        partition.put(keys.origin_key(partition.number, kind, sender), counter.to_bytes(8, "big"))
        if kind == OriginKind.WILL:
            self._will_origins.append(sender)
            if len(self._will_origins) > WILL_ORIGINS_MAX:
                self.forget_sender(kind, self._will_origins.popleft())

    def highest(self, sender: int) -> int:
        """Return the highest counter that was taken of an edge's incarnation (``edge_sender``), 0 for none."""
        return self._origins.get((OriginKind.EDGE, sender), 0)

    def remember_edge(self, sender: int, counter: int) -> None:
        """Take the messages of an edge's incarnation up to a counter with the operation being built."""
        self._origins[OriginKind.EDGE, sender] = counter
        key = keys.origin_key(self._partition.number, OriginKind.EDGE, sender)
        self._partition.put(key, counter.to_bytes(8, "big"))

    def _remember_exactly(self, kind: int, sender: int, counter: int) -> None:
        partition, windows = self._partition, self._windows[kind]
        window = windows.pop(sender, None) or OriginWindow(partition.settings.inbound_unreleased_max)
        windows[sender] = window
        window.add(counter)
        partition.put(keys.origin_key(partition.number, kind, sender), window.value())
        if len(windows) > SESSION_ORIGINS_MAX:
            partition.count("origins_forgotten")
            self.forget_sender(kind, next(iter(windows)))


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


def _window_kind(message: PublishMessage) -> int:
    """Return where a QoS 2 message's origin is remembered: a shared group's copy apart from the ordinary one."""
    return PICKED if message.share else OriginKind.SESSION


def edge_sender(edge: str, incarnation: int) -> int:
    """Return the sender number of an edge's incarnation."""
    return _sender(edge, incarnation)
