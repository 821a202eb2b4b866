"""Faults of one direction of a link, and the random decisions when they occur.

Data and decisions only; sockets are in ``fault_proxy.py``. All random numbers of a proxy come from one seed: each
direction of each connection has its own generator, named by its position, so task order changes no decision.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, fields

import trio

__all__ = ["DIRECTIONS", "Direction", "Faults", "UnknownFault", "damaged", "datagram_delays_s", "latency_s"]

DIRECTIONS = ("to_server", "to_client")


class UnknownFault(ValueError):
    """There is no such fault, direction or link, or the value does not fit."""


@dataclass(slots=True)
class Faults:
    """Faults of one direction; the defaults are a healthy link.

    Attributes:
        delay_s, jitter_s: Every byte or datagram waits delay_s and up to jitter_s more. Streams keep their order.
        stall: Chance per chunk or datagram that it, and the later stream, waits between ``stall_min_s`` and
            ``stall_max_s`` longer, like TCP after a loss.
        hold: No data passes; a stream's bytes wait, as TCP would send them again. Datagrams are lost.
        drop: Received data is discarded. A stream that lost bytes is reset when the link heals: TCP promises no gaps.
        stop_reading: The proxy stops reading, so the sender's own buffers fill.
        byte_budget: This many more bytes pass, then as ``hold``; None is no limit. Streams only.
        reset_at_budget: Reset the connection when the budget is spent.
        bytes_per_s: Slow link; 0 is no limit. Streams only.
        flip: Chance per chunk or datagram that one of its bits is flipped.
        loss, duplicate, reorder: Chances per datagram.
        reorder_s: Extra delay of a reordered datagram, so that later ones overtake it.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    stall: float = 0.0
    stall_min_s: float = 0.2
    stall_max_s: float = 3.0
    hold: bool = False
    drop: bool = False
    stop_reading: bool = False
    byte_budget: int | None = None
    reset_at_budget: bool = False
    bytes_per_s: float = 0.0
    flip: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.05

    def __post_init__(self) -> None:
        for name in ("stall", "flip", "loss", "duplicate", "reorder"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UnknownFault(f"{name} is a chance between 0 and 1")
        for name in ("delay_s", "jitter_s", "stall_min_s", "stall_max_s", "bytes_per_s", "reorder_s"):
            if getattr(self, name) < 0:
                raise UnknownFault(f"{name} is negative")


@dataclass(slots=True)
class Direction:
    """Faults of one direction as they are now, with a way to wait for the next change."""

    faults: Faults = field(default_factory=Faults)
    changed: trio.Event = field(default_factory=trio.Event)
    counters: Counter[str] = field(default_factory=Counter)

    def set(self, **changes: float | bool | None) -> None:
        """Change some faults and keep the others.

        Raises:
            UnknownFault: For an unknown name or value; no fault is changed then.
        """
        known = {entry.name: getattr(self.faults, entry.name) for entry in fields(Faults)}
        if unknown := sorted(changes.keys() - known.keys()):
            raise UnknownFault(f"no fault {', '.join(unknown)}")
        for name, value in changes.items():
            if not isinstance(value, bool | int | float) and not (value is None and name == "byte_budget"):
                raise UnknownFault(f"{name} cannot be {value!r}")
        self._replace(Faults(**{**known, **changes}))

    def heal(self) -> None:
        self._replace(Faults())

    def spend(self, count: int) -> int:
        """Take up to count bytes from the budget; return how many may pass."""
        if self.faults.byte_budget is None:
            return count
        allowed = min(count, self.faults.byte_budget)
        self.faults.byte_budget -= allowed
        return allowed

    def _replace(self, faults: Faults) -> None:
        self.faults = faults
        self.changed.set()
        self.changed = trio.Event()


def latency_s(faults: Faults, rng: random.Random) -> float:
    """Return how long one chunk or datagram is on its way."""
    latency = faults.delay_s + faults.jitter_s * rng.random()
    if faults.stall and rng.random() < faults.stall:
        latency += rng.uniform(faults.stall_min_s, faults.stall_max_s)
    return latency


def damaged(data: bytes, faults: Faults, rng: random.Random) -> bytes:
    """Return the data, with one bit flipped at random."""
    if not data or rng.random() >= faults.flip:
        return data
    bit = rng.randrange(len(data) * 8)
    altered = bytearray(data)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


def datagram_delays_s(faults: Faults, rng: random.Random) -> list[float]:
    """Return the arrival times of each copy of a datagram: none when lost, two when duplicated.

    The number of random draws is constant, so that one setting does not shift the decisions of another.
    """
    lost, twice, late = (rng.random() < chance for chance in (faults.loss, faults.duplicate, faults.reorder))
    first, second = latency_s(faults, rng), latency_s(faults, rng)
    if lost or faults.hold or faults.drop:
        return []
    if late:
        first += faults.reorder_s
    return [first, second] if twice else [first]
