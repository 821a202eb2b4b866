"""``python -m tests.e2e.keepalived_pair``: two hosts with a balancer each, and keepalived's shipped file between them.

Each host is a network namespace with its own cluster behind its balancer; the client is in a third one. Kills the
balancer that has the floating address, and prints how long the address did not answer. Needs root.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mqtt.codec import encode_packet
from mqtt.packets import Connect
from tests.chaos.namespaces import Namespaces, enter_own
from tests.patience import PATIENCE_S

SHIPPED = Path(__file__).resolve().parents[2] / "docs" / "balancing" / "keepalived.conf"
FLOATING = "10.77.0.83"
PORT = 21_883  # free: the namespaces are private
HOSTS = ("one", "two")


def configuration(number: int, metrics: str) -> str:
    """Return the shipped file for one of the hosts."""
    text = SHIPPED.read_text().replace("10.0.0.83/24", f"{FLOATING}/24").replace("127.0.0.1:9746", metrics)
    text = text.replace("router_id balance_1", f"router_id balance_{number}")
    return re.sub(r"priority 110", f"priority {110 - 10 * number}", text)


def answers() -> bool:
    """Return whether a client is let in at the floating address."""
    try:
        with socket.create_connection((FLOATING, PORT), 0.25) as client:
            client.settimeout(1.0)
            client.sendall(encode_packet(Connect("pair"), 5))
            return client.recv(100)[3:4] == b"\0"
    except OSError:
        return False


def wait_for(condition: object, seconds: float) -> float:
    """Return how long it took until a condition held."""
    assert callable(condition)
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.05)
    return time.monotonic() - began


def main() -> int:
    """Run the pair once."""
    enter_own()
    spaces = Namespaces(HOSTS)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="stratamq-pair-") as name:
            return _run(Path(name), spaces, processes)
    finally:
        for process in reversed(processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(PATIENCE_S)
        spaces.close()


def _run(folder: Path, spaces: Namespaces, processes: list[subprocess.Popen[bytes]]) -> int:
    def start(host: str, log: str, *command: str) -> subprocess.Popen[bytes]:
        with (folder / log).open("wb") as output:
            process = subprocess.Popen(
                [*spaces.command(host), *command], stdout=output, stderr=output, start_new_session=True
            )
        processes.append(process)
        return process

    states = {}
    for host in HOSTS:
        words = ("up", "--edges", "1", "--balance", "--no-restart", "--plain-port", str(PORT), "--tls-port", "0")
        bind = ("--set", "balance.listeners.plain.bind=0.0.0.0", "--data", str(folder / host))
        start(host, f"{host}.log", sys.executable, "-m", "stratamq", *words, *bind)
        states[host] = folder / host / "up.json"
    wait_for(lambda: all(state.exists() for state in states.values()), 60)
    found = {host: json.loads(state.read_text())["nodes"]["balance-0"] for host, state in states.items()}
    for number, host in enumerate(HOSTS):
        config = folder / f"{host}.conf"
        config.write_text(configuration(number, found[host]["addresses"]["metrics"]))
        pid = ("--pid", str(folder / f"{host}.pid"), "--vrrp_pid", str(folder / f"{host}.vrrp"))
        start(host, f"{host}-vrrp.log", "keepalived", "--dont-fork", "--log-console", "--use-file", str(config), *pid)
    wait_for(answers, 30)
    time.sleep(2.0)  # until the first host surely has the address
    os.kill(int(found["one"]["pid"]), signal.SIGKILL)
    time.sleep(0.1)
    print(f"{wait_for(answers, 20) + 0.1:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
