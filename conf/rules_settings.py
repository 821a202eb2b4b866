"""Settings of rules: files and roles that authorize the clients of a listener.

Each setting has a reader; ``conf/edge_settings.py`` includes both models.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

__all__ = ["EdgeRules", "ListenerRules"]


class ListenerRules(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge.listeners.<name>]``: sources of rules."""

    roles_file: Path | None = Field(
        default=None,
        description="roles, groups and users in TOML, as conf/roles.toml; at least one of this, acl_file, "
        "cluster_roles, token_acl and http_acl is required",
    )
    acl_file: Path | None = Field(
        default=None, description="rules in the format of Mosquitto's acl_file; roles_file decides before it"
    )
    cluster_roles: bool = Field(
        default=False,
        description=("roles of the cluster (`stratamq role`) decide before these files; with it, no rule is a deny"),
    )
    authenticated_roles: tuple[str, ...] = Field(
        default=(), description="roles of each client with a known user, from roles_file or the cluster"
    )
    anonymous_roles: tuple[str, ...] = Field(
        default=(), description="roles of each client without a user, from roles_file or the cluster"
    )
    on_overlap: Literal["refuse", "filter"] = Field(
        default="refuse",
        description=("reply to a partly denied filter: 0x87, or grant it and check each delivery; acl_file: filter"),
    )
    tell_refusals: bool = Field(
        default=True,
        description="reply 0x87 to MQTT 5 clients that lack a right to a filter; off: 0x80, without a reason",
    )

    @model_validator(mode="after")
    def _roles_of_a_file(self) -> "ListenerRules":
        for key in ("authenticated_roles", "anonymous_roles"):
            if getattr(self, key) and self.roles_file is None and not self.cluster_roles:
                raise ValueError(f"{key} needs roles_file or cluster_roles")
        return self


class EdgeRules(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge]``: frequency and extent of re-authorization."""

    recheck_retained_source: bool = Field(
        default=True,
        description="deliver a retained message only while its publisher may retain it; off: always",
    )
