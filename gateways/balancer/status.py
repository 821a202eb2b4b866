"""Unix socket with the state of a balancer for `stratamq balance status`: one JSON document per connection.

The socket is in the balancer's data folder, for this user and root only.
"""

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from conf.errors import ExitCode, UserError
from wire.unix_name import unix_name

__all__ = ["StatusSocket", "read_status"]

NAME = "status.sock"
TIMEOUT_S = 5.0
RETRY_S = 0.1


class StatusSocket:
    """The socket of one balancer."""

    def __init__(self, folder: Path, status: Callable[[], dict[str, object]]) -> None:
        self._path = folder.absolute() / NAME
        self._status = status

    async def run(self) -> None:
        """Serve until cancelled."""
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            with unix_name(self._path) as name:
                listening.bind(name)
            self._path.chmod(0o600)
            listening.listen(8)
            listening.setblocking(False)
            try:
                while True:
                    await trio.lowlevel.wait_readable(listening)
                    try:
                        connection, _ = listening.accept()
                    except OSError:  # the client disconnected, or no descriptor is free
                        await trio.sleep(RETRY_S)
                        continue
                    with contextlib.suppress(OSError, trio.TooSlowError, trio.BrokenResourceError):
                        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
                        with trio.fail_after(TIMEOUT_S):
                            async with stream:
                                await stream.send_all(json.dumps(self._status()).encode())
            finally:
                self._path.unlink(missing_ok=True)


def read_status(folder: Path) -> dict[str, Any]:
    """Return the status of the balancer that runs in a data folder.

    Raises:
      UserError: No balancer runs there, or it does not answer (exit code 4).
    """
    path = folder / NAME
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            with unix_name(path) as name:
                connection.connect(name)
            while more := connection.recv(65_536):
                data += more
        found: dict[str, Any] = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"no balancer answers at {path}: {why}", ExitCode.NOT_READY) from None
    return found
