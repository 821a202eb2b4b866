"""Duplicate detection by origin: the messages of each sender that a partition has accepted.

An edge's messages reach a partition in counter order, so the highest counter per edge separates old from new.
Publishing sessions, shared picks and a partition's wills may arrive out of order; each of their counters is remembered
in a window. Bounded: the sender that was silent longest is forgotten. Source: docs/protocol.md rules 4.7 to 4.10.
"""

from functools import lru_cache
from hashlib import blake2b

from storage.state import keys
from storage.state.partition import Partition
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.origin_window import OriginWindow

__all__ = ["Origins", "edge_sender", "is_remembered"]

SESSION_ORIGINS_MAX = 100_000  # per partition: it is not informed when a publishing session elsewhere ends
PICKED = 3  # in the key of an origin row, beside OriginKind: a session's picks


class Origins:
    """The senders of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._origins: dict[tuple[int, int], int] = {}
        # Of publishing sessions and of partitions with wills, by the key's kind, the longest silent first; picks by
        # group.
        self._windows: dict[int, dict[int, OriginWindow]] = {OriginKind.SESSION: {}, PICKED: {}, OriginKind.WILL: {}}

    def restore(self, kind: int, sender: int, value: bytes) -> None:
        """Restore a sender's highest counter, or its window, from disk."""
        if kind in self._windows:
            self._windows[kind][sender] = OriginWindow(self._window_of(kind), value)
            return
        self._origins[kind, sender] = int.from_bytes(value, "big")

    def _window_of(self, kind: int) -> int:
        settings = self._partition.settings
        return settings.will_window if kind == OriginKind.WILL else settings.inbound_unreleased_max

    def forget_sender(self, kind: int, sender: int) -> None:
        """Forget a sender that can never send again: an edge's incarnation is dead, a session is deleted."""
        known = (
            self._windows[kind].pop(sender, None) if kind in self._windows else self._origins.pop((kind, sender), None)
        )
        if known is not None:
            self._partition.delete(keys.origin_key(self._partition.number, kind, sender))

    def forget_dead_edges(self, live: set[int]) -> None:
        """Forget the edge incarnations not in ``live``: they died while this partition was not served."""
        for kind, sender in sorted(self._origins):
            if kind == OriginKind.EDGE and sender not in live:
                self.forget_sender(kind, sender)

    @property
    def counters(self) -> dict[tuple[int, int], int | bytes]:
        """Return (kind, sender) -> its highest counter, or its window as stored."""
        exact = {(kind, one): window.value() for kind, known in self._windows.items() for one, window in known.items()}
        return {**self._origins, **exact}

    def is_repeat(self, message: PublishMessage, node: str, incarnation: int) -> bool:
        """Return whether a message of this origin was accepted before. At QoS 0 only wills can be repeats."""
        if not is_remembered(message):
            return False
        sender, counter = origin_of(message, node, incarnation)
        if message.origin_kind == OriginKind.EDGE:
            return counter <= self.highest(sender)
        window = self._windows[_window_kind(message)].get(sender)
        return window is not None and window.has(counter)

    def remember(self, message: PublishMessage, node: str, incarnation: int) -> None:
        """Record a message's origin with the operation being built; the next one with it is a repeat."""
        sender, counter = origin_of(message, node, incarnation)
        if message.origin_kind == OriginKind.EDGE:
            self.remember_edge(sender, counter)
        else:
            self._remember_exactly(_window_kind(message), sender, counter)

    def highest(self, sender: int) -> int:
        """Return the highest accepted counter of an edge's incarnation (``edge_sender``), 0 for none."""
        return self._origins.get((OriginKind.EDGE, sender), 0)

    def remember_edge(self, sender: int, counter: int) -> None:
        """Record an edge incarnation's messages up to a counter as accepted with the operation being built."""
        self._origins[OriginKind.EDGE, sender] = counter
        key = keys.origin_key(self._partition.number, OriginKind.EDGE, sender)
        self._partition.put(key, counter.to_bytes(8, "big"))

    def _remember_exactly(self, kind: int, sender: int, counter: int) -> None:
        partition, windows = self._partition, self._windows[kind]
        window = windows.pop(sender, None) or OriginWindow(self._window_of(kind))
        windows[sender] = window
        window.add(counter)
        partition.put(keys.origin_key(partition.number, kind, sender), window.value())
        if len(windows) > SESSION_ORIGINS_MAX:
            partition.count("origins_forgotten")
            self.forget_sender(kind, next(iter(windows)))


@lru_cache(maxsize=4096)
def _sender(name: str, number: int) -> int:
    """Return a 64-bit hash of a number and a name: an incarnation number is unique only per edge."""
    return int.from_bytes(blake2b(f"{number} {name}".encode(), digest_size=8).digest(), "big")


def origin_of(message: PublishMessage, node: str, incarnation: int) -> tuple[int, int]:
    """Return (sender, counter) of a message."""
    if message.origin_kind == OriginKind.EDGE:
        return _sender(node, incarnation), message.tag
    is_will = message.origin_kind == OriginKind.WILL
    sender = message.origin_a >> 32 if is_will else message.origin_a  # a will's: the partition, under any epoch
    if message.share:  # a pick and the ordinary copy of a message can both arrive here: each has its own window
        sender = _sender(f"{'will ' if is_will else ''}{message.share.decode()}", sender)
    return sender, message.origin_b


def is_remembered(message: PublishMessage) -> bool:
    """Return whether a message can repeat: at QoS 0 only the wills of partitions are sent again."""
    return message.qos > 0 or message.origin_kind == OriginKind.WILL


def _window_kind(message: PublishMessage) -> int:
    """Return the window kind of an origin: a shared group's copy is separate from the ordinary one."""
    if message.share:
        return PICKED
    return OriginKind.WILL if message.origin_kind == OriginKind.WILL else OriginKind.SESSION


def edge_sender(edge: str, incarnation: int) -> int:
    """Return the sender number of an edge's incarnation."""
    return _sender(edge, incarnation)
