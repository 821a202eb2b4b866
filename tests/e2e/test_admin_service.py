"""The HTTP service over a real cluster: endpoints, roles, changes, and hostile requests."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from access.operators.audit_chain import verify
from access.operators.audit_file import read_lines
from admin.http.request_admission import STREAMS_MAX
from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.idle_connections import idle_connections
from tests.patience import PATIENCE_S
from tests.turn_time import assert_within, timed


class Place(NamedTuple):
    cluster: LocalCluster
    base: str
    code: str

    def client(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.base, headers=headers, timeout=PATIENCE_S)

    def token(self, name: str, role: str) -> str:
        return str(self.cluster.admin("token", "create", name, "--role", role)["token"])


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1", "--admin-port", "0") as cluster:
        cluster.wait_for(lambda: "login" in cluster.state["nodes"].get("admin", {}).get("addresses", {}), "served")
        address, _, code = cluster.state["nodes"]["admin"]["addresses"]["login"].partition("#?code=")
        yield Place(cluster, f"{address}api/v1", code)


def test_admin_service_memory_below_80_mb(place: Place) -> None:
    """Measured before the API description is requested; unused imports of libraries are left out."""
    status = Path(f"/proc/{place.cluster.pid('admin')}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) * 1024 < 80e6


def test_browser_login_code_used_once_and_changes_require_header(place: Place) -> None:
    """The cookie is HttpOnly and SameSite, and a second use of the code is refused."""
    with place.client() as browser:
        answer = browser.post("/login", json={"code": place.code})
        assert answer.status_code == 200 and answer.json()["role"] == "admin"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert browser.get("/me").json()["csrf"] == answer.json()["csrf"]
        ban = {"kind": "user", "value": "eve"}
        forged = browser.post("/bans", json=ban)
        assert forged.status_code == 403 and forged.json()["code"] == "forged"
        done = browser.post("/bans", json=ban, headers={"X-CSRF": answer.json()["csrf"]})
        assert done.status_code == 200 and done.json()["settled"]
        assert browser.request("DELETE", "/bans", params=ban, headers={"X-CSRF": answer.json()["csrf"]}).is_success
        assert browser.post("/logout", headers={"X-CSRF": answer.json()["csrf"]}).status_code == 204
        assert browser.get("/me").status_code == 401
    with place.client() as other:
        assert other.post("/login", json={"code": place.code}).status_code == 401


def test_token_roles_enforced_and_revoked_at_once(place: Place) -> None:
    """A viewer changes no state; a revoked token is refused at the next request, like a wrong one."""
    viewer, operator = place.token("v", "viewer"), place.token("o", "operator")
    with place.client(viewer) as client:
        assert client.get("/nodes").json()["nodes"]
        refused = client.post("/bans", json={"kind": "user", "value": "x"})
        assert refused.status_code == 403 and refused.headers["content-type"] == "application/problem+json"
        assert client.delete("/tokens/o").status_code == 403
    place.cluster.wait_for(lambda: len(refused_lines(place, "v")) == 2, "in the audit")
    assert [line["verb"] for line in refused_lines(place, "v")] == ["ban add", "token revoke"]
    with place.client(operator) as client:
        tried = client.post("/bans", params={"dry_run": True}, json={"kind": "user", "value": "x"})
        assert tried.json()["dry_run"] and not place.cluster.admin("ban", "list")["bans"]
        place.cluster.admin("token", "revoke", "o")
        gone = client.get("/nodes")
    with place.client("smq_never") as client:
        never = client.get("/nodes")
    assert gone.status_code == never.status_code == 401
    assert {**gone.json(), "request_id": ""} == {**never.json(), "request_id": ""}
    assert client.base_url.path and "www-authenticate" in gone.headers
    place.cluster.admin("token", "revoke", "v")


def refused_lines(place: Place, actor: str) -> list[dict[str, Any]]:
    """Return the lines of the service's audit about the refusals of one actor."""
    lines = [json.loads(line) for line in read_lines(place.cluster.data / "admin" / "audit.jsonl")]
    return [line for line in lines if line.get("outcome") == "refused" and line.get("actor") == actor]


