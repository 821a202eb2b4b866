"""Settings of the audit log: where a node writes what was done to it and refused by it.

A setting enters with its reader; ``conf/node_settings.py`` takes the model as it is.
"""

from pathlib import Path

from pydantic import BaseModel, Field

__all__ = ["NodeAudit"]

MIB = 1024 * 1024


class NodeAudit(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: the audit's file and its bounds."""

    audit_file: Path | None = Field(
        default=None,
        description="the audit: JSON lines chained by hash, mode 0640, written before an operator is answered; "
        "`stratamq audit verify` checks it; default: audit.jsonl in data_dir",
    )
    audit_room_bytes_min: int = Field(
        default=64 * MIB,
        ge=0,
        le=1 << 50,
        description="free bytes of its disk below which verbs that change something are refused, and nothing is added",
    )
    audit_file_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        le=1 << 50,
        description="bytes from which the file is put aside under the number of its last line; none is ever deleted",
    )
