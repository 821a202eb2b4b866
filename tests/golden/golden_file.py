"""A golden file: examples, each with its name, its value as a Python literal, and its encoded bytes.

    == OpenSession, full
    {'type': 'OpenSession', 'request': 1001, ...}
    -- 8ba474797065...

The text before the comma is the kind. The value is the source: after a change, rewrite the bytes with ``python -m
tests.golden --write``.
"""

import ast
import pprint
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Example", "parse", "render"]

FOLDER = Path(__file__).parent
HEX_COLUMNS = 112


@dataclass(frozen=True)
class Example:
    """One example of a golden file."""

    name: str
    value: Any
    data: bytes

    @property
    def kind(self) -> str:
        """The kind of the example."""
        return self.name.partition(",")[0]


def parse(text: str) -> list[Example]:
    """Return the examples of a file's text."""
    examples = []
    for part in text.split("\n== ")[1:]:
        head, _, tail = part.partition("\n-- ")
        name, _, value = head.partition("\n")
        examples.append(Example(name, ast.literal_eval(value), bytes.fromhex("".join(tail.split()))))
    return examples


def render(title: str, examples: list[Example]) -> str:
    """Return the text of a file."""
    parts = [f"# {title}\n# Written by python -m tests.golden --write; the values may be edited, the bytes may not.\n"]
    for example in examples:
        value = pprint.pformat(example.value, width=118, sort_dicts=False, compact=True)
        digits = example.data.hex()
        lines = [digits[at : at + HEX_COLUMNS] for at in range(0, len(digits), HEX_COLUMNS)]
        parts.append(f"\n== {example.name}\n{value}\n-- " + "\n   ".join(lines) + "\n")
    return "".join(parts)
