"""Credentials of a client: the data of its CONNECT and its connection for the chain of authentication steps."""

from typing import cast

from access.identity.principal import CertificateFacts, Credentials
from mqtt.packets import Connect
from mqtt.properties import PropertyId

__all__ = ["credentials_of"]


def credentials_of(
    packet: Connect, listener: str, address: str, *, certificate: CertificateFacts | None = None, secure: bool = False
) -> Credentials:
    """Return the credentials of a CONNECT.

    Args:
        packet: The CONNECT.
        listener: Name of the listener.
        address: Of the client, without port; that of a PROXY header if its sender is trusted.
        certificate: The client's, read once for a connection.
        secure: The connection is TLS.
    """
    properties = packet.properties or {}
    return Credentials(
        listener,
        address,
        packet.client_id,
        packet.username,
        packet.password,
        certificate,
        cast(str, properties.get(PropertyId.AUTHENTICATION_METHOD, "")),
        cast(bytes, properties.get(PropertyId.AUTHENTICATION_DATA, b"")),
        secure,
    )
