"""anycorn as an HTTP/1.1-only server: its support for HTTP/2 and WebSockets is disabled and not imported.

Without TLS a client may request either, regardless of ALPN and with separate bounds; a request to change the protocol
is ignored. Their libraries need 2 MiB in each process that serves a page.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["plain_server"]

UNSPOKEN = {"anycorn.protocol.h2": "H2Protocol", "anycorn.protocol.ws_stream": "WSStream"}
UPGRADE = b"upgrade"


def plain_server() -> ModuleType:
    """Return anycorn; importing it takes about 0.3 s."""
    for name, attribute in UNSPOKEN.items():
        if name not in sys.modules:
            sys.modules[name] = module = ModuleType(name)
            setattr(module, attribute, _DisabledProtocol)
    server = importlib.import_module("anycorn")
    protocol: Any = importlib.import_module("anycorn.protocol")
    if protocol.H11Protocol.__module__ != __name__:
        protocol.H11Protocol = _plain(protocol.H11Protocol)
    return server


class _DisabledProtocol:
    """Placeholder for a removed protocol; never instantiated."""

    def __init__(self, *_: object, **__: object) -> None:
        raise AssertionError("the protocol was changed")


def _plain(protocol: Any) -> Any:
    """Return an HTTP/1.1 class that never changes the protocol."""
    h11: Any = importlib.import_module("h11")

    class Plain(protocol):  # type: ignore[misc]
        """HTTP/1.1."""

        async def _check_protocol(self, event: Any) -> None:
            """Keep the protocol."""

        async def _create_stream(self, request: Any) -> None:
            if any(name == UPGRADE for name, _ in request.headers):
                kept = [pair for pair in request.headers.raw_items() if pair[0].lower() != UPGRADE]
                request = h11.Request(
                    method=request.method, target=request.target, headers=kept, http_version=request.http_version
                )
            await super()._create_stream(request)

    return Plain
