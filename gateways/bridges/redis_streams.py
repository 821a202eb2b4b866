"""Redis Streams both ways: XADD as a sink; as a source a group's entries, acknowledged after the cluster has them.

The library blocks, so each direction calls it in a thread. A source starts with its consumer's pending entries, and
claims those of dead consumers.
"""

from __future__ import annotations

import importlib
import itertools
import json
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import trio

from conf.bridge_settings import GatewaySettings, RedisSink, RedisSource
from conf.errors import ExitCode, UserError
from conf.private_files import read_secret
from gateways.bridges.batch_sink import BatchResult, BatchSink
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.map_bridge import build_sink, build_source
from gateways.bridges.message import BridgeMessage, mqtt_text
from gateways.bridges.pump import SinkDelivery
from gateways.bridges.running import Bridge, BridgeFinding
from mqtt.properties import Properties, PropertyId

__all__ = ["RedisStreamSink", "RedisStreamSource", "build_redis_sink", "build_redis_source"]

RedisBridge: TypeAlias = RedisSink | RedisSource

BATCH = 500
BATCH_BYTES = 1024 * 1024
BLOCK_MS = 500
SOCKET_S = 5.0
CLAIM_S = 10.0  # interval of XAUTOCLAIM
RETRIED = ("OOM", "READONLY", "LOADING", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "TRYAGAIN")


