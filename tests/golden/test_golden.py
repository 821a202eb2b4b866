"""The bytes of all formats, as recorded in the golden files: links, stores, Raft logs and exports.

A failure means that a node of this tree cannot communicate with one of the tree before, or cannot read its files. If
that is intended, ``python -m tests.golden`` shows the difference and ``--write`` accepts it (for data on disks:
``python -m tests.golden.old_data``).
"""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from membership import packets
from router.map.commands import Command
from router.raft.messages import AnyMessage
from storage.state import keys, rows
from tests.golden.examples import example
from tests.golden.formats import FORMATS, KEYS, ROWS, tags_of
from tests.golden.golden_file import FOLDER, Example, parse, render
from wire.messages.control import Control
from wire.messages.message import name_of
from wire.messages.replication import ReplicaMessage

ROOT = Path(__file__).parents[2]
GOLDEN = [(name, each) for name in FORMATS for each in parse((FOLDER / f"{name}.txt").read_text())]
FULL = [(FORMATS[name].codecs[each.kind].kind, each) for name, each in GOLDEN if each.name.endswith(", full")]
UNIONS = {
    "control": Control,
    "replication": ReplicaMessage,
    "raft": AnyMessage,
    "commands": Command,
    "gossip": packets.Message,
}


@pytest.mark.parametrize(("name", "golden"), GOLDEN, ids=[f"{name}-{each.name}" for name, each in GOLDEN])
def test_golden_bytes_are_unchanged(name: str, golden: Example) -> None:
    """The value encodes to the golden bytes, and they decode to the value."""
    codec = FORMATS[name].codecs[golden.kind]
    assert codec.encode(codec.build(golden.value)).hex() == golden.data.hex()
    if codec.decode is not None:
        assert codec.decode(golden.data) == codec.build(golden.value)


@pytest.mark.parametrize("name", FORMATS)
def test_golden_every_kind_has_an_example(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    examples = parse(text)
    assert {each.kind for each in examples} == FORMATS[name].codecs.keys()
    assert render(FORMATS[name].title, examples) == text, "python -m tests.golden --write"


@pytest.mark.parametrize("name", UNIONS)
def test_golden_every_class_of_a_union_has_a_unique_tag_and_an_example(name: str) -> None:
    kinds = get_args(UNIONS[name])
    assert len(kinds) == len(tags_of(UNIONS[name]))
    assert set(tags_of(UNIONS[name])) <= {each.kind for form, each in GOLDEN if form == name}


@pytest.mark.parametrize(("kind", "golden"), [one for one in FULL if one[0] is not None])
def test_golden_full_example_has_every_field(kind: Any, golden: Example) -> None:
    """A field that was added later must have a value other than its default."""
    config = kind.__struct_config__
    if config.array_like:
        assert len(golden.value) - (config.tag is not None) == len(kind.__struct_fields__)
    else:
        assert golden.value.keys() - {config.tag_field} == set(kind.__struct_encode_fields__)


def test_golden_every_row_and_key_of_a_store_has_an_example() -> None:
    defined = {one for one in vars(rows).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)}
    defined = {one for one in defined if one.__module__ == rows.__name__}
    assert defined <= {*ROWS.values(), rows.QueueEntry}
    assert {name for name in vars(keys) if name.endswith("_key")} == {one.__name__ for one in KEYS.values()}


def test_name_of_returns_the_tag_after_a_class_rename() -> None:
    class Renamed(msgspec.Struct, tag="OldName"):
        """A message whose class was renamed."""

    assert name_of(Renamed()) == "OldName"
    assert set(packets.NAMES) == set(get_args(packets.Message))


def test_golden_class_without_an_example_is_detected() -> None:
    class Newcomer(msgspec.Struct, tag="Newcomer"):
        """A message without an example."""

        number: int

    assert tags_of(Newcomer | Control).keys() - {each.kind for name, each in GOLDEN if name == "control"} == {
        "Newcomer"
    }
    made: Any = example(Newcomer, full=True)
    assert made == {"type": "Newcomer", "number": 1001}


def test_golden_tags_are_independent_of_class_names() -> None:
    """``tag=True`` would make the class name the format of links and files: a rename would change both."""
    rooms = [folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name not in ("tests", "build")]
    product = [path for folder in rooms if folder.name[0] != "." for path in folder.rglob("*.py")]
    assert len(product) > 100
    assert not [str(path) for path in product if re.search(r"\btag\s*=\s*(True|str\.|lambda)", path.read_text())]
