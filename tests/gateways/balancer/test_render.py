"""Generated and shipped configurations of other balancers, validated by their programs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from conf.errors import UserError
from gateways.balancer.render import KINDS, render, targets
from tests.patience import PATIENCE_S

SHIPPED = Path(__file__).resolve().parents[3] / "docs" / "balancing"
NODES: list[dict[str, object]] = [
    {"node": "edge-1", "tier": "edge", "state": "active", "clients": {"tls": "10.0.0.11:8883"}},
    {"node": "edge-0", "tier": "edge", "state": "active", "clients": {"tls": "[fd00::10]:8883"}},
    {"node": "edge-2", "tier": "edge", "state": "draining", "clients": {"tls": "10.0.0.12:8883"}},
    {"node": "edge-3", "tier": "edge", "state": "dead", "clients": {"tls": "10.0.0.13:8883"}},
    {"node": "edge-4", "tier": "edge", "state": "active", "clients": {"tls": "0.0.0.0:8883"}},
    {"node": "edge-5", "tier": "edge", "state": "active", "clients": {"plain": "10.0.0.15:1883"}},
    {"node": "storage-0", "tier": "storage", "state": "active", "clients": {}},
    {"node": "stranger", "state": "unknown"},
]


def check(program: str, *command: str) -> None:
    """Validate a configuration with a program; skip if it is not installed."""
    package = {"nginx": "nginx with libnginx-mod-stream"}.get(program, program)
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian: {package})")
    ended = subprocess.run([program, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if "ngx_stream_module" in ended.stderr and "cannot open shared object" in ended.stderr:
        pytest.skip(f"NGINX has no module for streams (Debian: {package})")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def validate(kind: str, path: Path) -> None:
    if kind == "haproxy":
        check("haproxy", "-c", "-f", str(path))
    elif kind == "nginx":
        check("nginx", "-t", "-c", str(path), "-g", f"pid {path.parent}/nginx.pid; error_log {path.parent}/nginx.log;")
    else:
        check("envoy", "--mode", "validate", "-c", str(path))


def test_targets_lists_only_eligible_edges() -> None:
    found = [(target.name, target.host, target.port) for target in targets(NODES, "tls")]
    assert found == [("edge-0", "[fd00::10]", 8883), ("edge-1", "10.0.0.11", 8883)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [NODES, []], ids=["two edges", "none"])
def test_render_output_is_valid(kind: str, nodes: list[dict[str, object]], tmp_path: Path) -> None:
    """With a health port and PROXY headers, and without an edge."""
    text = render(kind, targets(nodes, "tls"), "tls", "127.0.0.1:8883", 9749, proxy=True)
    assert text == render(kind, targets(nodes, "tls"), "tls", "127.0.0.1:8883", 9749, proxy=True)
    path = tmp_path / f"balancer.{'yaml' if kind == 'envoy' else 'conf'}"
    head = "load_module modules/ngx_stream_module.so;\nevents {}\n" if kind == "nginx" else ""
    path.write_text(head + text)
    validate(kind, path)


@pytest.mark.parametrize(
    ("kind", "bind", "line"), [("caddy", ":1", "expected haproxy, nginx, envoy"), ("nginx", "x", "--bind x")]
)
def test_render_invalid_argument_fails_with_one_line(kind: str, bind: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        render(kind, [], "tls", bind, 0, proxy=False)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("haproxy", "haproxy-passthrough.cfg"),
        ("nginx", "nginx-stream.conf"),
        ("envoy", "envoy.yaml"),
    ],
)
def test_shipped_file_is_valid(kind: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_text((SHIPPED / file).read_text())
    validate(kind, path)


def test_keepalived_file_is_valid() -> None:
    check("keepalived", "-t", "-f", str(SHIPPED / "keepalived.conf"))
