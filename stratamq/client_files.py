"""Client files that `stratamq init` and `stratamq up` write: roles, and the SCRAM secret.

``init`` writes the contents of ``conf/roles.toml`` as a start; ``up`` gives anonymous clients the same permissions, and
access to edge metrics and bridge states. Existing files are never overwritten.
"""

import secrets
from pathlib import Path

__all__ = ["DEVICE_ROLES", "LOCAL_ROLES", "write_roles", "write_secret"]

DEVICE_ROLES = """\
# Permissions of clients: roles, groups and users. Loaded at the start and at a reload (SIGHUP, `stratamq reload`).
# A listener names this file (roles_file) and the default roles of its clients (authenticated_roles,
# anonymous_roles). Other actions are denied. Topics that begin with $ match only filters that begin with $.

[roles.device]
publish = ["#"]
subscribe = ["#"]

# [roles.sensor]
# publish = ["site/%u/#"]
# subscribe = ["site/%u/orders/#"]
# deny = ["site/+/secret/#"]

# [users.ann]
# roles = ["sensor"]
"""

LOCAL_ROLES = (
    DEVICE_ROLES
    + """
# Metrics of each edge, and states of bridges.
[roles.figures]
publish = ["$SYS/broker/connection/+/state"]
subscribe = ["$SYS/#"]
"""
)


def write_roles(path: Path, text: str) -> None:
    """Write a roles file unless it exists.

    Raises:
        OSError: The file cannot be written.
    """
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(text)


def write_secret(path: Path) -> None:
    """Write the SCRAM secret unless it exists; with it every edge answers alike for an unknown user.

    Raises:
        OSError: The file cannot be written.
    """
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
