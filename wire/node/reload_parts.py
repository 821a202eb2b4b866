"""Parts of a reload that every tier has: certificates of links, and the log.

Contexts of TLS are replaced within their holder: the next handshake uses the new ones, links that stand stay.
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

MARKED_BYTES_MAX = 64 << 20  # of a file; no reader takes more
PIECE_BYTES = 1 << 20
SECRET = secrets.token_bytes(32)  # of this process
UNREAD = "unread"


class LinkCertificates:
    """Certificate, key and authority of links.

    Args:
        contexts: In force; the holder that hub and edge ask at each handshake.
    """

    settings: Sequence[str] = ("node.certificate", "node.key", "node.authority")

    def __init__(self, contexts: LinkContexts, config: NodeConfig) -> None:
        self._contexts = contexts
        self._marks = file_marks(_files(config))
        self._held = (LinkContexts(contexts.server, contexts.client), self._marks)

    def load(self, config: NodeConfig) -> tuple[LinkContexts, dict[str, str]]:
        """Read the three files.

        Raises:
            UserError: One is wrong, is named no more, or an authority was taken away.
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
        """Return the contexts in force."""
        return self._held

    def difference(self, loaded: tuple[LinkContexts, dict[str, str]]) -> list[str]:
        """Return the files whose content is another."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: tuple[LinkContexts, dict[str, str]]) -> None:
        """Use these for every handshake from now on."""
        self._contexts.server, self._contexts.client = loaded[0].server, loaded[0].client
        self._held = loaded


class Logs:
    """Level, form and repeats of the log."""

    settings: Sequence[str] = ("logs.level", "logs.format", "logs.repeat_s")

    def __init__(self, config: NodeConfig) -> None:
        self._node, self._held = config.node.id, config.logs

    def load(self, config: NodeConfig) -> LogSettings:
        """Return the settings of the log."""
        return config.logs

    def current(self) -> LogSettings:
        """Return those in force."""
        return self._held

    def difference(self, loaded: LogSettings) -> list[str]:
        """Return nothing: the settings say it all."""
        del loaded
        return []

    def put(self, loaded: LogSettings) -> None:
        """Write the log in this way from now on."""
        if loaded != self._held:
            configure_logs(loaded, self._node)
            self._held = loaded


def _files(config: NodeConfig) -> list[Path]:
    return [path for path in (config.node.certificate, config.node.authority) if path is not None]


def file_marks(paths: Sequence[Path]) -> dict[str, str]:
    """Return a mark of each file's content, the same at every node: the log and the audit have it.

    Take marks before the content is read. If a file changes between the two, its mark is the former content's, and the
    next reload sees a difference. Taken behind the content it would be the new content's mark on the former content,
    and no later reload would read the file again. A file that cannot be read has a mark too: its reader says why.
    """
    return {str(path): _mark(path, b"") for path in paths}


def secret_marks(paths: Sequence[Path]) -> dict[str, str]:
    """Return marks of files with keys and secrets: of another process they are others, so no guess can be tried."""
    return {str(path): _mark(path, SECRET) for path in paths}


def _mark(path: Path, key: bytes) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not hold the process
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
    """Return a line for each file that is new or has another content."""
    return [f"{path}: content {old.get(path, 'none')} -> {mark}" for path, mark in new.items() if old.get(path) != mark]