def test_expired_token_refused_like_unknown_token(place: Place) -> None:
    with place.client(place.token("brief-maker", "admin")) as client:
        made = client.post("/tokens", json={"name": "brief", "role": "admin", "for_s": 1}).json()
    with place.client(made["token"]) as brief, place.client("smq_never") as stranger:
        place.cluster.wait_for(lambda: brief.get("/me").status_code == 401, "ended")
        ended, never = brief.get("/nodes"), stranger.get("/nodes")
    assert ended.status_code == never.status_code == 401
    assert {**ended.json(), "request_id": ""} == {**never.json(), "request_id": ""}
    for name in ("brief", "brief-maker"):
        place.cluster.command("token", "revoke", name, "--data", str(place.cluster.data))


def test_browser_change_replay_not_applied_twice(place: Place) -> None:
    """A repeat gets the former answer; after logout, or with another session's header, it is refused."""
    token, ban = place.token("replays", "operator"), {"kind": "user", "value": "replayed"}
    with place.client() as mine, place.client() as other:
        mine_csrf = mine.post("/login", json={"token": token}).json()["csrf"]
        other_csrf = other.post("/login", json={"token": token}).json()["csrf"]
        sent = mine.build_request("POST", "/bans", json=ban, headers={"X-CSRF": mine_csrf, "Idempotency-Key": "r"})
        first, again = mine.send(sent), mine.send(sent)
        assert first.is_success and again.content == first.content
        assert other_csrf != mine_csrf
        for forgery in ("", "x", other_csrf):
            forged = mine.post("/bans", json=ban, headers={"X-CSRF": forgery})
            assert forged.status_code == 403 and forged.json()["code"] == "forged"
        assert mine.post("/logout", headers={"X-CSRF": mine_csrf}).status_code == 204
        assert mine.send(sent).status_code == 401
    assert (place.cluster.data / "admin" / "audit.jsonl").read_text().count('"replayed"') == 1
    place.cluster.admin("ban", "del", "user", "replayed")
    place.cluster.admin("token", "revoke", "replays")


def test_concurrent_session_delete_succeeds_once(place: Place) -> None:
    """One succeeds, the other gets not found, and both are in the audit."""
    tokens = [place.token(f"deletes-{number}", "admin") for number in range(2)]
    for round_number in range(5):
        name = f"twice-deleted-{round_number}"
        client = PahoClient(place.cluster.port(0, "plain"), name, expiry_s=600)
        client.subscribe("a/#", 1)
        client.close()
        clients = [place.client(token) for token in tokens]
        with ThreadPoolExecutor(2) as at_once:
            answers = list(at_once.map(lambda one, name=name: one.delete(f"/sessions/{name}"), clients))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses[0] == 200 and statuses[1] in (200, 404, 409), [answer.text for answer in answers]
        assert clients[0].get(f"/clients/{name}").status_code == 404
        for one in clients:
            one.close()
    text = (place.cluster.data / "admin" / "audit.jsonl").read_text()
    assert all(f'"{name}"' in text for name in ("deletes-0", "deletes-1"))
    for number in range(2):
        place.cluster.admin("token", "revoke", f"deletes-{number}")


def test_trace_started_read_and_stopped(place: Place) -> None:
    """A viewer sees the trace but not its events; an unknown trace and a wrong pattern are problem responses."""
    viewer, operator = place.token("tv", "viewer"), place.token("to", "operator")
    wanted = {"trace": "http", "kind": "topic", "pattern": "http/#"}
    with place.client(viewer) as client:
        assert client.post("/traces", json=wanted).status_code == 403
        assert client.get("/traces/http").status_code == 403
    with place.client(operator) as client:
        assert client.get("/traces/http").status_code == 400
        wrong = client.post("/traces", json=wanted | {"pattern": "a/#/b"})
        assert wrong.status_code >= 400 and "no topic filter" in wrong.json()["detail"]
        assert client.post("/traces", params={"dry_run": True}, json=wanted).is_success
        assert client.get("/traces").json()["rows"] == []
        assert client.post("/traces", json=wanted).is_success
        assert {row["state"] for row in client.get("/traces").json()["rows"]} == {"running"}
        place.cluster.admin("msg", "send", "http/1", "x")
        rows = client.get("/traces/http", params={"limit": 10}).json()["rows"]
        assert rows[0]["stage"] == "received" and rows[0]["topic"] == "http/1" and rows[0]["error_us"] > 0
        assert client.delete("/traces/http").is_success
        assert {row["state"] for row in client.get("/traces").json()["rows"]} == {"stopped"}
    for name in ("tv", "to"):
        place.cluster.admin("token", "revoke", name)


