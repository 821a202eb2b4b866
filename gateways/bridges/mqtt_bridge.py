"""A bridge between the cluster and another broker: two ends, two directions, and when the other broker is visited.

Both sides keep a session for the bridge, so that nothing is stored here: what one side has not taken, the other one has
not been acknowledged for. Only exactly-once needs a spool: which exchanges of QoS 2 are open (``exactly_once.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import trio

from conf.bridge_settings import GatewaySettings, MqttBridge
from conf.errors import ExitCode, UserError
from gateways.bridges.broker_endpoint import BrokerEndpoint, cluster_door, remote_door
from gateways.bridges.dead_letters import Task, dead_letters_of
from gateways.bridges.endpoint_check import check_door
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

__all__ = ["build_mqtt", "lines_of", "make_flow", "mqtt_rules_of", "subscriptions"]


def lines_of(name: str, settings: MqttBridge) -> list[TopicLine]:
    """Return the lines of a bridge.

    Raises:
        UserError: A line that is none.
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


def mqtt_rules_of(settings: MqttBridge, lines: list[TopicLine]) -> tuple[MqttRules, MqttRules]:
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
    return BridgeFlow(direction, BridgePump(bounds, random), rules.judge, acknowledge, trio.current_time, wall_ms)


def subscriptions(filters: dict[str, int]) -> list[SubscriptionRequest]:
    """Return what is subscribed: no message of our own, RETAIN as it was, retained messages once."""
    return [SubscriptionRequest(name, qos, True, True, 1) for name, qos in filters.items()]


def build_mqtt(name: str, settings: MqttBridge, gateway: GatewaySettings) -> Bridge:
    """Return a bridge that is not running yet.

    Raises:
        UserError: A mistake of the configuration.
    """
    lines, random = lines_of(name, settings), Random()
    doors = {"cluster": cluster_door(name, settings), "remote": remote_door(name, settings, settings.remote)}
    wanted: dict[str, dict[str, int]] = {"cluster": {}, "remote": {}}
    for line in lines:
        if line.direction != "in":
            _want(wanted["cluster"], line.local_filter, line.qos)
        if line.direction != "out":
            _want(wanted["remote"], line.remote_filter, line.qos)
    ends = {side: _end(side, doors[side], list(wanted[side])) for side in doors}
    out_rules, in_rules = mqtt_rules_of(settings, lines)
    tasks: list[Task] = []
    flows = []
    for direction, rules, source, sink in (
        ("out", out_rules, "cluster", "remote"),
        ("in", in_rules, "remote", "cluster"),
    ):
        if wanted[source]:
            flow = make_flow(settings, direction, rules, ends[source].finish, random)
            ends[source].flow = flow
            letters = dead_letters_of(name, settings, ends["cluster"], flow, tasks)
            flow.connect(PublishingSink(ends[sink], flow, wall_ms, settings.client_id), letters)
            flows.append(flow)
    sessions: dict[str, ClientSession] = {}
    exchanges = SinkExchanges(ends, sessions, flows, settings.client_id) if settings.exactly_once else None
    clients: dict[str, GatewayClient] = {}
    for side, end in ends.items():
        doors[side].full_qos = exchanges is not None
        keep = partial(exchanges.keep, side) if exchanges is not None else None
        options = doors[side].options(subscriptions(wanted[side]))
        clients[side] = GatewayClient(options, end, random, keep=keep)
        sessions[side] = clients[side].session
        if exchanges is not None:
            end.when_done = partial(exchanges.finished, side)
    for side, end in ends.items():
        end.client = clients[side]
        if settings.notifications and not (side == "cluster" and settings.group):  # whose will is the group's
            _notify(end, doors[side])
        if doors[side].version != 5:
            _try_level(end, doors[side])
    visit = CheckResult(settings, ends["remote"], clients["remote"], flows)
    tasks += [
        clients["cluster"].run,
        {"automatic": clients["remote"].run, "once": visit.once, "lazy": visit.lazily}[settings.start],
    ]
    sides: list[BridgeSide] = list(ends.values())
    if exchanges is not None:
        owner = f"bridge {settings.client_id}"
        path, bytes_max = spool_path(gateway.data_dir, name), SPOOL_WINDOWS * settings.window_bytes + SPOOL_BYTES_MIN
        memory = ExactlyOnce(path, owner, bytes_max, exchanges, clients)
        sides.append(memory)
        tasks = [partial(memory.run, tasks)]
    checks = [partial(check_door, side, doors[side], subscriptions(wanted[side])) for side in doors]
    cluster = ClusterSide(ends["cluster"], doors["cluster"])
    return Bridge(name, settings.kind, flows, sides, tasks, list(clients.values()), checks, cluster)


def _want(wanted: dict[str, int], topic_filter: str, qos: int) -> None:
    wanted[topic_filter] = max(qos, wanted.get(topic_filter, 0))


def _end(side: str, door: BrokerEndpoint, filters: list[str]) -> MqttEnd:
    end = MqttEnd(side, trio.current_time, wall_ms, filters, has_no_local=door.version == 5)
    end.version = door.version
    return end


def _notify(end: MqttEnd, door: BrokerEndpoint) -> None:
    """Say on each connection that it stands, and let the will say that it does not."""
    topic = f"$SYS/broker/connection/{door.client_id}/state"
    door.will = Will(topic, b"0", 1, True)
    publisher = end.publisher(lambda _token, _code: None)

    def say() -> None:
        if end.has_room:
            publisher.publish(Publish(topic, b"1", 1, True), 0)

    end.when_up.append(say)


def _try_level(end: MqttEnd, door: BrokerEndpoint) -> None:
    """Come as a bridge first; a broker that does not take that is visited as a client, whose echoes are told apart."""
    stood = False

    def up() -> None:
        nonlocal stood
        stood = True
        end.has_no_local = door.as_bridge

    def down() -> None:
        if not stood:
            door.as_bridge = not door.as_bridge

    end.when_up.append(up)
    end.when_down.append(down)


class CheckResult:
    """When the other broker is visited, where that is not always."""

    def __init__(self, settings: MqttBridge, end: MqttEnd, client: GatewayClient, flows: list[BridgeFlow]) -> None:
        self._settings, self._end, self._client, self._flows = settings, end, client, flows

    async def once(self) -> None:
        """Stay until the first connection ends."""
        over = trio.Event()
        self._end.when_up.append(lambda: self._end.when_down.append(over.set))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._client.run)
            await over.wait()
            nursery.cancel_scope.cancel()

    async def lazily(self) -> None:
        """Come when enough messages wait, and leave when none came for a while, for ever."""
        self._end.parted("lazy: too few messages wait")
        while True:
            while self._waiting() < self._settings.lazy_messages:
                await trio.sleep(LAZY_LOOK_S)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._client.run)
                idle_since, seen = trio.current_time(), -1
                while trio.current_time() - idle_since < self._settings.lazy_idle_s:
                    await trio.sleep(LAZY_LOOK_S)
                    delivered = sum(flow.pump.counts["received"] for flow in self._flows)
                    if delivered != seen or self._waiting():
                        idle_since, seen = trio.current_time(), delivered
                await self._client.leave()
                nursery.cancel_scope.cancel()
            self._end.parted("lazy: too few messages wait")

    def _waiting(self) -> int:
        return sum(flow.pump.open_messages for flow in self._flows)


SPOOL_WINDOWS = 8  # two directions, each overfull, in the tables and in the log before them
SPOOL_BYTES_MIN = 64 << 20
LAZY_LOOK_S = 0.5  # between two looks at what waits
