"""The command line: exit codes, one-line errors, and fast imports for --help."""

import contextlib
import datetime
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import typer

from access.operators.commands import VERBS, OperatorRole
from stratamq.cli.main import ROOMS, application
from stratamq.cli.output import OutputFormat, render
from tests.forked_commands import run_command
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority
from wire.links.request import RequestTimeout, _exchange, request
from wire.links.tls import CertificateFiles, link_contexts
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import NodeIdentity
from wire.messages.nodes import RegisterRequest
from wire.messages.operators import Admin, AdminReply

ROOT = Path(__file__).parent.parent.parent


def stratamq(*arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("STRATAMQ_")}
    return run_command(*arguments, timeout_s=timeout, environment={**clean, **environment})


def test_help_imports_no_slow_module() -> None:
    slow = ("trio", "pydantic", "cryptography", "rich", "starlette", "anycorn", "pyarrow", "msgspec", "lsm")
    code = f"""
import sys
from stratamq.cli.main import main
assert main(["--help"]) == 0
print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "storage" in shown.stdout and "Run a local cluster" in shown.stdout
    assert shown.stderr.strip() == "[]"


def test_a_command_line_makes_the_verbs_of_its_first_word_alone() -> None:
    """Registering all takes 0.3 s; the table equals the commands of the modules, plurals included."""
    for room, words in ROOMS.items():
        added = typer.Typer()
        importlib.import_module(f"stratamq.cli.{room}").register(added)
        names = {str(command.name) for command in added.registered_commands}
        groups = {str(group.name) for group in added.registered_groups if not group.hidden}
        assert names | groups == {*words.split()}, room
        for word in words.split():
            some = application(word)
            assert len(some.registered_commands) <= len(names) + 1, word
            assert {group.name for group in some.registered_groups} >= {word} & groups
    assert len(application("--help").registered_groups) > 30
    assert application("clients").registered_groups[0].name == "client"
    assert len(application("nonsense").registered_commands) == len(application().registered_commands)


@pytest.mark.parametrize("words", ["store", "store stats", "store verify", "check", "record", "jobs", "jobs audit"])
def test_external_commands_print_usage_errors_in_one_line(words: str) -> None:
    """Regression: `store -h` was refused, and errors of `check` had a box."""
    shown = stratamq(*words.split(), "-h")
    assert (shown.returncode, shown.stderr) == (0, "") and "stratamq" in shown.stdout
    if not words.startswith("jobs"):
        wrong = stratamq(*words.split(), "--nonsense")
        assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "--nonsense" in wrong.stderr


@pytest.mark.parametrize("tier", ["router", "storage"])
def test_a_tier_imports_no_other_tier_and_no_web_server(tier: str) -> None:
    others = [name for name in ("edge", "router", "storage") if name != tier]
    code = f"""
import sys
from stratamq.packages import load_config, service_main
load_config({tier!r}, None, [], {{}})
service_main({tier!r})
tops = {{name.split(".")[0] for name in sys.modules}}
print(sorted(tops & set({[*others, "starlette", "anycorn", "prometheus_client", "pyarrow", "pyspark", "rich"]!r})))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"


def test_version_and_usage_errors() -> None:
    assert stratamq("version").stdout.startswith("stratamq ")
    for words, said in (
        (("nonsense",), "stratamq: No such command 'nonsense'"),
        (("clients", "lst"), "(see `stratamq clients -h`)\n"),
        (("client", "list", "--colour", "red"), "No such option: --colour"),
        (("client", "show"), "(see `stratamq client show -h`)\n"),
        (("up", "--edges", "many"), "--edges"),
    ):
        wrong = stratamq(*words)
        assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and said in wrong.stderr, wrong
        assert not wrong.stdout
    assert "list" in (asked := stratamq("client")).stdout + asked.stderr and asked.returncode == 2