def test_prometheus_discovery_lists_every_node(place: Place) -> None:
    """Each target serves metrics of the node in its label."""
    with place.client(place.token("prometheus", "viewer")) as client:
        found = client.get("/sd").json()
    nodes = {row["node"] for row in place.cluster.admin("node", "list")["nodes"]}
    assert {entry["labels"]["node"] for entry in found} == nodes
    for entry in found:
        (target,) = entry["targets"]
        page = httpx.get(f"http://{target}/metrics", timeout=PATIENCE_S).text
        assert f'node="{entry["labels"]["node"]}"' in page


def test_mosquitto_tools_find_three_paths(place: Place) -> None:
    """Release as bare text, listeners without pages, and 23 topics in one flat object."""
    with place.client() as nobody:
        release = nobody.get("/version")
        assert re.fullmatch(r"\d+\.\d+\.\d+.*", release.text)
        assert release.headers["content-type"].startswith("text/plain")
        assert nobody.get("/systree").status_code == nobody.get("/listeners").status_code == 401
    with place.client(place.token("tools", "viewer")) as client:
        doors = client.get("/listeners").json()["listeners"]
        port = place.cluster.port(0, "tls")
        assert {"port": port, "protocol": "mqtt", "tls": True, "mtls": False, "allow_anonymous": True} in doors
        assert len(client.get("/edge-listeners").json()["rows"]) == len(doors)
        before = client.get("/systree").json()
        place.cluster.admin("msg", "send", "systree/kept", "12345", "--retain")
        name = "$SYS/broker/retained messages/count"
        place.cluster.wait_for(lambda: client.get("/systree").json()[name] == before[name] + 1, "counted")
        tree = client.get("/systree")
    assert "partial" not in tree.headers and len(tree.json()) == 23
    assert all(isinstance(value, int) for value in tree.json().values())
    place.cluster.admin("token", "revoke", "tools")


def test_repeated_change_applied_and_audited_once(place: Place) -> None:
    """The audit contains the actor and no token."""
    token = place.token("twice", "operator")
    with place.client(token) as client:
        headers = {"Idempotency-Key": "one"}
        first = client.post("/bans", json={"kind": "user", "value": "mallory"}, headers=headers)
        again = client.post("/bans", json={"kind": "user", "value": "mallory"}, headers=headers)
        assert first.status_code == 200 and first.content == again.content
        other = client.post("/bans", json={"kind": "user", "value": "trent"}, headers=headers)
        assert other.status_code == 422 and other.json()["code"] == "key_used"
    path = place.cluster.data / "admin" / "audit.jsonl"
    lines = list(read_lines(path))
    assert not verify(lines).broken
    text = path.read_text()
    assert text.count("mallory") == 1 and '"twice"' in text and token not in text
    assert "twice by admin" in (place.cluster.data / "router-0" / "audit.jsonl").read_text()
    place.cluster.admin("token", "revoke", "twice")


def test_if_match_with_old_map_epoch_refused(place: Place) -> None:
    token = place.token("ring", "operator")
    with place.client(token) as client:
        epoch = client.get("/ring").json()["map_epoch"]
        stale = client.post("/nodes/edge-0/drain", headers={"If-Match": f'"{epoch - 1}"'}, params={"dry_run": True})
        assert stale.status_code == 412 and stale.json()["code"] == "map_moved"
        fresh = client.post("/nodes/edge-0/drain", headers={"If-Match": f'"{epoch}"'}, params={"dry_run": True})
        assert fresh.status_code == 200
        assert client.post("/ring/pause", headers={"If-Match": "x"}).status_code == 400
        for method, path in (("DELETE", "/clients/nobody"), ("POST", "/listeners/none/pause")):
            for params in ({}, {"dry_run": True}):
                none = client.request(method, path, params=params)
                assert none.status_code == 404 and none.json()["detail"].startswith("no edge has a"), none.text
    place.cluster.admin("token", "revoke", "ring")


