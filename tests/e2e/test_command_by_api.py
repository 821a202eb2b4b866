"""The command line with ``--api``: the same rows, lines and exit codes as over links, with a token alone."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.operated_cluster import OperatedCluster, operated_cluster
from tests.patience import PATIENCE_S

QUESTIONS = """client list --filter state=open --columns client_id
client show shown
client explain shown --topic shown/1
client list --columns client_id,connected_at --best connected_at
session list
session show shown
queue show shown --payload head
subscription show shown
subscription list
topic list
topic explain shown/1 --from shown --qos 0
route show shown/1
retained list
retained get shown/kept
share list
share show g a/#
msg explain --client shown --packet 1
msg explain --topic shown/1 --from shown
slow
log --limit 3
config list --filter name=*
drops
journal --limit 3
store replicas
store stats
store aside --node storage-0
session list --best oldest_s
audit reports
trace list
node list
membership list
membership keys list
operation list
token list
user list
ring show
ring plan --add storage-0
config show --node edge-0
config diff edge-0 edge-1
listener list"""
LEASE_S = 20  # so long a stopped node is asked and named
Place = OperatedCluster
Answered = tuple[int, str, str]  # exit code, output, lines on stderr


class ByApi:
    """Commands by the HTTP service, with a token in a file."""

    def __init__(self, place: OperatedCluster, folder: Path) -> None:
        self.place, self.folder = place, folder
        addresses = place.cluster.state["nodes"]["admin"]["addresses"]
        self.url = addresses["admin"]
        for role in ("viewer", "admin"):
            self.file(role).write_text(place.ask("token", "create", f"by-{role}", "--role", role).shown["token"])
            self.file(role).chmod(0o600)

    def file(self, role: str) -> Path:
        return self.folder / role

    def run(self, *words: str, role: str = "admin") -> tuple[int, str, str]:
        """Run a command that has neither a router nor a certificate."""
        options = ("--api", self.url, "--token-file", str(self.file(role)), "--data", str(self.folder / "none"))

        def ask() -> tuple[int, str, str]:
            done = self.place.cluster.command(*words, *options)
            return done.returncode, done.stdout, done.stderr

        return self.place.heard(ask)


@pytest.fixture(scope="module")
def place() -> Iterator[OperatedCluster]:
    options = ("--edges", "2", "--admin-port", "0", "--set", f"router.lease_s={LEASE_S}")
    with operated_cluster(*options) as here:
        nodes = here.cluster
        nodes.wait_for(lambda: "admin" in nodes.state["nodes"].get("admin", {}).get("addresses", {}), "served")
        yield here


@pytest.fixture(scope="module")
def by_api(place: OperatedCluster, tmp_path_factory: pytest.TempPathFactory) -> ByApi:
    return ByApi(place, tmp_path_factory.mktemp("tokens"))


def test_api_and_links_give_same_rows_lines_and_exit_codes(place: OperatedCluster, by_api: ByApi) -> None:
    """Lists, single rows, explanations, verbs of the routers, and refusals."""
    place.subscribe(place.come("api-reader", 0, expiry_s=60), "api/#")
    place.ask("msg", "send", "api/kept", "x", "--retain")
    for words in (
        ("client", "list", "-o", "csv", "--columns", "client_id,node,state,proto"),
        ("session", "list", "-o", "jsonl", "--columns", "client_id,queued"),
        ("listener", "list", "-o", "json"),
        ("store", "replicas", "--limit", "3", "-o", "yaml", "--columns", "partition,node,role"),
        ("subscription", "show", "api-reader", "-o", "json"),
        ("topic", "explain", "api/1", "-o", "json"),
        ("retained", "get", "api/kept", "--raw"),
        ("config", "diff", "edge-0", "storage-0"),
        ("ring", "show", "-o", "json"),
        ("operation", "show", "rebalance-9"),
        ("store", "aside"),
        ("store", "aside", "--node", "edge-0"),
        ("store", "aside-remove", "storage-0", "store.quarantined-1", "--yes"),
        ("session", "list", "--best", "subscriptions", "--columns", "client_id", "-o", "csv"),
        ("token", "list", "--limit", "1", "--columns", "token,role", "-o", "json"),
        ("client", "kick", "api-nobody"),
        ("client", "kick", "api/no/body"),
        ("listener", "pause", "api-none", "--dry-run"),
        ("msg", "explain", "--client", "api-nobody", "--packet", "1"),
        ("session", "delete", "api-reader", "--yes"),
        ("client", "list", "--filter", "colour=red"),
        ("client", "list", "--node", "edge-9"),
        ("topic", "explain", "api/+"),
        ("trace", "export", "api-none"),
    ):
        over_links, by_service = answers_of_one_state(place, by_api, *words)
        assert by_service == over_links, words


def answers_of_one_state(place: OperatedCluster, by_api: ByApi, *words: str) -> tuple[Answered, Answered]:
    """Ask over links and by the service; again where an answer over links moved meanwhile, as sizes of shards do."""
    deadline = time.monotonic() + PATIENCE_S
    over_links = place.run(*words)
    while (by_service := by_api.run(*words)) != over_links and time.monotonic() < deadline:
        before, over_links = over_links, place.run(*words)
        if over_links == before:
            break  # unchanged: a real difference
    return over_links, by_service


def test_trace_followed_until_its_end(place: OperatedCluster, by_api: ByApi) -> None:
    """The service long-polls each node."""
    assert place.ask("trace", "start", "topic", "followed/#", "--name", "followed", "--for", "60s").code == 0
    with ThreadPoolExecutor(1) as beside:
        tail = beside.submit(by_api.run, "trace", "tail", "followed")
        assert place.ask("msg", "send", "followed/1", "x").code == 0
        assert place.ask("trace", "stop", "followed").code == 0
        code, shown, errors = tail.result()
    assert (code, errors) == (0, "") and "received" in shown and "'followed/1'" in shown


def test_long_operations_share_one_table(place: OperatedCluster, by_api: ByApi) -> None:
    """A drain is listed by the service as over links, and cancelled through it."""
    assert place.ask("node", "drain", "edge-1", "--no-wait").code == 0
    try:
        for words in (("operation", "list", "-o", "json"), ("operation", "show", "drain-edge-1")):
            by_service, over_link = by_api.run(*words), place.cluster.command(*words, "--data", str(place.cluster.data))
            assert (
                by_service == (over_link.returncode, over_link.stdout, over_link.stderr)
                and "drain-edge-1" in by_service[1]
            ), words
        assert by_api.run("operation", "list", role="viewer")[0] == 0
    finally:
        cancelled = by_api.run("operation", "cancel", "drain-edge-1")
    assert cancelled[0] == 0, cancelled
    assert place.ask("operation", "list").shown == []


def test_changes_use_service_and_its_audit(place: OperatedCluster, by_api: ByApi) -> None:
    """A dry run changes no state; the audit names the token."""
    assert by_api.run("ban", "add", "user", "mallory", "--dry-run")[0] == 0
    assert not place.ask("ban", "list").shown["bans"]
    assert by_api.run("ban", "add", "user", "mallory")[0] == 0
    assert [row["value"] for row in place.ask("ban", "list").shown["bans"]] == ["mallory"]
    assert by_api.run("ban", "del", "user", "mallory")[0] == 0
    assert '"by-admin"' in (place.cluster.data / "admin" / "audit.jsonl").read_text()
    refused = by_api.run("ban", "add", "user", "mallory", role="viewer")
    assert refused[0] == 1 and refused[2].count("\n") == 1 and "the role operator" in refused[2]
    assert by_api.run("client", "list", role="viewer")[0] == 0
    outside = by_api.run("user", "delete", "nobody")
    assert outside[0] == 1 and outside[2].count("\n") == 1
    (by_api.folder / "password").write_text("planted-password")
    (by_api.folder / "password").chmod(0o600)
    assert by_api.run("user", "add", "oscar", "--password-file", str(by_api.folder / "password"))[0] == 0
    assert by_api.run("role", "put", "by-api", "--publish", "a/#")[0] == 0
    assert by_api.run("user", "change", "oscar", "--role", "by-api")[0] == 0
    assert place.ask("user", "show", "oscar").shown["roles"] == ["by-api"]
    unsure = by_api.run("user", "delete", "oscar")
    assert unsure[0] == 2 and "by-api" in unsure[1] and "with --yes" in unsure[2]
    assert by_api.run("user", "delete", "oscar", "--yes")[0] == by_api.run("role", "delete", "by-api", "--yes")[0] == 0
    audit = (place.cluster.data / "admin" / "audit.jsonl").read_text()
    assert '"user password"' not in audit and '"user add"' in audit
    assert "argon2id" not in audit and "planted" not in audit


def test_unresponsive_node_is_named(place: OperatedCluster, by_api: ByApi) -> None:
    """Exit code 3 and its name, as over links; a body is marked incomplete, also about one client."""
    place.come("of-a-silent-edge", 1)
    headers = {"Authorization": f"Bearer {by_api.file('viewer').read_text()}"}
    process = int(place.cluster.state["nodes"]["edge-1"]["pid"])
    os.kill(process, signal.SIGSTOP)
    try:
        code, _, errors = by_api.run("client", "list")
        assert code == 3 and "not complete: edge-1: " in errors and errors.count("\n") == 1
        assert by_api.run("client", "list", "--require-complete")[0] == 1
        for path in ("", "/subscriptions", "/inflight"):
            address = f"{by_api.url}api/v1/clients/of-a-silent-edge{path}"
            body = httpx.get(address, headers=headers, timeout=PATIENCE_S).json()
            assert body["complete"] is False and [one["node"] for one in body["partial"]] == ["edge-1"], body
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("change", ["wrong", "revoked", "nobody", "stranger"])
def test_refusals_are_one_line(place: OperatedCluster, by_api: ByApi, change: str) -> None:
    """A wrong and a revoked token get the same line; an unreachable service and an invalid certificate are named."""
    options: dict[str, Any] = {}
    by_api.file("other").write_text("smq_wrong")
    url = by_api.url
    if change == "revoked":
        by_api.file("other").write_text(place.ask("token", "create", "by-other").shown["token"])
        assert place.ask("token", "revoke", "by-other").code == 0
    elif change == "nobody":
        by_api.url = "http://127.0.0.1:1"
    elif change == "stranger":
        by_api.url = by_api.url.replace("http://", "https://")
    by_api.file("other").chmod(0o600)
    try:
        for words in (("client", "list"), ("ban", "list")):
            code, shown, errors = by_api.run(*words, role="other", **options)
            assert not shown and errors.count("\n") == 1, errors
            assert code == (4 if change in ("nobody", "stranger") else 1)
            assert ("needs a token" if code == 1 else "cannot connect to") in errors
    finally:
        by_api.url = url


def test_show_api_of_each_query_is_described(place: OperatedCluster, by_api: ByApi) -> None:
    """Each path and each of its arguments is in the service's description."""
    place.subscribe(place.come("shown", 0, expiry_s=60), "shown/#")
    place.ask("msg", "send", "shown/kept", "x", "--retain")
    token = by_api.file("admin").read_text()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=by_api.url, headers=headers, timeout=PATIENCE_S) as service:
        described = service.get("/api/v1/openapi.json").json()["paths"]
        for line in QUESTIONS.split("\n"):
            code, shown, errors = by_api.run(*line.split(), "--show-api")
            assert code == 0 and not errors, line
            method, _, target = shown.strip().partition(" ")
            answer = service.get(target)
            assert method == "GET" and answer.is_success, (line, answer.text)
            path = next(path for path in described if re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), answer.url.path))
            known = {one["name"] for one in described[path]["get"].get("parameters", ())}
            assert {*answer.url.params} <= known, line


