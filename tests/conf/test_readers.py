"""Every setting has an effect: product code reads it, in the package of the setting."""

import ast
import functools
from pathlib import Path

import pytest
from pydantic import BaseModel, create_model

from conf.edge_settings import ListenerSettings
from conf.settings import ROOMS
from conf.storage_settings import StorageSettings
from edge.loop.options import ConnOptions, HotLimits, SessionOptions
from edge.node.limits import EdgeLimits
from router.raft.events import RaftConfig
from router.settings import RouterLimits
from storage.state.settings import PartitionSettings
from storage.store.settings import GroupCommitSettings, StoreSettings
from stratamq.packages import membership_model

ROOT = Path(__file__).parents[2]
EVERYWHERE = ("edge", "router", "storage", "membership", "access", "wire", "conf", "stratamq")
MODELS: dict[str, type[BaseModel]] = {**ROOMS, "membership": membership_model(), "listeners": ListenerSettings}
READERS = {  # section of a setting -> folders that may read it
    "edge": ("edge",),
    "listeners": ("edge",),
    "admin": ("admin",),
    "balance": ("gateways",),
    "router": ("router",),
    "storage": ("storage",),
    "membership": ("membership",),
}
# Parameters of cores -> the folder whose cores read them.
PLAIN = {
    EdgeLimits: "edge",
    HotLimits: "edge",
    ConnOptions: "edge",
    SessionOptions: "edge",
    RouterLimits: "router",
    RaftConfig: "router",
    PartitionSettings: "storage",
    StoreSettings: "storage",
    GroupCommitSettings: "storage",
}


@functools.cache
def reads(folder: str) -> frozenset[str]:
    """Return the attribute names that product code of a folder reads, without defaults of parameters."""
    names: set[str] = set()
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path.name.endswith("_settings.py") and folder == "conf":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if isinstance(node.value, ast.Name) and node.value.id == "DEFAULT":
                    continue
                names.add(node.attr)
    return frozenset(names)


def unread(section: str, model: type[BaseModel]) -> list[str]:
    """Return the settings of a model that no code of their package reads."""
    known: set[str] = set().union(*(reads(folder) for folder in READERS.get(section, EVERYWHERE)))
    return sorted(set(model.model_fields) - known)


@pytest.mark.parametrize("section", sorted(MODELS))
def test_every_setting_has_a_reader(section: str) -> None:
    """A setting without a reader has no effect."""
    assert unread(section, MODELS[section]) == []


@pytest.mark.parametrize("values", PLAIN, ids=lambda values: values.__name__)
def test_every_plain_value_has_a_reader(values: type) -> None:
    """A setting that is copied for a core, and read by no core, has no reader either."""
    names = getattr(values, "__struct_fields__", None) or list(values.__annotations__)
    assert sorted(set(names) - reads(PLAIN[values])) == []


def test_a_setting_without_a_reader_is_found() -> None:
    """The check itself can fail."""

    extended = create_model("Extended", __base__=StorageSettings, write_twice=(bool, False))
    assert unread("storage", extended) == ["write_twice"]


@pytest.mark.parametrize("values", [EdgeLimits, HotLimits, PartitionSettings, RouterLimits, RaftConfig])
def test_a_setting_has_one_default(values: type) -> None:
    """Cores in tests and in the simulation run with the default bounds."""
    for model in (ROOMS[PLAIN[values]],):
        defaults = model() if PLAIN[values] != "edge" else model(listeners=())
        plain = values() if values is not RaftConfig else RaftConfig(id="r")
        shared = [name for name in model.model_fields if hasattr(plain, name)]
        assert shared
        assert {name: getattr(plain, name) for name in shared} == {name: getattr(defaults, name) for name in shared}
