"""Numbers that need all memory, or exceed a machine word, are refused."""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import conf
from access.operators.commands import Refusal, judge, operator_of
from access.rules.role_table import parse_role_table
from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from conf.limit_names import LIMIT_NAMES
from conf.settings import ROOMS, TIERS, load
from membership.settings import MembershipSettings
from stratamq.cli.main import main
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin

HUGE = ("1" + "0" * 20, "-1" + "0" * 20, "1e300", "inf", "nan")
OWN: dict[str, type[BaseModel]] = {**ROOMS, "membership": MembershipSettings}


def numbers(model: type[BaseModel]) -> list[str]:
    """Return the settings with numbers."""
    fields = model.model_fields.items()
    return [name for name, one in fields if "int" in str(one.annotation) or "float" in str(one.annotation)]


@pytest.mark.parametrize("tier", [*TIERS, "balance", "admin"])
def test_each_number_has_bounds(tier: str) -> None:
    """A parameter that needs 100 GB prevents the start."""
    rooms = (tier, "node", "metrics", "logs", *(["membership"] if tier != "admin" else []))
    settings = [f"{room}.{name}" for room in rooms for name in numbers(OWN[room])]
    if tier == "edge":
        settings += [f"edge.listeners.a.{name}" for name in numbers(ListenerSettings)]
    assert len(settings) > 10
    for setting in settings:
        for huge in HUGE:
            with pytest.raises(UserError, match=setting.rpartition(".")[2]):
                load(tier, environment={}, flags=(f"{setting}={huge}",), membership=MembershipSettings)


def models() -> Iterator[type[BaseModel]]:
    """Yield every table of a configuration: of nodes, listeners, bridges, federation, datagrams."""
    yield MembershipSettings
    for module in pkgutil.iter_modules(conf.__path__):
        for found in vars(importlib.import_module(f"conf.{module.name}")).values():
            if inspect.isclass(found) and issubclass(found, BaseModel) and found.__module__ == f"conf.{module.name}":
                yield found


@pytest.mark.parametrize("model", list(models()), ids=lambda model: model.__name__)
@pytest.mark.parametrize("huge", [10**20, -(10**20), 1e300, math.inf, math.nan])
def test_each_number_of_each_table_has_bounds(model: type[BaseModel], huge: float) -> None:
    """Tables of gateways and of single bridges too; also numbers in named tables and lists."""
    for name in numbers(model):
        kind = str(model.model_fields[name].annotation)
        value: Any = (huge,) if "tuple[" in kind else {"x": huge} if "dict[" in kind else huge
        with pytest.raises(ValidationError) as refused:
            model.model_validate({name: value})
        named = {str(part) for error in refused.value.errors() for part in error["loc"]}
        assert {name, model.model_fields[name].alias} & named, (name, huge)


ADMIN = PeerKey("admin:ann/cli-1", "operator", 1)
VERBS_WITH_LIMITS: dict[str, dict[str, Any]] = {
    "user add": {"user": "u"},
    "user change": {"user": "u"},
    "group put": {"group": "g"},
    "role put": {"role": "r", "rules": []},
}


@pytest.mark.parametrize("limit", LIMIT_NAMES)
@pytest.mark.parametrize(
    "huge", [str(1 << 62), str(2**63), "1" + "0" * 30, "9" * 5_000, "-1", "1.5", "inf", "nan", "٣"]
)
def test_each_limit_of_a_user_a_group_and_a_role_has_bounds(
    limit: str, huge: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a table of roles by line, in a request to a router, and before it on the command line."""
    with pytest.raises(UserError, match=r"roles\.toml"):
        parse_role_table(Path("roles.toml"), f"[roles.device]\nlimits = {{ {limit} = {huge} }}\n".encode())
    if huge != "٣" and len(huge) < 4_300:  # text values only
        value = float(huge) if "." in huge or huge in ("inf", "nan") else int(huge)
        for verb, about in VERBS_WITH_LIMITS.items():
            with pytest.raises(Refusal, match="limits"):
                judge(Admin(1, verb, {**about, "limits": {limit: value}}), operator_of(ADMIN), "router")
    for words in (("user", "add", "u", "--no-password"), ("group", "put", "g"), ("role", "put", "r")):
        assert main([*words, "--limit", f"{limit}={huge}", "--data", "/nowhere"]) == 2
        assert "--limit" in capsys.readouterr().err
