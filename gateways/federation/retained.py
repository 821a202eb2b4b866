"""Retained messages of federated filters: one register per topic, the last writer wins, deletions are remembered.

A stamp is the writer's UTC in milliseconds, or one more than that of the register it saw, so that clocks decide ties
only. Registers are compared by digests: one per filter in a core's tc, 256 in ts. Pure logic.
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
INITIAL_STAMP = 1  # of what a broker kept before its agent came: any writer that was seen is later
SWEEP_S = 60.0


class RetainedRegister(Struct, array_like=True):
    """The newest retained message of a topic; an empty payload is a deletion.

    Attributes:
        agent, incarnation, number: Id of the message that wrote it.
        at_host: Digest of the payload that the broker is known to have, empty for none.
        waits: Digest of the newest payload of the broker's clients that waits for room in the spool, empty for none.
            It is not acknowledged: after a death of the agent it comes again, and is none that the federation knows.
        waits_of: Incarnation that captured it.
    """

    stamp: int
    agent: str
    incarnation: int
    number: int
    payload: bytes
    qos: int
    properties: bytes
    at_host: bytes = b""
    waits: bytes = b""
    waits_of: int = 0

    def is_at_host(self) -> bool:
        """Return whether the broker has it."""
        return self.at_host == payload_digest(self.payload)

    def age(self) -> tuple[int, str]:
        """Return what decides between two writers."""
        return self.stamp, self.agent


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(RetainedRegister)


class Registers:
    """All registers of one agent, and the digests of the filters that are compared.

    Attributes:
        changed: Filters whose digest changed since they were last looked at.
    """

    def __init__(self, parts: AgentContext) -> None:
        self._parts = parts
        self._registers: dict[str, RetainedRegister] = {}
        self._digests: dict[str, list[int]] = {}  # filter: digest of each bucket
        self.changed: set[str] = set()
        self._sweep_at = -math.inf

    def __len__(self) -> int:
        """Return how many topics have a register, deletions counted."""
        return len(self._registers)

    def get(self, topic: str) -> RetainedRegister | None:
        """Return a topic's register."""
        return self._registers.get(topic)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take back what the spool has."""
        for key, value in rows:
            self._registers[key.decode()] = _unpack.decode(value)

    def next_stamp(self, now: float, topic: str) -> int:
        """Return the stamp of a write of now."""
        known = self._registers.get(topic)
        return max(self._parts.wall_ms(now), known.stamp + 1 if known is not None else 0)

    def write(self, now: float, topic: str, register: RetainedRegister) -> bool:
        """Take a write; return whether it is the newest of its topic."""
        known = self._registers.get(topic)
        if known is not None and known.age() >= register.age():
            return known.age() == register.age()
        if known is None and not register.payload and self._is_over(now, register):
            return (
                False  # an old deletion of nothing; of a value that stands here it is one whatever its writer's clock
            )
        if known is None and len(self._registers) >= self._parts.settings.registers_max:
            self._parts.drop("registers")
            return True  # it is passed on, and not compared
        if known is not None and not register.at_host:
            register.at_host = known.at_host
        if known is not None:
            register.waits, register.waits_of = known.waits, known.waits_of
        self._mix(topic, known)
        self._mix(topic, register)
        self._registers[topic] = register
        self._store(topic, register)
        return True

    def is_newest(self, topic: str, stamp: int, agent: str) -> bool:
        """Return whether a write still stands."""
        known = self._registers.get(topic)
        return known is None or known.age() <= (stamp, agent)

    def at_host(self, topic: str) -> None:
        """Note that the broker has what the register says."""
        known = self._registers.get(topic)
        if known is not None and not known.is_at_host():
            known.at_host = payload_digest(known.payload)
            self._store(topic, known)

    def waits(self, topic: str, payload: bytes) -> None:
        """Note that a captured message has no room in the spool yet."""
        known = self._registers.get(topic)
        if known is not None:
            known.waits, known.waits_of = payload_digest(payload), self._parts.incarnation
            self._store(topic, known)

    def found_room(self, topic: str, payload: bytes) -> None:
        """Note that the spool has a captured message; a newer one of its topic may wait still."""
        known = self._registers.get(topic)
        if known is not None and known.waits == payload_digest(payload):
            known.waits, known.waits_of = b"", 0
            self._store(topic, known)

    def comes_again(self, topic: str, payload: bytes) -> bool:
        """Return whether a captured message is one that waited for room when this agent died."""
        known = self._registers.get(topic)
        is_older = known is not None and known.waits_of < self._parts.incarnation
        return known is not None and is_older and known.waits == payload_digest(payload)

    def lost_host(self) -> None:
        """Note that the broker may have lost its retained messages."""
        for register in self._registers.values():
            # A deletion is not repeated at a broker that has nothing.
            register.at_host = b"" if register.payload else payload_digest(b"")

    def missing(self, topic_filter: str = "#") -> Iterator[tuple[str, RetainedRegister]]:
        """Yield registers that the broker does not have."""
        for topic, register in self._registers.items():
            if not register.is_at_host() and matches(topic_filter, topic):
                yield topic, register

    def _store(self, topic: str, register: RetainedRegister) -> None:
        self._parts.put("register", topic.encode(), _pack(register))

    # --- comparing

    def compare(self, filters: Iterable[str]) -> None:
        """Take the filters whose registers are compared."""
        wanted = set(filters)
        for gone in self._digests.keys() - wanted:
            del self._digests[gone]
            self.changed.discard(gone)
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

    def _is_over(self, now: float, register: RetainedRegister) -> bool:
        return register.stamp + self._parts.settings.deletions_s * 1000 < self._parts.wall_ms(now)

    def tick(self, now: float) -> None:
        """Forget deletions that are old."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        over = [each for each, found in self._registers.items() if not found.payload and self._is_over(now, found)]
        for topic in over:
            self._mix(topic, self._registers.pop(topic))
            self._parts.delete("register", topic.encode())


def payload_digest(payload: bytes) -> bytes:
    """Return what tells one payload from others."""
    return blake2b(payload, digest_size=8).digest()


def _bucket(topic: str) -> int:
    return blake2b(topic.encode(), digest_size=1).digest()[0]


def _digest(topic: str, register: RetainedRegister) -> int:
    text = f"{topic}\0{register.stamp}\0{register.agent}\0".encode() + register.payload
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
