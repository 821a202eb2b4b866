"""Dead-letter target of a flow, from its setting: a topic at the cluster, or a file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from conf.bridge_settings import BridgeSettings
from gateways.bridges.dead_letter_file import DeadLetterFile
from gateways.bridges.flow import BridgeFlow, DeadLetters
from gateways.bridges.mqtt_end import MqttEnd, PublishingDeadLetters

__all__ = ["Task", "build_dead_letters"]

Task = Callable[[], Awaitable[None]]


def build_dead_letters(
    name: str, settings: BridgeSettings, cluster: MqttEnd, flow: BridgeFlow, tasks: list[Task]
) -> DeadLetters:
    """Return the dead-letter target of a flow; a file's writer is added to the tasks."""
    kind, _, place = (settings.dead_letter or f"topic:bridge/{name}/rejected").partition(":")
    if kind == "file":
        file = DeadLetterFile(Path(place), flow, settings.dead_letter_bytes_max)
        tasks.append(file.run)
        return file
    return PublishingDeadLetters(cluster, flow, place)
