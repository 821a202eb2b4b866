"""Settings of the audit log: where a node records changes and refusals.

Each setting has a reader; ``conf/node_settings.py`` includes the model.
"""

from pathlib import Path

from pydantic import BaseModel, Field

__all__ = ["NodeAudit"]

MIB = 1024 * 1024


class NodeAudit(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: the audit log's file and its bounds."""

    audit_file: Path | None = Field(
        default=None,
        description="the audit log: JSON lines chained by hash, mode 0640, written before an operator gets a reply; "
        "`stratamq audit verify` checks it; default: audit.jsonl in data_dir",
    )
    audit_room_bytes_min: int = Field(
        default=64 * MIB,
        ge=0,
        le=1 << 50,
        description=("free bytes of its disk below which verbs that change state are refused, and no line is added"),
    )
    audit_file_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        le=1 << 50,
        description=(
            "size at which the file is rotated, named by the number of its last line; rotated files are never deleted"
        ),
    )
