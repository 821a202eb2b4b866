"""Each field of messages and stored records has a reader in the product.

A field that is only written wastes bytes in each message, and suggests an unimplemented feature. A reader is an
attribute that product code loads, in a file that names the field's class or a containing one, of a variable that no
annotation gives another type. (Types are not inferred: a variable without annotation counts as read.)
The compiled loop also reads the records of messages and pushes, by position.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from tests.golden.formats import FORMATS
from tests.packages import PACKAGES
from wire.messages import batches
from wire.messages.hello import LinkHello

ROOT = Path(__file__).resolve().parent.parent
CODEC = "wire/messages/batches.py"  # it packs and unpacks each field, which is no use of the content
BINARY = (batches.PublishMessage, batches.PublishRun, batches.PublishAck, batches.Push, batches.PushAck)
WIDE = {"Any", "object", "Control", "Message", "Command", "T"}  # an annotation that may mean each class
WORD = re.compile(r"[A-Za-z_]\w*")

# "Class.field" that no product code reads by its name, and the reason to keep it.
WITHOUT_READER = {
    **dict.fromkeys(
        ("Manifest.crc", "Manifest.sort_order", "Manifest.writer", "RingEntry.epoch", "RingEntry.hash"),
        "how an export was made, for whoever reads it without StrataMQ (docs/jobs.md)",
    ),
    **dict.fromkeys(("JobEntry.inputs", "FileEntry.live_bytes"), "the same: which job made it of what"),
    "QueryResult.visited": "for who asks: how much was looked at (docs/adr/0093-looks.md)",
    **dict.fromkeys(("Manifest.format_version", "Manifest.manifest_crc"), "read by key, before the rest is decoded"),
}


class Source(NamedTuple):
    """One file: its words, the variables of each attribute read, by name, and the variables' types."""

    words: frozenset[str]
    loads: Mapping[str, Set[str]]
    types: Mapping[str, frozenset[str]]


class Product:
    """Files of the product, by path, as their texts."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.sources: list[Source] = []
        self._holders: dict[str, set[str]] = {}
        self._types: dict[str, set[str]] = {}  # of a variable, in all files together
        for path, text in files.items():
            nodes = list(ast.walk(ast.parse(text)))
            for name, words in _holding(nodes):
                for word in words:
                    self._holders.setdefault(word, set()).add(name)
            if path != CODEC:
                loads: dict[str, set[str]] = {}
                for name, of in _loads(nodes):
                    loads.setdefault(name, set()).add(of)
                self.sources.append(Source(frozenset(WORD.findall(text)), loads, _types(nodes)))
                for variable, said in self.sources[-1].types.items():
                    self._types.setdefault(variable, set()).update(said)

    def unread(self, kind: str, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a class without a reader."""
        named = {kind} | self._holders.get(kind, set())
        near = [source for source in self.sources if source.words & named]
        wanted = set(fields)
        read = {
            name
            for source in near
            for name in wanted & source.loads.keys()
            for of in source.loads[name]
            if _may_be(source.types.get(of) or (kind not in source.words and self._types.get(of)), kind, named)
        }
        return tuple(field for field in fields if field not in read)


def _may_be(said: Set[str] | bool | None, kind: str, named: set[str]) -> bool:
    return not isinstance(said, Set) or bool(said & (WIDE | named | {kind}))


