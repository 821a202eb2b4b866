"""All settings of a process, from all sources: the configuration object for each tier.

Defines the sections of a tier and their defaults; models are in ``conf/*_settings.py``, precedence and error lines in
``conf/sources.py``. The section ``membership`` has its model in a package that this one may not import, so the caller
passes it.
"""

import importlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from conf.node_settings import LogSettings, MetricsSettings, NodeSettings
from conf.sources import LoadedConfig, load_rooms

if TYPE_CHECKING:
    from conf.admin_settings import AdminSettings
    from conf.balance_settings import BalanceSettings
    from conf.edge_settings import EdgeSettings, ListenerSettings
    from conf.router_settings import RouterSettings
    from conf.storage_settings import StorageSettings

__all__ = [
    "ADMIN",
    "BALANCE",
    "ROOMS",
    "TIERS",
    "AdminConfig",
    "BalanceConfig",
    "EdgeConfig",
    "EdgeSettings",
    "ListenerSettings",
    "LogSettings",
    "MetricsSettings",
    "NodeConfig",
    "NodeSettings",
    "RouterConfig",
    "RouterSettings",
    "StorageConfig",
    "StorageSettings",
    "load",
]

TIERS = ("edge", "router", "storage")
BALANCE = "balance"  # a process without a tier, and its section
ADMIN = "admin"  # likewise
LINK_PORTS = {"admin": 0, "balance": 0, "edge": 7949, "router": 7947, "storage": 7948}
GROUP_NICE = {"admin": 5, "balance": 0, "edge": 0, "router": 5, "storage": 5}  # docs/adr/0060-who-waits-for-the-core.md
SLICE_US = {"admin": 0, "balance": 0, "edge": 100, "router": 0, "storage": 0}
PLACES = {  # models of tiers, imported on demand: a process has one tier, and a model takes up to 1.3 MiB
    "AdminSettings": "conf.admin_settings",
    "BalanceSettings": "conf.balance_settings",
    "EdgeSettings": "conf.edge_settings",
    "ListenerSettings": "conf.edge_settings",
    "RouterSettings": "conf.router_settings",
    "StorageSettings": "conf.storage_settings",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(PLACES[name]), name)


class _Sections(Mapping[str, type[BaseModel]]):
    """The model of each section, by name."""

    def __init__(self, models: Mapping[str, str | type[BaseModel]]) -> None:
        self._models = models

    def __getitem__(self, room: str) -> type[BaseModel]:
        model = self._models[room]
        return cast("type[BaseModel]", __getattr__(model)) if isinstance(model, str) else model

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def including(self, room: str, model: type[BaseModel]) -> "_Sections":
        """Return the sections with one more."""
        return _Sections({**self._models, room: model})


ROOMS = _Sections(
    {
        "node": NodeSettings,
        "edge": "EdgeSettings",
        "router": "RouterSettings",
        "storage": "StorageSettings",
        "balance": "BalanceSettings",
        "admin": "AdminSettings",
        "metrics": MetricsSettings,
        "logs": LogSettings,
    }
)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of every tier."""

    node: NodeSettings
    membership: Any  # membership.settings.MembershipSettings
    metrics: MetricsSettings
    logs: LogSettings
    sources: Mapping[str, str]  # "edge.receive_maximum" -> source of the value; defaults are not listed
    # Reads and validates all sources again; None: this process does not reload.
    again: "Callable[[], NodeConfig] | None" = field(default=None, kw_only=True, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class EdgeConfig(NodeConfig):
    """Argument of ``edge.service.main``."""

    edge: "EdgeSettings"


@dataclass(frozen=True, slots=True)
class RouterConfig(NodeConfig):
    """Argument of ``router.service.main``."""

    router: "RouterSettings"


@dataclass(frozen=True, slots=True)
class StorageConfig(NodeConfig):
    """Argument of ``storage.service.main``."""

    storage: "StorageSettings"


@dataclass(frozen=True, slots=True)
class BalanceConfig(NodeConfig):
    """Argument of ``gateways.balancer.service.main``."""

    balance: "BalanceSettings"


@dataclass(frozen=True, slots=True)
class AdminConfig(NodeConfig):
    """Argument of ``admin.http.service.main``."""

    admin: "AdminSettings"


def load(
    tier: str,
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    flags: Sequence[str] = (),
    membership: type[BaseModel] | None = None,
) -> NodeConfig:
    """Return a tier's configuration: defaults < file < environment < flags.

    Args:
        tier: "edge", "router" or "storage"; or "balance" or "admin", which are not tiers.
        file: TOML; None for defaults.
        environment: ``os.environ``, or a test's.
        flags: ``section.key=value`` each.
        membership: Model of the section ``membership``; None if it is not needed.

    Returns:
        EdgeConfig, RouterConfig, StorageConfig, BalanceConfig or AdminConfig.

    Raises:
        UserError: Every mistake, one line each; exit code 2.
    """
    rooms = ROOMS if membership is None else ROOMS.including("membership", membership)
    own = ["node", tier, "metrics", "logs"] + (["membership"] if membership and tier != ADMIN else [])
    loaded = load_rooms(rooms, own, defaults=tier_defaults(tier), file=file, environment=environment, flags=flags)
    return _composite(tier, loaded)


def tier_defaults(tier: str) -> dict[str, dict[str, object]]:
    """Return the defaults that depend on the tier."""
    host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname()).strip("-") or "host"
    node = {"id": f"{tier}-{host}"[:64], "data_dir": f"data/{tier}", "link_port": LINK_PORTS[tier]}
    return {"node": {**node, "group_nice": GROUP_NICE[tier], "slice_us": SLICE_US[tier]}}


def _composite(tier: str, loaded: LoadedConfig) -> NodeConfig:
    rooms: dict[str, Any] = loaded.rooms
    common = {
        "node": rooms["node"],
        "membership": rooms.get("membership"),
        "metrics": rooms["metrics"],
        "logs": rooms["logs"],
        "sources": loaded.sources,
    }
    if tier == "edge":
        return EdgeConfig(**common, edge=rooms["edge"])
    if tier == "router":
        return RouterConfig(**common, router=rooms["router"])
    if tier == ADMIN:
        return AdminConfig(**common, admin=rooms["admin"])
    if tier == BALANCE:
        return BalanceConfig(**common, balance=rooms["balance"])
    return StorageConfig(**common, storage=rooms["storage"])