def test_broken_configuration_is_one_line_per_mistake(tmp_path: Path) -> None:
    """All errors, exit code 2, no traceback."""
    file = tmp_path / "edge.toml"
    file.write_text("[edge]\nkep_alive = 1\nreceive_maximum = 0\n")
    shown = stratamq("edge", "--config", str(file), "--set", "edge.topic_levels_max=x", STRATAMQ_EDGE__NONSENSE="1")
    assert shown.returncode == 2
    lines = shown.stderr.splitlines()
    assert len(lines) == 4, shown.stderr
    assert all(line.startswith("stratamq: ") for line in lines)
    assert any("unknown key edge.kep_alive (did you mean edge.keep_alive_max_s?)" in line for line in lines)


def test_config_check_and_show(tmp_path: Path) -> None:
    assert stratamq("config", "check", "storage", "--config", "conf/storage.toml").stdout == "ok\n"
    assert stratamq("config", "check", "nothing").returncode == 2
    file = tmp_path / "storage.toml"
    file.write_text("[storage]\nlog_operations_max = 2\n")
    shown = stratamq("config", "show", "storage", "--config", str(file), "-o", "json")
    assert json.loads(shown.stdout) == [{"setting": "storage.log_operations_max", "value": 2, "source": str(file)}]
    everything = stratamq("config", "show", "storage", "--effective", STRATAMQ_STORAGE__QUEUE_FULL="refuse")
    assert "storage.queue_messages_max" in everything.stdout
    assert "environment STRATAMQ_STORAGE__QUEUE_FULL" in everything.stdout


def test_operator_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    missing = stratamq("router", "--set", f"node.data_dir={tmp_path / 'r'}", "--set", "node.certificate=/none.pem",
                       "--set", "node.key=/none.key", "--set", "node.authority=/none.pem")  # fmt: skip
    assert missing.stderr == (
        "stratamq: certificate /none.pem: No such file or directory; `stratamq init DIR` makes certificates, and the "
        "files that name them\n"
    )
    assert missing.returncode == 1
    unwritable = stratamq("router", "--set", f"node.data_dir={tmp_path / 'file' / 'r'}")
    assert unwritable.stderr.startswith("stratamq: data folder ") and unwritable.stderr.count("\n") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = stratamq("router", "--set", f"node.data_dir={tmp_path / 'r'}", "--set", f"node.link_port={port}",
                          "--set", "node.plaintext_links=true")  # fmt: skip
    assert f"stratamq: cannot listen for nodes on 127.0.0.1:{port}: Address already in use" in in_use.stderr
    assert "Traceback" not in in_use.stderr and in_use.returncode == 1


def test_up_refuses_mistakes_before_it_starts_anything(tmp_path: Path) -> None:
    """Settings, number of routers, a port in use, an invalid folder."""
    data = str(tmp_path / "data")
    shown = stratamq("up", "--data", data, "--set", "storage.queue_ful=refuse", "--set", "edge.receive_maximum=0")
    assert shown.returncode == 2
    assert "unknown key storage.queue_ful (did you mean storage.queue_full?)" in shown.stderr
    assert "edge.receive_maximum = '0': must be greater than or equal to 1" in shown.stderr
    assert len(shown.stderr.splitlines()) == 2
    assert "1, 3 or 5 members" in stratamq("up", "--data", data, "--routers", "2").stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shown = stratamq("up", "--data", data, "--edges", "1", "--tls-port", str(port))
    assert shown.stderr.startswith(f"stratamq: port {port} is in use")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]  # free when it is closed
    shown = stratamq("up", "--data", data, "--edges", "2", "--plain-port", str(port), "--ws-port", str(port))
    assert shown.returncode == 2 and shown.stderr.startswith(f"stratamq: port {port} is used twice: edge N")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in stratamq("up", "--data", str(tmp_path / "file")).stderr


