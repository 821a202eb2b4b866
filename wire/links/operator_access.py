"""How an operator's command finds a router, and as whom it comes.

``--router``, STRATAMQ_ROUTER, the `stratamq up` that runs over ``--data``, or what `stratamq init` wrote there; the
operator's certificate lies in that folder; where an administrator's lies beside it, that one is taken. What is asked is
the caller's business.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import ExitCode, UserError
from wire.links.tls import CertificateFiles, LinkContexts, link_contexts

__all__ = ["OperatorAccess", "find_access"]


@dataclass(frozen=True, slots=True)
class OperatorAccess:
    """How to reach the routers of a cluster."""

    cluster: str
    routers: list[str]
    contexts: LinkContexts | None


def _record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def find_access(router: str, data: Path) -> OperatorAccess:
    """Find out whom to ask and as whom.

    Raises:
        UserError: Nothing says where a router is, or the operator's certificate cannot be used.
    """
    named = router or os.environ.get("STRATAMQ_ROUTER", "")
    running = _record(data / "up.json") or _record(data / "cluster.json")
    if running is None:
        if not named:
            why = (
                "give --router, set STRATAMQ_ROUTER, or point --data at the folder of `stratamq up` or `stratamq init`"
            )
            missing = f"neither {data / 'up.json'} nor {data / 'cluster.json'} is there"
            raise UserError(f"no router is known: {why} ({missing})", ExitCode.USAGE)
        running = {"cluster": os.environ.get("STRATAMQ_CLUSTER", "stratamq"), "routers": [], "tls": "tls"}
    tls = data / running["tls"]  # of a running `up` it is absolute
    name = "admin" if (tls / "admin.pem").exists() else "operator"
    files = CertificateFiles(tls / f"{name}.pem", tls / f"{name}.key", tls / "ca.pem")
    return OperatorAccess(running["cluster"], [named] if named else running["routers"], link_contexts(files))
