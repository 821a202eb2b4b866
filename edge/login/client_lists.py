"""Revocation lists of a listener's clients, checked at CONNECT and again for live connections.

A stale list, or a missing list of a certificate's issuer, refuses a CONNECT; a live connection is closed only if its
certificate is listed. ``cryptography`` reads the lists in a thread; files are checked every 30 s and at a reload.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from access.identity.revocation import RevocationSet, read_authorities, read_crl_files
from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from edge.login.ban_view import RevokedView
from edge.login.logins import ConnectingClient
from wire.node.revocation_files import RevocationFiles

__all__ = ["ClientFiles", "client_lists"]

ClientFiles: TypeAlias = RevocationFiles[ListenerSettings, RevocationSet]


def client_lists(
    listener: ListenerSettings,
    revoked: RevokedView,
    end_those: Callable[[Callable[[ConnectingClient], bool]], None],
    utc: Callable[[], float] = time.time,
) -> ClientFiles:
    """Return the lists of one listener, and apply them in ``revoked``.

    Args:
        end_those: Closes live clients; not called at the start, when there are none.

    Raises:
        UserError: A file is unusable at the start.
    """
    began = False

    def put(lists: RevocationSet | None) -> None:
        revoked.lists = lists
        if began and lists is not None:
            end_those(lambda client: _is_gone(client, listener.name, lists))

    def source_of(config: Any) -> ListenerSettings:
        for settings in config.edge.listeners:
            if settings.name == listener.name:
                assert isinstance(settings, ListenerSettings)
                return settings
        raise UserError(f"listener {listener.name} was removed from the settings: restart the node")

    files = RevocationFiles(
        f"clients of listener {listener.name}",
        (f"edge.listeners.{listener.name}.crl_files",),
        listener,
        source_of,
        lambda settings: _read(settings, utc()),
        put,
        utc,
    )
    began = True
    return files


def _read(listener: ListenerSettings, utc: float) -> RevocationSet | None:
    if not listener.crl_files or listener.client_ca is None:
        return None
    return read_crl_files(listener.crl_files, read_authorities(listener.client_ca), utc)


def _is_gone(client: ConnectingClient, listener: str, lists: RevocationSet) -> bool:
    principal = client.principal
    return (
        principal is not None
        and client.policy.name == listener
        and bool(principal.serial)
        and lists.ends(principal.issuer, principal.serial)
    )
