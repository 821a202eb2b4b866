"""Settings of revocation lists for links: certificates of nodes and operators to refuse.

Each setting has a reader; ``conf/node_settings.py`` includes the model.
"""

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

__all__ = ["NodeRevocation"]


class NodeRevocation(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: lists of the authority that signs the nodes."""

    crl_files: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="revocation lists (PEM or DER) of the authority of nodes and operators: a listed certificate opens "
        "no link, and its open links are closed within 60 s; checked every 30 s and at a reload; a stale "
        "list refuses every handshake; an invalid one leaves the former in use, reported once in the log, "
        "in stratamq_link_lists_current and by /readyz; none: no revocation",
    )

    @field_validator("crl_files", mode="before")
    @classmethod
    def _split_files(cls, value: object) -> object:
        """Accept files as ``a,b`` from the environment and flags."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
