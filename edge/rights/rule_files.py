"""Rule files of listeners, read as a whole: an error in one of them rejects all."""

from collections.abc import Sequence
from pathlib import Path

from access.rules.acl_file import read_acl_file
from access.rules.role_table import read_role_table
from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from edge.rights.sources import RuleBook, Sources

__all__ = ["RULE_SETTINGS", "read_rules", "rule_paths"]

RULE_SETTINGS = ("roles_file", "acl_file", "cluster_roles", "authenticated_roles", "anonymous_roles", "on_overlap")


def read_rules(listeners: Sequence[ListenerSettings]) -> RuleBook:
    """Return the rules of the listeners of an edge.

    Raises:
        UserError: A listener has no rules, a file is unusable, or lacks a role that a listener assigns.
    """
    return RuleBook({listener.name: _sources(listener) for listener in listeners})


def rule_paths(listeners: Sequence[ListenerSettings]) -> list[Path]:
    """Return the files of listeners."""
    paths = [path for listener in listeners for path in (listener.roles_file, listener.acl_file) if path is not None]
    return list(dict.fromkeys(paths))


def _sources(listener: ListenerSettings) -> Sources:
    roles, acl = listener.roles_file, listener.acl_file
    if not (roles or acl or listener.cluster_roles or listener.token_acl or listener.http_acl):
        raise UserError(
            f"listener {listener.name}: no rules for its clients: set edge.listeners.{listener.name}."
            "roles_file (conf/roles.toml is one), acl_file, cluster_roles, token_acl or http_acl"
        )
    table = read_role_table(roles) if roles is not None else None
    given = {"authenticated_roles": listener.authenticated_roles, "anonymous_roles": listener.anonymous_roles}
    given["http_superuser_role"] = (listener.http_superuser_role,) if listener.http_superuser_role else ()
    for key, names in given.items():
        known = table.roles("", names) if table is not None else ()
        missing = sorted(set(names) - set(known))
        if missing and not listener.cluster_roles:
            raise UserError(f"listener {listener.name}: {key} has {missing[0]!r}, and {roles} has no such role")
    return Sources(
        table,
        read_acl_file(acl) if acl is not None else None,
        listener.authenticated_roles,
        listener.anonymous_roles,
        listener.on_overlap == "filter",
        listener.cluster_roles,
        listener.token_acl or listener.http_acl,
    )
