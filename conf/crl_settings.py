"""Settings of revocation lists for links: which certificates of nodes and operators are no longer taken.

A setting enters with its reader; ``conf/node_settings.py`` takes the model as it is.
"""

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

__all__ = ["NodeRevocation"]


class NodeRevocation(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: lists of the authority that signs the nodes."""

    crl_files: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="revocation lists (PEM or DER) of the authority of nodes and operators: who is in one opens no "
        "link, and a link that stands is cut within 60 s; looked at every 30 s and at a reload; a stale list refuses "
        "every handshake; a broken one leaves the former in force, said once in the log, in "
        "stratamq_link_lists_current and by /readyz; none: nothing is revoked",
    )

    @field_validator("crl_files", mode="before")
    @classmethod
    def _split_files(cls, value: object) -> object:
        """Let the environment and flags give files as ``a,b``."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
