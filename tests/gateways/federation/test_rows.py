"""Tests rows of messages in custody: their number, and the contents of the spool after a crash at any step."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateways.federation.agent_context import AgentContext
from gateways.federation.events import AgentSettings, FederationReady, NeighbourFrame
from gateways.federation.messages import encode
from gateways.federation.rows import HOST, Rows, StoredMessage, message_key
from gateways.spool_rows import Put
from tests.fuzz.federation_target import topic_message
from tests.gateways.federation.test_hostile import AgentRig

Disk = dict[str, dict[bytes, bytes]]
NAMES = (HOST, "x", "y", "z")


class Keeping:
    """The rows of an agent, step by step, and its disk."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk: Disk = disk if disk is not None else {}
        self.parts = AgentContext(AgentSettings("f", "m"), 0.0, 0, Random(1))
        self.rows = Rows(self.parts)
        self.rows.restore({kind: list(rows.items()) for kind, rows in self.disk.items()})

    def step(self, *works: Callable[[Rows], None]) -> int:
        """Perform functions in one step; return how many rows it wrote or deleted."""
        for work in works:
            work(self.rows)
        self.rows.write()
        ready, self.parts.ready = self.parts.ready, FederationReady()
        for write in ready.writes:
            if isinstance(write, Put):
                self.disk.setdefault(write.kind, {})[write.key] = write.value
            else:
                self.disk[write.kind].pop(write.key, None)
        return len(ready.writes)

    def owed(self) -> dict[bytes, dict[str, int]]:
        """Return destinations by message, and the broker's reference."""
        return {
            key: {name: stored.ref if name == HOST else 0 for name in stored.owed}
            for key, stored in self.rows.stored.items()
        }


def taken(number: int) -> StoredMessage:
    return StoredMessage(message_key("b", 5, number), topic_message(number=number), 3, "b")


def test_a_message_for_one_destination_is_written_once_and_deleted_once() -> None:
    """However long it waits; none is written if it is forwarded in the step that accepted it."""
    keeping, stored = Keeping(), taken(1)
    assert keeping.step(lambda rows: rows.add_destination(stored, "x")) == 1
    assert keeping.step(lambda rows: rows.settle(stored, "x")) == 1
    assert not any(keeping.disk.values())
    passing = taken(2)
    assert keeping.step(lambda rows: rows.add_destination(passing, "x"), lambda rows: rows.settle(passing, "x")) == 0


def test_of_several_destinations_each_but_the_last_has_a_row() -> None:
    """A settled message that returns is owed again."""
    keeping, stored = Keeping(), taken(1)
    assert keeping.step(*(lambda rows, name=name: rows.add_destination(stored, name, 7) for name in NAMES)) == 1
    assert keeping.step(lambda rows: rows.settle(stored, "x")) == 1
    assert Keeping(keeping.disk).owed() == {stored.key: {HOST: 7, "y": 0, "z": 0}}
    keeping.step(lambda rows: rows.add_destination(stored, "x"))
    assert Keeping(keeping.disk).owed() == {stored.key: {HOST: 7, "x": 0, "y": 0, "z": 0}}
    for name in NAMES:
        keeping.step(lambda rows, name=name: rows.settle(stored, name))  # type: ignore[misc]
    assert not any(keeping.disk.values())


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.sampled_from(NAMES)), max_size=4), max_size=12))
def test_the_disk_matches_the_agent(steps: list[list[tuple[bool, int, str]]]) -> None:
    """After each step a restart finds the same destinations and references; in the end no row is left."""
    keeping, ref = Keeping(), 0
    known: dict[int, StoredMessage] = {}
    for step in steps:
        for is_owed, number, name in step:
            stored = known.setdefault(number, taken(number))
            if is_owed and name not in stored.owed:
                ref += 1
                keeping.rows.add_destination(stored, name, ref if name == HOST else 0)
            elif not is_owed:
                keeping.rows.settle(stored, name)
                if not stored.owed:
                    del known[number]
        keeping.step()
        assert Keeping({kind: dict(rows) for kind, rows in keeping.disk.items()}).owed() == keeping.owed()
    for stored in known.values():
        for name in list(stored.owed):
            keeping.rows.settle(stored, name)
    keeping.step()
    assert not any(keeping.disk.values()) and not keeping.rows.length


def test_trailing_bytes_of_a_message_are_not_stored() -> None:
    """A row contains the bytes of a message as received, without a megabyte of ignored bytes at its end."""
    rig = AgentRig()
    sound = encode(topic_message(to=("y",)))
    fields = msgspec.msgpack.decode(encode(topic_message(number=2, custody=2, to=("y",))))
    rig.handle(NeighbourFrame("b", sound), NeighbourFrame("b", msgspec.msgpack.encode([*fields, b"x" * 1_000_000])))
    rows = rig.disk["message"]
    assert len(rows) == 2 and sum(len(value) for value in rows.values()) < 1_000
    assert any(value.endswith(sound) for value in rows.values())
    rig.start()
    assert [each.message.number for each in rig.agent.rows.stored.values()] == [1, 2]
