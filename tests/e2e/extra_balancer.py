"""One more balancer beside that of ``stratamq up --balance``, with listeners of a test's own."""

import contextlib
import datetime
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from conf.errors import UserError
from gateways.balancer.status import read_status
from stratamq.toml_text import toml_document
from tests.e2e.local_cluster import LocalCluster
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority

__all__ = ["balancer", "status_of", "wait_until"]

READY_S = PATIENCE_S


@contextlib.contextmanager
def balancer(
    cluster: LocalCluster,
    name: str,
    gossip: dict[str, Any] | None = None,
    given: socket.socket | None = None,
    metrics: dict[str, Any] | None = None,
    **room: Any,
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, int]]]:
    """Run a balancer until its listeners are open; yields its process and its ports by listener.

    ``given`` is a socket for the listener "plain", as systemd would pass it.
    """
    authority = DevelopmentAuthority(cluster.data / "tls", "stratamq", datetime.datetime.now(datetime.UTC))
    own = authority.gateway(name)
    node = {
        "id": name,
        "data_dir": cluster.data / name,
        "seeds": cluster.state["routers"],
        "certificate": own.certificate,
        "key": own.key,
        "authority": own.authority,
    }
    rooms: dict[str, dict[str, Any]] = {"node": node, "balance": room}
    rooms |= {other: table for other, table in (("membership", gossip), ("metrics", metrics)) if table}
    config = cluster.data / f"{name}.toml"
    config.write_text(toml_document(rooms))
    command = [*cluster.command_line(), "balance", "--config", str(config)]
    if given is not None:
        activate = f'exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=plain "$@" 3<&{given.fileno()}'
        command = ["bash", "-c", activate, "bash", *command]
    with (cluster.data / f"{name}.log").open("wb") as log:
        fds = () if given is None else (given.fileno(),)
        process = subprocess.Popen(command, start_new_session=True, stderr=log, pass_fds=fds)
    try:
        wait_until(lambda: is_open(cluster, name))
        yield process, {listener: int(table["port"]) for listener, table in room["listeners"].items()}
    finally:
        process.kill()
        process.wait()


def is_open(cluster: LocalCluster, name: str) -> bool:
    """Return whether all listeners of a balancer are open."""
    doors = status_of(cluster, name).get("listeners", {"": "starting"})
    return all(where.endswith(" open") for where in doors.values())


def status_of(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """Return a balancer's status, {} while it starts."""
    try:
        return read_status(cluster.data / name)
    except UserError:
        return {}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most so long."""
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
