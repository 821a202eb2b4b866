"""Certificates of one listener that ends TLS, replaced while connections stand; a ``Part`` of a reload."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from conf.balance_settings import BalanceListener
from conf.errors import UserError
from wire.links.tls import client_listener_context, loses_authority
from wire.node.reload_parts import changed_files, file_marks, secret_marks

__all__ = ["BalancerCertificates"]

Loaded = tuple[ssl.SSLContext, dict[str, str]]


class BalancerCertificates:
    """Certificate, key and authority of clients; handshakes from now on use what is put in force.

    Raises:
        UserError: A file of the listener is wrong.
    """

    def __init__(self, listener: BalanceListener) -> None:
        self._name = listener.name
        self.settings: Sequence[str] = tuple(
            f"balance.listeners.{listener.name}.{key}" for key in ("certificate", "key", "client_ca")
        )
        self._held = _load(listener)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next handshake."""
        return self._held[0]

    def load(self, config: Any) -> Loaded:
        """Read the listener's files.

        Raises:
            UserError: One is wrong, or an authority was taken away.
        """
        for listener in config.balance.listeners:
            if listener.name == self._name and listener.certificate is not None and listener.key is not None:
                loaded = _load(listener)
                if loses_authority(self._held[0], loaded[0]):
                    text = f"listener {self._name}: an authority was taken away from client_ca {listener.client_ca}"
                    raise UserError(f"{text}: restart the balancer, for clients that it let in would stay")
                return loaded
        raise UserError(f"listener {self._name} has no certificate any more: restart the balancer")

    def current(self) -> Loaded:
        """Return what is in force."""
        return self._held

    def difference(self, loaded: Loaded) -> list[str]:
        """Return the files whose content is another."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: Loaded) -> None:
        """Use this context for every handshake from now on."""
        self._held = loaded


def _load(listener: BalanceListener) -> Loaded:
    assert listener.certificate is not None and listener.key is not None
    paths = [path for path in (listener.certificate, listener.client_ca) if path is not None]
    marks = {**file_marks(paths), **secret_marks([listener.key])}
    return client_listener_context(listener.certificate, listener.key, listener.client_ca), marks
