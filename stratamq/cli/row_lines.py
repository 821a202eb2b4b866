"""Rows of looks as lines of JSON, straight from what a node sent: for lists with tens of thousands of rows.

The same lines as ``output.render`` makes of ``cells.plain_row``, without a mapping of each row in between.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from admin.timestamps import scale_of
from stratamq.cli import cells
from stratamq.cli.output import OutputFormat, render

__all__ = ["row_lines"]


def row_lines(row_type: type[msgspec.Struct], rows: Sequence[tuple[str, Any]], *, names_node: bool) -> str:
    """Return a line for each row; the rows are used up.

    Args:
        row_type: Of the rows; it holds no bytes.
        rows: With the node that answered.
        names_node: A row without a node is of the one that answered.
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
        except UnicodeEncodeError:  # half of a pair
            line = "\n"
        lines.append(line if line.isprintable() else render([cells.fields_of(row)], OutputFormat.JSONL))
    text = "\n".join(lines)
    for name, _ in moments:  # a quote inside a text has a backslash before it: this is found in no value
        text = text.replace(f'"{name}":', f'"{cells.plain_name(name)}":')
    return text
