"""Files about clients that `stratamq init` and `stratamq up` write: their roles, and the secret of SCRAM.

``conf/roles.toml`` is what ``init`` writes, as a file to begin with; ``up`` lets anonymous clients do the same, and
read the figures of its edges and announce the states of bridges. Nothing that exists is overwritten.
"""

import secrets
from pathlib import Path

__all__ = ["DEVICE_ROLES", "LOCAL_ROLES", "write_roles", "write_secret"]

DEVICE_ROLES = """\
# What clients may do: roles, groups and users. Read at the start and at a reload (SIGHUP, `stratamq reload`).
# A listener names this file (roles_file) and the roles that each of its clients has (authenticated_roles,
# anonymous_roles). What no rule allows is refused; topics that begin with $ are reached only by filters that do.

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
# The figures of each edge, and the states that bridges announce.
[roles.figures]
publish = ["$SYS/broker/connection/+/state"]
subscribe = ["$SYS/#"]
"""
)


def write_roles(path: Path, text: str) -> None:
    """Write a file of roles unless it is there.

    Raises:
        OSError: It cannot be written.
    """
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(text)


def write_secret(path: Path) -> None:
    """Write the secret by which names that no user has look the same at every edge (SCRAM), unless it is there.

    Raises:
        OSError: It cannot be written.
    """
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
