"""Reload of the certificates of one TLS-terminating listener, without closing connections; a ``Part`` of a reload."""

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
    """Certificate, key and client CA; later handshakes use the last applied context.

    Raises:
      UserError: A file of the listener is invalid.
    """

    def __init__(self, listener: BalanceListener) -> None:
        self._name = listener.name
        self.settings: Sequence[str] = tuple(
            f"balance.listeners.{listener.name}.{key}" for key in ("certificate", "key", "client_ca")
        )
        self._active = _load(listener)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next handshake."""
        return self._active[0]

    def load(self, config: Any) -> Loaded:
        """Read the listener's files.

        Raises:
          UserError: A file is invalid, or an authority was removed.
        """
        for listener in config.balance.listeners:
            if listener.name == self._name and listener.certificate is not None and listener.key is not None:
                loaded = _load(listener)
                if loses_authority(self._active[0], loaded[0]):
                    text = f"listener {self._name}: an authority was removed from client_ca {listener.client_ca}"
                    raise UserError(f"{text}: restart the balancer; connected clients of that authority would remain")
                return loaded
        raise UserError(f"listener {self._name} no longer has a certificate: restart the balancer")

    def current(self) -> Loaded:
        """Return the active context."""
        return self._active

    def difference(self, loaded: Loaded) -> list[str]:
        """Return the files whose content changed."""
        return changed_files(self._active[1], loaded[1])

    def put(self, loaded: Loaded) -> None:
        """Use this context for later handshakes."""
        self._active = loaded


def _load(listener: BalanceListener) -> Loaded:
    assert listener.certificate is not None and listener.key is not None
    paths = [path for path in (listener.certificate, listener.client_ca) if path is not None]
    marks = {**file_marks(paths), **secret_marks([listener.key])}
    return client_listener_context(listener.certificate, listener.key, listener.client_ca), marks
