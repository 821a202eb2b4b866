"""Bridges with rules, out of the cluster or into it: the cluster's end, the rules from settings, and a sink or source.

Each kind supplies the remote side; the rest is shared by all kinds.
"""

from __future__ import annotations

import base64
import importlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

import trio

from conf.bridge_settings import BridgeSettings, MapBridge, MapSettings, SinkBridge
from conf.errors import ExitCode, UserError
from gateways.bridges.broker_endpoint import cluster_endpoint
from gateways.bridges.dead_letters import build_dead_letters
from gateways.bridges.endpoint_check import check_endpoint
from gateways.bridges.flow import BridgeFlow, Sink
from gateways.bridges.message import BridgeMessage, user_properties
from gateways.bridges.mqtt_end import MqttEnd, PublishingSink
from gateways.bridges.predicates import Predicate
from gateways.bridges.pump import BridgePump, PumpBounds
from gateways.bridges.rules import BridgeRule, Rules, Transform
from gateways.bridges.running import Bridge, BridgeFinding, BridgeSide, ClusterSide, wall_ms
from gateways.bridges.templates import Template
from gateways.client import GatewayClient
from mqtt.errors import MqttError
from mqtt.packets import SubscriptionRequest
from mqtt.properties import PropertyId
from mqtt.publisher_properties import CLIENT_ID, NAMES, USER_NAME
from mqtt.topics import validate_topic_filter

__all__ = ["RemoteEnd", "RemoteSource", "build_rules", "build_sink", "build_source", "to_json"]

Fields = Mapping[str, Callable[[BridgeMessage], str]]


class RemoteEnd(Sink, BridgeSide, Protocol):
    """The remote side of a bridge out of the cluster."""

    async def run(self) -> None:
        """Do background work until cancelled."""

    async def check(self) -> list[BridgeFinding]:
        """Check the connection without moving messages."""


class RemoteSource(BridgeSide, Protocol):
    """The remote side of a bridge into the cluster."""

    def finish(self, reference: int) -> None:
        """Acknowledge a finished message."""

    async def run(self) -> None:
        """Pass messages to the flow until cancelled."""

    async def check(self) -> list[BridgeFinding]:
        """Check the connection without moving messages."""


def build_sink(name: str, settings: SinkBridge, pipelined: bool, make: Callable[[BridgeFlow], RemoteEnd]) -> Bridge:
    """Return a bridge out of the cluster, with one member and one flow per share.

    Raises:
      UserError: A configuration error.
    """
    rules = build_rules(name, settings.map)
    named = tuple(rule.topic_filter for rule in rules if rule.names_publisher)
    if named and settings.protocol != "5":
        text = f"bridge.{name}: {{client_id}} and {{user_name}} need protocol 5, whose messages have user properties"
        raise UserError(text, ExitCode.USAGE)
    filters: dict[str, int] = {}
    for each in settings.map:
        filters[each.filter] = max(each.qos, filters.get(each.filter, 0))
    bridge = Bridge(name, getattr(settings, "kind", ""), [], [], [])
    checks: list[Callable[[], Awaitable[list[BridgeFinding]]]] = []
    for number in range(settings.shares):
        endpoint = cluster_endpoint(name, settings)
        shared = settings.shares > 1
        if shared:
            endpoint.client_id = f"{settings.client_id}-{number}"
        requests = [
            SubscriptionRequest(
                f"$share/bridge-{name}/{each}" if shared else each, qos, not shared, True, 0 if shared else 1
            )
            for each, qos in filters.items()
        ]
        end = MqttEnd("cluster", trio.current_time, wall_ms)
        end.version, end.reference_as = endpoint.version, endpoint.client_id
        end.named_filters = endpoint.named_filters = named if settings.protocol == "5" else None
        pump = BridgePump(_bounds(settings, pipelined), Random())
        direction = f"out-{number}" if shared else "out"
        flow = BridgeFlow(direction, pump, Rules(rules).apply_rules, end.finish, trio.current_time, wall_ms)
        client = GatewayClient(endpoint.options(requests), end, Random())
        end.flow, end.client = flow, client
        other = make(flow)
        flow.connect(other, build_dead_letters(name, settings, end, flow, bridge.tasks))
        bridge.flows.append(flow)
        bridge.sides += [end, other]
        bridge.tasks += [client.run, other.run]
        bridge.clients.append(client)
        if number == 0:
            bridge.cluster = ClusterSide(end, endpoint)
            checks += [partial(check_endpoint, "cluster", endpoint, requests), other.check]
    bridge.checks = checks
    return bridge


