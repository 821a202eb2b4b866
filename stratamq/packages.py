"""Lazy imports of the tiers' services and of the settings models of all packages.

Each lookup imports one package only, so that commands start fast.
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

SERVICES = {"admin": "admin.http.service", "balance": "gateways.balancer.service"}  # processes that are not tiers
UNUSED = {"admin": ("yaml",)}  # imported by Litestar without use: 1 MiB
ServiceMain = Callable[[NodeConfig, Callable[[dict[str, object]], None]], int]


def membership_model() -> type[BaseModel]:
    """Return the settings model of ``membership``."""
    return cast("type[BaseModel]", importlib.import_module("membership.settings").MembershipSettings)


def service_main(tier: str) -> ServiceMain:
    """Import a tier, the balancer or the HTTP service; return its ``main(config, ready) -> exit code``."""
    import_late(*UNUSED.get(tier, ()))
    module: Any = importlib.import_module(SERVICES.get(tier, f"{tier}.service"))
    return cast("ServiceMain", module.main)


def load_config(
    tier: str, file: Path | None, flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """Return a tier's configuration with all its sections.

    Raises:
        UserError: All errors, one line each; exit code 2.
    """
    source = os.environ if environment is None else environment
    return load(tier, file=file, environment=source, flags=flags, membership=membership_model())
