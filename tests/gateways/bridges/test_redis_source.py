"""Entries of a stream that were deleted while a consumer had them open: counted, acknowledged, and never sent."""

import threading
from random import Random
from types import SimpleNamespace
from typing import Any

import trio

from conf.bridge_settings import RedisSource
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.message import BridgeMessage
from gateways.bridges.pump import BridgePump, PumpBounds
from gateways.bridges.redis_streams import RedisStreamSource
from gateways.bridges.rules import RuleResult
from tests.patience import PATIENCE_S

Entry = tuple[bytes | None, dict[bytes, bytes] | None]


class Redis:
    """A server whose stream had three entries open, of which two were deleted."""

    def __init__(self, **_: object) -> None:
        self.acknowledged: list[str] = []
        self._open: list[Entry] = [(b"1-0", {b"payload": b"kept"}), (b"2-0", {})]

    def xgroup_create(self, *_: object, **__: object) -> None:
        """The group is there."""

    def xreadgroup(self, *_: object, **__: object) -> list[tuple[bytes, list[Entry]]]:
        found, self._open = self._open, []
        threading.Event().wait(0.0 if found else 0.002)
        return [(b"s", found)] if found else []

    def xautoclaim(self, *_: object, **__: object) -> tuple[bytes, list[Entry]]:
        """Redis 6.2 names none that was deleted."""
        return b"0-0", [(None, None)]

    def xack(self, _stream: str, _group: str, *names: str) -> None:
        self.acknowledged += names


class Library:
    RedisError = ResponseError = type("RedisError", (Exception,), {})

    def __init__(self, redis: Redis) -> None:
        self.Redis = lambda **_: redis


async def test_deleted_entries_are_no_messages() -> None:
    """The library gives {} for one that was deleted, and nothing at all where Redis 6.2 names none.

    The first was published as an empty object; the other ended the bridge.
    """
    messages: list[BridgeMessage] = []

    def apply_rules(message: BridgeMessage) -> RuleResult:
        messages.append(message)
        return RuleResult(dropped="filtered")

    told = {"kind": "redis-source", "cluster": ["mqtt://127.0.0.1"], "client_id": "c", "consumer_group": "g"}
    settings = RedisSource.model_validate(told | {"map": [{"filter": "s", "topic": "t"}]})
    pump = BridgePump(PumpBounds(), Random(1))
    flow = BridgeFlow("in", pump, apply_rules, lambda number: source.finish(number), lambda: 0.0, lambda: 0)
    nobody: Any = SimpleNamespace(has_capacity=False)  # no record is made
    flow.connect(nobody, nobody)
    redis = Redis()
    source: Any = RedisStreamSource(Library(redis), settings, None, "me", flow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.run)
        with trio.fail_after(PATIENCE_S):
            while len(redis.acknowledged) < 2:
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert sorted(redis.acknowledged) == ["1-0", "2-0"]
    assert [message.payload for message in messages] == [b"kept"]
    assert pump.counts["dropped_deleted_at_source"] == 1