def build_redis_sink(name: str, settings: RedisSink, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from the cluster to Redis.

    Raises:
      UserError: A configuration error, or the library is missing.
    """
    del gateway
    _check_maps(name, settings)
    library, password = _library(name), _password(name, settings)
    return build_sink(name, settings, True, lambda flow: RedisStreamSink(library, settings, password, flow))


def build_redis_source(name: str, settings: RedisSource, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from Redis to the cluster.

    Raises:
      UserError: A configuration error, or the library is missing.
    """
    _check_maps(name, settings)
    library, password = _library(name), _password(name, settings)
    return build_source(
        name, settings, lambda flow: RedisStreamSource(library, settings, password, gateway.id, flow), {}
    )


def _check_maps(name: str, settings: RedisBridge) -> None:
    for number, each in enumerate(settings.map, 1):
        if not each.topic:
            raise UserError(f"bridge.{name}.map {number}: topic is missing", ExitCode.USAGE)


def _library(name: str) -> Any:
    try:
        return importlib.import_module("redis")
    except ModuleNotFoundError:
        text = f"bridge.{name}: Redis needs the extra redis: pip install 'stratamq[redis]'"
        raise UserError(text, ExitCode.USAGE) from None


def _password(name: str, settings: RedisBridge) -> str | None:
    file = settings.redis_password_file
    return None if file is None else read_secret(f"bridge.{name}", file).decode()


def _client(library: Any, settings: RedisBridge, password: str | None) -> Any:
    return library.Redis(
        host=settings.redis_host,
        port=settings.redis_port,
        username=settings.redis_username or None,
        password=password,
        ssl=settings.redis_tls,
        ssl_ca_certs=str(settings.redis_authority) if settings.redis_authority else None,
        socket_timeout=SOCKET_S,
        socket_connect_timeout=SOCKET_S,
        health_check_interval=10,
    )


def _check(library: Any, settings: RedisBridge, password: str | None) -> list[BridgeFinding]:
    where = f"redis {settings.redis_host}:{settings.redis_port}"
    try:
        client = _client(library, settings, password)
        found = client.info("server")["redis_version"]
        client.close()
    except (library.RedisError, OSError) as error:
        return [BridgeFinding(False, where, str(error))]
    return [BridgeFinding(True, where, f"version {found}")]


class RedisStreamSink(BatchSink):
    """Sink of one flow, and one side of its bridge."""

    name = "redis"

    def __init__(self, library: Any, settings: RedisSink, password: str | None, flow: BridgeFlow) -> None:
        super().__init__(flow, BATCH, BATCH_BYTES)
        self._library, self._settings, self._password = library, settings, password
        self._redis: Any = None

    async def run(self) -> None:
        """Write batches until cancelled."""
        self._redis = _client(self._library, self._settings, self._password)
        while True:
            findings = await self.check()
            self.is_up, self.reason = findings[0].ok, "" if findings[0].ok else findings[0].text
            if self.is_up:
                break
            await trio.sleep(1.0)
        await self.work(0)

    async def write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        """Add entries in one round trip."""
        return await trio.to_thread.run_sync(self._write, batch, abandon_on_cancel=True)

    def _write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        try:
            pipeline = self._redis.pipeline(transaction=True)  # atomic: a repeat concerns the whole batch
            for each in batch:
                pipeline.xadd(each.record.target, _fields(each), maxlen=self._settings.maxlen or None, approximate=True)
            pipeline.execute()
        except self._library.ResponseError as error:
            text = str(error)
            retried = any(word in text for word in RETRIED)
            return BatchResult(text, "" if retried else "refused_by_redis")
        except (self._library.RedisError, OSError) as error:
            return BatchResult(str(error))
        return BatchResult()

    async def check(self) -> list[BridgeFinding]:
        """Check the connection by reading the version."""
        run_check = partial(_check, self._library, self._settings, self._password)
        return await trio.to_thread.run_sync(run_check, abandon_on_cancel=True)


def _fields(sending: SinkDelivery) -> dict[str, bytes]:
    record = sending.record
    found = {
        "topic": record.message.topic.encode(),
        "payload": record.payload,
        "qos": b"%d" % record.message.qos,
        "ref": record.message.reference.encode(),
    }
    return found | {name: value.encode() for name, value in record.headers.items()}


class RedisStreamSource:
    """Source of one flow, and one side of its bridge."""

    name = "redis"

    def __init__(
        self, library: Any, settings: RedisSource, password: str | None, consumer: str, flow: BridgeFlow
    ) -> None:
        self.is_up, self.reason = False, "not connected yet"
        self._library, self._settings, self._password = library, settings, password
        self._consumer, self._flow = consumer, flow
        self._streams = sorted({each.filter for each in settings.map})
        self._numbers = itertools.count()
        self._open: dict[int, tuple[str, str]] = {}  # -> stream and entry; guarded by the lock, like the next two
        self._known: set[tuple[str, str]] = set()
        self._finished: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._stopping, self._delivered = threading.Event(), threading.Event()

    def finish(self, reference: int) -> None:
        """Record that the cluster has acknowledged an entry; the reading thread sends XACK."""
        with self._lock:
            self._finished.append(self._open.pop(reference))

    async def run(self) -> None:
        """Read entries until cancelled."""
        token = trio.lowlevel.current_trio_token()
        try:
            while True:
                try:
                    await trio.to_thread.run_sync(self._read, token, abandon_on_cancel=True)
                except (self._library.RedisError, OSError) as error:
                    self.is_up, self.reason = False, str(error)
                await trio.sleep(1.0)
        finally:
            self._stopping.set()

    def _read(self, token: trio.lowlevel.TrioToken) -> None:
        """Read until Redis fails; open entries stay open meanwhile."""
        redis, group = _client(self._library, self._settings, self._password), self._settings.consumer_group
        for stream in self._streams:
            try:
                redis.xgroup_create(stream, group, id="0", mkstream=True)
            except self._library.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self.is_up, self.reason = True, ""
        clock = threading.Event()
        for stream in self._streams:
            last = "0"
            while not self._stopping.is_set():  # pending entries of a former process with this name
                if not self._flow.has_capacity:
                    self._acknowledge(redis)
                    clock.wait(0.02)
                    continue
                entries = redis.xreadgroup(group, self._consumer, {stream: last}, count=BATCH)
                found = entries[0][1] if entries else []
                if not found:
                    break
                last = found[-1][0]
                self._deliver(token, stream, found)
        claimed_at = 0.0
        while not self._stopping.is_set():
            self._acknowledge(redis)
            if not self._flow.has_capacity:
                clock.wait(0.02)
                continue
            claimed_at -= BLOCK_MS / 1000
            if claimed_at <= 0:
                self._claim(redis, token)
                claimed_at = CLAIM_S
            wait_ms = BLOCK_MS if not self._open else 10  # acknowledgements are due soon
            found = redis.xreadgroup(
                group, self._consumer, dict.fromkeys(self._streams, ">"), count=BATCH, block=wait_ms
            )
            for stream, entries in found or ():
                self._deliver(token, stream.decode(), entries)

    def _claim(self, redis: Any, token: trio.lowlevel.TrioToken) -> None:
        idle_ms = int(self._settings.claim_s * 1000)
        for stream in self._streams:
            answer = redis.xautoclaim(stream, self._settings.consumer_group, self._consumer, idle_ms, count=BATCH)
            self._deliver(token, stream, answer[1])

    def _deliver(
        self, token: trio.lowlevel.TrioToken, stream: str, entries: list[tuple[bytes | None, dict[bytes, bytes]]]
    ) -> None:
        """Pass entries to the flow, in the event loop, and wait for it."""
        taken, deleted = [], 0
        with self._lock:
            for name, fields in entries:
                if name is None:
                    continue  # Redis 6.2 returns no name for a pending entry that was deleted
                entry = (stream, name.decode())
                if entry in self._known:
                    continue
                self._known.add(entry)
                if not fields:  # deleted too, in later versions: there is no content
                    self._finished.append(entry)
                    deleted += 1
                else:
                    number = next(self._numbers)
                    self._open[number] = entry
                    taken.append((number, _message(stream, entry[1], fields)))

        def give() -> None:
            for _ in range(deleted):
                self._flow.drop("deleted_at_source")
            for number, message in taken:
                self._flow.take(number, message)
            self._delivered.set()

        if taken or deleted:
            self._delivered.clear()
            token.run_sync_soon(give)
            while not self._delivered.wait(0.1) and not self._stopping.is_set():
                pass

    def _acknowledge(self, redis: Any) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
        try:
            for stream, entries in itertools.groupby(sorted(finished), key=lambda each: each[0]):
                redis.xack(stream, self._settings.consumer_group, *[name for _, name in entries])
        except (self._library.RedisError, OSError):
            with self._lock:
                self._finished += finished
            raise
        with self._lock:
            self._known.difference_update(finished)

    async def check(self) -> list[BridgeFinding]:
        """Check the connection by reading the version."""
        run_check = partial(_check, self._library, self._settings, self._password)
        return await trio.to_thread.run_sync(run_check, abandon_on_cancel=True)


def _message(stream: str, name: str, fields: dict[bytes, bytes]) -> BridgeMessage:
    values = {key.decode(errors="replace"): value for key, value in fields.items()}
    payload = values.pop("payload", None)
    if payload is None:
        payload = json.dumps({key: value.decode(errors="replace") for key, value in values.items()}).encode()
    users = [(mqtt_text(key.encode()), mqtt_text(value)) for key, value in values.items()]
    properties: Properties = {PropertyId.USER_PROPERTY: users} if users else {}
    return BridgeMessage(stream, payload, 2, False, properties, None, f"{stream}:{name}")
