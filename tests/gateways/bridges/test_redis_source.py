"""Stream entries that were deleted while pending: counted, acknowledged, and not sent."""

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
    """A server with three pending entries, two of them deleted."""

    def __init__(self, **_: object) -> None:
        self.acknowledged: list[str] = []
        self._open: list[Entry] = [(b"1-0", {b"payload": b"kept"}), (b"2-0", {})]

    def xgroup_create(self, *_: object, **__: object) -> None:
        """The group exists."""

    def xreadgroup(self, *_: object, **__: object) -> list[tuple[bytes, list[Entry]]]:
        found, self._open = self._open, []
        threading.Event().wait(0.0 if found else 0.002)
        return [(b"s", found)] if found else []

    def xautoclaim(self, *_: object, **__: object) -> tuple[bytes, list[Entry]]:
        """Redis 6.2 returns no name for a deleted entry."""
        return b"0-0", [(None, None)]

    def xack(self, _stream: str, _group: str, *names: str) -> None:
        self.acknowledged += names


class Library:
    RedisError = ResponseError = type("RedisError", (Exception,), {})

    def __init__(self, redis: Redis) -> None:
        self.Redis = lambda **_: redis


async def test_redis_source_deleted_entries_are_not_sent() -> None:
    """The library returns {} for a deleted entry, and no fields where Redis 6.2 returns no name.

    Otherwise the first would be published as an empty object, and the second would end the bridge.
    """
    messages: list[BridgeMessage] = []

    def apply_rules(message: BridgeMessage) -> RuleResult:
        messages.append(message)
        return RuleResult(dropped="filtered")

    options = {"kind": "redis-source", "cluster": ["mqtt://127.0.0.1"], "client_id": "c", "consumer_group": "g"}
    settings = RedisSource.model_validate(options | {"map": [{"filter": "s", "topic": "t"}]})
    pump = BridgePump(PumpBounds(), Random(1))
    flow = BridgeFlow("in", pump, apply_rules, lambda number: source.finish(number), lambda: 0.0, lambda: 0)
    unused_sink: Any = SimpleNamespace(has_capacity=False)  # no record is made
    flow.connect(unused_sink, unused_sink)
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
