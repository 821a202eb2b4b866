"""The part of ASGI that is about a server's start and end, answered apart from the application.

The frameworks take a cancelled server for a failure of the application, and say so with a traceback.
"""

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["without_lifespan"]

Application = Callable[[Any, Any, Any], Awaitable[None]]


def without_lifespan(application: Application) -> Application:
    """Return an application that answers start and end itself, and leaves requests to the one given."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    return answer
