"""What `stratamq up` would start: names, ports, defaults, and the files it writes."""

import datetime
import errno
import fcntl
import itertools
import json
import os
import random
import socket
import tempfile
import tomllib
from pathlib import Path

import pytest
import trio

from conf.errors import ExitCode, UserError
from conf.settings import EdgeConfig, RouterConfig
from stratamq.cluster import _addresses, run_up
from stratamq.local_plan import UpOptions, make_plan
from stratamq.packages import load_config
from stratamq.toml_text import toml_document

NOW = datetime.datetime.now(datetime.UTC)


def free_base(count: int) -> int:
    """Return a port whose ``count`` followers are free too."""
    for base in range(21_000, 31_000, 37):
        try:
            for port in range(base, base + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


def test_edge_i_listens_on_port_plus_i(tmp_path: Path) -> None:
    """Plain and WebSocket only when asked; 0 is chosen."""
    base = free_base(3)
    plan = make_plan(UpOptions(edges=3, data=tmp_path, tls_port=base, ws_port=0), tmp_path, NOW)
    edges = plan.of_tier("edge")
    assert [edge.listeners["tls"] for edge in edges] == [base, base + 1, base + 2]
    assert all("plain" not in edge.listeners and edge.listeners["ws"] > 0 for edge in edges)
    assert len({edge.listeners["ws"] for edge in edges}) == 3


def test_no_chosen_port_is_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chosen port leaves edge 1 its own, though the first try would be that."""
    base = free_base(2)
    tries = itertools.count(base + 1)
    monkeypatch.setattr(random.Random, "choice", lambda _self, _range: next(tries))
    plan = make_plan(UpOptions(edges=2, data=tmp_path, tls_port=base, ws_port=0), tmp_path, NOW)
    assert [edge.listeners["tls"] for edge in plan.of_tier("edge")] == [base, base + 1]


def test_clusters_beside_each_other_choose_different_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another `up` of this user chose is not free, though its node has not bound it yet."""
    base = free_base(12)
    tries = itertools.count(base)
    monkeypatch.setattr(random.Random, "choice", lambda _self, _range: next(tries))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"stratamq-ports-{os.getuid()}"
    folder.mkdir()
    with (folder / str(base)).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plan = make_plan(UpOptions(edges=1, data=tmp_path / "data", tls_port=0), tmp_path, NOW)
    assert base not in json.loads((tmp_path / "ports.json").read_text()).values()
    assert plan.routers == (f"127.0.0.1:{base + 1}",)


def test_another_port_is_chosen_where_one_was_taken_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice; a third time the mistake is told, and any other one at once."""
    told: list[str] = []
    plans: list[int] = []

    def run(_: object) -> int:
        plans.append(1)
        if told:
            raise ExceptionGroup("nodes", [UserError(told.pop())])
        return 0

    monkeypatch.setattr(trio, "run", run)
    taken = f"edge-0: cannot listen: {os.strerror(errno.EADDRINUSE)}"
    options = UpOptions(edges=1, data=tmp_path, tls_port=0)
    for mistakes, runs in (([taken], 2), ([taken, taken], 3)):
        told[:], plans[:] = mistakes, []
        assert run_up(options) == 0 and len(plans) == runs
    for mistakes, runs in (([taken] * 3, 3), (["edge-0: no such file"], 1)):
        told[:], plans[:] = mistakes, []
        with pytest.raises(ExceptionGroup):
            run_up(options)
        assert len(plans) == runs


@pytest.mark.parametrize(("settings", "path"), [((), "/mqtt"), (("edge.listeners.ws.path=/live",), "/live")])
def test_websocket_address_ends_with_path(settings: tuple[str, ...], path: str, tmp_path: Path) -> None:
    """A client without it gets 404: MQTT.js, for one, asks for / when its URL ends with the port."""
    options = UpOptions(edges=2, data=None, plain_port=0, ws_port=0, settings=settings)
    for edge in make_plan(options, tmp_path, NOW).of_tier("edge"):
        shown = _addresses(edge, {}).split(", ")
        assert f"ws localhost:{edge.listeners['ws']}{path}" in shown
        assert f"plain localhost:{edge.listeners['plain']}" in shown


def test_names_and_defaults_of_a_local_cluster(tmp_path: Path) -> None:
    """TLS and anonymous on loopback, min(3, storages) copies, all routers as seeds."""
    options = UpOptions(edges=1, routers=3, storages=2, data=None)
    plan = make_plan(options, tmp_path, NOW)
    assert [node.name for node in plan.nodes] == [
        "router-0",
        "router-1",
        "router-2",
        "storage-0",
        "storage-1",
        "edge-0",
    ]
    router = load_config("router", plan.of_tier("router")[1].config, (), {})
    edge = load_config("edge", plan.of_tier("edge")[0].config, ("edge.receive_maximum=7",), {})
    assert isinstance(router, RouterConfig) and isinstance(edge, EdgeConfig)
    assert (router.router.replicas, router.router.min_in_sync, len(router.router.members)) == (2, 1, 3)
    assert router.node.id == "router-1" and router.router.members[1] == f"router-1@{plan.routers[1]}"
    assert edge.node.seeds == plan.routers
    (tls,) = edge.edge.listeners
    assert tls.tls and tls.allow_anonymous and tls.bind == "127.0.0.1" and tls.client_ca is None
    assert edge.edge.user_property_bytes_max == 128 * 1024
    assert edge.edge.receive_maximum == 7
    assert edge.membership.profile == "local"


def test_a_second_run_finds_the_routers_where_they_were(tmp_path: Path) -> None:
    """Their addresses are in Raft's log; certificates are made once."""
    first = make_plan(UpOptions(data=tmp_path), tmp_path, NOW)
    content = (tmp_path / "tls" / "router-0.pem").read_bytes()
    assert make_plan(UpOptions(data=tmp_path), tmp_path, NOW).routers == first.routers
    assert (tmp_path / "tls" / "router-0.pem").read_bytes() == content
    assert json.loads((tmp_path / "ports.json").read_text())["router-0"] == int(first.routers[0].rpartition(":")[2])
    assert (tmp_path / "tls" / "gossip.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (UpOptions(routers=4), "1, 3 or 5 members"),
        (UpOptions(edges=2, tls_port=65535), "below 65536"),
        (UpOptions(settings=("edge.nonsense=1",)), "unknown key edge.nonsense"),
        (
            UpOptions(settings=("edge.receive_maximum=0", "storage.queue_bytes_max=0")),
            "storage.queue_bytes_max.*\n.*edge.receive_maximum",
        ),
    ],
)
def test_mistakes_are_usage_errors(tmp_path: Path, options: UpOptions, words: str) -> None:
    """All of them, before anything starts."""
    with pytest.raises(UserError, match=words) as caught:
        make_plan(options, tmp_path, NOW)
    assert caught.value.exit_code == ExitCode.USAGE


def test_toml_text_is_read_back() -> None:
    """Whatever is in the values; tables in tables."""
    rooms: dict[str, dict[str, object]] = {
        "node": {"id": 'a"\\\n', "seeds": ["x:1"], "port": 0, "ok": True, "s": 1.5, "path": Path("/ü")},
        "edge": {"listeners": {"tls": {"port": 1}, "ws": {"port": 2}}},
        "empty": {},
    }
    assert tomllib.loads(toml_document(rooms)) == {**rooms, "node": {**rooms["node"], "path": "/ü"}}
