"""A bridge between the cluster and another broker: two ends, two directions, and the schedule of the remote connection.

Both brokers keep a session for the bridge, so that no message is stored here: a message that one side has not accepted
is not acknowledged at the other. Only exactly-once needs a spool, for open QoS 2 exchanges (``exactly_once.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import trio

from conf.bridge_settings import GatewaySettings, MqttBridge
from conf.errors import ExitCode, UserError
from gateways.bridges.broker_endpoint import BrokerEndpoint, cluster_endpoint, remote_endpoint
from gateways.bridges.dead_letters import Task, build_dead_letters
from gateways.bridges.endpoint_check import check_endpoint
from gateways.bridges.exactly_once import ExactlyOnce, spool_path
from gateways.bridges.exchanges import SinkExchanges
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.mqtt_end import MqttEnd, PublishingSink
from gateways.bridges.mqtt_rules import MqttRules
from gateways.bridges.pump import BridgePump, PumpBounds
from gateways.bridges.running import Bridge, BridgeSide, ClusterSide, wall_ms
from gateways.bridges.topic_lines import TopicLine, parse_topic_line
from gateways.client import GatewayClient
from mqtt.client_session import ClientSession
from mqtt.packets import Publish, SubscriptionRequest, Will

__all__ = ["build_mqtt", "build_mqtt_rules", "make_flow", "parse_lines", "subscriptions"]


def parse_lines(name: str, settings: MqttBridge) -> list[TopicLine]:
    """Return the topic lines of a bridge.

    Raises:
      UserError: A line is invalid.
    """
    lines = []
    for text in settings.topics:
        try:
            lines.append(parse_topic_line(text))
        except ValueError as error:
            raise UserError(f"bridge.{name}.topics: {error}", ExitCode.USAGE) from None
    if settings.exactly_once:
        _check_exactly_once(name, settings, lines)
    if settings.start == "lazy" and any(line.direction != "out" for line in lines):
        raise UserError(f'bridge.{name}.start = "lazy" is for lines out alone', ExitCode.USAGE)
    return lines


def _check_exactly_once(name: str, settings: MqttBridge, lines: list[TopicLine]) -> None:
    problem = ""
    if any(line.qos != 2 for line in lines):
        problem = "QoS 2 in each of topics"
    elif settings.clean_start or settings.remote.clean_start:
        problem = "sessions that stay: clean_start = false on both sides"
    elif not settings.session_expiry_s or not settings.remote.session_expiry_s:
        problem = "sessions that stay: session_expiry_s above 0 on both sides"
    elif settings.group:
        problem = "one process: its spool is not that of the others in the group"
    if problem:
        raise UserError(f"bridge.{name}.exactly_once needs {problem}", ExitCode.USAGE)


def build_mqtt_rules(settings: MqttBridge, lines: list[TopicLine]) -> tuple[MqttRules, MqttRules]:
    """Return the rules out of the cluster, and into it."""
    keeps = settings.retain == "as_published"
    return (
        MqttRules(lines, "out", settings.client_id, retained=keeps),
        MqttRules(lines, "in", settings.client_id, retained=keeps),
    )


def make_flow(
    settings: MqttBridge, direction: str, rules: MqttRules, acknowledge: Callable[[int], None], random: Random
) -> BridgeFlow:
    """Return one direction."""
    bounds = PumpBounds(settings.window_messages, settings.window_bytes, settings.give_up_s, pipelined=True)
    return BridgeFlow(direction, BridgePump(bounds, random), rules.apply_rules, acknowledge, trio.current_time, wall_ms)


def subscriptions(filters: dict[str, int]) -> list[SubscriptionRequest]:
    """Return the subscriptions: No Local, Retain As Published, retained messages only for new subscriptions."""
    return [SubscriptionRequest(name, qos, True, True, 1) for name, qos in filters.items()]


def build_mqtt(name: str, settings: MqttBridge, gateway: GatewaySettings) -> Bridge:
    """Return a bridge, not started.

    Raises:
      UserError: A configuration error.
    """
    lines, random = parse_lines(name, settings), Random()
    endpoints = {
        "cluster": cluster_endpoint(name, settings),
        "remote": remote_endpoint(name, settings, settings.remote),
    }
    filters_by_side: dict[str, dict[str, int]] = {"cluster": {}, "remote": {}}
    for line in lines:
        if line.direction != "in":
            _add_filter(filters_by_side["cluster"], line.local_filter, line.qos)
        if line.direction != "out":
            _add_filter(filters_by_side["remote"], line.remote_filter, line.qos)
    ends = {side: _end(side, endpoints[side], list(filters_by_side[side])) for side in endpoints}
    out_rules, in_rules = build_mqtt_rules(settings, lines)
    tasks: list[Task] = []
    flows = []
    for direction, rules, source, sink in (
        ("out", out_rules, "cluster", "remote"),
        ("in", in_rules, "remote", "cluster"),
    ):
        if filters_by_side[source]:
            flow = make_flow(settings, direction, rules, ends[source].finish, random)
            ends[source].flow = flow
            letters = build_dead_letters(name, settings, ends["cluster"], flow, tasks)
            flow.connect(PublishingSink(ends[sink], flow, wall_ms, settings.client_id), letters)
            flows.append(flow)
    sessions: dict[str, ClientSession] = {}
    exchanges = SinkExchanges(ends, sessions, flows, settings.client_id) if settings.exactly_once else None
    clients: dict[str, GatewayClient] = {}
    for side, end in ends.items():
        endpoints[side].full_qos = exchanges is not None
        keep = partial(exchanges.keep, side) if exchanges is not None else None
        options = endpoints[side].options(subscriptions(filters_by_side[side]))
        clients[side] = GatewayClient(options, end, random, keep=keep)
        sessions[side] = clients[side].session
        if exchanges is not None:
            end.when_done = partial(exchanges.finished, side)
    for side, end in ends.items():
        end.client = clients[side]
        if settings.notifications and not (side == "cluster" and settings.group):  # a group's will is used for presence
            _announce_state(end, endpoints[side])
        if endpoints[side].version != 5:
            _alternate_level(end, endpoints[side])
    schedule = RemoteSchedule(settings, ends["remote"], clients["remote"], flows)
    tasks += [
        clients["cluster"].run,
        {"automatic": clients["remote"].run, "once": schedule.run_once, "lazy": schedule.run_lazy}[settings.start],
    ]
    sides: list[BridgeSide] = list(ends.values())
    if exchanges is not None:
        owner = f"bridge {settings.client_id}"
        path, bytes_max = spool_path(gateway.data_dir, name), SPOOL_WINDOWS * settings.window_bytes + SPOOL_BYTES_MIN
        spool = ExactlyOnce(path, owner, bytes_max, exchanges, clients)
        sides.append(spool)
        tasks = [partial(spool.run, tasks)]
    checks = [
        partial(check_endpoint, side, endpoints[side], subscriptions(filters_by_side[side])) for side in endpoints
    ]
    cluster = ClusterSide(ends["cluster"], endpoints["cluster"])
    return Bridge(name, settings.kind, flows, sides, tasks, list(clients.values()), checks, cluster)


def _add_filter(filters_by_side: dict[str, int], topic_filter: str, qos: int) -> None:
    filters_by_side[topic_filter] = max(qos, filters_by_side.get(topic_filter, 0))


def _end(side: str, endpoint: BrokerEndpoint, filters: list[str]) -> MqttEnd:
    end = MqttEnd(side, trio.current_time, wall_ms, filters, has_no_local=endpoint.version == 5)
    end.version = endpoint.version
    return end


def _announce_state(end: MqttEnd, endpoint: BrokerEndpoint) -> None:
    """Publish "1" on each connection, and "0" by the will."""
    topic = f"$SYS/broker/connection/{endpoint.client_id}/state"
    endpoint.will = Will(topic, b"0", 1, True)
    publisher = end.publisher(lambda _token, _code: None)

    def publish_state() -> None:
        if end.has_capacity:
            publisher.publish(Publish(topic, b"1", 1, True), 0)

    end.when_up.append(publish_state)


def _alternate_level(end: MqttEnd, endpoint: BrokerEndpoint) -> None:
    """Alternate between bridge and client protocol level after failed attempts; as a client, echoes must be
    detected.
    """
    was_connected = False

    def up() -> None:
        nonlocal was_connected
        was_connected = True
        end.has_no_local = endpoint.as_bridge

    def down() -> None:
        if not was_connected:
            endpoint.as_bridge = not endpoint.as_bridge

    end.when_up.append(up)
    end.when_down.append(down)


class RemoteSchedule:
    """Schedule of the remote connection for ``start`` = "once" and "lazy"."""

    def __init__(self, settings: MqttBridge, end: MqttEnd, client: GatewayClient, flows: list[BridgeFlow]) -> None:
        self._settings, self._end, self._client, self._flows = settings, end, client, flows

    async def run_once(self) -> None:
        """Run until the first connection ends."""
        ended = trio.Event()
        self._end.when_up.append(lambda: self._end.when_down.append(ended.set))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._client.run)
            await ended.wait()
            nursery.cancel_scope.cancel()

    async def run_lazy(self) -> None:
        """Connect when enough messages are open and disconnect after an idle time, until cancelled."""
        self._end.disconnected("lazy: too few messages wait")
        while True:
            while self._count_open() < self._settings.lazy_messages:
                await trio.sleep(LAZY_CHECK_S)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._client.run)
                idle_since, seen = trio.current_time(), -1
                while trio.current_time() - idle_since < self._settings.lazy_idle_s:
                    await trio.sleep(LAZY_CHECK_S)
                    delivered = sum(flow.pump.counts["received"] for flow in self._flows)
                    if delivered != seen or self._count_open():
                        idle_since, seen = trio.current_time(), delivered
                await self._client.leave()
                nursery.cancel_scope.cancel()
            self._end.disconnected("lazy: too few messages wait")

    def _count_open(self) -> int:
        return sum(flow.pump.open_messages for flow in self._flows)


SPOOL_WINDOWS = 8  # two directions, each at twice its window, in the tables and in the WAL
SPOOL_BYTES_MIN = 64 << 20
LAZY_CHECK_S = 0.5  # interval of checks of open messages
