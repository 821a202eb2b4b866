"""Nodes as processes, beside a Mosquitto; a dead node is replaced."""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateways.datagrams import programs
from tests.gateways.mosquitto_doors import INSTALLED, mosquitto_doors
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
NAMES = ("pump", "panel", "west")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a key for each name, and all of them in one file."""
    folder = tmp_path_factory.mktemp("keys")
    made = {name: secrets.token_hex(32) for name in NAMES}
    (folder / "keys").write_text("".join(f"{name} {key}\n" for name, key in made.items()))
    for name, key in made.items():
        (folder / f"{name}.key").write_text(key)
    (folder / "roles.toml").write_text('[roles.device]\npublish = ["west/#", "east"]\nsubscribe = ["#"]\n')
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stratamq", "gateway", "udp", *arguments]


def node(keys: Path, name: str, *settings: str) -> AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]:
    """Run a sealed node within a block; return its address."""
    return node_process(keys, name, f"udp.keys_file={keys / 'keys'}", *settings)


@contextmanager
def node_process(folder: Path, name: str, *settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a node within a block; return its address."""
    reader, writer = os.pipe()
    given = [
        f"gateway.id={name}",
        f"gateway.data_dir={folder / ('data-' + name)}",
        "udp.port=0",
        f"udp.roles_file={folder / 'roles.toml'}",
        "metrics.enabled=false",
        *settings,
    ]
    config = folder / "empty.toml"
    config.touch(0o600)
    line = command("--config", str(config), "--ready-fd", str(writer))
    line += [word for text in given for word in ("--set", text)]
    process = subprocess.Popen(line, cwd=ROOT, pass_fds=(writer,))
    os.close(writer)
    try:
        with os.fdopen(reader) as pipe:
            ready = json.loads(pipe.readline())
        yield ready["addresses"]["udp"], process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def west(keys: Path, parent: str) -> tuple[str, ...]:
    return (f"udp.parent={parent}", "udp.subtree=west", "udp.name=west", f"udp.key_file={keys / 'west.key'}")


@contextmanager
def subscriber(keys: Path, address: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Run the protocol's own subscriber; it is subscribed when the block begins."""
    line = command("sub", "--filter", "#", "--node", address, "--name", "panel", "--count", str(count))
    line += ["--key-file", str(keys / "panel.key")]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None and process.stderr.readline() == "subscribed #\n"
            yield process
        finally:
            process.kill()


def publish(keys: Path, address: str, topic: str, text: str) -> subprocess.CompletedProcess[str]:
    line = command("pub", "--topic", topic, "--node", address, "--name", "pump", "--key-file", str(keys / "pump.key"))
    return subprocess.run(line, cwd=ROOT, input=text, text=True, capture_output=True, timeout=300)


@pytest.mark.skipif(not INSTALLED, reason="package mosquitto is not installed")
async def test_devices_and_mqtt_clients_share_topics(keys: Path, tmp_path: Path) -> None:
    """Two nodes attached to a Mosquitto; each message once at each, and unauthorized ones are refused."""
    async with mosquitto_doors(tmp_path) as doors:
        broker = doors.addresses["mqtt"]
        host, port = broker.removeprefix("mqtt://").split(":")
        cluster = f'udp.cluster=["{broker}"]'
        children = 'udp.children={west=["west"]}'
        with (
            node(keys, "root", cluster, children) as (address, root),
            node(keys, "west", cluster, *west(keys, address)),
        ):
            mqtt = ["-h", host, "-p", port]
            listener = subprocess.Popen(["mosquitto_sub", *mqtt, "-t", "#", "-C", "3", "-v"], stdout=subprocess.PIPE)
            with subscriber(keys, address, 3) as panel:
                assert publish(keys, address, "west/t", "1\n").returncode == 0
                assert publish(keys, address, "east", "2\n").returncode == 0
                subprocess.run(["mosquitto_pub", *mqtt, "-q", "1", "-t", "north", "-m", "3"], check=True)
                out, _ = panel.communicate(timeout=PATIENCE_S)
                assert sorted(out.splitlines()) == ["east 2", "north 3", "west/t 1"]
                received = listener.communicate(timeout=PATIENCE_S)[0]
                assert sorted(received.splitlines()) == [b"east 2", b"north 3", b"west/t 1"]
            refused = publish(keys, address, "south", "4\n")
            assert refused.returncode == 1 and "line 1: not_authorized" in refused.stderr
            roles = keys / "roles.toml"
            roles.write_text(roles.read_text().replace('"east"', '"east", "south"'))
            root.send_signal(signal.SIGHUP)
            assert publish(keys, address, "south", "5\n").returncode == 0


@pytest.mark.slow
def test_a_dead_node_is_replaced(keys: Path) -> None:
    """Its parent has the subscriptions, and takes the subtree back when the lease of 15 s ends."""
    with (
        node(keys, "root-2", 'udp.children={west=["west"]}') as (address, _),
        node(keys, "west", *west(keys, address)) as (_, child),
        subscriber(keys, address, 2) as panel,
    ):
        assert publish(keys, address, "west/t", "1\n").returncode == 0
        child.kill()
        began = time.monotonic()
        assert publish(keys, address, "west/t", "2\n").returncode == 0
        assert time.monotonic() - began < 30
        out, _ = panel.communicate(timeout=PATIENCE_S)
        assert out.splitlines() == ["west/t 1", "west/t 2"]


def test_read_line_oversized_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be split into two messages."""
    lines = io.BytesIO(b"y" * 5_000 + b"\n" + b"z" * programs.LINE_BYTES_MAX + b"\nlast")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines))
    found = [programs.read_line() for _ in range(4)]
    assert len(found[0]) > programs.LINE_BYTES_MAX + 1
    assert found[1:] == [b"z" * programs.LINE_BYTES_MAX + b"\n", b"last", b""]


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "--topic", "a/#", "--node", "127.0.0.1:1"),
        ("pub", "--topic", "a", "--node", "nonsense"),
        ("pub", "--topic", "a", "--node", "localhost:1"),
        ("sub", "--filter", "a#", "--node", "127.0.0.1:1"),
        ("sub", "--filter", "a", "--node", "127.0.0.1:1", "--key-file", "/nowhere"),
    ],
)
def test_command_invalid_argument_exits_at_once(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        command(*arguments), cwd=ROOT, input="x", capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["udp.security=plain", "udp.bind=0.0.0.0"], "udp.allow_plain = true"),
        (["udp.roles_file=/nowhere"], "/nowhere"),
        (["udp.parent=10.0.0.1:5"], "parent and subtree belong together"),
        (["udp.device_roles=nobody"], "not a role of this file"),
        (["udp.prot=1"], "udp.prot"),
        (["udp.cluster=http://x"], "udp.cluster"),
        (["udp.security=dtls"], "dtls needs dtls_certificate"),
        (["udp.bind=0.0.0.0", 'udp.children={west=["west"]}'], "set udp.advertise"),
    ],
)
def test_node_configuration_error_is_one_line(keys: Path, settings: list[str], text: str) -> None:
    given = [f"udp.keys_file={keys / 'keys'}", f"udp.roles_file={keys / 'roles.toml'}", "udp.port=0", *settings]
    config = keys / "empty.toml"
    config.touch(0o600)
    line = command("--config", str(config), "--set", f"gateway.data_dir={keys / 'data'}")
    result = subprocess.run(
        line + [word for each in given for word in ("--set", each)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 2 and text in result.stderr and "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
