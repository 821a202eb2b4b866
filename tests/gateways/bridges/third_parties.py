"""Brokers that others wrote, started for a test: aedes (npm) and RabbitMQ (Debian); skipped by the package's name."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["BROKERS", "NODE_MODULES", "javascript"]

NODE_MODULES = Path(os.environ.get("MQTT_NODE_MODULES", "node_modules"))
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
READY_S = 60.0
AEDES = """
const aedes = require('aedes');
(async () => {
  const broker = aedes.Aedes && aedes.Aedes.createBroker ? await aedes.Aedes.createBroker() : aedes();
  require('net').createServer(broker.handle).listen(Number(process.argv[1]), '127.0.0.1');
})();
"""


def javascript(package: str) -> dict[str, str]:
    """Return the environment in which node finds a package, or skip."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed (Debian: nodejs)")
    if not (NODE_MODULES / package).is_dir():
        pytest.skip(f"no {package} in {NODE_MODULES} (npm install {package}; MQTT_NODE_MODULES names another folder)")
    return os.environ | {"NODE_PATH": str(NODE_MODULES.resolve())}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str], environment: dict[str, str], port: int, log: Path) -> Iterator[int]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.1)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def running_aedes(folder: Path) -> Iterator[int]:
    """Run aedes; return its port."""
    environment, port = javascript("aedes"), _free_port()
    with _running(["node", "-e", AEDES, "--", str(port)], environment, port, folder / "aedes.log") as found:
        yield found


@contextmanager
def running_rabbitmq(folder: Path) -> Iterator[int]:
    """Run RabbitMQ with its MQTT plugin and a port mapper of its own; return its MQTT port."""
    if not RABBITMQ.exists():
        pytest.skip("RabbitMQ is not installed (Debian: rabbitmq-server)")
    port = _free_port()
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    (folder / "rabbitmq.conf").write_text(
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\nmqtt.allow_anonymous = true\n"
        f"listeners.tcp.1 = 127.0.0.1:{_free_port()}\n"
    )
    mapper = str(_free_port())
    environment = os.environ | {
        "HOME": str(folder),
        "ERL_EPMD_PORT": mapper,
        "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        "RABBITMQ_NODENAME": "test@localhost",
        "RABBITMQ_DIST_PORT": str(_free_port()),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    try:
        with _running([str(RABBITMQ)], environment, port, folder / "rabbitmq.log") as found:
            yield found
    finally:  # the port mapper left the process group
        subprocess.run(["epmd", "-port", mapper, "-kill"], env=environment, stdout=subprocess.DEVNULL, check=False)


BROKERS = {"aedes": running_aedes, "rabbitmq": running_rabbitmq}
