"""paho C over TCP and over WebSocket, built from ``paho_echo.c`` against Debian's libpaho-mqtt-dev."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

COUNT = 300
SOURCE = Path(__file__).with_name("paho_echo.c")


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built client."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed (Debian: gcc)")
    if not Path("/usr/include/MQTTAsync.h").exists():
        pytest.skip("paho C is not installed (Debian: libpaho-mqtt-dev)")
    built = tmp_path_factory.mktemp("paho") / "paho_echo"
    subprocess.run(["gcc", "-std=c99", "-o", str(built), str(SOURCE), "-lpaho-mqtt3a"], check=True, timeout=PATIENCE_S)
    return built


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--ws-port", "0") as running:
        yield running


@pytest.mark.parametrize("listener", ["plain", "ws"])
def test_client_receives_all_that_it_publishes(echo: Path, cluster: LocalCluster, listener: str) -> None:
    """Messages of each QoS arrive without waiting for later ones.

    paho C reads the second packet of a frame only when more bytes arrive: with ``packets_per_frame = "many"`` it
    gets 1 of 100.
    """
    scheme, path = {"plain": ("tcp", ""), "ws": ("ws", "/mqtt")}[listener]
    url = f"{scheme}://127.0.0.1:{cluster.port(0, listener)}{path}"
    got = subprocess.run(
        [str(echo), url, str(COUNT), str(PATIENCE_S)],
        timeout=2 * PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert got.returncode == 0, got.stdout + got.stderr
