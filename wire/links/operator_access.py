"""How an operator's command finds a router and its own certificate.

The router comes from ``--router``, STRATAMQ_ROUTER, the running `stratamq up` of ``--data``, or the files of `stratamq
init` there. The operator's certificate is in that folder; an administrator's certificate has precedence.
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
    """Find the routers and the operator's certificate.

    Raises:
        UserError: No router is configured, or the operator's certificate cannot be used.
    """
    named = router or os.environ.get("STRATAMQ_ROUTER", "")
    running = _record(data / "up.json") or _record(data / "cluster.json")
    if running is None:
        if not named:
            why = (
                "give --router, set STRATAMQ_ROUTER, or point --data at the folder of `stratamq up` or `stratamq init`"
            )
            missing = f"neither {data / 'up.json'} nor {data / 'cluster.json'} exists"
            raise UserError(f"no router is known: {why} ({missing})", ExitCode.USAGE)
        running = {"cluster": os.environ.get("STRATAMQ_CLUSTER", "stratamq"), "routers": [], "tls": "tls"}
    tls = data / running["tls"]  # of a running `up` it is absolute
    name = "admin" if (tls / "admin.pem").exists() else "operator"
    files = CertificateFiles(tls / f"{name}.pem", tls / f"{name}.key", tls / "ca.pem")
    return OperatorAccess(running["cluster"], [named] if named else running["routers"], link_contexts(files))
