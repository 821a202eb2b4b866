"""The HTTP service over TLS: operator certificates, browser cookies, and refused starts."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S
from tests.wire.revocation_lists import revocation_list


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--admin-port", "0") as here:
        here.wait_for(lambda: "login" in here.state["nodes"].get("admin", {}).get("addresses", {}), "served")
        yield here


def settings(cluster: LocalCluster, folder: Path, *more: str) -> list[str]:
    tls = cluster.data / "tls"
    named = {
        "node.data_dir": folder,
        "admin.port": 0,
        "metrics.port": 0,
        "admin.certificate": tls / "server.pem",
        "admin.key": tls / "server.key",
    }
    flags = [f"{name}={value}" for name, value in named.items()] + list(more)
    return [word for flag in flags for word in ("--set", flag)]


@contextlib.contextmanager
def service(cluster: LocalCluster, folder: Path, *more: str, config: Path | None = None) -> Iterator[dict[str, str]]:
    """Run one more service; yield its addresses."""
    read, write = os.pipe()
    config = config or cluster.data / "admin" / "admin.toml"
    command = [*cluster.command_line(), "admin", "--config", str(config), *settings(cluster, folder, *more)]
    process = subprocess.Popen([*command, "--ready-fd", str(write)], pass_fds=(write,), stderr=subprocess.PIPE)
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            ready = pipe.readline()
            assert ready, process.communicate(timeout=PATIENCE_S)
            yield {**json.loads(ready)["addresses"], "pid": str(process.pid)}
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def context(cluster: LocalCluster, name: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(cluster.data / "tls" / "ca.pem"))
    if name:
        made.load_cert_chain(cluster.data / "tls" / f"{name}.pem", cluster.data / "tls" / f"{name}.key")
    return made


def test_operator_certificate_is_login(cluster: LocalCluster, tmp_path: Path) -> None:
    """Name and role come from the certificate; a node's certificate is refused; the audit line has the name."""
    with service(cluster, tmp_path, f"admin.client_ca={cluster.data}/tls/ca.pem", "admin.bind=0.0.0.0") as addresses:
        base = addresses["admin"].replace("0.0.0.0", "127.0.0.1") + "api/v1"
        assert base.startswith("https://")
        with httpx.Client(base_url=base, verify=context(cluster, "operator"), timeout=PATIENCE_S) as client:
            me = client.get("/me").json()
            assert (me["name"], me["role"], me["way"]) == ("operator", "operator", "certificate")
            for header in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
                forged = client.post("/ring/pause", headers=header)
                assert (forged.status_code, forged.json()["code"]) == (403, "forged"), header
            own = {"Origin": base.removesuffix("/api/v1"), "Sec-Fetch-Site": "same-origin"}
            assert client.post("/bans", json={"kind": "user", "value": "by-certificate"}, headers=own).is_success
            assert client.request("DELETE", "/bans", params={"kind": "user", "value": "by-certificate"}).is_success
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        bans = [line for line in lines if line.get("verb") == "ban add"]
        assert len(bans) == 1 and bans[0]["actor"] == bans[0]["role"] == "operator"
        assert bans[0]["arguments"]["way"] == "certificate" and bans[0]["outcome"] == "done"
        for name in ("", "client", "edge-0"):
            with httpx.Client(base_url=base, verify=context(cluster, name), timeout=PATIENCE_S) as client:
                assert client.get("/me").status_code == 401, name
        code = addresses["login"].partition("#?code=")[2]
        with httpx.Client(base_url=base, verify=context(cluster), timeout=PATIENCE_S) as browser:
            cookie = browser.post("/login", json={"code": code}).headers["set-cookie"]
            assert cookie.startswith("__Host-stratamq=") and "Secure" in cookie and "HttpOnly" in cookie
            assert "Path=/" in cookie and "Domain" not in cookie and "samesite=strict" in cookie.lower()


def test_dns_rebinding_request_refused(cluster: LocalCluster) -> None:
    """Its requests have the attacker's name in Host."""
    base = cluster.state["nodes"]["admin"]["addresses"]["admin"] + "api/v1"
    port = httpx.URL(base).port
    with httpx.Client(base_url=base, timeout=PATIENCE_S) as client:
        for host in (f"evil.example:{port}", "evil.example", f"localhost.evil.example:{port}", f"192.0.2.1:{port}"):
            for method, path in (("GET", "/version"), ("POST", "/login"), ("GET", "/nodes"), ("GET", "/../../")):
                answer = client.request(method, path, headers={"Host": host}, json={"token": "x"})
                assert (answer.status_code, answer.json()["code"]) == (421, "misdirected"), (host, path)
                assert "admin.hosts" in answer.json()["do"] and "set-cookie" not in answer.headers
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
            assert client.get("/version", headers={"Host": host}).status_code == 200, host
    assert "stratamq_admin_misdirected_total" in cluster.metrics("admin")