def test_gossip_keys_are_made_and_named_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "gossip.key"
    made = stratamq("membership", "keys", "generate", str(file))
    assert made.returncode == 0 and file.stat().st_mode & 0o777 == 0o600
    (key,) = json.loads(stratamq("membership", "keys", "show-file", str(file), "-o", "json").stdout)
    assert made.stdout == f"{file}: key {key['key_id']}\n" and key["seals"]
    assert "never overwritten" in stratamq("membership", "keys", "generate", str(file)).stderr
    file.chmod(0o644)
    assert "need 0600" in stratamq("membership", "keys", "show-file", str(file)).stderr


def test_missing_package_fails_with_one_line() -> None:
    from conf.errors import UserError
    from stratamq.cli.external_commands import _command

    with pytest.raises(UserError, match="jobs is not available: no module nowhere"):
        _command("jobs", "nowhere.cli", ())(None)


def test_no_router_is_known(tmp_path: Path) -> None:
    """Without a known router exit code 2; with an unreachable one exit code 4."""
    shown = stratamq("cluster", "status", "--data", str(tmp_path))
    assert shown.returncode == 2 and "STRATAMQ_ROUTER" in shown.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A router and a storage node, started by `stratamq up`."""
    data = tmp_path_factory.mktemp("up") / "data"
    command = [sys.executable, "-m", "stratamq", "up", "--data", str(data), "--edges", "0", "--no-admin"]
    environment = {**os.environ, "STRATAMQ_CLUSTER": "stratamq"}  # of the command line, and no setting of a node
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, umask=0o022
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("StrataMQ is ready after"), first
            yield data, process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()


def running(data: Path) -> dict[str, dict[str, Any]]:
    nodes: dict[str, dict[str, Any]] = json.loads((data / "up.json").read_text())["nodes"]
    return nodes


def test_operator_verbs(cluster: tuple[Path, "subprocess.Popen[str]"]) -> None:
    data = str(cluster[0])
    status = json.loads(stratamq("cluster", "status", "--data", data, "-o", "json").stdout)
    assert {node["node"]: node["state"] for node in status["nodes"]} == {"router-0": "active", "storage-0": "active"}
    table = stratamq("nodes", "list", "--data", data).stdout.splitlines()
    assert table[0].startswith("NODE") and len(table) == 3
    explained = json.loads(stratamq("ring", "explain", "client-1", "--data", data, "-o", "json").stdout)
    assert explained["primary"] == "storage-0" and explained["owner"] == "router-0"
    shown = stratamq("node", "show", "storage-0", "--data", data, "-o", "json").stdout
    assert json.loads(shown)["tier"] == "storage"
    none = stratamq("node", "show", "storage-7", "--data", data)
    assert none.returncode == 1 and none.stderr.startswith("stratamq: unknown node 'storage-7'")
    asked = ("nodes", "list", "--data", data, "--columns", "node,tier")
    assert stratamq(*asked, "--filter", "tier=r*", "-o", "csv").stdout == "node,tier\nrouter-0,router\n"
    cut = stratamq(*asked, "--limit", "1", "-o", "csv")
    assert len(cut.stdout.splitlines()) == 2 and cut.stderr.startswith("stratamq: 1 of 2 nodes shown")
    refused = stratamq("ring", "undelegate", "a", "--data", data)  # before --yes is required
    assert refused.returncode == 1 and "no delegation" in refused.stderr
    assert stratamq("cluster", "status", "--data", data, "--router", "127.0.0.1:1").returncode == 4


def test_command_line_names_the_tier_and_a_killed_node_comes_back(
    cluster: tuple[Path, "subprocess.Popen[str]"],
) -> None:
    """A crashed node is restarted with the same metrics port."""
    data, process = cluster
    pid = running(data)["storage-0"]["pid"]
    page = running(data)["storage-0"]["addresses"]["metrics"]
    assert b"stratamq storage" in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    os.kill(pid, signal.SIGKILL)
    assert process.stdout is not None
    lines = [line for line in iter(process.stdout.readline, "storage-0 is ready again\n") if "storage-0 was" in line]
    assert lines == ["storage-0 was killed (SIGKILL); restarting\n"]
    assert running(data)["storage-0"]["pid"] != pid
    assert running(data)["storage-0"]["addresses"]["metrics"] == page


def test_all_that_a_cluster_keeps_is_its_owners_alone(cluster: tuple[Path, "subprocess.Popen[str]"]) -> None:
    """Stores, Raft logs, keys, logs, configurations: 0700 and 0600, regardless of the umask."""
    entries = [cluster[0], *cluster[0].rglob("*")]
    assert {entry.name for entry in entries} >= {"store", "raft", "gossip.key", "storage-0.log", "up.json"}
    audits = {entry for entry in entries if entry.name == "audit.jsonl"}  # their group may read them
    assert len(audits) >= 2 and {entry.lstat().st_mode & 0o777 for entry in audits} == {0o640}
    assert [entry for entry in entries if entry not in audits and entry.lstat().st_mode & 0o077] == []


def test_no_process_of_a_cluster_leaves_its_memory_behind(cluster: tuple[Path, "subprocess.Popen[str]"]) -> None:
    """Nodes hold keys and passwords, so core dumps of them and of `up` are disabled."""
    pids = {name: node["pid"] for name, node in running(cluster[0]).items()} | {"up": cluster[1].pid}
    assert {name for name, pid in pids.items() if resource.prlimit(pid, resource.RLIMIT_CORE)[0] not in (0, 1)} == set()


def test_a_node_gives_no_orders_and_an_operator_is_no_node(cluster: tuple[Path, "subprocess.Popen[str]"]) -> None:
    """Verbs require the operator's certificate, which cannot register a node."""
    state = json.loads((cluster[0] / "up.json").read_text())
    authority = DevelopmentAuthority(Path(state["tls"]), state["cluster"], datetime.datetime.now(datetime.UTC))

    async def unanswered(files: CertificateFiles, identity: NodeIdentity, message: Admin | RegisterRequest) -> bool:
        with trio.move_on_after(0.5), contextlib.suppress(RequestTimeout):  # the router closes the link
            contexts = link_contexts(files)
            await _exchange(state["routers"][0], contexts, message, identity, "router")  # type: ignore[arg-type]
            return False
        return True

    node = NodeIdentity(state["cluster"], "storage-9", "storage", 1)
    order = Admin(request=1, verb="ring delegate", arguments={"prefix": "a", "depth": 2})
    assert trio.run(unanswered, authority.node("storage", "storage-9"), node, order)
    operator = NodeIdentity(state["cluster"], "cli-1", "operator", 1)
    entry = NodeEntry("storage-9", "storage", 1, "127.0.0.1:1")
    assert trio.run(unanswered, authority.operator(), operator, RegisterRequest(1, entry))
    status = stratamq("cluster", "status", "--data", str(cluster[0])).stdout
    assert "storage-0" in status and "storage-9" not in status
    assert "depth" not in stratamq("ring", "show", "--data", str(cluster[0])).stdout


