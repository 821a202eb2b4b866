"""anycorn as a server of HTTP/1.1 alone: what it has for HTTP/2 and WebSockets is neither spoken nor imported.

A client without TLS may ask for both whatever ALPN says, with bounds of their own: a request to change the protocol is
answered as if it were not there. The libraries behind them are 2 MiB of each process that serves a page.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["plain_server"]

UNSPOKEN = {"anycorn.protocol.h2": "H2Protocol", "anycorn.protocol.ws_stream": "WSStream"}
UPGRADE = b"upgrade"


def plain_server() -> ModuleType:
    """Return anycorn; importing it takes a third of a second."""
    for name, attribute in UNSPOKEN.items():
        if name not in sys.modules:
            sys.modules[name] = module = ModuleType(name)
            setattr(module, attribute, _Unspoken)
    server = importlib.import_module("anycorn")
    protocol: Any = importlib.import_module("anycorn.protocol")
    if protocol.H11Protocol.__module__ != __name__:
        protocol.H11Protocol = _plain(protocol.H11Protocol)
    return server


class _Unspoken:
    """Stands where a protocol stood; nobody makes one."""

    def __init__(self, *_: object, **__: object) -> None:
        raise AssertionError("a protocol was changed")


def _plain(protocol: Any) -> Any:
    """Return a class of HTTP/1.1 that never changes to another protocol."""
    h11: Any = importlib.import_module("h11")

    class Plain(protocol):  # type: ignore[misc]
        """HTTP/1.1."""

        async def _check_protocol(self, event: Any) -> None:
            """Stay."""

        async def _create_stream(self, request: Any) -> None:
            if any(name == UPGRADE for name, _ in request.headers):
                kept = [pair for pair in request.headers.raw_items() if pair[0].lower() != UPGRADE]
                request = h11.Request(
                    method=request.method, target=request.target, headers=kept, http_version=request.http_version
                )
            await super()._create_stream(request)

    return Plain
