"""Idle connections to a port, each reopened when the port closes it: an attack without credentials."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

from tests.patience import PATIENCE_S

__all__ = ["idle_connections"]

LOOK_S = 0.25


@contextlib.contextmanager
def idle_connections(
    address: tuple[str, int], count: int, sources: Sequence[str] = ("127.0.0.1",), data: bytes = b""
) -> Iterator[None]:
    """Hold this many connections during the block, from these addresses in rotation; each sends ``data``."""
    stopped = threading.Event()
    held = [_opened(address, sources[number % len(sources)], data) for number in range(count)]

    def hold() -> None:
        while not stopped.wait(LOOK_S):
            for number, one in enumerate(held):
                if _is_closed(one):
                    one.close()
                    with contextlib.suppress(OSError):
                        held[number] = _opened(address, sources[number % len(sources)], data)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        stopped.set()
        holder.join()
        for one in held:
            one.close()


def _opened(address: tuple[str, int], source: str, data: bytes) -> socket.socket:
    opened = socket.create_connection(address, PATIENCE_S, source_address=(source, 0))
    opened.setblocking(False)
    with contextlib.suppress(OSError):
        opened.send(data)
    return opened


def _is_closed(one: socket.socket) -> bool:
    try:
        return not one.recv(4_096)
    except BlockingIOError:
        return False
    except OSError:
        return True
