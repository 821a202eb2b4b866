"""Parts of a reload common to all tiers: certificates of links, and the log.

TLS contexts are replaced within their holder: the next handshake uses the new ones, established links stay.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from conf.errors import UserError
from conf.logs import configure_logs
from conf.node_settings import LogSettings
from conf.settings import NodeConfig
from wire.links.tls import CertificateFiles, LinkContexts, link_contexts, loses_authority

__all__ = ["LinkCertificates", "Logs", "changed_files", "file_marks", "secret_marks"]

MARKED_BYTES_MAX = 64 << 20  # of a file; no reader accepts a larger one
PIECE_BYTES = 1 << 20
SECRET = secrets.token_bytes(32)  # of this process
UNREAD = "unread"


class LinkCertificates:
    """Certificate, key and authority of links.

    Args:
        contexts: In effect; hub and edge use this holder for each handshake.
    """

    settings: Sequence[str] = ("node.certificate", "node.key", "node.authority")

    def __init__(self, contexts: LinkContexts, config: NodeConfig) -> None:
        self._contexts = contexts
        self._marks = file_marks(_files(config))
        self._held = (LinkContexts(contexts.server, contexts.client), self._marks)

    def load(self, config: NodeConfig) -> tuple[LinkContexts, dict[str, str]]:
        """Read the three files.

        Raises:
            UserError: One is invalid or no longer set, or an authority was removed.
        """
        node = config.node
        if node.certificate is None or node.key is None or node.authority is None:
            raise UserError("links need node.certificate, node.key and node.authority")
        marks = file_marks(_files(config))
        contexts = link_contexts(CertificateFiles(node.certificate, node.key, node.authority))
        if loses_authority(self._held[0].server, contexts.server):
            raise UserError(
                f"an authority was taken away from node.authority {node.authority}: restart the node, for links that "
                "it let in would stay"
            )
        return contexts, marks

    def current(self) -> tuple[LinkContexts, dict[str, str]]:
        """Return the contexts in effect."""
        return self._held

    def difference(self, loaded: tuple[LinkContexts, dict[str, str]]) -> list[str]:
        """Return the files whose content changed."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: tuple[LinkContexts, dict[str, str]]) -> None:
        """Use these contexts for all later handshakes."""
        self._contexts.server, self._contexts.client = loaded[0].server, loaded[0].client
        self._held = loaded


class Logs:
    """Level, format and repetition of log lines."""

    settings: Sequence[str] = ("logs.level", "logs.format", "logs.repeat_s")

    def __init__(self, config: NodeConfig) -> None:
        self._node, self._held = config.node.id, config.logs

    def load(self, config: NodeConfig) -> LogSettings:
        """Return the settings of the log."""
        return config.logs

    def current(self) -> LogSettings:
        """Return the settings in effect."""
        return self._held

    def difference(self, loaded: LogSettings) -> list[str]:
        """Return no lines: the changed settings are listed already."""
        del loaded
        return []

    def put(self, loaded: LogSettings) -> None:
        """Apply these settings to the log."""
        if loaded != self._held:
            configure_logs(loaded, self._node)
            self._held = loaded


def _files(config: NodeConfig) -> list[Path]:
    return [path for path in (config.node.certificate, config.node.authority) if path is not None]


def file_marks(paths: Sequence[Path]) -> dict[str, str]:
    """Return a digest of each file's content, equal at every node, for log and audit log.

    Compute digests before the content is read. If a file changes in between, its digest is the old content's, and the
    next reload finds a difference. In the other order the old content would have the new content's digest, and no later
    reload would read the file again. An unreadable file has a digest too; its reader reports the fault.
    """
    return {str(path): _mark(path, b"") for path in paths}


def secret_marks(paths: Sequence[Path]) -> dict[str, str]:
    """Return keyed digests of secret files: the key is this process's own, so guesses cannot be verified."""
    return {str(path): _mark(path, SECRET) for path in paths}


def _mark(path: Path, key: bytes) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block the process
    except (OSError, ValueError):
        return UNREAD
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MARKED_BYTES_MAX:
            return UNREAD
        digest = hashlib.sha256(key)
        left = MARKED_BYTES_MAX
        while left > 0 and (piece := os.read(descriptor, PIECE_BYTES)):
            digest.update(piece)
            left -= len(piece)
    except OSError:
        return UNREAD
    finally:
        os.close(descriptor)
    return digest.hexdigest()[:16]


def changed_files(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return a line for each file that is new or changed."""
    return [f"{path}: content {old.get(path, 'none')} -> {mark}" for path, mark in new.items() if old.get(path) != mark]
