"""Each public name of the product is used in the product: functions for tests only are not part of it."""

import ast
import re
from pathlib import Path

from tests.packages import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
WORD = re.compile(r"[A-Za-z_]\w*")

# A name without a use in Python, and the reason to keep it.
WITHOUT_READER = {
    "AckSink": "the shape of the ledger that a compiled Engine takes",
    "after_io_wait": "trio calls it, by the name of its instruments",
    "before_io_wait": "the same",
    "after_task_step": "the same",
    "before_task_step": "the same",
    "decode_publish_acks": "half of a format whose product form is compiled in edge/hot; tests/golden compares both",
    "decode_pushes": "the same",
    "encode_push_ack": "half of a format",
    "encode_run": "half of a format",
    "format_help": "argparse calls it",
    "lowest_tag": "a door of the loop (ADR 8): its outbox, as a neighbour sees it",
    "make_row": "half of a format: an exported row as another program may write it",
    "reads_ahead": "what edge/loop/loop.py asks in its compiled form; the simulation's event loop asks it here",
    "map_pages": "half of a format: a whole map at once; routers keep pages",
    "open_pushes": "a door of the loop (ADR 8): the same for pushes",
    "pack_owner_epoch": "half of a format: exports keep the number packed",
    "seekable": "PyArrow calls it",
    "spawn_app": "anycorn calls it",
    "user_line": "a line of the file of SCRAM users, which an operator makes by the command in README",
    "verify_manifest": "an export read by our own reader; jobs/verify_manifest.py is the one that needs no StrataMQ",
    "wants_turn": "the loop as shells of tests drive it; the real one reads the fields",
}


def test_public_names_have_readers() -> None:
    """Delete a function, method or class that the product does not use, or list it above with its reason.

    Neither an import nor a place in ``__all__`` is a use: a package's exports must be used in another one.
    """
    read = set(WORD.findall((ROOT / "pyproject.toml").read_text()))
    defined: set[str] = set()
    for path in (path for room in PACKAGES for path in (ROOT / room).rglob("*.py")):
        tree = ast.parse(path.read_text())
        tree.body = [node for node in tree.body if not _is_all(node)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                read.add(node.id)
            elif isinstance(node, ast.Attribute):
                read.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                if not any(isinstance(each, ast.Call) for each in node.decorator_list):  # a command of Typer
                    defined.add(node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                read.add(node.value)  # an annotation in quotes
    unread = defined - read
    new = sorted(unread - WITHOUT_READER.keys())
    assert not new, f"only tests use {new}"
    old = sorted(WITHOUT_READER.keys() - unread)
    assert not old, f"they have readers now: {old}"


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets)