def test_long_operation_accepted_with_location(place: Place) -> None:
    """202 with the location of its status; its undo returns 200."""
    with place.client(place.token("long", "operator")) as client:
        begun = client.post("/nodes/edge-0/drain")
        try:
            assert begun.status_code == 202 and begun.json()["operation"] == "drain-edge-0"
            assert begun.headers["location"] == "/api/v1/operations/drain-edge-0"
            assert client.delete(begun.headers["location"][7:], headers={"If-Match": '"0"'}).status_code == 412
            row = client.get("/operations/drain-edge-0")
            assert row.status_code == 200 and row.json()["cancel"] == "node undrain"
        finally:
            assert client.post("/nodes/edge-0/undrain").status_code == 200
        assert client.get("/operations/drain-edge-0").status_code == 404
        even = client.post("/ring/rebalance", json={})
        assert even.status_code == 200 and even.json().get("rebalance") is None, "nothing is to be moved"
    place.cluster.admin("token", "revoke", "long")


def test_page_cursors_complete_and_foreign_cursor_refused(place: Place) -> None:
    """Pages of one row reach the end; the cursor of another query, and a limit of 0 or 10 million, get 400."""
    with place.client(place.token("pages", "viewer")) as client:
        whole = client.get("/partitions", params={"limit": 1000, "columns": "partition,node"}).json()
        assert whole["complete"] and not whole["cursor"]
        found: list[int] = []
        cursor = ""
        while len(found) < 5:
            page = client.get("/partitions", params={"limit": 1, "columns": "partition,node", "cursor": cursor}).json()
            found += [row["partition"] for row in page["rows"]]
            cursor = page["cursor"]
        assert found == [row["partition"] for row in whole["rows"]][:5]
        for wrong in (
            {"cursor": cursor, "partition": "7"},
            {"cursor": "AAAA"},
            {"limit": 0},
            {"limit": 10_000_000},
            {"columns": "colour"},
            {"node": "storage-9"},
            {"colour": "red"},
        ):
            refused = client.get("/partitions", params=wrong)
            assert refused.status_code == 400, wrong
            assert "\n" not in refused.json()["detail"] and refused.json()["code"] in ("bad_request", "stale_cursor")
        refused = client.get("/messages/explain", params={"origin": "nonsense"})
        assert refused.status_code == 400 and "is not an origin" in refused.json()["detail"]
    place.cluster.admin("token", "revoke", "pages")


def test_token_shown_once_and_not_stored(place: Place) -> None:
    """It authenticates; an idempotent repeat, the list, audits and logs contain it in no form."""
    with place.client(place.token("maker", "admin")) as client:
        headers, wanted = {"Idempotency-Key": "made"}, {"name": "fresh-one", "role": "viewer", "for_s": 60}
        tried = client.post("/tokens", params={"dry_run": True}, json=wanted).json()
        assert "token" not in tried and "fresh-one" not in client.get("/tokens").text
        made = client.post("/tokens", json=wanted, headers=headers)
        again = client.post("/tokens", json=wanted, headers=headers)
        token = made.json().pop("token")
        assert made.is_success and again.is_success and "token" not in again.json()
        with place.client(token) as viewer:
            assert viewer.get("/me").json()["name"] == "fresh-one"
            assert viewer.post("/tokens", json={"name": "more"}).status_code == 403
        assert token not in client.get("/tokens").text
        tried = client.post("/membership/keys", params={"dry_run": True}, json={"key": "c2VjcmV0"})
        assert tried.is_success and "c2VjcmV0" not in tried.text
        assert client.delete("/tokens/fresh-one").is_success
        assert client.get("/nodes/storage-0/aside").is_success
        assert client.get("/nodes/edge-0/aside").status_code == client.get("/nodes/x/export").status_code == 404
        assert client.delete("/operations/rebalance-9").status_code == 404
    for path in place.cluster.data.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
    place.cluster.admin("token", "revoke", "maker")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /api/v1/version HTTP/1.1\r\nHost: [::1]\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", b"4"),
        (
            b"POST /api/v1/login HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10485760\r\n\r\n",
            b"413",
        ),
        (b"POST /api/v1/login HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\n\r\n[[[[[", b"4"),
        (b"\x16\x03\x01\x00\x05hello", b"400"),
        (b"GET /static/../../conf/errors.py HTTP/1.1\r\nHost: [::1]\r\n\r\n", b"404"),
        (b"GET /static/%2e%2e/%2e%2e/conf/errors.py HTTP/1.1\r\nHost: [::1]\r\n\r\n", b"404"),
        (b"DELETE /api/v1/ HTTP/1.1\r\nHost: [::1]\r\n\r\n", b"4"),
    ],
)
def test_hostile_requests_get_errors_only(place: Place, request_bytes: bytes, status: bytes) -> None:
    """A header of 200 KB, a body of 10 MiB, no JSON, no HTTP, paths outside: refused; the service keeps running."""
    host, port = place.base.removeprefix("http://").removesuffix("/api/v1").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as stream:
        stream.settimeout(PATIENCE_S)
        stream.sendall(request_bytes)
        answer = b""
        while b"\r\n\r\n" not in answer and (more := stream.recv(65_536)):
            answer += more
    assert answer.split(b" ")[1].startswith(status), answer[:200]
    with place.client() as client:
        assert client.get("/version").is_success