def _loads(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield each attribute that is loaded, and the variable or attribute that it is one of; "" for an expression."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            base = node.value
            yield node.attr, (base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")).lstrip("_")
        elif isinstance(node, ast.MatchClass):
            yield from ((name, "") for name in node.kwd_attrs)


def _types(nodes: list[ast.AST]) -> dict[str, frozenset[str]]:
    """Return the classes of a file's variables: by annotations, or by construction."""
    found: dict[str, set[str]] = {"self": set()}
    for node in nodes:
        target: ast.expr | None = None
        words: set[str] = set()
        if isinstance(node, ast.arg) and node.annotation is not None:
            found.setdefault(node.arg.lstrip("_"), set()).update(WORD.findall(ast.unparse(node.annotation)))
        elif isinstance(node, ast.AnnAssign):
            target, words = node.target, set(WORD.findall(ast.unparse(node.annotation)))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target, made = node.targets[0], getattr(node.value.func, "id", "")
            words = {made} if made[:1].isupper() else set()
        elif isinstance(node, ast.ClassDef):
            found["self"].add(node.name)
        name = getattr(target, "id", getattr(target, "attr", "")).lstrip("_")
        if name and words:
            found.setdefault(name, set()).update(words)
    return {name: frozenset(words) for name, words in found.items()}


def _holding(nodes: list[ast.AST]) -> Iterator[tuple[str, set[str]]]:
    """Yield classes, functions and names of unions, with the classes that they have, return, or mean."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            inside = list(ast.walk(node))
            said = [each.annotation for each in inside if isinstance(each, ast.AnnAssign | ast.arg)]
            made = [each.func for each in inside if isinstance(each, ast.Call)]
            yield node.name, _words([*said, *node.bases, *made])
        elif isinstance(node, ast.FunctionDef):
            yield node.name, _words([node.returns])
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
        ):
            yield getattr(node.targets[0], "id", ""), _words([node.value])


def _words(annotations: list[Any]) -> set[str]:
    return {word for one in annotations if one is not None for word in WORD.findall(ast.unparse(one))}


def kinds() -> dict[str, type[msgspec.Struct]]:
    """Return by name the classes of all wire messages, commands, maps and stored records, and of their parts."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting: list[Any] = [codec.kind for form in FORMATS.values() for codec in form.codecs.values()]
    waiting += [LinkHello, *BINARY]
    while waiting:
        one = waiting.pop()
        if not (isinstance(one, type) and issubclass(one, msgspec.Struct)):
            waiting += get_args(one)
        elif f"{one.__module__}.{one.__name__}" not in found:
            found[f"{one.__module__}.{one.__name__}"] = one
            waiting += [field.type for field in msgspec.structs.fields(one)]
    return found


# Of a binary record: its field, and the name of its place or flag in edge/loop/layout.py where that is another one.
PLACES = {
    "packet_identifier": "IDENTIFIER",
    "topic": "TOPIC_BYTES",
    "payload": "PAYLOAD_BYTES",
    "properties": "PROPERTY_BYTES",
    "packets": "PACKET_BYTES",
    "expiry_s": "EXPIRY",
    "reason_code": "CODE",
    "qos": "FLAGS",
}
PREFIX = {"PublishMessage": "MESSAGE", "PublishRun": "RUN", "PublishAck": "PUBLISH_ACK", "Push": "PUSH"}


def read_in_the_loop(kind: str, field: str, loop: str) -> bool:
    """Return whether the compiled loop reads a field: a number at its position, or a flag."""
    if kind not in PREFIX:
        return False
    place, flag = f"{PREFIX[kind]}_{PLACES.get(field, field.upper())}_AT", f"{field.upper()}_FLAG"
    numbers = rf"get\d\d\([^()]*\b{place}\)|\[[^\[\]]*\b{place}\](?! *\|?= )"
    flags = rf"& (?:{PREFIX[kind]}_)?{flag}\b"
    return re.search(numbers, loop) is not None or re.search(flags, loop) is not None


def unread_fields() -> list[str]:
    """Return every field that no product code reads."""
    product = Product(
        {
            path.relative_to(ROOT).as_posix(): path.read_text()
            for room in PACKAGES
            for path in sorted((ROOT / room).rglob("*.py"))
        }
    )
    loop = "".join(path.read_text() for path in sorted((ROOT / "edge/loop").glob("*.py")))
    found = []
    for kind in kinds().values():
        unread = kind.__struct_fields__
        for name in (
            one.__name__ for one in kind.__mro__ if issubclass(one, msgspec.Struct) and one is not msgspec.Struct
        ):
            unread = product.unread(name, unread)
        found += [f"{kind.__name__}.{field}" for field in unread if not read_in_the_loop(kind.__name__, field, loop)]
    return sorted(set(found))


def test_each_field_has_a_reader() -> None:
    """Delete a field without a reader in the product, or list it above with its reason."""
    unread = unread_fields()
    new = [field for field in unread if field not in WITHOUT_READER]
    assert not new, f"nobody reads {new}"
    old = sorted(WITHOUT_READER.keys() - set(unread))
    assert not old, f"they have readers now: {old}"


STRUCT = "class Told(Struct):\n    answer: int\n    known: bool\n"
WRITER = "def tell(told: Told) -> None:\n    told.known = True\n    send(Told(1, known=True))\n"


@pytest.mark.parametrize(
    ("reader", "unread"),
    [
        ("", ["answer", "known"]),
        ("def take(told: Told) -> bool:\n    return told.known and told.answer > 0\n", []),
        ("def take(told: Told, others: Others) -> bool:\n    return told.answer or others.known\n", ["known"]),
        (
            "def take(message: object) -> None:\n    match message:\n        case Told(known=k, answer=a): k\n",
            [],
        ),
        ("class Waits:\n    told: Told\n\ndef f(it: Waits) -> bool:\n    return it.told.known or it.told.answer\n", []),
        ("def other(it: Known) -> bool:\n    return it.known or it.answer\n", ["answer", "known"]),
    ],
)
def test_field_only_written_is_found(reader: str, unread: list[str]) -> None:
    product = Product({"a.py": STRUCT, "b.py": WRITER, "c.py": reader})
    assert list(product.unread("Told", ("answer", "known"))) == unread


def test_flag_only_set_in_loop_is_found() -> None:
    loop = "record.data[at + MESSAGE_FLAGS_AT] |= REPEAT_FLAG\nput64(record, MESSAGE_TAG_AT, tag)\n"
    assert not read_in_the_loop("PublishMessage", "repeat", loop)
    assert not read_in_the_loop("PublishMessage", "tag", loop)
    loop += "if flags & REPEAT_FLAG:\n    tag = get64(data, at + MESSAGE_TAG_AT)\n"
    assert read_in_the_loop("PublishMessage", "repeat", loop)
    assert read_in_the_loop("PublishMessage", "tag", loop)
