"""Settings of rules: which files and roles decide what the clients of a listener may do.

A setting enters with its reader; ``conf/edge_settings.py`` takes both models as they are.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

__all__ = ["EdgeRules", "ListenerRules"]


class ListenerRules(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge.listeners.<name>]``: sources of rules."""

    roles_file: Path | None = Field(
        default=None,
        description="roles, groups and users in TOML, as conf/roles.toml; a listener without it, acl_file, "
        "cluster_roles, token_acl and http_acl refuses the start",
    )
    acl_file: Path | None = Field(
        default=None, description="rules as Mosquitto's acl_file has them; roles_file decides before it"
    )
    cluster_roles: bool = Field(
        default=False,
        description="roles of the cluster (`stratamq role`) decide before these files; with it, no rule is no right",
    )
    authenticated_roles: tuple[str, ...] = Field(
        default=(), description="roles of each client whose user is known, of roles_file or of the cluster"
    )
    anonymous_roles: tuple[str, ...] = Field(
        default=(), description="roles of each client without a user, of roles_file or of the cluster"
    )
    on_overlap: Literal["refuse", "filter"] = Field(
        default="refuse",
        description="answer to a filter of which a part is denied: 0x87, or each delivery is judged; acl_file: filter",
    )
    tell_refusals: bool = Field(
        default=True,
        description="tell MQTT 5 clients that they lack a right to a filter (0x87); off: 0x80, which says nothing",
    )

    @model_validator(mode="after")
    def _roles_of_a_file(self) -> "ListenerRules":
        for key in ("authenticated_roles", "anonymous_roles"):
            if getattr(self, key) and self.roles_file is None and not self.cluster_roles:
                raise ValueError(f"{key} needs roles_file or cluster_roles")
        return self


class EdgeRules(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge]``: how often rules are judged again, and how far."""

    recheck_retained_source: bool = Field(
        default=True,
        description="a retained message is delivered while the user who left it may do so; off: whoever that was",
    )
