"""The configuration of a bridge process: its sections, and a model for the tables in its file.

Precedence and error lines are in ``conf/sources.py``; models in ``conf/bridge_settings.py``.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from conf.bridge_settings import BRIDGE_KINDS, BridgeSettings, GatewaySettings, kind_of
from conf.errors import ExitCode, UserError
from conf.node_settings import NAME_PATTERN, LogSettings, MetricsSettings
from conf.private_files import check_file
from conf.sources import FILE_BYTES_MAX, load_rooms

__all__ = ["BridgeConfig", "load_bridges"]

BRIDGES_MAX = 256  # of one process


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """Configuration of one process; ``bridges`` by name, in the order of the file."""

    gateway: GatewaySettings
    bridges: Mapping[str, BridgeSettings]
    metrics: MetricsSettings
    logs: LogSettings


def load_bridges(file: Path, *, environment: Mapping[str, str], flags: Sequence[str] = ()) -> BridgeConfig:
    """Return the configuration: defaults < file < environment < flags.

    Raises:
        UserError: Every mistake, one line each; exit code 2.
    """
    rooms: dict[str, type[BaseModel]] = {
        "gateway": GatewaySettings,
        "bridge": _section(file),
        "metrics": MetricsSettings,
        "logs": LogSettings,
    }
    loaded = load_rooms(rooms, list(rooms), defaults={}, file=file, environment=environment, flags=flags)
    found: dict[str, Any] = dict(loaded.rooms)
    bridges = {name: getattr(found["bridge"], name) for name in type(found["bridge"]).model_fields}
    if not bridges:
        raise UserError(f"{file}: no bridge: write [bridge.<name>]", ExitCode.USAGE)
    return BridgeConfig(found["gateway"], bridges, found["metrics"], found["logs"])


def _section(file: Path) -> type[BaseModel]:
    """Return a model with one field for each table below ``bridge``."""
    try:
        check_file(file, "settings", FILE_BYTES_MAX)  # a pipe would block the process
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("bridge", {})
    except (OSError, UserError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError):
        tables = None  # the file's reader reports the error
    mistakes = []
    fields: dict[str, Any] = {}
    for name, table in tables.items() if isinstance(tables, dict) else ():
        kind = kind_of(table)
        if not re.match(NAME_PATTERN, name) or len(name) > 64:
            mistakes.append(f"{file}: bridge {name!r}: a name consists of letters, digits, '.', '_' and '-'")
        elif kind not in BRIDGE_KINDS:
            given = f"kind {kind!r} is none of" if kind else "kind is missing, one of"
            mistakes.append(f"{file}: bridge.{name}: {given} {', '.join(BRIDGE_KINDS)}")
        else:
            fields[name] = (BRIDGE_KINDS[kind], ...)
    if len(fields) > BRIDGES_MAX:
        mistakes.append(f"{file}: {len(fields)} bridges; one process has at most {BRIDGES_MAX}")
    if mistakes:
        raise UserError("\n".join(mistakes), ExitCode.USAGE)
    return create_model("Bridges", __config__=ConfigDict(frozen=True, extra="forbid"), **fields)