def build_source(
    name: str, settings: MapBridge, make: Callable[[BridgeFlow], RemoteSource], fields: Fields | None = None
) -> Bridge:
    """Return a bridge into the cluster.

    Raises:
      UserError: A configuration error.
    """
    rules = Rules(build_rules(name, settings.map, by_filter=False, fields=fields), by_filter=False)
    endpoint = cluster_endpoint(name, settings)
    end = MqttEnd("cluster", trio.current_time, wall_ms)
    end.version = endpoint.version
    bridge = Bridge(name, getattr(settings, "kind", ""), [], [], [])
    pump = BridgePump(_bounds(settings, pipelined=True), Random())
    flow = BridgeFlow(
        "in", pump, rules.apply_rules, lambda reference: source.finish(reference), trio.current_time, wall_ms
    )
    source = make(flow)
    client = GatewayClient(endpoint.options(()), end, Random())
    end.client = client
    flow.connect(PublishingSink(end, flow, wall_ms), build_dead_letters(name, settings, end, flow, bridge.tasks))
    bridge.flows.append(flow)
    bridge.sides += [end, source]
    bridge.tasks += [client.run, source.run]
    bridge.clients.append(client)
    bridge.cluster = ClusterSide(end, endpoint)
    bridge.checks = [partial(check_endpoint, "cluster", endpoint, ()), source.check]
    return bridge


def _bounds(settings: BridgeSettings, pipelined: bool) -> PumpBounds:
    return PumpBounds(settings.window_messages, settings.window_bytes, settings.give_up_s, pipelined)


def build_rules(
    name: str, maps: Sequence[MapSettings], *, by_filter: bool = True, fields: Fields | None = None
) -> list[BridgeRule]:
    """Return the rules of a bridge.

    Raises:
      UserError: The first error of each rule.
    """
    rules, mistakes = [], []
    for number, each in enumerate(maps, 1):
        try:
            rules.append(_build_rule(each, by_filter, fields))
        except (ValueError, MqttError) as error:
            mistakes.append(f"bridge.{name}.map {number}: {error}")
    if mistakes:
        raise UserError("\n".join(mistakes), ExitCode.USAGE)
    return rules


def _build_rule(each: MapSettings, by_filter: bool, fields: Fields | None) -> BridgeRule:
    if by_filter:
        validate_topic_filter(each.filter)
        if each.filter.startswith("$share/"):
            raise ValueError(f"{each.filter!r}: write shares = N instead of a shared subscription")
    place = each.filter if by_filter else ""
    transform = _import_function(each.transform) if each.transform else None
    if each.format == "json" and transform is not None:
        raise ValueError('format = "json" and transform exclude each other')
    return BridgeRule(
        each.filter,
        Template(each.topic, place, fields),
        Template(each.key, place, fields) if each.key else None,
        tuple((header, Template(text, place, fields)) for header, text in each.headers.items()),
        Predicate(each.where, time.thread_time) if each.where else None,
        transform,
        each.qos,
        each.retain,
        partial(to_json, from_cluster=by_filter) if each.format == "json" else None,
    )


def _import_function(text: str) -> Transform:
    module, _, name = text.partition(":")
    try:
        function: Transform = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"transform {text!r}: {error}") from None
    return function


def to_json(message: BridgeMessage, payload: bytes | None = None, *, from_cluster: bool = True) -> bytes:
    """Return a message as one object: topic, qos, retain, payload (base64), properties, client_id, user_name, at_ms.

    ``client_id`` and ``user_name`` are null unless an edge names the publisher; "" is an unverified client.

    Args:
      message: Message of the bridge's source.
      payload: Replaces the message's payload.
      from_cluster: An edge sent it; publisher names from other sources are ignored.
    """
    properties = user_properties(message.properties)
    named = dict(reversed(properties))
    shown: dict[str, object] = {"user_properties": [pair for pair in properties if pair[0] not in NAMES]}
    for identifier, value in message.properties.items():
        if identifier in JSON_PROPERTIES:
            key = PropertyId(identifier).name.lower()
            shown[key] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return json.dumps(
        {
            "topic": message.topic,
            "qos": message.qos,
            "retain": message.retain,
            "payload": base64.b64encode(message.payload if payload is None else payload).decode(),
            "properties": shown,
            "client_id": named.get(CLIENT_ID) if from_cluster else None,
            "user_name": named.get(USER_NAME) if from_cluster else None,
            "at_ms": message.at_ms,
        },
        ensure_ascii=False,
    ).encode()


JSON_PROPERTIES = (
    PropertyId.PAYLOAD_FORMAT_INDICATOR,
    PropertyId.MESSAGE_EXPIRY_INTERVAL,
    PropertyId.CONTENT_TYPE,
    PropertyId.RESPONSE_TOPIC,
    PropertyId.CORRELATION_DATA,
)