@pytest.mark.parametrize("role", OperatorRole)
@pytest.mark.parametrize("tier", ["router", "storage"])
def test_matrix_of_verbs_and_roles_on_real_links(
    cluster: tuple[Path, "subprocess.Popen[str]"], tier: str, role: OperatorRole
) -> None:
    """Each verb is refused below its role and by the other tier; no verb has that argument."""
    state = json.loads((cluster[0] / "up.json").read_text())
    authority = DevelopmentAuthority(Path(state["tls"]), state["cluster"], datetime.datetime.now(datetime.UTC))
    word = role.name.lower()
    contexts = link_contexts(authority.operator(f"ann-{word}", word))
    address = running(cluster[0])[f"{tier}-0"]["addresses"]["link"]

    async def ask() -> list[AdminReply]:
        questions = [Admin(number, verb, {"nonsense": 1}) for number, verb in enumerate(VERBS)]
        with trio.fail_after(60):
            return [await request(address, contexts, each, cluster=state["cluster"], tier=tier) for each in questions]

    for (verb, row), reply in zip(VERBS.items(), trio.run(ask), strict=True):
        assert not reply.ok and reply.exit_code == 2, verb
        if row.tier != tier:
            assert "knows no" in reply.error, verb
        elif row.role > role:
            assert f"wants the role {row.role.name.lower()}; the certificate of ann-{word} has {word}" in reply.error
        else:
            assert "nonsense" in reply.error, (verb, reply.error)


