"""Certificate, key and names of the HTTP service, and the authority of its clients: reloadable.

New handshakes use the reloaded files; open connections stay. Switching HTTPS on or off needs a restart, because cookies
and their names depend on it.
"""

import ssl
from collections.abc import Sequence
from typing import TypeAlias

from conf.errors import UserError
from conf.served_hosts import ServedHosts
from conf.settings import AdminConfig, NodeConfig
from wire.links.tls import certificate_hosts, loses_authority
from wire.node.reload_parts import changed_files, file_marks

__all__ = ["HttpsCertificate"]

Loaded: TypeAlias = tuple[ssl.SSLContext | None, dict[str, str], ServedHosts]


class HttpsCertificate:
    """The TLS context in use.

    Args:
        config: At the start.

    Raises:
        UserError: A file is invalid.
    """

    settings: Sequence[str] = ("admin.certificate", "admin.key", "admin.client_ca", "admin.hosts")

    def __init__(self, config: AdminConfig) -> None:
        self._held = _read(config)

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the next handshake; None: HTTP without TLS."""
        return self._held[0]

    @property
    def hosts(self) -> ServedHosts:
        """Names of the service: from its settings, its address and its certificate."""
        return self._held[2]

    def load(self, config: NodeConfig) -> Loaded:
        """Read the files again.

        Raises:
            UserError: A file is invalid, an authority was removed, or TLS was switched on or off.
        """
        assert isinstance(config, AdminConfig)
        loaded = _read(config)
        before, after = self.context, loaded[0]
        if (before is None) != (after is None):
            raise UserError("admin.certificate was added or removed: restart the service, because cookies depend on it")
        if before is not None and after is not None and loses_authority(before, after):
            raise UserError("an authority was removed from admin.client_ca: restart the service")
        return loaded

    def current(self) -> Loaded:
        """Return the files in use."""
        return self._held

    def difference(self, loaded: Loaded) -> list[str]:
        """Return the files whose content changed."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: Loaded) -> None:
        """Use these for later handshakes."""
        self._held = loaded


def _read(config: AdminConfig) -> Loaded:
    settings = config.admin
    hosts = ServedHosts([settings.bind, *settings.hosts])
    if settings.certificate is None or settings.key is None:
        return None, {}, hosts
    marks = file_marks([path for path in (settings.certificate, settings.client_ca) if path is not None])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"admin.certificate, admin.key or admin.client_ca is invalid: {error}") from None
    hosts.set_certified(certificate_hosts(settings.certificate))
    return context, marks, hosts
