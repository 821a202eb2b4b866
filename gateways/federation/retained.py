"""Retained messages of federated filters: one last-writer-wins register per topic, with tombstones.

A stamp is the writer's UTC in milliseconds, or one more than that of the register it saw, so that clocks only decide
between concurrent writes. Registers are compared by digests: one per filter in a core's tc, 256 in ts. Pure logic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct

from gateways.federation.agent_context import AgentContext
from mqtt.topics import matches

__all__ = ["INITIAL_STAMP", "Registers", "RetainedRegister", "payload_digest"]

BUCKETS = 256
INITIAL_STAMP = 1  # of messages that a broker retained before its agent started: all observed writes are later
SWEEP_S = 60.0


class RetainedRegister(Struct, array_like=True):
    """The newest retained message of a topic; an empty payload is a deletion.

    Attributes:
      agent, incarnation, number: Id of the message that wrote it.
      at_host: Digest of the payload known to be at the broker, empty for none.
      queued_digest: Digest of the clients' newest payload that waits for the full spool, empty for none. It is
        unacknowledged: after a crash of the agent it is redelivered, and is not yet known to the federation.
      queued_incarnation: Incarnation that captured it.
    """

    stamp: int
    agent: str
    incarnation: int
    number: int
    payload: bytes
    qos: int
    properties: bytes
    at_host: bytes = b""
    queued_digest: bytes = b""
    queued_incarnation: int = 0

    def is_at_host(self) -> bool:
        """Return whether the broker has it."""
        return self.at_host == payload_digest(self.payload)

    def age(self) -> tuple[int, str]:
        """Return the order of two writes."""
        return self.stamp, self.agent


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(RetainedRegister)


class Registers:
    """All registers of one agent, and the digests of the compared filters.

    Attributes:
      changed: Filters whose digest changed since the last comparison.
    """

    def __init__(self, parts: AgentContext) -> None:
        self._parts = parts
        self._registers: dict[str, RetainedRegister] = {}
        self._digests: dict[str, list[int]] = {}  # filter: digest of each bucket
        self.changed: set[str] = set()
        self._sweep_at = -math.inf

    def __len__(self) -> int:
        """Return the number of topics with a register, including deletions."""
        return len(self._registers)

    def get(self, topic: str) -> RetainedRegister | None:
        """Return a topic's register."""
        return self._registers.get(topic)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the spool's rows."""
        for key, value in rows:
            self._registers[key.decode()] = _unpack.decode(value)

    def next_stamp(self, now: float, topic: str) -> int:
        """Return the stamp of a write at this time."""
        known = self._registers.get(topic)
        return max(self._parts.wall_ms(now), known.stamp + 1 if known is not None else 0)

    def write(self, now: float, topic: str, register: RetainedRegister) -> bool:
        """Apply a write; return whether it is the newest of its topic."""
        known = self._registers.get(topic)
        if known is not None and known.age() >= register.age():
            return known.age() == register.age()
        if known is None and not register.payload and self._is_expired(now, register):
            return (
                False  # an old deletion without a value; of an existing value it is applied whatever its writer's clock
            )
        if known is None and len(self._registers) >= self._parts.settings.registers_max:
            self._parts.drop("registers")
            return True  # it is forwarded, and not compared
        if known is not None and not register.at_host:
            register.at_host = known.at_host
        if known is not None:
            register.queued_digest, register.queued_incarnation = known.queued_digest, known.queued_incarnation
        self._mix(topic, known)
        self._mix(topic, register)
        self._registers[topic] = register
        self._store(topic, register)
        return True

    def is_newest(self, topic: str, stamp: int, agent: str) -> bool:
        """Return whether a write is still the newest."""
        known = self._registers.get(topic)
        return known is None or known.age() <= (stamp, agent)

    def at_host(self, topic: str) -> None:
        """Record that the broker has the register's value."""
        known = self._registers.get(topic)
        if known is not None and not known.is_at_host():
            known.at_host = payload_digest(known.payload)
            self._store(topic, known)

    def record_queued(self, topic: str, payload: bytes) -> None:
        """Record that a captured message waits for the full spool."""
        known = self._registers.get(topic)
        if known is not None:
            known.queued_digest, known.queued_incarnation = payload_digest(payload), self._parts.incarnation
            self._store(topic, known)

    def record_stored(self, topic: str, payload: bytes) -> None:
        """Record that the spool has a captured message; a newer one of its topic may still wait."""
        known = self._registers.get(topic)
        if known is not None and known.queued_digest == payload_digest(payload):
            known.queued_digest, known.queued_incarnation = b"", 0
            self._store(topic, known)

    def is_redelivered(self, topic: str, payload: bytes) -> bool:
        """Return whether a captured message waited for the spool when this agent crashed."""
        known = self._registers.get(topic)
        is_older = known is not None and known.queued_incarnation < self._parts.incarnation
        return known is not None and is_older and known.queued_digest == payload_digest(payload)

    def reset_host(self) -> None:
        """Record that the broker may have lost its retained messages."""
        for register in self._registers.values():
            # A deletion is not repeated at an empty broker.
            register.at_host = b"" if register.payload else payload_digest(b"")

    def missing(self, topic_filter: str = "#") -> Iterator[tuple[str, RetainedRegister]]:
        """Yield registers that the broker lacks."""
        for topic, register in self._registers.items():
            if not register.is_at_host() and matches(topic_filter, topic):
                yield topic, register

    def _store(self, topic: str, register: RetainedRegister) -> None:
        self._parts.put("register", topic.encode(), _pack(register))

    # --- comparison

    def compare(self, filters: Iterable[str]) -> None:
        """Set the filters whose registers are compared."""
        wanted = set(filters)
        for removed in self._digests.keys() - wanted:
            del self._digests[removed]
            self.changed.discard(removed)
        for topic_filter in sorted(wanted - self._digests.keys()):
            buckets = self._digests[topic_filter] = [0] * BUCKETS
            for topic, register in self._registers.items():
                if matches(topic_filter, topic):
                    buckets[_bucket(topic)] ^= _digest(topic, register)
            if any(buckets):
                self.changed.add(topic_filter)

    def digest(self, topic_filter: str) -> int:
        """Return one digest of a filter's registers."""
        found = 0
        for each in self._digests.get(topic_filter, ()):
            found ^= each
        return found

    def digests(self, topic_filter: str) -> bytes:
        """Return the digests of its 256 buckets."""
        buckets = self._digests.get(topic_filter) or [0] * BUCKETS
        return b"".join(each.to_bytes(8, "big") for each in buckets)

    def differing(self, topic_filter: str, digests: bytes) -> Iterator[tuple[str, RetainedRegister]]:
        """Yield the registers in buckets that differ from another agent's."""
        mine = self.digests(topic_filter)
        buckets = {each for each in range(BUCKETS) if mine[each * 8 : each * 8 + 8] != digests[each * 8 : each * 8 + 8]}
        for topic, register in self._registers.items():
            if _bucket(topic) in buckets and matches(topic_filter, topic):
                yield topic, register

    def _mix(self, topic: str, register: RetainedRegister | None) -> None:
        if register is None:
            return
        bucket, digest = _bucket(topic), _digest(topic, register)
        for topic_filter, buckets in self._digests.items():
            if matches(topic_filter, topic):
                buckets[bucket] ^= digest
                self.changed.add(topic_filter)

    # --- deletions

    def _is_expired(self, now: float, register: RetainedRegister) -> bool:
        return register.stamp + self._parts.settings.deletions_s * 1000 < self._parts.wall_ms(now)

    def tick(self, now: float) -> None:
        """Remove old deletions."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        expired = [
            each for each, found in self._registers.items() if not found.payload and self._is_expired(now, found)
        ]
        for topic in expired:
            self._mix(topic, self._registers.pop(topic))
            self._parts.delete("register", topic.encode())


def payload_digest(payload: bytes) -> bytes:
    """Return a digest of a payload."""
    return blake2b(payload, digest_size=8).digest()


def _bucket(topic: str) -> int:
    return blake2b(topic.encode(), digest_size=1).digest()[0]


def _digest(topic: str, register: RetainedRegister) -> int:
    text = f"{topic}\0{register.stamp}\0{register.agent}\0".encode() + register.payload
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
