"""The configuration of a gateway's process: its own section and those of every gateway.

Precedence and error lines are in ``conf/sources.py``. Bridges have one section with many kinds:
``conf/bridge_config.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from conf.bridge_settings import GatewaySettings
from conf.node_settings import LogSettings, MetricsSettings
from conf.sources import load_rooms

__all__ = ["GatewayConfig", "load_gateway"]

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class GatewayConfig(Generic[T]):
    """Configuration of one process; ``settings`` are those of its kind of gateway."""

    gateway: GatewaySettings
    settings: T
    metrics: MetricsSettings
    logs: LogSettings


def load_gateway(
    kind: tuple[str, type[T]],
    defaults: Mapping[str, Mapping[str, Any]],
    file: Path | None,
    *,
    environment: Mapping[str, str],
    flags: Sequence[str] = (),
) -> GatewayConfig[T]:
    """Return the configuration: defaults < file < environment < flags.

    Args:
        kind: The section's name in the file, and its model.
        defaults: Of this kind of gateway, by section and key.

    Raises:
        UserError: Every mistake, one line each; exit code 2.
    """
    name, model = kind
    rooms: dict[str, type[BaseModel]] = {
        "gateway": GatewaySettings,
        name: model,
        "metrics": MetricsSettings,
        "logs": LogSettings,
    }
    loaded = load_rooms(rooms, list(rooms), defaults=defaults, file=file, environment=environment, flags=flags)
    found: dict[str, Any] = dict(loaded.rooms)
    return GatewayConfig(found["gateway"], found[name], found["metrics"], found["logs"])
