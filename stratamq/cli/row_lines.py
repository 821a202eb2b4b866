"""Conversion of query rows to JSON lines without intermediate mappings, for lists of tens of thousands of rows.

The output equals ``output.render`` of ``cells.plain_row``.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from admin.timestamps import scale_of
from stratamq.cli import cells
from stratamq.cli.output import OutputFormat, render

__all__ = ["row_lines"]


def row_lines(row_type: type[msgspec.Struct], rows: Sequence[tuple[str, Any]], *, names_node: bool) -> str:
    """Return a JSON line for each row; modifies the rows.

    Args:
        row_type: Type of the rows, without bytes fields.
        rows: Pairs of responding node and row.
        names_node: Whether a row without a node gets the responding node.
    """
    fields = row_type.__struct_fields__
    moments = [(name, scale) for name in fields if (scale := scale_of(name))]
    names_node = names_node and "node" in fields
    encode = msgspec.json.Encoder().encode
    lines = []
    for node, row in rows:
        if names_node and row.node is None:
            row.node = node
        for name, scale in moments:
            value = getattr(row, name)
            if value is not None:
                setattr(row, name, cells.iso(value / scale))
        try:
            line = encode(row).decode()
        except UnicodeEncodeError:  # a lone surrogate
            line = "\n"
        lines.append(line if line.isprintable() else render([cells.fields_of(row)], OutputFormat.JSONL))
    text = "\n".join(lines)
    for name, _ in moments:  # quotes inside values are escaped, so this matches no value
        text = text.replace(f'"{name}":', f'"{cells.plain_name(name)}":')
    return text
