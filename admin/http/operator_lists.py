"""Revocation lists for operators' certificates: a listed certificate is refused by the HTTP service.

Read and validated like the lists of links, at the start, at a reload and on file changes. If operators use the nodes'
authority, the lists of that authority apply without being set again. An expired list refuses all certificates that it
may cover, as in link handshakes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from access.identity.peer_lists import IssuedPeers
from access.identity.revocation import read_authorities, read_crl_files
from conf.settings import AdminConfig, NodeConfig
from wire.node.revocation_files import RevocationFiles

__all__ = ["OperatorFiles", "OperatorLists", "operator_files"]


@dataclass(frozen=True, slots=True)
class OperatorSource:
    """The files of the current settings."""

    crl_files: tuple[Path, ...]
    client_ca: Path | None


OperatorFiles: TypeAlias = RevocationFiles[OperatorSource, IssuedPeers]


class OperatorLists:
    """The lists in use.

    Args:
        utc: Returns seconds since the epoch.
    """

    def __init__(self, utc: Callable[[], float] = time.time) -> None:
        self._utc = utc
        self._lists: IssuedPeers | None = None

    def put(self, lists: IssuedPeers | None) -> None:
        """Use other lists."""
        self._lists = lists

    def refusal(self, certificate: bytes) -> str:
        """Return why a certificate in DER is refused, "" if it is not."""
        return "" if self._lists is None else self._lists.refusal(certificate, self._utc())


def operator_files(config: AdminConfig, lists: OperatorLists) -> OperatorFiles:
    """Return the revocation files of a service; they update ``lists``.

    Raises:
        UserError: A file is invalid at the start.
    """
    return RevocationFiles("operators", ("admin.client_crl_files",), _source_of(config), _source_of, _read, lists.put)


def _source_of(config: NodeConfig) -> OperatorSource:
    """Return the files of the settings; those of links if operators and nodes share an authority."""
    assert isinstance(config, AdminConfig)
    node, settings = config.node, config.admin
    files = settings.client_crl_files
    if not files and node.crl_files and settings.client_ca is not None and node.authority is not None:
        of_nodes = set(read_authorities(node.authority))
        files = node.crl_files if of_nodes.intersection(read_authorities(settings.client_ca)) else ()
    return OperatorSource(files, settings.client_ca)


def _read(source: OperatorSource) -> IssuedPeers | None:
    if not source.crl_files or source.client_ca is None:
        return None
    return IssuedPeers(read_crl_files(source.crl_files, read_authorities(source.client_ca), time.time()))
