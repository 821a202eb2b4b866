"""Checks at the start of a node: files readable by others, and authorities shared by clients and nodes.

Selects the checks of each tier; ``conf/private_files.py`` checks files, ``wire/links/tls.py`` authorities. Nodes of
`stratamq up` skip the file checks, because their common folder is private.
"""

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import UserError
from conf.private_files import check_private, check_private_folder

if TYPE_CHECKING:
    from conf.settings import NodeConfig

__all__ = ["check_authorities", "check_files", "check_plaintext"]


def check_plaintext(config: "NodeConfig") -> None:
    """Refuse links without TLS on addresses that other hosts can reach.

    Raises:
        UserError: Links are plaintext on an address that is not loopback.
    """
    node = config.node
    if node.plaintext_links and not _is_loopback(node.link_bind):
        raise UserError(
            f"node.plaintext_links on {node.link_bind}: any host that reaches the address can act as a node; use links "
            'without TLS only on loopback (node.link_bind = "127.0.0.1")'
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def check_files(tier: str, config: "NodeConfig") -> None:
    """Refuse a data folder, store, log, ledger or key that other users can access.

    Raises:
        UserError: The first such file, with the remedy.
    """
    node = config.node
    inside = {"storage": "store", "router": "Raft log", "edge": "file", "balance": "socket", "admin": "audit"}[tier]
    check_private_folder(node.data_dir, "data folder", inside)
    ledger = _ledger(tier, config)
    if ledger is not None:
        check_private_folder(ledger / node.id, "ledger folder", "ledger")
    for key in _keys(tier, config):
        check_private(key, "key")


def _ledger(tier: str, config: "NodeConfig") -> Path | None:
    ledger = getattr(getattr(config, tier), "ledger", None)
    return Path(ledger) if ledger else None


def _keys(tier: str, config: "NodeConfig") -> list[Path]:
    keys = [] if config.node.key is None or config.node.plaintext_links else [config.node.key]
    if config.membership is not None and config.membership.key_file is not None:
        keys.append(config.membership.key_file)
    if tier == "admin":
        admin = getattr(config, tier)
        keys += [admin.key] if admin.key is not None else []
    if tier == "edge":
        edge = getattr(config, tier)
        keys += [key for each in edge.listeners for key in (each.key, each.http_key) if key is not None]
        keys += [path for path in (edge.scram_users_file, edge.scram_secret_file) if path is not None]
    return keys


def check_authorities(tier: str, config: "NodeConfig") -> None:
    """Refuse a listener whose client authority also signs this cluster's nodes.

    Raises:
        UserError: The authorities are the same, or one signed the other.
    """
    from wire.links.tls import shared_authority

    node = config.node
    if tier != "edge" or node.plaintext_links or node.authority is None or node.certificate is None:
        return
    for listener in getattr(config, tier).listeners:
        if listener.tls and listener.client_ca is not None:
            why = shared_authority(listener.client_ca, node.authority, node.certificate)
            if why:
                raise UserError(
                    f"listener {listener.name}: client_ca {listener.client_ca} {why}: clients need their own authority "
                    "(`stratamq init` creates one)"
                )
