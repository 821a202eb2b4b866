"""The kinds of bridges: each has a settings model and a builder.

Validates conflicts between bridges of one process: no two share a client ID at one broker, and no two form a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from conf.bridge_config import BridgeConfig
from conf.bridge_settings import BridgeSettings, GatewaySettings, MqttBridge
from conf.errors import ExitCode, UserError
from gateways.bridges.files_sink import build_files
from gateways.bridges.kafka_sink import build_kafka_sink
from gateways.bridges.kafka_source import build_kafka_source
from gateways.bridges.mqtt_bridge import build_mqtt, parse_lines
from gateways.bridges.redis_streams import build_redis_sink, build_redis_source
from gateways.bridges.running import Bridge
from gateways.bridges.standby import Standby
from gateways.bridges.topic_lines import find_loop
from gateways.bridges.webhook import build_webhook

__all__ = ["build_all"]

BUILDERS: Mapping[str, Callable[[str, Any, GatewaySettings], Bridge]] = {
    "mqtt": build_mqtt,
    "kafka-sink": build_kafka_sink,
    "kafka-source": build_kafka_source,
    "webhook": build_webhook,
    "redis-sink": build_redis_sink,
    "redis-source": build_redis_source,
    "files": build_files,
}


def build_all(config: BridgeConfig) -> list[Bridge]:
    """Return every bridge, not started.

    Raises:
      UserError: All configuration errors, one line each; exit code 2.
    """
    mistakes, bridges = _find_shared_client_ids(config.bridges), []
    for name, settings in config.bridges.items():
        try:
            bridges.append(_build(name, settings, config.gateway))
        except UserError as error:
            mistakes.append(error.message)
    if not mistakes:
        mistakes = _find_loops(config.bridges)
    if mistakes:
        raise UserError("\n".join(mistakes), ExitCode.USAGE)
    return bridges


def _build(name: str, settings: BridgeSettings, gateway: GatewaySettings) -> Bridge:
    build = partial(BUILDERS[_kind(settings)], name, settings, gateway)
    bridge = build()
    if settings.group:
        if getattr(settings, "shares", 1) > 1:
            raise UserError(f"bridge.{name}: shares need no group: the other members continue", ExitCode.USAGE)
        topic = settings.presence or f"$gateway/presence/{settings.group}"
        bridge.tasks[:] = [Standby(bridge, build, topic, gateway.id).run]
    return bridge


def _kind(settings: BridgeSettings) -> str:
    kind = getattr(settings, "kind", "")
    assert isinstance(kind, str)
    return kind


def _find_shared_client_ids(bridges: Mapping[str, BridgeSettings]) -> list[str]:
    mistakes = []
    users: dict[tuple[str, str], str] = {}
    for name, settings in bridges.items():
        uses = [(address, settings.client_id) for address in settings.cluster]
        if isinstance(settings, MqttBridge):
            remote = settings.remote
            uses += [(address, remote.client_id or settings.client_id) for address in remote.addresses]
        for use in uses:
            other = users.setdefault(use, name)
            if other != name:
                mistakes.append(f"bridge.{name}: client ID {use[1]!r} at {use[0]} is also used by bridge.{other}")
                break
    return mistakes


def _find_loops(bridges: Mapping[str, BridgeSettings]) -> list[str]:
    """Find two bridges between the same two brokers that form a loop."""
    mistakes = []
    between = [(name, each) for name, each in bridges.items() if isinstance(each, MqttBridge)]
    for number, (name, one) in enumerate(between):
        for other_name, other in between[:number]:
            if set(one.cluster) & set(other.cluster) and set(one.remote.addresses) & set(other.remote.addresses):
                loop = find_loop(parse_lines(name, one), parse_lines(other_name, other))
                if loop:
                    mistakes.append(f"bridge.{name} and bridge.{other_name} form a loop: {loop}")
    return mistakes
