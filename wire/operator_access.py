"""How an operator's command finds a router, and as whom it comes.

``--router``, STRATAMQ_ROUTER, or the `stratamq up` that runs over ``--data``; the operator's certificate lies in that
folder. What is asked is the caller's business.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ExitCode, UserError
from wire.tls import CertificateFiles, LinkContexts, link_contexts

__all__ = ["Access", "find_access"]


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the routers of a cluster."""

    cluster: str
    routers: list[str]
    contexts: LinkContexts | None


def find_access(router: str, data: Path) -> Access:
    """Find out whom to ask and as whom.

    Raises:
        UserError: Nothing says where a router is, or the operator's certificate cannot be used.
    """
    named = router or os.environ.get("STRATAMQ_ROUTER", "")
    try:
        running = json.loads((data / "up.json").read_text())
    except (OSError, ValueError):
        folder = data / "tls"
        if not named:
            why = "give --router, set STRATAMQ_ROUTER, or point --data at the folder of a running `stratamq up`"
            raise UserError(f"no router is known: {why} ({data / 'up.json'} is not there)", ExitCode.USAGE) from None
        running = {"cluster": os.environ.get("STRATAMQ_CLUSTER", "stratamq"), "routers": [], "tls": str(folder)}
    tls = Path(running["tls"])
    files = CertificateFiles(tls / "operator.pem", tls / "operator.key", tls / "ca.pem")
    return Access(running["cluster"], [named] if named else running["routers"], link_contexts(files))