def test_host_names_of_certificate_and_settings_served(cluster: LocalCluster, tmp_path: Path) -> None:
    """Other hosts get 421; a proxy's name is listed in admin.hosts, which a reload reads again."""
    config = tmp_path / "admin.toml"
    text = (cluster.data / "admin" / "admin.toml").read_text()
    head, table, rest = text.partition("[admin]\n")
    config.write_text(f'{head}{table}hosts = ["ops.example"]\n{rest}')
    named = (f"admin.client_ca={cluster.data}/tls/ca.pem", "admin.bind=0.0.0.0")
    with service(cluster, tmp_path / "service", *named, config=config) as addresses:
        base = addresses["admin"].replace("0.0.0.0", "127.0.0.1") + "api/v1"
        with httpx.Client(base_url=base, verify=context(cluster, "operator"), timeout=PATIENCE_S) as client:

            def status(host: str) -> int:
                return client.get("/version", headers={"Host": host}).status_code

            assert [status(host) for host in ("localhost", "ops.example", "OPS.example:443")] == [200] * 3
            assert [status(host) for host in ("new.example", "evil.example", "0.0.0.0", "x.ops.example")] == [421] * 4
            config.write_text(config.read_text().replace("ops.example", "new.example"))
            os.kill(int(addresses["pid"]), signal.SIGHUP)
            cluster.wait_for(lambda: status("new.example") == 200, "reloaded")
            assert status("ops.example") == 421


def test_revoked_certificate_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    """Effective with the reload that reads the list, also on an open connection."""
    tls, lists = cluster.data / "tls", tmp_path / "operators.crl"
    lists.write_bytes(revocation_list(tls))
    named = (f"admin.client_ca={tls}/ca.pem", f"admin.client_crl_files={lists}", "admin.bind=0.0.0.0")
    with service(cluster, tmp_path / "service", *named) as addresses:
        base = addresses["admin"].replace("0.0.0.0", "127.0.0.1") + "api/v1"
        with httpx.Client(base_url=base, verify=context(cluster, "operator"), timeout=PATIENCE_S) as client:
            assert client.get("/me").json()["name"] == "operator"
            lists.write_bytes(revocation_list(tls, [tls / "operator.pem"]))
            os.kill(int(addresses["pid"]), signal.SIGHUP)
            cluster.wait_for(lambda: client.get("/me").status_code == 401, "revoked")


def test_reload_applies_new_certificate(cluster: LocalCluster, tmp_path: Path) -> None:
    """Regression: only the expiry metric followed the new file."""
    tls = cluster.data / "tls"
    for name in ("server", "admin"):
        for end in ("pem", "key"):
            (tmp_path / f"{name}.{end}").write_bytes((tls / f"{name}.{end}").read_bytes())
            (tmp_path / f"{name}.{end}").chmod(0o600)
    named = (f"admin.certificate={tmp_path}/server.pem", f"admin.key={tmp_path}/server.key")
    with service(cluster, tmp_path / "service", *named) as addresses:
        port = int(addresses["admin"].rpartition(":")[2].strip("/"))

        def shown() -> bytes:
            return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE_S))

        before = shown()
        for end in ("pem", "key"):
            (tmp_path / f"server.{end}").write_bytes((tmp_path / f"admin.{end}").read_bytes())
        assert shown() == before
        os.kill(int(addresses["pid"]), signal.SIGHUP)
        cluster.wait_for(lambda: shown() != before, "taken up")


def test_start_without_possible_login_fails(cluster: LocalCluster, tmp_path: Path) -> None:
    """On a non-loopback address, without a token and a client authority, the start fails with one line."""
    config = cluster.data / "admin" / "admin.toml"
    words = ("admin", "--config", str(config), *settings(cluster, tmp_path, "admin.bind=0.0.0.0"))
    refused = cluster.command(*words)
    assert refused.returncode != 0 and "nobody could log in" in refused.stderr, refused.stderr
    assert "stratamq token create" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