def test_refused_request_keeps_connection(place: Place) -> None:
    """The body follows the head, as browsers send it: the next request on the connection is answered."""
    host, port = place.base.removeprefix("http://").removesuffix("/api/v1").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as stream:
        stream.settimeout(PATIENCE_S)
        stream.sendall(b"POST /api/v1/bans HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 2\r\n\r\n")
        time.sleep(0.3)  # the answer could be there by now
        stream.sendall(b"{}GET /api/v1/version HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: stream.recv(65_536), b""))
    assert [line.split(b" ")[1] for line in answers.split(b"HTTP/1.1")[1:]] == [b"401", b"200"], answers[:600]


def test_trickling_request_times_out(place: Place) -> None:
    """Other requests are served meanwhile."""
    host, port = place.base.removeprefix("http://").removesuffix("/api/v1").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as stream, place.client() as client:
        stream.settimeout(PATIENCE_S)
        stream.sendall(b"GET /api/v1/version HTTP/1.1\r\nHost:")
        assert client.get("/version").status_code == 200
        while stream.recv(65_536):
            pass


def test_long_poll_waits_without_blocking_short_requests(place: Place) -> None:
    """It returns at the next event or at its timeout; more long polls than short requests may run at once."""
    token = place.token("waits", "operator")
    with place.client(token) as client:
        first = client.get("/looks/journal", params={"node": "edge-0", "limit": 1000, "wait_ms": 1}).json()
        asked = {"node": "edge-0", "after": first["after"], "wait_ms": 800}
        with ThreadPoolExecutor(70) as at_once:
            waiting = [at_once.submit(client.get, "/looks/journal", params=asked) for _ in range(70)]
            assert client.get("/me").is_success
            assert {one.result().status_code for one in waiting} <= {200, 503}
        assert client.get("/looks/journal", params={"node": "edge-0", "wait_ms": 10_001}).status_code == 400
    place.cluster.admin("token", "revoke", "waits")


def test_stream_of_revoked_token_closes(place: Place) -> None:
    """Within seconds: an open stream is authorized again at intervals."""
    with place.client(place.token("stream", "viewer")) as client, client.stream("GET", "/live") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        place.cluster.admin("token", "revoke", "stream")
        assert sum(1 for _ in lines) < 200


def test_each_path_describes_its_problem_responses(place: Place) -> None:
    """Generated clients receive no response outside the description."""
    with place.client() as client:
        described = client.get("/openapi.json").json()
        refused = client.get("/nodes")
    assert refused.status_code == 401 and refused.headers["content-type"] == "application/problem+json"
    assert refused.json().keys() == set(described["components"]["schemas"]["Problem"]["required"])
    operations = [one for path in described["paths"].values() for one in path.values() if "responses" in one]
    assert len(operations) > 60
    for operation in operations:
        for status in ("400", "401", "403", "default"):
            assert operation["responses"][status]["content"].keys() == {"application/problem+json"}, operation


def test_body_optional_if_members_optional(place: Place) -> None:
    """The description marks it; the error for a required body names the missing members."""
    with place.client(place.token("bodies", "admin")) as client:
        assert client.post("/ring/rebalance", params={"dry_run": True}).status_code == 200
        refused = client.post("/bans")
        assert refused.status_code == 400 and refused.json()["detail"] == "a body in JSON is missing"
        described = client.get("/openapi.json").json()["paths"]
        wanted = {path: described[f"/api/v1{path}"]["post"]["requestBody"]["required"] for path in ("/bans", "/traces")}
        assert wanted == {"/bans": True, "/traces": True}
        assert described["/api/v1/ring/rebalance"]["post"]["requestBody"]["required"] is False
    place.cluster.admin("token", "revoke", "bodies")


def test_non_loopback_address_requires_tls(place: Place) -> None:
    config = place.cluster.data / "admin" / "admin.toml"
    refused = place.cluster.command("admin", "--config", str(config), "--set", "admin.bind=0.0.0.0")
    assert refused.returncode == 2 and "certificate" in refused.stderr and refused.stderr.count("\n") == 1


SLOW_BODY = b"POST /api/v1/login HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
HALF_A_HEAD = b"GET /api/v1/version HTTP/1.1\r\nHost: [::1]\r\n"


@pytest.mark.parametrize(
    ("source", "sent"),
    [
        pytest.param("127.0.7.1", SLOW_BODY, id="slow bodies"),
        pytest.param("127.0.0.1", SLOW_BODY, id="slow bodies of the callers' own address"),
        pytest.param("127.0.7.1", HALF_A_HEAD, id="half heads", marks=pytest.mark.slow),
        pytest.param("127.0.7.1", b"", id="silence", marks=pytest.mark.slow),
    ],
)
@timed
def test_callers_served_beside_idle_connections(place: Place, source: str, sent: bytes) -> None:
    """80 connections, reopened when closed: pages, a login and a token are served at once."""
    name = f"beside-{time.monotonic_ns()}"
    token = place.token(name, "viewer")
    host, port = place.base.removeprefix("http://").split("/")[0].split(":")
    with place.client(token) as known:
        assert known.get("/me").is_success
    took_s = []
    with idle_connections((host, int(port)), 80, (source,), sent):
        for _ in range(5):
            with place.client() as stranger, place.client(token) as caller:
                began = time.monotonic()
                assert caller.get("/me").is_success and caller.get("/nodes").is_success
                assert stranger.get("/version").is_success
                assert stranger.post("/login", json={"token": token}).is_success
                took_s.append(time.monotonic() - began)
    assert_within("four requests", max(took_s) * 1e3, 2_000)
    place.cluster.admin("token", "revoke", name)


def test_one_viewer_cannot_occupy_all_streams(place: Place) -> None:
    """100 streams of one token: it gets half of the slots, and another token gets one."""
    viewer, admin = place.token("greedy", "viewer"), place.token("root", "admin")
    host, port = place.base.removeprefix("http://").split("/")[0].split(":")
    asked = f"GET /api/v1/live HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer {viewer}\r\n\r\n".encode()
    streams = []
    try:
        for _ in range(STREAMS_MAX + 2):
            streams.append(socket.create_connection((host, int(port)), PATIENCE_S))
            streams[-1].sendall(asked)
            streams[-1].settimeout(PATIENCE_S)
            streams[-1].recv(16)
        with place.client(admin) as caller, caller.stream("GET", "/live") as stream:
            assert stream.status_code == 200
    finally:
        for one in streams:
            one.close()
    for name in ("greedy", "root"):
        place.cluster.admin("token", "revoke", name)


def test_failed_logins_rate_limited(place: Place) -> None:
    """Five a second of one address get 401, more get 429; a valid token is accepted meanwhile."""
    token = place.token("slowed", "viewer")
    with place.client("smq_guess") as stranger, place.client() as browser, place.client(token) as friend:
        with ThreadPoolExecutor(20) as at_once:
            answers: list[httpx.Response] = []
            while not any(answer.status_code == 429 for answer in answers):  # they come as fast as the machine can
                answers += at_once.map(lambda _: stranger.get("/me"), range(40))
                assert friend.get("/me").is_success
        answers += [browser.post("/login", json={"code": "guess"})]
        assert {answer.status_code for answer in answers} == {401, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["code"] == "too_many_logins" and int(refused.headers["retry-after"]) >= 1
    place.cluster.admin("token", "revoke", "slowed")
