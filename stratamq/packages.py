"""Knowledge of the top of the house: the tiers' services and the models of all rooms, imported when needed.

Each lookup imports one room and nothing else, so that a command pays only for what it uses.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from conf.lazy_modules import import_late
from conf.settings import NodeConfig, load

__all__ = ["ServiceMain", "load_config", "membership_model", "service_main"]

SERVICES = {"admin": "admin.http.service", "balance": "gateways.balancer.service"}  # of processes that are no tier
UNUSED = {"admin": ("yaml",)}  # that Litestar imports: 1 MiB
ServiceMain = Callable[[NodeConfig, Callable[[dict[str, object]], None]], int]


def membership_model() -> type[BaseModel]:
    """Return the model of the room ``membership``."""
    return cast("type[BaseModel]", importlib.import_module("membership.settings").MembershipSettings)


def service_main(tier: str) -> ServiceMain:
    """Return ``main(config, ready) -> exit code`` of a tier, the balancer or the HTTP service; imports that one."""
    import_late(*UNUSED.get(tier, ()))
    module: Any = importlib.import_module(SERVICES.get(tier, f"{tier}.service"))
    return cast("ServiceMain", module.main)


def load_config(
    tier: str, file: Path | None, flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """Return a tier's configuration with all its rooms.

    Raises:
        UserError: Every mistake, one line each; exit code 2.
    """
    source = os.environ if environment is None else environment
    return load(tier, file=file, environment=source, flags=flags, membership=membership_model())