def test_api_body_equals_json_output(place: OperatedCluster, by_api: ByApi) -> None:
    """Names, timestamps and all members beside the rows; timestamps were milliseconds under other names."""
    place.subscribe(place.come("told", 0, expiry_s=60), "told/#")
    place.publish(place.come("told-publisher", 1), "$SYS/told", 1)  # a refusal, for journals
    headers = {"Authorization": f"Bearer {by_api.file('admin').read_text()}"}
    with httpx.Client(base_url=by_api.url, headers=headers, timeout=PATIENCE_S) as service:
        for words, moment in (
            (
                ("client", "list", "--columns", "client_id,connected_at,node", "--filter", "client_id=told*"),
                "connected_at",
            ),
            (("subscription", "list", "--columns", "filter,since", "--filter", "client_id=told"), "since"),
            (("journal", "--columns", "at,node,event,client_id", "--filter", "client_id=told-*"), "at"),
            (("topic", "explain", "told/1"), ""),
        ):
            target = by_api.run(*words, "--show-api")[1].strip().partition(" ")[2]
            _, over_links, _ = place.run(*words, "-o", "json")
            told = service.get(target).json()
            assert told == json.loads(over_links), words
            if moment:
                assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z", told["rows"][0][moment]), told


def test_show_api_for_each_query_and_change(by_api: ByApi) -> None:
    """Printed without any request; a command of many calls, or none, is reported."""
    for words, call in (
        (("listener", "list", "--node", "edge-0"), "GET /api/v1/edge-listeners?node=edge-0&limit=100"),
        (("listener", "pause", "plain"), 'POST /api/v1/listeners/plain/pause {"node":""}'),
        (("cluster", "forget", "edge-9"), "DELETE /api/v1/nodes/edge-9"),
        (("session", "delete", "a/b", "--dry-run"), "DELETE /api/v1/sessions/a%2Fb?dry_run=true"),
        (("retained", "clear", "t"), 'POST /api/v1/retained/clear {"topics":["t"]}'),
        (("operation", "list"), "GET /api/v1/operations"),
        (("operation", "cancel", "export-a/b"), "DELETE /api/v1/operations/export-a%2Fb"),
        (
            ("user", "add", "u"),
            'POST /api/v1/users {"user":"u","record":"$argon2id$...","roles":[],"groups":[],"limits":{}}',
        ),
        (("token", "create", "t"), 'POST /api/v1/tokens {"name":"t","role":"viewer","for_s":0.0}'),
        (("membership", "keys", "list"), "GET /api/v1/membership/keys"),
        (("node", "drain", "edge-0"), "POST /api/v1/nodes/edge-0/drain"),
    ):
        assert by_api.run(*words, "--show-api") == (0, f"{call}\n", "")
    for line in ("doctor", "retained purge a/#"):
        code, shown, errors = by_api.run(*line.split(), "--show-api")
        assert (code, shown, errors.count("\n")) == (2, "", 1)
