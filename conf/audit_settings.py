"""Settings of the audit log: where a node writes what was done to it and refused by it.

A setting enters with its reader; ``conf/node_settings.py`` takes the model as it is.
"""

from pydantic import BaseModel

__all__ = ["NodeAudit"]


class NodeAudit(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: the audit's file and its bounds."""