def test_a_start_that_others_could_abuse_is_refused(tmp_path: Path) -> None:
    """Readable files, plaintext links, one authority for clients and nodes: one line each."""
    authority = DevelopmentAuthority(tmp_path / "tls", "stratamq", datetime.datetime.now(datetime.UTC))
    files, server = authority.node("edge", "edge-0"), authority.server()
    flags = {
        "node.id": "edge-0",
        "node.data_dir": tmp_path / "edge-0",
        "node.certificate": files.certificate,
        "node.key": files.key,
        "node.authority": files.authority,
        "edge.listeners.tls.certificate": server.certificate,
        "edge.listeners.tls.key": server.key,
        "edge.listeners.tls.client_ca": files.authority,
        "edge.listeners.tls.bind": "127.0.0.1",
        "edge.listeners.tls.port": 0,
        "edge.listeners.tls.tls": True,
    }

    def refused(**changes: object) -> str:
        named = {**flags, **{key.replace("__", "."): value for key, value in changes.items()}}
        shown = stratamq("edge", *(word for key, value in named.items() for word in ("--set", f"{key}={value}")))
        assert shown.returncode == 1 and shown.stderr.count("\n") == 1, shown.stderr
        return shown.stderr

    assert "client_ca" in (shared := refused()) and "clients need their own authority" in shared
    assert "any host that reaches the address" in refused(node__plaintext_links=True, node__link_bind="0.0.0.0")
    assert not (tmp_path / "edge-0").exists()
    (tmp_path / "edge-0").mkdir(mode=0o700)
    (tmp_path / "edge-0" / "lock").touch()
    (tmp_path / "edge-0" / "lock").chmod(0o640)
    assert "lock is open to group or others (mode 0640): chmod 600" in refused()
    (tmp_path / "edge-0").chmod(0o755)
    assert "is open to group or others (mode 0755): chmod -R go= " in refused()
    (tmp_path / "there").symlink_to(tmp_path / "edge-0")
    assert "is a symbolic link: name what it points to" in refused(node__data_dir=tmp_path / "there")


def test_one_up_per_folder(cluster: tuple[Path, "subprocess.Popen[str]"]) -> None:
    shown = stratamq("up", "--data", str(cluster[0]), "--edges", "0")
    assert shown.returncode == 1 and "another `stratamq up` uses" in shown.stderr


def test_up_killed_leaves_no_orphans(tmp_path: Path) -> None:
    """The nodes end however `up` ends; the next `up` uses the state."""
    data = tmp_path / "data"
    command = [
        sys.executable,
        "-m",
        "stratamq",
        "up",
        "--data",
        str(data),
        "--edges",
        "0",
        "--storages",
        "0",
        "--no-admin",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("StrataMQ is ready")
        pid = running(data)["router-0"]["pid"]
        process.kill()
    deadline = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and b"stratamq" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the router outlived `stratamq up`"
        time.sleep(0.05)


def test_tables_and_json() -> None:
    result = {"leader": "r0", "empty": "", "nodes": [{"node": "a", "up": True}, {"node": "b", "lease": 1.5}]}
    assert render(result, OutputFormat.TABLE).splitlines() == [
        "leader  r0",
        "empty   -",
        "",
        "NODE  UP   LEASE",
        "a     yes  -",
        "b     -    1.5",
    ]
    assert json.loads(render(result, OutputFormat.JSON)) == result
